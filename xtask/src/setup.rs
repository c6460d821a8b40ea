//! `setup`: finds what building and testing need and installs what is missing, where it may.
//!
//! Packages are installed only by root on a machine with apt; bpf-linker goes into `target/tools`.
//! With everything in place it only looks, which takes a fraction of a second.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{
    host::Host,
    process,
    requirements::{self, Group, Requirement},
    workspace::Workspace,
};

/// Installs for every task but `lint`, which brings its own tools, and says what is there.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let groups = [Group::Build, Group::Demo, Group::Test];
    ensure(workspace, &groups)?;
    for requirement in requirements::of(&groups) {
        if let Ok(found) = (requirement.probe)(workspace) {
            println!("✓ {}: {found}", requirement.name);
        }
    }
    Ok(())
}

/// Installs what these groups miss; prints nothing when nothing is missing.
///
/// # Errors
/// Something is missing that may not be installed here, or an installation failed; either way the
/// message holds one command for each missing thing.
pub(crate) fn ensure(workspace: &Workspace, groups: &[Group]) -> Result<()> {
    let missing = missing(workspace, groups);
    if missing.is_empty() {
        return Ok(());
    }
    let host = Host::inspect();
    let packages = packages(&missing);
    if !packages.is_empty() && host.installs_packages() {
        eprintln!("setup: installing {}", packages.join(" "));
        install_packages(&packages).with_context(|| advice(&missing))?;
    }
    for requirement in &missing {
        let installer = requirement.installer.filter(|_| {
            // Its packages may have been out of reach: then the advice below is what helps.
            requirement.packages.is_empty() || !(requirement.wants_packages)()
        });
        if let Some(install) = installer {
            eprintln!("setup: installing {}", requirement.name);
            install(workspace).with_context(|| advice(&missing))?;
        }
    }
    let missing = self::missing(workspace, groups);
    if !missing.is_empty() {
        bail!("{}", advice(&missing));
    }
    Ok(())
}

fn missing(workspace: &Workspace, groups: &[Group]) -> Vec<&'static Requirement> {
    requirements::of(groups)
        .filter(|requirement| (requirement.probe)(workspace).is_err())
        .collect()
}

fn packages(missing: &[&Requirement]) -> Vec<&'static str> {
    missing
        .iter()
        .filter(|requirement| (requirement.wants_packages)())
        .flat_map(|requirement| requirement.packages)
        .copied()
        .collect()
}

fn install_packages(packages: &[&str]) -> Result<()> {
    let apt = || {
        let mut command = Command::new("apt-get");
        command
            .args(["-q", "-o", "DPkg::Lock::Timeout=300"])
            .env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    process::run(apt().arg("update"))?;
    process::run(
        apt()
            .args(["install", "-y", "--no-install-recommends"])
            .args(packages),
    )
}

/// What is missing, and for each the one command that brings it.
fn advice(missing: &[&Requirement]) -> String {
    let mut text = "the machine lacks:".to_owned();
    for requirement in missing {
        text.push_str(&format!(
            "\n  {} ({}): {}",
            requirement.name,
            requirement.purpose,
            (requirement.fix)()
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, wants_packages: fn() -> bool) -> Requirement {
        Requirement {
            name,
            purpose: "is for tests",
            groups: &[Group::Build],
            probe: |_| Err("never there".to_owned()),
            packages: &["one", "two"],
            wants_packages,
            installer: None,
            fix: || "make it so".to_owned(),
        }
    }

    #[test]
    fn each_missing_thing_is_named_with_its_purpose_and_one_command() {
        let (first, second) = (row("first", || true), row("second", || true));
        assert_eq!(
            advice(&[&first, &second]),
            "the machine lacks:\n  first (is for tests): make it so\n  second (is for tests): make it so"
        );
    }

    #[test]
    fn packages_that_are_already_there_are_not_installed_again() {
        let (wanting, content) = (row("wanting", || true), row("content", || false));
        assert_eq!(packages(&[&wanting, &content]), ["one", "two"]);
        assert_eq!(packages(&[&content]), [""; 0]);
    }
}
