//! `bench`: how long the agent takes to name a conflict, and what the kernel program costs a packet.

use anyhow::{Result, bail};

use crate::{
    build::{self, AGENT, Profile},
    ebpf,
    host::Host,
    process,
    requirements::Group,
    setup,
    workspace::{OBJECT_VARIABLE, Workspace},
};

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Subject {
    /// Many conflicts one after another: how fast each is named
    Latency,
    /// What the kernel program costs a packet
    PacketCost,
}

/// Arguments of `bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure; everything without it
    #[arg(value_enum)]
    subject: Option<Subject>,
    /// Passed on to the bench, as `latency -- --conflicts 1000`
    #[arg(last = true, requires = "subject")]
    bench: Vec<String>,
}

/// Measures one or all, with everything optimised.
///
/// # Errors
/// Not root, a build failed, or a bench did.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if !Host::inspect().root {
        bail!("the benches make network namespaces and load kernel programs: run them as root");
    }
    setup::ensure(workspace, &[Group::Build, Group::Demo])?;
    let wanted = |subject| args.subject.is_none_or(|only| only == subject);
    if wanted(Subject::Latency) {
        latency(workspace, &args.bench)?;
    }
    if wanted(Subject::PacketCost) {
        packet_cost(workspace, &args.bench)?;
    }
    Ok(())
}

fn latency(workspace: &Workspace, args: &[String]) -> Result<()> {
    let agent = build::agent(workspace, Profile::Release)?;
    let mut bench = workspace.cargo();
    bench
        .args(["run", "--quiet", "--release"])
        .args(["--package", "detector-testkit", "--bin", "bench_latency"])
        .args(["--", "--agent"])
        .arg(agent);
    process::run(bench.args(args))
}

fn packet_cost(workspace: &Workspace, args: &[String]) -> Result<()> {
    let object = ebpf::build(workspace)?;
    let mut bench = workspace.cargo();
    bench
        .args(["bench", "--package", AGENT, "--bench", "packet_cost"])
        .args(["--features", "privileged-tests", "--"])
        .env(OBJECT_VARIABLE, object);
    process::run(bench.args(args))
}
