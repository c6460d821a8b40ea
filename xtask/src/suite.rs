//! The whole suite: every test binary, several at a time, because most of them mostly wait.
//!
//! Cargo runs them one after the other. Tests of different binaries are as independent as those of one binary, which the test
//! harness runs side by side: what they create on the machine has unique names.

use std::{
    io::{self, Seek as _, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    artifact::{Artifact, parse_artifacts},
    process,
    test::select_packages,
    workspace::{OBJECT_VARIABLE, Workspace},
};

/// How many run at the same time.
const SIMULTANEOUS: usize = 3;

/// The binaries that take longest, which start first, so that none of them is left at the end.
const LONGEST: [&str; 11] = [
    "deploy",
    "hostile",
    "report",
    "trust",
    "http",
    "pods",
    "ipam",
    "detector_agent",
    "gateway_unresolved",
    "layouts",
    "traffic_receiver",
];

/// Tests by binary and part of the path that need the processors for themselves, because they measure a time or flood an agent:
/// they run last, one binary at a time.
const ALONE: [(&str, &[&str]); 2] = [
    ("hostile", &["budget::", "connections::", "exhaustion::"]),
    (
        "report",
        &["raise_to_request_takes_milliseconds_with_fsync"],
    ),
];

/// Builds the tests and runs all of them, each binary in the directory of its package, as cargo does, with these variables.
/// Prints the output of each binary as a whole when it ends.
///
/// # Errors
/// A build or a test failed; all others were run nevertheless.
pub(crate) fn run(
    workspace: &Workspace,
    object: &Path,
    variables: &[(&str, String)],
) -> Result<()> {
    let mut build = workspace.cargo();
    select_packages(build.arg("test"))
        .args(["--no-run", "--message-format=json-render-diagnostics"])
        .env(OBJECT_VARIABLE, object);
    let mut binaries = parse_artifacts(&process::output(&mut build)?);
    binaries.retain(|binary| binary.is_test);
    binaries.sort_by_key(|binary| {
        LONGEST
            .iter()
            .position(|name| *name == binary.name)
            .unwrap_or(LONGEST.len())
    });
    let command = |binary: &Artifact| {
        let mut command = workspace.program(&binary.executable);
        command
            .current_dir(&binary.package_dir)
            .env("CARGO_MANIFEST_DIR", &binary.package_dir)
            .env(OBJECT_VARIABLE, object)
            .envs(variables.iter().map(|(name, value)| (name, value)));
        command
    };
    let queue = Mutex::new(binaries.iter());
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..SIMULTANEOUS {
            scope.spawn(|| {
                // The queue is not locked while the binary runs.
                while let Some(binary) = { lock(&queue).next() } {
                    let skipped = alone(&binary.name).iter().flat_map(|test| ["--skip", test]);
                    let done = run_binary(&binary.name, command(binary).args(skipped));
                    lock(&failures).extend(done.err());
                }
            });
        }
    });
    for binary in &binaries {
        let tests = alone(&binary.name);
        if !tests.is_empty() {
            let done = run_binary(&binary.name, command(binary).args(tests));
            lock(&failures).extend(done.err());
        }
    }
    // The examples in documentation.
    let mut examples = workspace.cargo();
    select_packages(examples.args(["test", "--doc", "--no-fail-fast"]))
        .env(OBJECT_VARIABLE, object);
    lock(&failures).extend(process::run(&mut examples).err());
    let failures: Vec<_> = lock(&failures)
        .iter()
        .map(|error| format!("{error:#}"))
        .collect();
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// The tests of a binary that run alone, as filters of the test harness.
fn alone(binary: &str) -> &'static [&'static str] {
    ALONE
        .into_iter()
        .find(|(name, _)| *name == binary)
        .map_or(&[], |(_, tests)| tests)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test binary and prints its output.
///
/// # Errors
/// It could not be run, or a test failed.
fn run_binary(name: &str, command: &mut Command) -> Result<()> {
    let mut output = tempfile::tempfile().context("could not create a file")?;
    let stream = || {
        output
            .try_clone()
            .context("could not clone a file descriptor")
    };
    command
        .stdin(Stdio::null())
        .stdout(stream()?)
        .stderr(stream()?);
    let began = Instant::now();
    let status = command.status();
    output.rewind().context("could not rewind a file")?;
    let mut stdout = io::stdout().lock();
    let line = process::command_line(command);
    writeln!(stdout, "\n{name}, {} s: {line}", began.elapsed().as_secs())
        .and_then(|()| io::copy(&mut output, &mut stdout))
        .context("could not write to stdout")?;
    let status = status.with_context(|| format!("could not start `{line}`"))?;
    ensure!(status.success(), "{name}: `{line}` failed ({status})");
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn binary_whose_tests_fail_is_named() {
        run_binary("passes", &mut Command::new("true")).unwrap();
        let error = run_binary("fails", Command::new("false").arg("x")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "fails: `false x` failed (exit status: 1)"
        );
    }

    /// Both harness options ignore unknown names, so a renamed test would run among the others, and none alone.
    #[test]
    fn tests_that_run_alone_exist() {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../detector-agent/tests");
        for (binary, names) in ALONE {
            for name in names {
                let listed = process::output(
                    Command::new("grep")
                        .args(["--recursive", "--word-regexp"])
                        .arg(name.trim_end_matches("::"))
                        .arg(tests.join(binary)),
                );
                assert!(!listed.unwrap().is_empty(), "{binary} {name}");
            }
        }
    }
}
