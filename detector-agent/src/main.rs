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
    let format = match &cli.command {
        Command::Run(args) => Some(args.common.log.log_format),
        Command::Check(args) => Some(args.common.log.log_format),
        Command::Explain(args) => Some(args.common.log.log_format),
        Command::Cleanup(args) => Some(args.log.log_format),
        // Log lines would overwrite the table.
        Command::Watch(_) | Command::Completions(_) | Command::Man(_) | Command::Version => None,
    };
    let kernel_log = matches!(&cli.command, Command::Run(args) if args.kernel_log);
    let _log_guard = format.map(|format| logging::start(format, kernel_log));
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
