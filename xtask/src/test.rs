//! `test`: all tests, including the privileged ones, with the eBPF programs embedded in the agent.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::{
    build::{self, AGENT_BINARY, PLUGIN_BINARY, Profile},
    files, host, process, setup, suite, vm,
    workspace::{OBJECT_VARIABLE, Workspace},
};

/// The features that enable tests which need root and network namespaces.
pub(crate) const PRIVILEGED_FEATURES: &str = "detector-agent/privileged-tests,detector-fuzz/privileged-tests,\
     detector-testkit/privileged-tests,kubectl-ipconflict/privileged-tests,xtask/privileged-tests";

/// The binary of the tests in a cluster, which others do not include.
pub(crate) const CLUSTER_TESTS: &str = "cluster";

/// Arguments of `test`.
#[derive(clap::Args)]
pub(crate) struct TestOptions {
    /// Random sequences for each model test; default 2,000; 200,000 take about an hour
    #[arg(long, value_name = "N")]
    model_sequences: Option<u32>,
    /// Test in virtual machines with other kernels: `core` (minutes) or `full`
    #[arg(long, value_enum, value_name = "SUITE", num_args = 0..=1, default_missing_value = "full")]
    vm: Option<vm::Suite>,
    /// With --vm: only this kernel series, for example `6.1`; repeatable
    #[arg(long, requires = "vm", value_name = "SERIES")]
    kernel: Vec<String>,
    /// Test the chart and the agent in a real Kubernetes cluster on this machine
    #[arg(long, conflicts_with = "vm")]
    cluster: bool,
    /// With --cluster: test the image in this OCI archive, for example that of `cargo xtask release`, instead of one with the
    /// unoptimised agent of the tests
    #[arg(long, requires = "cluster", value_name = "FILE")]
    image: Option<PathBuf>,
    /// With --cluster: the image of the previous version, which the agent is rolled back to; without it, that of this version
    #[arg(long, requires = "cluster", value_name = "FILE")]
    previous_image: Option<PathBuf>,
    /// Arguments for `cargo test`: a filter, then after another `--` those of the test harness
    #[arg(last = true)]
    cargo_args: Vec<String>,
}

/// Selects the packages and features of the tests. Builds with other ones compile many dependencies again.
pub(crate) fn select_packages(command: &mut Command) -> &mut Command {
    command
        .args(["--workspace", "--exclude", "detector-ebpf"])
        .args(["--features", PRIVILEGED_FEATURES])
}

/// Installs what is missing, builds the eBPF programs and runs the tests.
///
/// # Errors
/// The user is not root, a build failed, or a test failed.
pub(crate) fn run(workspace: &Workspace, options: &TestOptions) -> Result<()> {
    if let Some(suite) = options.vm {
        return vm::run(workspace, suite, &options.kernel);
    }
    host::require_root(
        "the tests create network namespaces and load eBPF programs \
         (`cargo test` runs those that need no privileges)",
    )?;
    let mut groups = vec![setup::BUILD, setup::TEST];
    if options.cluster {
        groups.push(setup::CLUSTER);
    }
    setup::ensure(workspace, &groups)?;
    // A test may run the program of another package; cargo builds those of its own.
    let programs = [AGENT_BINARY, PLUGIN_BINARY];
    let object = build::binaries(workspace, Profile::Debug, &programs)?;
    let sequences = options
        .model_sequences
        .map(|n| ("MODEL_SEQUENCES", n.to_string()));
    if !options.cluster && options.cargo_args.is_empty() {
        return suite::run(workspace, &object, sequences.as_slice());
    }
    let mut images = Vec::new();
    for (variable, image) in [
        ("CLUSTER_IMAGE", &options.image),
        ("CLUSTER_PREVIOUS_IMAGE", &options.previous_image),
    ] {
        if let Some(image) = image {
            // Cargo runs a test in the directory of its package.
            images.push((variable, files::absolute(image)?));
        }
    }
    let mut command = workspace.cargo();
    process::run(
        select_packages(command.arg("test"))
            .envs(sequences)
            .envs(images)
            // Report the failures of all binaries, not only of the first.
            .arg("--no-fail-fast")
            // Not part of the tests that run without it. The same features, so that nothing is compiled again.
            .args(
                options
                    .cluster
                    .then_some(["--test", CLUSTER_TESTS])
                    .into_iter()
                    .flatten(),
            )
            .args(&options.cargo_args)
            .env(OBJECT_VARIABLE, object),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::fs;

    use super::*;

    #[test]
    fn tasks_are_built_with_the_features_of_the_tests() {
        let workspace = Workspace::locate().unwrap();
        let config = fs::read_to_string(workspace.root().join(".cargo/config.toml")).unwrap();
        assert!(config.contains(PRIVILEGED_FEATURES), "{config}");
    }
}
