//! `bench`: how long the agent takes to name a conflict, to tell it and to name the pods in it, what a flood from one pod
//! costs it, and what the kernel program costs a packet.

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

/// Arguments of `bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure; without it all, one after the other
    #[arg(long, value_enum)]
    only: Option<Bench>,
    /// Passed on to the bench, as `--only latency --conflicts 1000`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, requires = "only")]
    bench: Vec<String>,
}

/// The benches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Bench {
    /// Detection latency of an idle agent
    Latency,
    /// From a raised conflict to its event line and its webhook request
    Report,
    /// Naming all pods of a node at start; latency with a container runtime that hangs and without
    Identify,
    /// Memory, processor time and latency while one pod floods
    Flood,
    /// What the kernel program costs a packet
    PacketCost,
}

/// Builds agent and benches, all optimised, and runs them.
///
/// # Errors
/// Not root, a build failed, or a bench did.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if !Host::inspect().root {
        bail!("the benches make network namespaces and load kernel programs: run them as root");
    }
    // Pods are made with a real runtime.
    let groups: &[Group] = match args.only {
        None | Some(Bench::Identify) => &[Group::Build, Group::Demo, Group::Test],
        Some(_) => &[Group::Build, Group::Demo],
    };
    setup::ensure(workspace, groups)?;
    let all = [
        Bench::Latency,
        Bench::Report,
        Bench::Identify,
        Bench::Flood,
        Bench::PacketCost,
    ];
    for bench in all {
        if args.only.is_some_and(|only| only != bench) {
            continue;
        }
        match bench {
            Bench::Latency => of_agent(workspace, "bench_latency", &args.bench)?,
            Bench::Report => of_agent(workspace, "bench_report", &args.bench)?,
            Bench::Identify => of_agent(workspace, "bench_identify", &args.bench)?,
            Bench::Flood => of_agent(workspace, "bench_flood", &args.bench)?,
            Bench::PacketCost => packet_cost(workspace, &args.bench)?,
        }
    }
    Ok(())
}

/// Runs one of the test kit's benches, which start the agent themselves.
fn of_agent(workspace: &Workspace, bench: &str, args: &[String]) -> Result<()> {
    let agent = build::agent(workspace, Profile::Release)?;
    let mut command = workspace.cargo();
    command
        .args(["run", "--quiet", "--release"])
        .args(["--package", "detector-testkit", "--bin", bench])
        .args(["--", "--agent"])
        .arg(agent);
    process::run(command.args(args))
}

fn packet_cost(workspace: &Workspace, args: &[String]) -> Result<()> {
    let object = ebpf::build(workspace)?;
    let mut command = workspace.cargo();
    command
        .args(["bench", "--package", AGENT, "--bench", "packet_cost"])
        .args(["--features", "privileged-tests", "--"])
        .env(OBJECT_VARIABLE, object);
    process::run(command.args(args))
}
