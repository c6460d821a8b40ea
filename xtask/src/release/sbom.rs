//! The software bills of materials: the crates that the agent and the eBPF programs are compiled from.
//!
//! Neither lists the standard library, glibc or the certificate authorities.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use super::{NAME, Release};
use crate::{architecture::Architecture, files, process, tools, workspace::Workspace};

/// Name of the files that the tool writes into the directory of each package, without `.json`.
const WRITTEN: &str = "release-sbom";

/// The packages that an artefact contains, and the part of the file's name for each.
const PACKAGES: [(&str, &str); 2] = [("detector-agent", ""), ("detector-ebpf", "-ebpf")];

/// Writes `ip-conflict-detector[-ebpf]-VERSION.cdx.json`; both are the same for all architectures.
pub(super) fn write(workspace: &Workspace, release: &Release, dist: &Path) -> Result<()> {
    let generated = generate(workspace, release);
    let mut copied = Ok(());
    if generated.is_ok() {
        copied = PACKAGES.iter().try_for_each(|(package, suffix)| {
            let file = workspace.root().join(package).join(WRITTEN);
            let bill = files::read_text(&file.with_extension("json"))?;
            files::write(
                &dist.join(format!("{NAME}{suffix}-{}.cdx.json", release.version)),
                without_paths(&bill, workspace.root()),
            )
        });
    }
    // The tool writes one file for every package of the workspace.
    for package in files::read_dir(workspace.root())? {
        let package = package.context("could not read the checkout")?.path();
        let _ = fs::remove_file(package.join(WRITTEN).with_extension("json"));
    }
    generated.and(copied)
}

fn generate(workspace: &Workspace, release: &Release) -> Result<()> {
    let mut command = std::process::Command::new(tools::CYCLONEDX.path(workspace));
    command
        .args(["cyclonedx", "--quiet", "--format", "json"])
        .args(["--spec-version", "1.5", "--no-build-deps"])
        .args(["--target", &Architecture::Amd64.target()])
        .args(["--override-filename", WRITTEN])
        .current_dir(workspace.root())
        .env("SOURCE_DATE_EPOCH", release.epoch.to_string());
    process::run(&mut command)
}

/// The tool identifies packages of the workspace by their directories.
fn without_paths(bill: &str, root: &Path) -> String {
    bill.replace(&*root.to_string_lossy(), "/src")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_of_the_checkout_is_not_in_the_bill() {
        let bill = r#"{"bom-ref": "path+file:///home/me/project/detector-agent#0.1.0"}"#;
        assert_eq!(
            without_paths(bill, Path::new("/home/me/project")),
            r#"{"bom-ref": "path+file:///src/detector-agent#0.1.0"}"#
        );
    }
}
