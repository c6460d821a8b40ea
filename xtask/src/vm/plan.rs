//! What runs in a guest: privileged test binaries, built on the host and visible in the guest at the same paths.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::{Suite, kernel::GuestKernel};
use crate::{
    artifact::{Artifact, parse_artifacts},
    process, test,
    workspace::{OBJECT_VARIABLE, Workspace},
};

/// The binaries of [`Suite::Core`].
const CORE: [&str; 5] = [
    "ebpf_programs",
    "single_evidence",
    "lifecycle",
    "shutdown",
    GUEST_ONLY,
];

/// The binary that needs drivers which a host may lack; its target is left out of every other build.
pub(crate) const GUEST_ONLY: &str = "guest_networks";

/// Seconds after which one binary is killed. Emulation is about ten times slower than the host.
const BINARY_LIMIT: u32 = 1200;

/// A test, or an entire binary, that does not run in some guests.
struct Exclusion {
    binary: &'static str,
    /// `None` excludes the entire binary.
    test: Option<&'static str>,
    kernels: ExcludedKernels,
    reason: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExcludedKernels {
    All,
    WithoutTcx,
}

/// All exclusions; those that apply to a kernel are listed in its report.
const EXCLUSIONS: &[Exclusion] = &[
    Exclusion {
        binary: "deploy",
        test: None,
        kernels: ExcludedKernels::All,
        reason: "builds images and reads files; does not depend on the kernel",
    },
    needs_tcx("attaching::tcx_is_used_if_requested_and_removed_on_detach"),
    needs_tcx("attaching::tcx_is_used_first_if_others_use_it"),
    needs_tcx("attaching::only_leftovers_of_a_killed_agent_are_removed"),
    needs_tcx("attaching::attaching_again_moves_to_tcx_if_others_use_it"),
    needs_tcx("attaching::filter_of_priority_1_and_another_kind_is_avoided_by_tcx"),
    needs_tcx("attaching::filters_shared_with_other_devices_are_avoided_by_tcx"),
];

const fn needs_tcx(test: &'static str) -> Exclusion {
    Exclusion {
        binary: "ebpf_programs",
        test: Some(test),
        kernels: ExcludedKernels::WithoutTcx,
        reason: "needs TCX",
    }
}

impl Exclusion {
    fn applies_to(&self, kernel: GuestKernel) -> bool {
        match self.kernels {
            ExcludedKernels::All => true,
            ExcludedKernels::WithoutTcx => !kernel.has_tcx,
        }
    }
}

/// The test binaries of a suite and their environment.
#[derive(Debug)]
pub(super) struct TestPlan {
    pub(super) binaries: Vec<Artifact>,
    environment: Vec<(String, PathBuf)>,
}

impl TestPlan {
    /// Builds the suite's tests.
    ///
    /// # Errors
    /// The build failed.
    pub(super) fn build(workspace: &Workspace, suite: Suite, object: &Path) -> Result<Self> {
        let build = |targets: &[&str]| {
            let mut command = workspace.cargo();
            test::select_packages(command.arg("test"))
                .args(["--no-run", "--message-format=json-render-diagnostics"])
                .args(targets)
                .env(OBJECT_VARIABLE, object);
            process::output(&mut command)
        };
        let messages = match suite {
            Suite::Core => build(&CORE.map(|binary| ["--test", binary]).concat())?,
            Suite::Full => build(&[])? + &build(&["--test", GUEST_ONLY])?,
        };
        let mut binaries = integration_tests(&messages);
        binaries.retain(|binary| !is_excluded_everywhere(&binary.name));
        Ok(Self {
            binaries,
            environment: vec![(OBJECT_VARIABLE.to_owned(), object.to_owned())],
        })
    }

    /// The plan in the format of `suite.sh`: one binary per line, fields separated by `|`.
    pub(super) fn text(&self, kernel: GuestKernel) -> Result<String> {
        let mut text = String::new();
        for (name, value) in &self.environment {
            writeln!(text, "env|{name}={}", value.display()).context("could not write the plan")?;
        }
        for binary in &self.binaries {
            let mut arguments = String::from("--test-threads=2");
            for test in excluded_tests(&binary.name, kernel) {
                write!(arguments, " --skip {test}").context("could not write the plan")?;
            }
            writeln!(
                text,
                "{}|{}|{BINARY_LIMIT}|{}|{arguments}",
                binary.name,
                binary.package_dir.display(),
                binary.executable.display()
            )
            .context("could not write the plan")?;
        }
        Ok(text)
    }

    /// The exclusions that apply to a kernel, each with its reason, for the report.
    pub(super) fn exclusions(&self, kernel: GuestKernel) -> Vec<String> {
        EXCLUSIONS
            .iter()
            .filter(|exclusion| exclusion.applies_to(kernel))
            .map(
                |Exclusion {
                     binary,
                     test,
                     reason,
                     ..
                 }| match test {
                    Some(test) => format!("{binary}::{test}: {reason}"),
                    None => format!("{binary}: {reason}"),
                },
            )
            .collect()
    }
}

fn is_excluded_everywhere(binary: &str) -> bool {
    EXCLUSIONS.iter().any(|exclusion| {
        exclusion.binary == binary
            && exclusion.test.is_none()
            && exclusion.kernels == ExcludedKernels::All
    })
}

fn excluded_tests(binary: &str, kernel: GuestKernel) -> impl Iterator<Item = &'static str> {
    EXCLUSIONS
        .iter()
        .filter(move |exclusion| exclusion.binary == binary && exclusion.applies_to(kernel))
        .filter_map(|exclusion| exclusion.test)
}

/// The integration tests in cargo's messages; unit tests do not depend on the kernel.
fn integration_tests(messages: &str) -> Vec<Artifact> {
    let mut binaries = parse_artifacts(messages);
    binaries.retain(|artifact| artifact.is_integration_test);
    binaries.sort_by(|a, b| a.name.cmp(&b.name));
    binaries
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::fs;

    use super::*;

    #[test]
    fn only_integration_tests_are_selected() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","manifest_path":"/c/Cargo.toml","profile":{"test":true},"target":{"kind":["test"],"name":"t"},"executable":"/t/t-1"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/c/Cargo.toml","profile":{"test":true},"target":{"kind":["lib"],"name":"c"},"executable":"/t/c-1"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        let names: Vec<_> = integration_tests(messages)
            .into_iter()
            .map(|b| b.name)
            .collect();
        assert_eq!(names, ["t"]);
    }

    /// `--skip` ignores unknown names, so a renamed test would silently run (and fail) in the guest.
    #[test]
    fn named_binaries_and_tests_exist() {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../detector-agent/tests");
        for binary in CORE.into_iter().chain(EXCLUSIONS.iter().map(|e| e.binary)) {
            let is_file = tests.join(format!("{binary}.rs")).exists();
            assert!(is_file || tests.join(binary).is_dir(), "{binary}");
        }
        for Exclusion { binary, test, .. } in EXCLUSIONS {
            let Some((module, function)) = test.and_then(|test| test.rsplit_once("::")) else {
                continue;
            };
            let module = module.replace("::", "/");
            let source = tests.join(binary).join(format!("{module}.rs"));
            let source = fs::read_to_string(source).unwrap();
            assert!(source.contains(&format!("fn {function}(")), "{function}");
        }
    }
}
