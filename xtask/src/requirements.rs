//! What building and testing need of the machine, as one table.
//!
//! `setup` installs from it and `doctor` prints it: a new need is one new row.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{
    compiler,
    host::{find_program, is_executable},
    linker, process,
    tools::{self, Tool},
    workspace::Workspace,
};

/// Which tasks need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// `build`, and every task that runs the agent.
    Build,
    /// `run --demo`, besides what building needs.
    Demo,
    /// `test`, besides what building needs.
    Test,
    /// `lint`.
    Lint,
}

/// One row.
pub(crate) struct Requirement {
    /// What a person calls it.
    pub(crate) name: &'static str,
    /// What it is there for.
    pub(crate) purpose: &'static str,
    /// Which tasks need it.
    pub(crate) groups: &'static [Group],
    /// Finds it: what was found, or what is missing.
    pub(crate) probe: fn(&Workspace) -> Result<String, String>,
    /// Debian's packages that bring it, or that the installer below needs.
    pub(crate) packages: &'static [&'static str],
    /// Are those packages still to be installed? Asked only when the probe found nothing.
    pub(crate) wants_packages: fn() -> bool,
    /// A further step after the packages, for what no package brings.
    pub(crate) installer: Option<fn(&Workspace) -> Result<()>>,
    /// The one command for machines where `setup` may not install.
    pub(crate) fix: fn() -> String,
}

/// The table.
pub(crate) const REQUIREMENTS: &[Requirement] = &[
    Requirement {
        name: "eBPF compiler",
        purpose: "compiles the kernel programs and `core` for them",
        groups: &[Group::Build],
        probe: probe_compiler,
        packages: compiler::PACKAGES,
        wants_packages: always,
        installer: None,
        fix: || compiler::INSTALL_COMMAND.to_owned(),
    },
    Requirement {
        name: "bpf-linker",
        purpose: "links the kernel programs and writes their BTF",
        groups: &[Group::Build],
        probe: probe_linker,
        packages: linker::PACKAGES,
        wants_packages: || !linker::can_be_built(),
        installer: Some(linker::install),
        fix: linker::install_command,
    },
    Requirement {
        name: "ip",
        purpose: "lays out network namespaces that play a node and its pods",
        groups: &[Group::Demo, Group::Test],
        probe: |_| probe_program("ip"),
        packages: &["iproute2"],
        wants_packages: always,
        installer: None,
        fix: || "apt-get install -y --no-install-recommends iproute2".to_owned(),
    },
    Requirement {
        name: "CNI plugins",
        purpose: "the tests make pods with the real ptp, bridge and host-local",
        groups: &[Group::Test],
        probe: |_| probe_cni_plugins(),
        packages: &["containernetworking-plugins"],
        wants_packages: always,
        installer: None,
        fix: || "apt-get install -y --no-install-recommends containernetworking-plugins".to_owned(),
    },
    Requirement {
        name: "containerd",
        purpose: "the tests name real pods: a runtime with its CRI, runc, and iptables for the plugins",
        groups: &[Group::Test],
        probe: |_| probe_programs(&["containerd", "ctr", "runc", "iptables"]),
        packages: &["containerd", "runc", "iptables"],
        wants_packages: always,
        installer: None,
        fix: || "apt-get install -y --no-install-recommends containerd runc iptables".to_owned(),
    },
    Requirement {
        name: "C compiler",
        purpose: "the tests build the program of their smallest pod, static",
        groups: &[Group::Test],
        probe: |_| probe_static_c(),
        packages: &["gcc", "libc6-dev"],
        wants_packages: always,
        installer: None,
        fix: || "apt-get install -y --no-install-recommends gcc libc6-dev".to_owned(),
    },
    Requirement {
        name: "rustfmt",
        purpose: "checks the format of the sources",
        groups: &[Group::Lint],
        probe: |workspace| probe_cargo(workspace, "fmt"),
        packages: &[],
        wants_packages: || false,
        installer: None,
        fix: || "rustup component add rustfmt".to_owned(),
    },
    Requirement {
        name: "clippy",
        purpose: "lints the sources",
        groups: &[Group::Lint],
        probe: |workspace| probe_cargo(workspace, "clippy"),
        packages: &[],
        wants_packages: || false,
        installer: None,
        fix: || "rustup component add clippy".to_owned(),
    },
    Requirement {
        name: "cargo-deny",
        purpose: "checks licences and sources of the dependencies",
        groups: &[Group::Lint],
        probe: |workspace| probe_tool(workspace, &tools::DENY),
        packages: &[],
        wants_packages: || false,
        installer: Some(|workspace| tools::DENY.install(workspace)),
        fix: || tools::DENY.install_command(),
    },
    Requirement {
        name: "cargo-machete",
        purpose: "finds dependencies that nothing uses",
        groups: &[Group::Lint],
        probe: |workspace| probe_tool(workspace, &tools::MACHETE),
        packages: &[],
        wants_packages: || false,
        installer: Some(|workspace| tools::MACHETE.install(workspace)),
        fix: || tools::MACHETE.install_command(),
    },
];

