//! What runs in a guest: the privileged test binaries, built here and found there by the same paths.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{Suite, kernel::Kernel};
use crate::{
    process,
    test::PRIVILEGED_FEATURES,
    workspace::{OBJECT_VARIABLE, Workspace},
};

/// Load, attach, detect, detach.
const CORE: [&str; 4] = ["ebpf_programs", "single_evidence", "lifecycle", "shutdown"];

/// Seconds after which one binary is ended. Emulation is some ten times slower than the machine.
const LIMIT: u32 = 1200;

/// Why something does not run in a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unless {
    /// Never, in none: what it tests is not the kernel.
    Never,
    /// Only where the kernel has TCX.
    Tcx,
}

/// What does not run: binary, test (all of them where empty), where it does, and why.
///
/// Each line is printed with the verdict, so that nothing is left out in silence.
const LEFT_OUT: &[(&str, &str, Unless, &str)] = &[
    (
        "deploy",
        "",
        Unless::Never,
        "builds images and reads files; the kernel is the same to it",
    ),
    (
        "ebpf_programs",
        "attaching::tcx_is_used_when_asked_for_and_vanishes_with_the_programs",
        Unless::Tcx,
        "needs TCX",
    ),
    (
        "ebpf_programs",
        "attaching::where_somebody_stands_on_tcx_ours_comes_first_in_line",
        Unless::Tcx,
        "needs TCX",
    ),
    (
        "ebpf_programs",
        "attaching::leftovers_of_a_killed_agent_are_removed_and_nothing_else",
        Unless::Tcx,
        "needs TCX, where it puts somebody else's program",
    ),
    (
        "ebpf_programs",
        "attaching::attaching_again_moves_to_tcx_when_somebody_came_to_stand_there",
        Unless::Tcx,
        "needs TCX",
    ),
];

/// One test binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binary {
    pub(super) name: String,
    folder: PathBuf,
    program: PathBuf,
}

/// The binaries of a suite, and what they are told by the environment.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) binaries: Vec<Binary>,
    environment: Vec<(String, PathBuf)>,
}

impl Plan {
    /// Builds the suite's tests.
    ///
    /// # Errors
    /// They do not build.
    pub(super) fn build(workspace: &Workspace, suite: Suite, object: &Path) -> Result<Self> {
        let mut command = workspace.cargo();
        command
            .args(["test", "--workspace", "--exclude", "detector-ebpf"])
            .args(["--features", PRIVILEGED_FEATURES])
            .args(["--no-run", "--message-format=json-render-diagnostics"])
            .env(OBJECT_VARIABLE, object);
        let messages = process::output(&mut command)?;
        let mut binaries = binaries_in(&messages);
        if suite == Suite::Core {
            binaries.retain(|binary| CORE.contains(&binary.name.as_str()));
        }
        binaries.retain(|binary| !is_left_out_everywhere(&binary.name));
        Ok(Self {
            binaries,
            environment: vec![(OBJECT_VARIABLE.to_owned(), object.to_owned())],
        })
    }

    /// The plan as the guest reads it: a line for each binary, its fields divided by bars.
    pub(super) fn text(&self, kernel: Kernel) -> Result<String> {
        let mut text = String::new();
        for (name, value) in &self.environment {
            writeln!(text, "env|{name}={}", value.display()).context("could not write the plan")?;
        }
        for binary in &self.binaries {
            let mut arguments = String::from("--test-threads=2");
            for (_, test) in left_out_of(&binary.name, kernel) {
                write!(arguments, " --skip {test}").context("could not write the plan")?;
            }
            writeln!(
                text,
                "{}|{}|{LIMIT}|{}|{arguments}",
                binary.name,
                binary.folder.display(),
                binary.program.display()
            )
            .context("could not write the plan")?;
        }
        Ok(text)
    }

    /// What a kernel is not asked, as sentences.
    pub(super) fn left_out(&self, kernel: Kernel) -> Vec<String> {
        LEFT_OUT
            .iter()
            .filter(|(_, _, unless, _)| !runs(*unless, kernel))
            .map(|(binary, test, _, why)| {
                let divider = if test.is_empty() { "" } else { "::" };
                format!("{binary}{divider}{test}: {why}")
            })
            .collect()
    }
}

fn runs(unless: Unless, kernel: Kernel) -> bool {
    unless == Unless::Tcx && kernel.tcx
}

fn is_left_out_everywhere(binary: &str) -> bool {
    LEFT_OUT.iter().any(|(name, test, unless, _)| {
        *name == binary && test.is_empty() && *unless == Unless::Never
    })
}

fn left_out_of(binary: &str, kernel: Kernel) -> impl Iterator<Item = (&str, &'static str)> {
    LEFT_OUT
        .iter()
        .filter(move |(name, _, unless, _)| *name == binary && !runs(*unless, kernel))
        .map(|(name, test, _, _)| (*name, *test))
}

/// The integration tests among what cargo says it built; the libraries' own tests need no other kernel.
fn binaries_in(messages: &str) -> Vec<Binary> {
    let mut binaries: Vec<_> = messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter_map(|message: Value| {
            let target = &message["target"];
            let is_test = target["kind"].as_array()?.iter().any(|kind| kind == "test");
            let program = message["executable"].as_str()?;
            let manifest = Path::new(message["manifest_path"].as_str()?);
            is_test.then(|| Binary {
                name: target["name"].as_str().unwrap_or_default().to_owned(),
                folder: manifest.parent().unwrap_or(manifest).to_owned(),
                program: program.into(),
            })
        })
        .collect();
    binaries.sort_by(|a, b| a.name.cmp(&b.name));
    binaries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_integration_tests_are_taken_from_what_cargo_built() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","manifest_path":"/c/Cargo.toml","target":{"kind":["test"],"name":"t"},"executable":"/t/t-1"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/c/Cargo.toml","target":{"kind":["lib"],"name":"c"},"executable":"/t/c-1"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        let names: Vec<_> = binaries_in(messages).into_iter().map(|b| b.name).collect();
        assert_eq!(names, ["t"]);
    }
}
