//! Lines for the person who typed the command.

use std::{
    fmt::Display,
    io::{self, Write as _},
};

use anyhow::{Context as _, Result};

/// Writes one line to stdout.
///
/// # Errors
/// Nobody reads it any more (`println!` would panic then).
pub(crate) fn say(line: impl Display) -> Result<()> {
    writeln!(io::stdout().lock(), "{line}").context("could not write to stdout")
}
