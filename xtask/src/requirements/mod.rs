//! What building, testing and the other tasks need of the machine.
//!
//! `setup` installs from one table and `doctor` prints it: a new requirement is one new row.

mod probes;
mod table;

use anyhow::Result;

use crate::workspace::Workspace;

pub(crate) use table::REQUIREMENTS;

/// Which tasks need a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// `build`, and every task that runs the agent.
    Build,
    /// `run --demo`, in addition to [`Self::Build`].
    Demo,
    /// `test`, in addition to [`Self::Build`] and [`Self::Demo`].
    Test,
    /// `test --vm`, in addition to those of `test`.
    Vm,
    /// `cluster`, in addition to [`Self::Build`].
    Cluster,
    /// `release`, in addition to [`Self::Build`].
    Release,
    /// `bench`, in addition to [`Self::Build`] and [`Self::Demo`].
    Bench,
    /// `lint`.
    Lint,
    /// `lint --arm64`.
    Arm64,
    /// `fuzz`.
    Fuzz,
}

/// One row of the table.
pub(crate) struct Requirement {
    /// Name for messages.
    pub(crate) name: &'static str,
    /// What the tasks use it for.
    pub(crate) purpose: &'static str,
    /// Which tasks need it.
    pub(crate) groups: &'static [Group],
    /// Finds it: its path or version, or what is missing.
    pub(crate) probe: fn(&Workspace) -> Result<String, MissingDependency>,
    /// Debian packages that provide it, or that `installer` needs.
    pub(crate) packages: &'static [&'static str],
    /// Whether `packages` have yet to be installed; only called after `probe` failed.
    pub(crate) needs_packages: fn() -> bool,
    /// A further step after the packages, for what no package provides.
    pub(crate) installer: Option<fn(&Workspace) -> Result<()>>,
}

/// What is missing, and how to fix it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; fix: {fix}")]
pub(crate) struct MissingDependency {
    what: String,
    fix: String,
    installable: bool,
}

impl MissingDependency {
    /// It is not on this machine; `fix` is shown if `setup` may not install it.
    pub(crate) fn absent(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            fix: fix.into(),
            installable: true,
        }
    }

    /// An environment variable has a bad value, so installing would not help.
    pub(crate) fn misconfigured(what: impl Into<String>, variable: &str) -> Self {
        Self {
            what: what.into(),
            fix: format!("unset {variable} or correct its value"),
            installable: false,
        }
    }

    /// Whether `setup` can fix it.
    pub(crate) fn is_installable(&self) -> bool {
        self.installable
    }
}

/// The rows of these groups.
pub(crate) fn for_groups(groups: &[Group]) -> impl Iterator<Item = &'static Requirement> {
    REQUIREMENTS.iter().filter(|requirement| {
        requirement
            .groups
            .iter()
            .any(|group| groups.contains(group))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn building_needs_only_compiler_and_linker() {
        let names: Vec<_> = for_groups(&[Group::Build]).map(|row| row.name).collect();
        assert_eq!(names, ["eBPF compiler", "bpf-linker"]);
    }

    #[test]
    fn every_row_has_a_purpose_and_a_group() {
        for row in REQUIREMENTS {
            assert!(!row.purpose.is_empty(), "{}", row.name);
            assert!(!row.groups.is_empty(), "{}", row.name);
        }
    }
}
