//! `setup`: finds what building and testing need, and installs what is missing if it may.
//!
//! Packages are installed only as root on a machine with apt; bpf-linker goes into `target/tools`.
//! If nothing is missing it only probes, which takes a fraction of a second.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{
    host, process,
    requirements::{self, Group, MissingDependency, Requirement},
    stdout::print_line,
    workspace::Workspace,
};

/// Installs the requirements of `build`, `run` and `test` and prints what was found.
///
/// The other tasks install what only they need.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let groups = [Group::Build, Group::Demo, Group::Test];
    ensure(workspace, &groups)?;
    for requirement in requirements::for_groups(&groups) {
        if let Ok(found) = (requirement.probe)(workspace) {
            print_line(format_args!("✓ {}: {found}", requirement.name))?;
        }
    }
    Ok(())
}

/// Installs what is missing for these groups; prints nothing if nothing is missing.
///
/// # Errors
/// Something is missing that may not be installed here, or an installation failed; the message
/// holds one command for each missing requirement.
pub(crate) fn ensure(workspace: &Workspace, groups: &[Group]) -> Result<()> {
    let unmet = probe(workspace, groups);
    if unmet.is_empty() {
        return Ok(());
    }
    if !unmet.iter().all(|unmet| unmet.missing.is_installable()) {
        bail!("{}", missing_list(&unmet));
    }
    let packages = packages(unmet.iter().map(|unmet| unmet.requirement));
    if !packages.is_empty() && host::can_install_packages() {
        eprintln!("setup: installing {}", packages.join(" "));
        install_packages(&packages).with_context(|| missing_list(&unmet))?;
    }
    for UnmetRequirement { requirement, .. } in &unmet {
        // Without its packages the installer would fail with a less helpful message.
        let installer = requirement
            .installer
            .filter(|_| !(requirement.needs_packages)());
        if let Some(install) = installer {
            eprintln!("setup: installing {}", requirement.name);
            install(workspace).with_context(|| missing_list(&unmet))?;
        }
    }
    let unmet = probe(workspace, groups);
    if !unmet.is_empty() {
        bail!("{}", missing_list(&unmet));
    }
    Ok(())
}

/// A requirement whose probe failed.
struct UnmetRequirement {
    requirement: &'static Requirement,
    missing: MissingDependency,
}

fn probe(workspace: &Workspace, groups: &[Group]) -> Vec<UnmetRequirement> {
    requirements::for_groups(groups)
        .filter_map(|requirement| {
            let missing = (requirement.probe)(workspace).err()?;
            Some(UnmetRequirement {
                requirement,
                missing,
            })
        })
        .collect()
}

fn packages<'a>(missing: impl Iterator<Item = &'a Requirement>) -> Vec<&'static str> {
    missing
        .filter(|requirement| (requirement.needs_packages)())
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

/// One line for each missing requirement, with the command that installs it.
fn missing_list(unmet: &[UnmetRequirement]) -> String {
    let mut text = "missing:".to_owned();
    for UnmetRequirement {
        requirement,
        missing,
    } in unmet
    {
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

    const fn row(name: &'static str, needs_packages: fn() -> bool) -> Requirement {
        Requirement {
            name,
            purpose: "is for tests",
            groups: &[Group::Build],
            probe: |_| Err(MissingDependency::absent("", "")),
            packages: &["one", "two"],
            needs_packages,
            installer: None,
        }
    }

    static WITHOUT_PACKAGES: Requirement = row("without packages", || true);
    static WITH_PACKAGES: Requirement = row("with packages", || false);

    #[test]
    fn missing_requirements_are_listed_with_purpose_and_fix() {
        let unmet = |requirement, what, fix| UnmetRequirement {
            requirement,
            missing: MissingDependency::absent(what, fix),
        };
        let text = missing_list(&[
            unmet(&WITHOUT_PACKAGES, "no x", "get x"),
            unmet(&WITH_PACKAGES, "no y", "get y"),
        ]);
        assert_eq!(
            text,
            "missing:\n  \
             without packages (is for tests): no x; fix: get x\n  \
             with packages (is for tests): no y; fix: get y"
        );
    }

    #[test]
    fn installed_packages_are_not_installed_again() {
        assert_eq!(
            packages([&WITHOUT_PACKAGES, &WITH_PACKAGES].into_iter()),
            ["one", "two"]
        );
        assert_eq!(packages([&WITH_PACKAGES].into_iter()), [""; 0]);
    }
}
