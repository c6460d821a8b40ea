//! `bench`: measures every figure with a goal, prints tables and updates `docs/benchmarks.md`.
//!
//! Each benchmark is a separate process with a time limit: one that fails or hangs becomes a row in
//! the table "Failed", and the others still run.

mod document;
mod fleet;
mod machine;
mod table;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use detector_bench::{Figure, figure::FIGURES_VARIABLE};

use crate::{
    artifact::parse_artifacts,
    build::{self, AGENT, Profile},
    ebpf, files, host, process, setup,
    stdout::print_line,
    workspace::{OBJECT_VARIABLE, Workspace},
};

use machine::Machine;

/// Arguments of `bench`.
#[derive(clap::Args)]
pub(crate) struct BenchOptions {
    /// Run only this benchmark; default all
    #[arg(long, value_enum, group = "selected")]
    only: Option<Benchmark>,
    /// Measure instead an agent without and with the fleet, and what a fleet of 5,000 nodes costs a real API server; takes about
    /// 20 minutes and updates docs/scaling.md unless the benchmark gets arguments, such as `--fleet -- --local-only`
    #[arg(long, group = "selected", conflicts_with_all = ["quick", "agent"])]
    fleet: bool,
    /// With --fleet: use an unoptimised agent and client, without a rebuild after the tests
    #[arg(long, requires = "fleet")]
    debug: bool,
    /// Fewer repetitions: the tables in less than five minutes; does not update docs/benchmarks.md
    #[arg(long)]
    quick: bool,
    /// Measure this agent instead of building one; leaves out packet-cost, which needs a build
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// Arguments for the benchmark, for example `--only latency --conflicts 1000`
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        requires = "selected"
    )]
    bench_args: Vec<String>,
}

/// The benchmarks in the order they run: those most sensitive to leftovers of others come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Benchmark {
    /// Cost of a packet in the eBPF program
    PacketCost,
    /// Detection latency of an idle agent
    Latency,
    /// Latency from a raised conflict to its event line and its webhook request
    Report,
    /// Detection latency with 250 pods and an ARP storm
    Storm,
    /// The same conflicts for the agent and for other programs
    Peers,
    /// TCP and UDP between two pods without a program, with an empty one and with the agent's
    Path,
    /// A CNI ADD with and without the agent
    Cni,
    /// Claims per second before the first is lost
    Throughput,
    /// Memory, CPU time and latency while one pod floods
    Flood,
    /// Probes and latency while pods hold connections to the endpoints
    Endpoints,
    /// CPU time, memory, log and latency under each attack of one pod
    Attack,
    /// Time to look up all pods at start; latency with a hanging container runtime
    Identify,
    /// Memory, start time and idle CPU time by number of pods
    Scale,
}

impl Benchmark {
    const ALL: [Self; 13] = [
        Self::PacketCost,
        Self::Latency,
        Self::Report,
        Self::Storm,
        Self::Peers,
        Self::Path,
        Self::Cni,
        Self::Throughput,
        Self::Flood,
        Self::Endpoints,
        Self::Attack,
        Self::Identify,
        Self::Scale,
    ];

    /// Its name on the command line.
    fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self)
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    /// Time limit: about three times the duration on an idle machine with two cores.
    fn limit(self, quick: bool) -> Duration {
        let (full, short) = match self {
            Self::PacketCost => (60, 45),
            Self::Latency => (90, 40),
            Self::Report => (60, 30),
            Self::Storm => (90, 40),
            Self::Peers => (150, 55),
            Self::Path => (200, 50),
            Self::Cni => (260, 50),
            Self::Throughput => (90, 45),
            Self::Flood => (60, 30),
            Self::Endpoints => (120, 45),
            Self::Attack => (200, 75),
            Self::Identify => (150, 60),
            Self::Scale => (260, 90),
        };
        Duration::from_secs(if quick { short } else { full })
    }
}

/// Builds the agent and the benchmarks, optimised, and runs them.
///
/// # Errors
/// The user is not root, a build or a benchmark failed, or a result could not be written. A missed
/// goal is not an error.
pub(crate) fn run(workspace: &Workspace, options: &BenchOptions) -> Result<()> {
    host::require_root("the benchmarks create network namespaces and load eBPF programs")?;
    if options.fleet {
        return fleet::run(workspace, options);
    }
    setup::ensure(workspace, &[setup::BUILD])?;
    if let Err(error) = setup::ensure(workspace, &[setup::BENCH]) {
        // The benchmarks that need it report it; all others can still be measured.
        eprintln!("bench: {error:#}");
    }
    let binaries = BenchBinaries::build(workspace, options)?;
    let machine = Machine::inspect()?;
    let started = Instant::now();
    let (figures, failures) = measure(workspace, &binaries, options)?;
    let tables = table::markdown(&figures);
    print_line(table::text(&figures))?;
    print_line(table::verdict(&figures))?;
    let run = document::BenchmarkRun {
        machine: &machine,
        load_after: machine::load()?,
        command: "cargo xtask bench",
        duration: started.elapsed(),
        verdict: table::verdict(&figures),
    };
    if options.only.is_none() && !options.quick {
        let path = workspace.root().join("docs/benchmarks.md");
        document::update(&path, &run, &tables)?;
        print_line(format_args!("updated {}", path.display()))?;
    }
    match failures {
        0 => Ok(()),
        _ => bail!("{failures} benchmarks failed; the table lists the reasons"),
    }
}

