//! The `detector-agent` binary: parses the command line, starts logging and runs the command.

use std::process::ExitCode;

use detector_agent::process::logging;
use detector_agent::{
    agent, check, cleanup,
    cli::{Cli, Command},
    config::{self, ConfigError},
    explain, watch,
};
use detector_client::{name_service, packaging};
use detector_event::counted;

/// Exit code for an incomplete check and for every failure.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    name_service::use_built_in_modules();
    let cli = match config::parse(std::env::args_os()) {
        Ok(cli) => cli,
        // Includes --help and --version, which clap prints to stdout with exit code 0.
        Err(ConfigError::CommandLine(e)) => e.exit(),
        Err(e) => return failed(&e),
    };
    let common = cli.command.common();
    let format = match &cli.command {
        Command::Cleanup(args) => Some(args.log.log_format),
        // None for `watch`: log lines would overwrite the table.
        _ => common.map(|common| common.log.log_format),
    };
    if let Some(url) = common.and_then(|common| common.runbook_url.as_ref()) {
        url.set();
    }
    let kernel_log = matches!(&cli.command, Command::Run(args) if args.kernel_log);
    let _log_guard = format.map(|format| logging::start(format, kernel_log));
    if format.is_some() {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        for unknown in config::unknown_variables(names) {
            tracing::warn!("{unknown}");
        }
    }
    match cli.command {
        Command::Run(args) => agent::run(&args).map_or_else(|e| failed(&e), |()| ExitCode::SUCCESS),
        Command::Check(args) => check::run(&args).map_or_else(|e| failed(&e), ExitCode::from),
        Command::Explain(args) => explain::run(&args).map_or_else(|e| failed(&e), ExitCode::from),
        Command::Watch(args) => {
            watch::run(&args).map_or_else(|e| failed(&e), |()| ExitCode::SUCCESS)
        }
        Command::Completions(args) => packaging::write_completions::<Cli>(&args)
            .map_or_else(|e| failed(&e), |()| ExitCode::SUCCESS),
        Command::Man(args) => packaging::write_manual::<Cli>(&args)
            .map_or_else(|e| failed(&e), |()| ExitCode::SUCCESS),
        Command::Version => {
            println!("detector-agent {}", packaging::version());
            ExitCode::SUCCESS
        }
        Command::Cleanup(args) => cleanup::run(&args).map_or_else(
            |e| failed(&e),
            |devices| {
                let devices = counted(devices, "device", "devices");
                println!("removed the filters of an earlier agent from {devices}");
                ExitCode::SUCCESS
            },
        ),
    }
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("detector-agent: {error}");
    ExitCode::from(FAILED)
}
