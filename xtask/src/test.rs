//! `test`: every test there is, the privileged ones included, against an agent with its kernel programs.

use anyhow::{Result, bail};

use crate::{
    ebpf,
    host::Host,
    process,
    requirements::Group,
    setup, vm,
    workspace::{OBJECT_VARIABLE, Workspace},
};

/// The features that gate tests which need root and network namespaces.
pub(crate) const PRIVILEGED_FEATURES: &str = "detector-agent/privileged-tests,detector-fuzz/privileged-tests,\
     detector-testkit/privileged-tests,xtask/privileged-tests";

/// Arguments of `test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Random sequences of the engine's model test; 2,000 where not given, 200,000 take some ten minutes
    #[arg(long, value_name = "N")]
    model_sequences: Option<u32>,
    /// In virtual machines with other kernels instead of on this one: `core` (minutes) or `full`
    #[arg(long, value_enum, value_name = "SUITE", num_args = 0..=1, default_missing_value = "full")]
    vm: Option<vm::Suite>,
    /// Only the kernel of this series, as `6.1`; repeatable
    #[arg(long, requires = "vm", value_name = "SERIES")]
    kernel: Vec<String>,
    /// Passed on to `cargo test`: a filter, then after a second `--` what the test harness takes
    #[arg(last = true)]
    cargo: Vec<String>,
}

/// Sets up, builds the kernel programs and runs the tests.
///
/// # Errors
/// Not root, a build failed, or a test did.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if let Some(suite) = args.vm {
        return vm::run(workspace, suite, &args.kernel);
    }
    if !Host::inspect().root {
        bail!(
            "the tests load kernel programs into network namespaces of their own, which needs root; \
             `cargo test` runs those that do not"
        );
    }
    setup::ensure(workspace, &[Group::Build, Group::Demo, Group::Test])?;
    let object = ebpf::build(workspace)?;
    let sequences = args
        .model_sequences
        .map(|n| ("MODEL_SEQUENCES", n.to_string()));
    process::run(
        workspace
            .cargo()
            .envs(sequences)
            .args(["test", "--workspace", "--exclude", "detector-ebpf"])
            // One run shows every test that fails, not only the first binary with one.
            .arg("--no-fail-fast")
            .args(["--features", PRIVILEGED_FEATURES])
            .args(&args.cargo)
            .env(OBJECT_VARIABLE, object),
    )
}
