//! Shell completions and manual pages, for packages.

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
};

use clap::CommandFactory as _;

use crate::cli::{Cli, CompletionsArgs, ManArgs};

/// Why nothing, or not everything, was written.
#[derive(Debug, thiserror::Error)]
pub enum PackagingError {
    /// Standard output.
    #[error("cannot write to stdout: {0}")]
    Stdout(io::Error),
    /// The directory.
    #[error("cannot write manual pages into {path}: {source}")]
    Directory {
        /// Its path.
        path: String,
        /// The I/O error.
        source: io::Error,
    },
}

/// Writes the completions of a shell to stdout.
///
/// # Errors
/// Stdout cannot be written.
pub fn write_completions(args: &CompletionsArgs) -> Result<(), PackagingError> {
    let mut command = Cli::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    io::stdout()
        .write_all(&script)
        .map_err(PackagingError::Stdout)
}

/// Writes `detector-agent.1` and a page for each command, such as `detector-agent-run.1`.
///
/// # Errors
/// The directory cannot be created or written.
pub fn write_manual(args: &ManArgs) -> Result<(), PackagingError> {
    let write = |directory: &Path| {
        fs::create_dir_all(directory)?;
        clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), directory)
    };
    write(&args.directory).map_err(|source| PackagingError::Directory {
        path: args.directory.display().to_string(),
        source,
    })
}
