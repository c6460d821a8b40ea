//! The `kubectl-ipconflict` binary, which kubectl runs as `kubectl ipconflict`.

use std::process::ExitCode;

use clap::Parser as _;
use detector_client::name_service;
use kubectl_ipconflict::args::Cli;

/// Exit code for an inconclusive result and for every failure.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    name_service::use_built_in_modules();
    // Includes --help and --version, which clap prints to stdout with exit code 0; its own errors have exit code 2.
    let cli = Cli::parse();
    match kubectl_ipconflict::run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("kubectl ipconflict: {error}");
            ExitCode::from(FAILED)
        }
    }
}