/// Runs the selected benchmarks; returns their figures and how many benchmarks failed.
fn measure(
    workspace: &Workspace,
    binaries: &BenchBinaries,
    options: &BenchOptions,
) -> Result<(Vec<Figure>, usize)> {
    let dir = workspace.target().join("bench");
    files::create_dir(&dir)?;
    let output = dir.join("figures.jsonl");
    remove_old(&output)?;
    process::adopt_orphans()?;
    let mut failures = Vec::new();
    for benchmark in Benchmark::ALL {
        if options.only.is_some_and(|only| only != benchmark) {
            continue;
        }
        eprintln!("bench: {}", benchmark.name());
        let Some(mut command) = binaries.command(benchmark, options) else {
            continue;
        };
        command.env(FIGURES_VARIABLE, &output);
        let result = process::run_with_limit(&mut command, benchmark.limit(options.quick));
        if let Err(error) = result {
            eprintln!("bench: {} failed: {error:#}", benchmark.name());
            // The shims of a container runtime survive it.
            process::kill_children();
            failures.push(Figure::absent(
                "Failed",
                benchmark.name(),
                format!("{error:#}"),
            ));
        }
    }
    let mut figures = read_figures(&output)?;
    let failed = failures.len();
    figures.append(&mut failures);
    Ok((figures, failed))
}

/// The programs that measure and are measured.
struct BenchBinaries {
    agent: PathBuf,
    bench: PathBuf,
    /// Not built if it will not run.
    packet_cost: Option<PathBuf>,
    /// The object of the program that the agent's is compared with; not built if it is not needed.
    empty_program: Option<PathBuf>,
}

impl BenchBinaries {
    /// Builds everything up front, so that no time limit includes a build.
    fn build(workspace: &Workspace, options: &BenchOptions) -> Result<Self> {
        let agent = match &options.agent {
            Some(agent) => agent.clone(),
            None => build::agent(workspace, Profile::Release)?,
        };
        let mut bench = workspace.cargo();
        bench
            .args(["build", "--release", "--package", "detector-bench"])
            .args(["--bin", "bench"]);
        process::run(&mut bench)?;
        let packet_cost = match options.only {
            None | Some(Benchmark::PacketCost) if options.agent.is_none() => {
                Some(build_packet_cost(workspace)?)
            }
            _ => None,
        };
        let empty_program = match options.only {
            None | Some(Benchmark::Path) => Some(ebpf::build_empty(workspace)?),
            _ => None,
        };
        Ok(Self {
            agent,
            bench: workspace.target().join("release/bench"),
            packet_cost,
            empty_program,
        })
    }

    /// The command of a benchmark, or `None` if it was not built.
    fn command(&self, benchmark: Benchmark, options: &BenchOptions) -> Option<Command> {
        if benchmark == Benchmark::PacketCost {
            return self.packet_cost.as_ref().map(Command::new);
        }
        let mut command = Command::new(&self.bench);
        command.arg("--agent").arg(&self.agent);
        if options.quick {
            command.arg("--quick");
        }
        command.arg(benchmark.name());
        if let (Benchmark::Path, Some(object)) = (benchmark, &self.empty_program) {
            command.arg("--empty-program").arg(object);
        }
        command.args(&options.bench_args);
        Some(command)
    }
}

/// Builds the benchmark that is linked with the agent's eBPF loader; returns its path.
fn build_packet_cost(workspace: &Workspace) -> Result<PathBuf> {
    const NAME: &str = "packet_cost";
    let object = ebpf::build(workspace)?;
    let mut command = workspace.cargo();
    command
        .args(["bench", "--no-run", "--package", AGENT, "--bench", NAME])
        .args(["--features", "privileged-tests"])
        .args(["--message-format", "json-render-diagnostics"])
        .env(OBJECT_VARIABLE, object);
    parse_artifacts(&process::output(&mut command)?)
        .into_iter()
        .find(|artifact| artifact.name == NAME)
        .map(|artifact| artifact.executable)
        .with_context(|| format!("cargo did not report an executable for the bench {NAME}"))
}

/// Removes the figures of an earlier run.
fn remove_old(output: &Path) -> Result<()> {
    match fs::remove_file(output) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("could not remove {}", output.display()))
        }
        _ => Ok(()),
    }
}

fn read_figures(path: &Path) -> Result<Vec<Figure>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    files::read_text(path)?
        .lines()
        .map(|line| {
            serde_json::from_str(line).with_context(|| format!("could not parse figure {line}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::Benchmark;

    #[test]
    fn all_benchmarks_together_take_less_than_half_an_hour() {
        let total = |quick| {
            Benchmark::ALL
                .into_iter()
                .map(|benchmark| benchmark.limit(quick).as_secs())
                .sum::<u64>()
        };
        assert!(total(false) < 30 * 60, "{}", total(false));
        assert!(total(true) < 11 * 60, "{}", total(true));
    }
}
