//! `setup`: finds what building and testing need and installs what is missing, where it may.
//!
//! Packages are installed only by root on a machine with apt; bpf-linker goes into `target/tools`.
//! With everything in place it only looks, which takes a fraction of a second.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{
    host::Host,
    process,
    requirements::{self, Group, Missing, Requirement},
    say::say,
    workspace::Workspace,
};

/// Installs for every task but `lint`, which brings its own tools, and says what is there.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let groups = [Group::Build, Group::Demo, Group::Test];
    ensure(workspace, &groups)?;
    for requirement in requirements::of(&groups) {
        if let Ok(found) = (requirement.probe)(workspace) {
            say(format_args!("✓ {}: {found}", requirement.name))?;
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
    let missing = look(workspace, groups);
    if missing.is_empty() {
        return Ok(());
    }
    if !missing.iter().all(|(_, missing)| missing.is_installable()) {
        bail!("{}", advice(&missing));
    }
    let packages = packages(missing.iter().map(|(requirement, _)| *requirement));
    if !packages.is_empty() && Host::inspect().installs_packages() {
        eprintln!("setup: installing {}", packages.join(" "));
        install_packages(&packages).with_context(|| advice(&missing))?;
    }
    for (requirement, _) in &missing {
        // Its packages may have been out of reach: then the advice below is what helps.
        let installer = requirement
            .installer
            .filter(|_| !(requirement.wants_packages)());
        if let Some(install) = installer {
            eprintln!("setup: installing {}", requirement.name);
            install(workspace).with_context(|| advice(&missing))?;
        }
    }
    let missing = look(workspace, groups);
    if !missing.is_empty() {
        bail!("{}", advice(&missing));
    }
    Ok(())
}

/// A row and why it is not satisfied.
type Lack = (&'static Requirement, Missing);

fn look(workspace: &Workspace, groups: &[Group]) -> Vec<Lack> {
    requirements::of(groups)
        .filter_map(|requirement| Some((requirement, (requirement.probe)(workspace).err()?)))
        .collect()
}

fn packages<'a>(missing: impl Iterator<Item = &'a Requirement>) -> Vec<&'static str> {
    missing
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
fn advice(missing: &[Lack]) -> String {
    let mut text = "the machine lacks:".to_owned();
    for (requirement, missing) in missing {
        text.push_str(&format!(
            "\n  {} ({}): {missing}",
            requirement.name, requirement.purpose
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn row(name: &'static str, wants_packages: fn() -> bool) -> Requirement {
        Requirement {
            name,
            purpose: "is for tests",
            groups: &[Group::Build],
            probe: |_| Err(Missing::absent("", "")),
            packages: &["one", "two"],
            wants_packages,
            installer: None,
        }
    }

    static WANTING: Requirement = row("wanting", || true);
    static CONTENT: Requirement = row("content", || false);

    #[test]
    fn each_missing_thing_is_named_with_its_purpose_and_one_command() {
        let text = advice(&[
            (&WANTING, Missing::absent("no x", "get x")),
            (&CONTENT, Missing::absent("no y", "get y")),
        ]);
        assert_eq!(
            text,
            "the machine lacks:\n  \
             wanting (is for tests): no x; fix: get x\n  \
             content (is for tests): no y; fix: get y"
        );
    }

    #[test]
    fn packages_that_are_already_there_are_not_installed_again() {
        assert_eq!(packages([&WANTING, &CONTENT].into_iter()), ["one", "two"]);
        assert_eq!(packages([&CONTENT].into_iter()), [""; 0]);
    }
}
