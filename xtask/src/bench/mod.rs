//! `bench`: every figure that the project promises, measured, in one table and in `docs/benchmarks.md`.
//!
//! Each bench is a process with a deadline of its own: one that fails or hangs is a line in the table, and the others still run.

mod document;
mod machine;
mod table;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use detector_bench::{Figure, figure::FIGURES_VARIABLE};

use crate::{
    build::{self, AGENT, Profile},
    ebpf,
    host::Host,
    process,
    requirements::Group,
    say::say,
    setup,
    workspace::{OBJECT_VARIABLE, Workspace},
};

use machine::Machine;

/// Arguments of `bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure; without it all, one after the other
    #[arg(long, value_enum)]
    only: Option<Bench>,
    /// Fewer repetitions: the shape of the table in less than five minutes; docs/benchmarks.md stays as it is
    #[arg(long)]
    quick: bool,
    /// Measure this agent instead of building one; the kernel program's cost, which takes a build, is then left out
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// Passed on to the bench, as `--only latency --conflicts 1000`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, requires = "only")]
    bench: Vec<String>,
}

/// The benches, in the order they run: what is disturbed most by others' remains comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Bench {
    /// What the kernel program costs a packet
    PacketCost,
    /// Detection latency of an idle agent
    Latency,
    /// From a raised conflict to its event line and its webhook request
    Report,
    /// Detection latency with 250 pods and an ARP storm
    Storm,
    /// The same conflicts for the agent and for Debian's programs
    Peers,
    /// TCP and UDP between two pods with and without the agent
    Path,
    /// A CNI ADD with and without the agent
    Cni,
    /// Claims a second before the first is lost
    Throughput,
    /// Memory, processor time and latency while one pod floods
    Flood,
    /// Naming all pods of a node at start; latency with a container runtime that hangs and without
    Identify,
    /// Memory, start to ready and idle processor time by the number of pods
    Scale,
}

impl Bench {
    const ALL: [Self; 11] = [
        Self::PacketCost,
        Self::Latency,
        Self::Report,
        Self::Storm,
        Self::Peers,
        Self::Path,
        Self::Cni,
        Self::Throughput,
        Self::Flood,
        Self::Identify,
        Self::Scale,
    ];

    /// As on the command line.
    fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self)
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    /// Longest that it may run: about three times what it takes on a quiet machine with two processors.
    fn deadline(self, quick: bool) -> Duration {
        let (full, short) = match self {
            Self::PacketCost => (60, 60),
            Self::Latency => (90, 40),
            Self::Report => (60, 30),
            Self::Storm => (90, 40),
            Self::Peers => (90, 50),
            Self::Path => (150, 50),
            Self::Cni => (100, 40),
            Self::Throughput => (90, 45),
            Self::Flood => (60, 30),
            Self::Identify => (150, 60),
            Self::Scale => (260, 90),
        };
        Duration::from_secs(if quick { short } else { full })
    }
}

/// Builds agent and benches, all optimised, and runs them.
///
/// # Errors
/// Not root, a build failed, a bench did, or a result could not be written. A goal that was missed is none.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if !Host::inspect().root {
        bail!("the benches make network namespaces and load kernel programs: run them as root");
    }
    setup::ensure(workspace, &[Group::Build, Group::Demo])?;
    if let Err(error) = setup::ensure(workspace, &[Group::Bench]) {
        // What needs it is reported as absent or failed, and everything else is measured.
        eprintln!("bench: {error:#}");
    }
    let programs = Programs::build(workspace, args)?;
    let machine = Machine::inspect()?;
    let begun = Instant::now();
    let folder = workspace.target().join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let collected = folder.join("figures.jsonl");
    if let Err(error) = fs::remove_file(&collected)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error).with_context(|| format!("removing {}", collected.display()));
    }
    process::adopt_orphans()?;
    let mut failed = Vec::new();
    for bench in Bench::ALL {
        if args.only.is_some_and(|only| only != bench) {
            continue;
        }
        eprintln!("bench: {}", bench.name());
        let Some(mut command) = programs.command(bench, args) else {
            continue;
        };
        command.env(FIGURES_VARIABLE, &collected);
        let outcome = process::run_for(&mut command, bench.deadline(args.quick));
        if let Err(error) = outcome {
            eprintln!("bench: {} failed: {error:#}", bench.name());
            // A container runtime's shims outlive it.
            process::kill_children();
            failed.push(Figure::absent("Failed", bench.name(), format!("{error:#}")));
        }
    }
    let mut figures = read(&collected)?;
    figures.extend(failed.iter().cloned());
    let tables = table::markdown(&figures);
    say(table::text(&figures))?;
    say(table::verdict(&figures))?;
    let run = document::Run {
        machine: &machine,
        load_after: machine::load()?,
        command: "cargo xtask bench",
        took: begun.elapsed(),
        verdict: table::verdict(&figures),
    };
    if args.only.is_none() && !args.quick {
        let path = workspace.root().join("docs/benchmarks.md");
        document::write(&path, &run, &tables)?;
        say(format_args!("written to {}", path.display()))?;
    }
    match failed.as_slice() {
        [] => Ok(()),
        _ => bail!("{} benches failed; the table says why", failed.len()),
    }
}

