//! Starting other programs, with errors that name the command and how it ended.

use std::{
    ffi::OsStr,
    fs, io,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nix::{
    sys::{
        prctl::set_child_subreaper,
        signal::{Signal, kill},
    },
    unistd::Pid,
};

/// The command as a person would type it, without its environment.
pub(crate) fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program()];
    words.extend(command.get_args());
    words
        .into_iter()
        .map(|word| quoted(&word.to_string_lossy()))
        .collect::<Vec<_>>()
        .join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Runs to the end with this process's input and output.
///
/// # Errors
/// The program could not be started, or did not exit with 0.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| not_started(command.get_program()))?;
    succeeded(command, status)
}

/// As [`run`], but at a deadline it is killed with everything that it started.
///
/// # Errors
/// As [`run`], and where the deadline passed.
pub(crate) fn run_for(command: &mut Command, deadline: Duration) -> Result<()> {
    let mut child = command
        .spawn()
        .with_context(|| not_started(command.get_program()))?;
    let until = Instant::now() + deadline;
    loop {
        if let Some(status) = child.try_wait().context("waiting for a program")? {
            return succeeded(command, status);
        }
        if Instant::now() >= until {
            kill_tree(child.id());
            child.wait().context("waiting for a program")?;
            bail!(
                "`{}` was ended: it took longer than {deadline:?}",
                shown(command)
            );
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Lets what a program that is killed leaves behind become children of this process, for [`kill_children`].
pub(crate) fn adopt_orphans() -> Result<()> {
    set_child_subreaper(true).context("becoming the parent of orphans")
}

/// Kills every child of this process with all its descendants.
pub(crate) fn kill_children() {
    for child in children(std::process::id()) {
        kill_tree(child);
    }
}

/// Kills a child of this process and all its descendants, children last, so that none can start another one meanwhile.
fn kill_tree(root: u32) {
    let mut found = vec![root];
    let mut looked_at = 0;
    while let Some(&parent) = found.get(looked_at) {
        looked_at += 1;
        // It stands still while its children are looked for.
        signal(parent, Signal::SIGSTOP);
        found.extend(children(parent));
    }
    for pid in found {
        signal(pid, Signal::SIGKILL);
    }
}

fn children(parent: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{parent}/task"));
    let mut found = Vec::new();
    for thread in threads.into_iter().flatten().flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        found.extend(
            children
                .split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
    }
    found
}

fn signal(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Runs to the end and returns what it printed; its errors go to this process's stderr.
///
/// # Errors
/// The program could not be started, did not exit with 0, or printed no UTF-8.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| not_started(command.get_program()))?;
    succeeded(command, output.status)?;
    String::from_utf8(output.stdout)
        .with_context(|| format!("`{}` did not print UTF-8", shown(command)))
}

/// Runs to the end and returns what it printed, or nothing when it could not run or failed.
pub(crate) fn probe(command: &mut Command) -> Option<String> {
    let output: io::Result<_> = command.stderr(Stdio::null()).output();
    let output = output.ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}

fn not_started(program: &OsStr) -> String {
    format!("could not start `{}`", program.to_string_lossy())
}

fn succeeded(command: &Command, status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("`{}` failed ({status})", shown(command));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn shown_command_can_be_pasted_into_a_shell() {
        let mut command = Command::new("echo");
        command.args(["--plain=1", "two words", "it's", ""]);
        assert_eq!(shown(&command), r"echo --plain=1 'two words' 'it'\''s' ''");
    }

    #[test]
    fn failing_command_is_named_with_its_exit_status() {
        let error = run(&mut Command::new("false")).unwrap_err();
        assert_eq!(error.to_string(), "`false` failed (exit status: 1)");
    }

    #[test]
    fn at_its_deadline_a_program_is_killed_with_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let error = run_for(
            Command::new("sh").args(["-c", &script]),
            Duration::from_millis(500),
        )
        .unwrap_err();
        assert!(error.to_string().contains("took longer"), "{error}");
        let pid = fs::read_to_string(&file).unwrap();
        let status = || fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        let until = Instant::now() + Duration::from_secs(10);
        // Gone, or dead and waited for by nobody.
        while status().is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(Instant::now() < until, "{pid} still runs");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn missing_program_is_named() {
        let error = run(&mut Command::new("/nonexistent/tool")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "could not start `/nonexistent/tool`".to_owned()
        );
    }
}
