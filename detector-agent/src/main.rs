//! The `detector-agent` binary: parse, start logging, do the command, say how it ended.

use std::process::ExitCode;

use detector_agent::{
    agent, check,
    cli::Command,
    config::{self, ConfigError},
    logging, observe,
};

/// "Could not tell", and every failure to start.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    let cli = match config::parse(std::env::args_os()) {
        Ok(cli) => cli,
        // Help and version are no failures; clap prints them where they belong.
        Err(ConfigError::CommandLine(e)) => e.exit(),
        Err(e) => return failed(&e),
    };
    let format = match &cli.command {
        Command::Run(args) => args.common.log_format,
        Command::Check(args) => args.common.log_format,
        Command::Cleanup(args) => args.log_format,
    };
    let _flushed_at_the_end = logging::start(format);
    match cli.command {
        Command::Run(args) => agent::run(&args).map_or_else(|e| failed(&e), |()| ExitCode::SUCCESS),
        Command::Check(args) => check::run(&args).map_or_else(|e| failed(&e), ExitCode::from),
        Command::Cleanup(_) => observe::ebpf::leftovers::remove().map_or_else(
            |e| failed(&e),
            |removed| {
                println!(
                    "removed the filters of an earlier agent from {} devices",
                    removed.len()
                );
                ExitCode::SUCCESS
            },
        ),
    }
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("detector-agent: {error}");
    ExitCode::from(FAILED)
}
