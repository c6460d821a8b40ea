//! Shell completions and manual pages, for packages.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use clap::{Args, CommandFactory};

/// The arguments of `completions`.
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// The arguments of `man`.
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// The directory, which is created if it does not exist.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

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

/// Writes a shell's completions of the command line `C` to stdout.
///
/// # Errors
/// Stdout cannot be written.
pub fn write_completions<C: CommandFactory>(args: &CompletionsArgs) -> Result<(), PackagingError> {
    let mut command = C::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    io::stdout()
        .write_all(&script)
        .map_err(PackagingError::Stdout)
}

/// Writes a manual page of the command line `C` and one for each of its commands, such as `detector-agent-run.1`.
///
/// # Errors
/// The directory cannot be created or written.
pub fn write_manual<C: CommandFactory>(args: &ManArgs) -> Result<(), PackagingError> {
    let write = |directory: &Path| {
        fs::create_dir_all(directory)?;
        clap_mangen::generate_to(C::command().disable_help_subcommand(true), directory)
    };
    write(&args.directory).map_err(|source| PackagingError::Directory {
        path: args.directory.display().to_string(),
        source,
    })
}
