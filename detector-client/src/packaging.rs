//! Version, shell completions and manual pages, for packages.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::LazyLock,
};

use clap::{Args, Command, CommandFactory};
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};

/// The version, with the commit that it was built from if the build names it (`IPCONFLICT_COMMIT`): `0.1.0 (commit 1a2b3c4d)`.
#[must_use]
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let commit = option_env!("IPCONFLICT_COMMIT").unwrap_or("unknown");
        format!("{} (commit {commit})", env!("CARGO_PKG_VERSION"))
    });
    &VERSION
}

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
    let mut command = C::command().disable_help_subcommand(true);
    command.build();
    let write = |directory: &Path| {
        fs::create_dir_all(directory)?;
        write_pages(&command, directory)
    };
    write(&args.directory).map_err(|source| PackagingError::Directory {
        path: args.directory.display().to_string(),
        source,
    })
}

fn write_pages(command: &Command, directory: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands() {
        write_pages(subcommand, directory)?;
    }
    let sections = command.get_after_help().map(ToString::to_string);
    // Without what the sections are made of, which would be a section of its own.
    let page = Man::new(command.clone().after_help(None::<&str>));
    let mut text = Vec::new();
    page.render(&mut text)?;
    sections_of(&sections.unwrap_or_default()).to_writer(&mut text)?;
    fs::write(directory.join(page.get_filename()), text)
}

/// The sections of a help text, each a line that ends with a colon and indented lines.
fn sections_of(help: &str) -> Roff {
    let mut roff = Roff::new();
    for line in help.lines() {
        match line.strip_suffix(':').filter(|_| !line.starts_with(' ')) {
            Some(title) => {
                roff.control("SH", [title.to_uppercase().as_str()]);
            }
            None if line.is_empty() => {}
            None => {
                roff.text([roman(line.trim_start())]);
                roff.control("br", []);
            }
        }
    }
    roff
}
