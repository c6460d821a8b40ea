//! Committed files that are generated from the code: tests compare them, or write them if asked to.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};

/// If set, the files are written instead of compared.
const UPDATE: &str = "DEPLOY_UPDATE";

/// Whether generated files are to be written instead of compared.
#[must_use]
pub fn is_updating() -> bool {
    std::env::var_os(UPDATE).is_some()
}

/// Compares the file with the text that it should have; with `DEPLOY_UPDATE=1` writes it.
///
/// # Errors
/// The file has another text, or it cannot be written.
pub fn check(file: &Path, text: &str) -> Result<()> {
    if is_updating() {
        return fs::write(file, text).with_context(|| file.display().to_string());
    }
    let found = fs::read_to_string(file).unwrap_or_default();
    let differs = || {
        text.lines()
            .find(|line| !found.lines().any(|known| known == *line))
    };
    ensure!(
        found == text,
        "{} is stale; regenerate it by running this test with {UPDATE}=1. It lacks {:?}",
        file.display(),
        differs()
    );
    Ok(())
}
