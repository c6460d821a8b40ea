//! `test`: all tests, including the privileged ones, with the eBPF programs embedded in the agent.

use anyhow::Result;

use crate::{
    ebpf, host, process,
    requirements::Group,
    setup, vm,
    workspace::{OBJECT_VARIABLE, Workspace},
};

/// The features that enable tests which need root and network namespaces.
pub(crate) const PRIVILEGED_FEATURES: &str = "detector-agent/privileged-tests,detector-fuzz/privileged-tests,\
     detector-testkit/privileged-tests,xtask/privileged-tests";

/// Arguments of `test`.
#[derive(clap::Args)]
pub(crate) struct TestOptions {
    /// Random sequences for the engine's model test; default 2,000; 200,000 take about ten minutes
    #[arg(long, value_name = "N")]
    model_sequences: Option<u32>,
    /// Test in virtual machines with other kernels: `core` (minutes) or `full`
    #[arg(long, value_enum, value_name = "SUITE", num_args = 0..=1, default_missing_value = "full")]
    vm: Option<vm::Suite>,
    /// With --vm: only this kernel series, for example `6.1`; repeatable
    #[arg(long, requires = "vm", value_name = "SERIES")]
    kernel: Vec<String>,
    /// Arguments for `cargo test`: a filter, then after another `--` those of the test harness
    #[arg(last = true)]
    cargo_args: Vec<String>,
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
    setup::ensure(workspace, &[Group::Build, Group::Demo, Group::Test])?;
    let object = ebpf::build(workspace)?;
    let sequences = options
        .model_sequences
        .map(|n| ("MODEL_SEQUENCES", n.to_string()));
    process::run(
        workspace
            .cargo()
            .envs(sequences)
            .args(["test", "--workspace", "--exclude", "detector-ebpf"])
            // Report the failures of all binaries, not only of the first.
            .arg("--no-fail-fast")
            .args(["--features", PRIVILEGED_FEATURES])
            .args(&options.cargo_args)
            .env(OBJECT_VARIABLE, object),
    )
}
