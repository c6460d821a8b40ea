//! `SHA256SUMS`, the one file that is signed for all others.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result};

use crate::{files, process};

/// Name of the file.
const SUMS: &str = "SHA256SUMS";

/// Writes the checksums of all files in the directory.
pub(super) fn write(dist: &Path) -> Result<()> {
    let names = names(dist)?;
    let sums = process::output(
        Command::new("sha256sum")
            .current_dir(dist)
            .arg("--")
            .args(&names),
    )?;
    files::write(&dist.join(SUMS), sums)
}

/// The files of a directory by name.
pub(super) fn names(dist: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in files::read_dir(dist)? {
        let name = entry
            .with_context(|| format!("could not read {}", dist.display()))?
            .file_name();
        names.push(name.to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn checksums_verify_until_a_file_changes() {
        let dist = tempfile::tempdir().unwrap();
        for name in ["b.tar.gz", "a.tgz"] {
            files::write(&dist.path().join(name), name).unwrap();
        }
        write(dist.path()).unwrap();
        let verify = || {
            process::run(
                Command::new("sha256sum")
                    .args(["--check", "--quiet", SUMS])
                    .current_dir(dist.path()),
            )
        };
        verify().unwrap();
        assert_eq!(names(dist.path()).unwrap(), [SUMS, "a.tgz", "b.tar.gz"]);
        files::write(&dist.path().join("a.tgz"), "other").unwrap();
        verify().unwrap_err();
    }
}