/// The rows that these groups need.
pub(crate) fn of(groups: &[Group]) -> impl Iterator<Item = &'static Requirement> {
    REQUIREMENTS.iter().filter(|requirement| {
        requirement
            .groups
            .iter()
            .any(|group| groups.contains(group))
    })
}

fn always() -> bool {
    true
}

fn probe_compiler(workspace: &Workspace) -> Result<String, String> {
    // Without a linker `setup` installs its own, and the compiler has to suit that one.
    let linker_llvm = linker::find(workspace).map_or(Some(linker::LLVM), |linker| linker.llvm);
    compiler::find(linker_llvm)
        .map(|compiler| compiler.rustc.display().to_string())
        .map_err(|error| error.to_string())
}

fn probe_linker(workspace: &Workspace) -> Result<String, String> {
    linker::find(workspace)
        .map(|linker| linker.path.display().to_string())
        .map_err(|error| error.to_string())
}

fn probe_program(name: &str) -> Result<String, String> {
    find_program(name)
        .map(|path| path.display().to_string())
        .ok_or_else(|| format!("`{name}` is not in PATH"))
}

fn probe_programs(names: &[&str]) -> Result<String, String> {
    let found: Result<Vec<_>, _> = names.iter().map(|name| probe_program(name)).collect();
    found.map(|paths| paths.join(", "))
}

fn probe_static_c() -> Result<String, String> {
    let gcc = probe_program("gcc")?;
    // Its own path where it is there, else the bare name.
    let library = process::probe(std::process::Command::new(&gcc).arg("-print-file-name=libc.a"));
    match library.map(|path| PathBuf::from(path.trim_end())) {
        Some(path) if path.is_absolute() => Ok(gcc),
        _ => Err("gcc finds no libc.a".to_owned()),
    }
}

fn probe_cargo(workspace: &Workspace, command: &str) -> Result<String, String> {
    process::probe(workspace.cargo().args([command, "--version"]))
        .map(|version| version.trim_end().to_owned())
        .ok_or_else(|| format!("`cargo {command}` does not answer"))
}

fn probe_tool(workspace: &Workspace, tool: &Tool) -> Result<String, String> {
    tool.find(workspace)
        .map(|path| path.display().to_string())
        .ok_or_else(|| format!("neither in {} nor in PATH", workspace.tools().display()))
}

const CNI_PLUGINS: [&str; 3] = ["ptp", "bridge", "host-local"];

fn probe_cni_plugins() -> Result<String, String> {
    let folder = Path::new("/usr/lib/cni");
    let missing: Vec<&str> = CNI_PLUGINS
        .into_iter()
        .filter(|plugin| !is_executable(&folder.join(plugin)))
        .collect();
    if missing.is_empty() {
        Ok(PathBuf::from(folder).display().to_string())
    } else {
        Err(format!(
            "{} not in {}",
            missing.join(", "),
            folder.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn building_asks_for_nothing_that_only_the_tests_need() {
        let names: Vec<_> = of(&[Group::Build]).map(|row| row.name).collect();
        assert_eq!(names, ["eBPF compiler", "bpf-linker"]);
    }

    #[test]
    fn every_row_says_what_it_is_for_and_what_command_brings_it() {
        for row in REQUIREMENTS {
            assert!(!row.purpose.is_empty(), "{}", row.name);
            assert!(!(row.fix)().is_empty(), "{}", row.name);
            assert!(!row.groups.is_empty(), "{}", row.name);
        }
    }
}
