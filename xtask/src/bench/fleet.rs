//! `bench --fleet`: what a fleet costs a real API server; updates `docs/scaling.md`.

use std::{process::Command, time::Instant};

use anyhow::Result;
use detector_bench::figure::FIGURES_VARIABLE;

use super::{BenchOptions, document, machine, machine::Machine, read_figures, remove_old, table};
use crate::{
    build::{self, AGENT_BINARY, Binary, Profile},
    files, process, setup,
    stdout::print_line,
    workspace::Workspace,
};

/// The program that measures.
const FLEET_SCALE: Binary = Binary {
    package: "detector-bench",
    name: "fleet_scale",
};

/// Builds the agent and the program, and runs it.
///
/// # Errors
/// A build failed, a server did not start, or a result could not be written.
pub(super) fn run(workspace: &Workspace, options: &BenchOptions) -> Result<()> {
    setup::ensure(workspace, &[setup::BUILD, setup::CLUSTER])?;
    let profile = Profile::from_debug_flag(options.debug);
    build::binaries(workspace, profile, &[AGENT_BINARY, FLEET_SCALE])?;
    let directory = workspace.target().join("bench");
    files::create_dir(&directory)?;
    let output = directory.join("fleet.jsonl");
    remove_old(&output)?;
    let machine = Machine::inspect()?;
    let started = Instant::now();
    let mut command = Command::new(FLEET_SCALE.path(workspace, profile));
    command
        .current_dir(workspace.root())
        .arg("--agent")
        .arg(AGENT_BINARY.path(workspace, profile))
        .arg("--tools")
        .arg(workspace.tools())
        .args(&options.bench_args)
        .env(FIGURES_VARIABLE, &output);
    process::run(&mut command)?;
    let figures = read_figures(&output)?;
    print_line(table::text(&figures))?;
    print_line(table::verdict(&figures))?;
    if options.bench_args.is_empty() {
        let run = document::BenchmarkRun {
            machine: &machine,
            load_after: machine::load()?,
            command: match profile {
                Profile::Debug => "cargo xtask bench --fleet --debug",
                Profile::Release => "cargo xtask bench --fleet",
            },
            duration: started.elapsed(),
            verdict: table::verdict(&figures),
        };
        let path = workspace.root().join("docs/scaling.md");
        document::update(&path, &run, &table::markdown(&figures))?;
        print_line(format_args!("updated {}", path.display()))?;
    }
    Ok(())
}
