//! Lines on stdout.

use std::{
    fmt::Display,
    io::{self, Write as _},
};

use anyhow::{Context as _, Result};

/// Writes one line to stdout.
///
/// # Errors
/// stdout is closed, for example by `| head`; `println!` would panic.
pub(crate) fn print_line(line: impl Display) -> Result<()> {
    writeln!(io::stdout().lock(), "{line}").context("could not write to stdout")
}