/// What is run.
struct Programs {
    agent: PathBuf,
    bench: PathBuf,
    packet_cost: Option<PathBuf>,
}

impl Programs {
    /// Builds before anything is measured, so that no deadline counts a compiler's time.
    fn build(workspace: &Workspace, args: &Args) -> Result<Self> {
        let agent = match &args.agent {
            Some(agent) => agent.clone(),
            None => build::agent(workspace, Profile::Release)?,
        };
        let mut bench = workspace.cargo();
        bench
            .args(["build", "--release", "--package", "detector-bench"])
            .args(["--bin", "bench"]);
        process::run(&mut bench)?;
        let packet_cost = match args.only {
            None | Some(Bench::PacketCost) if args.agent.is_none() => Some(packet_cost(workspace)?),
            _ => None,
        };
        Ok(Self {
            agent,
            bench: workspace.target().join("release/bench"),
            packet_cost,
        })
    }

    /// Nothing where it was not built.
    fn command(&self, bench: Bench, args: &Args) -> Option<Command> {
        if bench == Bench::PacketCost {
            return self.packet_cost.as_ref().map(Command::new);
        }
        let mut command = Command::new(&self.bench);
        command.arg("--agent").arg(&self.agent);
        if args.quick {
            command.arg("--quick");
        }
        command.arg(bench.name()).args(&args.bench);
        Some(command)
    }
}

/// Builds the bench that holds the agent's own loader; gives its path.
fn packet_cost(workspace: &Workspace) -> Result<PathBuf> {
    let object = ebpf::build(workspace)?;
    let mut command = workspace.cargo();
    command
        .args([
            "bench",
            "--no-run",
            "--package",
            AGENT,
            "--bench",
            "packet_cost",
        ])
        .args(["--features", "privileged-tests"])
        .args(["--message-format", "json-render-diagnostics"])
        .env(OBJECT_VARIABLE, object);
    executable(&process::output(&mut command)?, "packet_cost")
        .context("cargo did not say where it put the bench packet_cost")
}

/// The executable of a target in cargo's messages.
fn executable(messages: &str, target: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == target)
        .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
}

fn read(path: &Path) -> Result<Vec<Figure>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        text => text.with_context(|| format!("reading {}", path.display()))?,
    };
    text.lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("the figure {line}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Bench, executable};

    #[test]
    fn all_deadlines_together_end_within_half_an_hour() {
        let all = |quick| {
            Bench::ALL
                .into_iter()
                .map(|bench| bench.deadline(quick).as_secs())
                .sum::<u64>()
        };
        assert!(all(false) < 30 * 60, "{}", all(false));
        assert!(all(true) < 10 * 60, "{}", all(true));
    }

    #[test]
    fn the_executable_is_found_among_cargos_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"other\"},\"executable\":\"/a\"}\n\
            {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"packet_cost\"},\"executable\":\"/b\"}\n\
            {\"reason\":\"build-finished\",\"success\":true}";
        assert_eq!(executable(messages, "packet_cost"), Some("/b".into()));
        assert_eq!(executable(messages, "absent"), None);
    }
}
