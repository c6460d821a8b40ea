//! `setup` and `doctor`: what the tasks need besides a Rust toolchain and a C linker, in one list.
//!
//! [`ensure()`] installs it: packages of Debian as root, and what Debian does not have into `target/tools`. If nothing is missing,
//! that takes a fraction of a second.

use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::unistd::geteuid;

use crate::{
    kubernetes::{clients, servers},
    process, python,
    stdout::print_line,
    toolchain::{self, COMPILER_PACKAGES, ELSEWHERE, LINKER_PACKAGES},
    tools::{CYCLONEDX, DENY, LINKER, MACHETE, Tool},
    workspace::Workspace,
};

/// What a task needs.
pub(crate) struct Needs {
    /// The task, for `doctor`.
    task: &'static str,
    /// Debian packages.
    packages: &'static [&'static [&'static str]],
    /// What Debian does not have, or not in a version that can be used.
    programs: &'static [Program],
}

/// A program, or several, in `target/tools`.
enum Program {
    Crate(Tool),
    Python,
    KubernetesClients,
    KubernetesServers,
}

/// A pod's runtime and network, and a C compiler for its program.
const NODE: &[&str] = &[
    "containerd",
    "runc",
    "containernetworking-plugins",
    "iptables",
    "gcc",
    "libc6-dev",
];
const IMAGE: &[&str] = &["buildah", "ca-certificates"];
const PYTHON: &[&str] = &["python3", "python3-venv"];
const ARM64_COMPILER: &[&str] = &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"];

/// Everything that runs the agent.
pub(crate) const BUILD: Needs = Needs {
    task: "build, run, soak",
    packages: &[COMPILER_PACKAGES, LINKER_PACKAGES, &["iproute2"]],
    programs: &[Program::Crate(LINKER)],
};

/// `test`, in addition to [`BUILD`].
pub(crate) const TEST: Needs = Needs {
    task: "test",
    packages: &[
        NODE,
        IMAGE,
        PYTHON,
        &["chromium", "chromium-driver", "jq"],
        &["prometheus", "prometheus-alertmanager", "systemd"],
    ],
    programs: &[Program::Python, Program::KubernetesClients],
};

/// `test --vm`, in addition to [`TEST`].
pub(crate) const VM: Needs = Needs {
    task: "test --vm",
    packages: &[
        &["qemu-system-x86", "busybox-static"],
        &["cpio", "kmod", "xz-utils"],
    ],
    programs: &[],
};

/// `cluster`, in addition to [`BUILD`].
pub(crate) const CLUSTER: Needs = Needs {
    task: "cluster",
    packages: &[NODE, IMAGE, PYTHON],
    programs: &[Program::KubernetesClients, Program::KubernetesServers],
};

/// `bench`, in addition to [`BUILD`]: what other programs are compared with.
pub(crate) const BENCH: Needs = Needs {
    task: "bench",
    packages: &[NODE, &["arpwatch", "arpalert", "bpftrace", "tcpdump"]],
    programs: &[],
};

/// `release`, in addition to [`BUILD`].
pub(crate) const RELEASE: Needs = Needs {
    task: "release",
    packages: &[IMAGE, PYTHON, ARM64_COMPILER, &["qemu-user-static"]],
    programs: &[Program::KubernetesClients, Program::Crate(CYCLONEDX)],
};

/// `lint`.
pub(crate) const LINT: Needs = Needs {
    task: "lint",
    packages: &[PYTHON, &["g++"]],
    programs: &[
        Program::Python,
        Program::Crate(DENY),
        Program::Crate(MACHETE),
    ],
};

/// `lint --arm64`.
pub(crate) const ARM64: Needs = Needs {
    task: "lint --arm64",
    packages: &[COMPILER_PACKAGES, ARM64_COMPILER],
    programs: &[],
};

/// `fuzz`.
pub(crate) const FUZZ: Needs = Needs {
    task: "fuzz",
    packages: &[&["g++"]],
    programs: &[],
};

impl Needs {
    fn packages(&self) -> impl Iterator<Item = &'static str> {
        let packages = self.packages.iter().copied().flatten().copied();
        packages.filter(|package| !toolchain::is_replaced(package))
    }

    fn missing_programs(&self, workspace: &Workspace) -> impl Iterator<Item = &'static Program> {
        let programs = self.programs.iter();
        programs.filter(|program| !program.is_installed(workspace))
    }
}

impl Program {
    fn name(&self) -> &'static str {
        match self {
            Self::Crate(tool) => tool.name,
            Self::Python => "Python programs",
            Self::KubernetesClients => "Helm and kubectl",
            Self::KubernetesServers => "Kubernetes servers",
        }
    }

    fn is_installed(&self, workspace: &Workspace) -> bool {
        match self {
            Self::Crate(tool) => toolchain::is_replaced(tool.name) || tool.is_installed(workspace),
            Self::Python => python::is_installed(workspace),
            Self::KubernetesClients => clients::CLIENTS.is_present(workspace),
            Self::KubernetesServers => servers::SERVERS.is_present(workspace),
        }
    }

    fn install(&self, workspace: &Workspace) -> Result<()> {
        match self {
            Self::Crate(tool) => tool.install(workspace),
            Self::Python => python::install(workspace),
            Self::KubernetesClients => clients::install(workspace),
            Self::KubernetesServers => servers::install(workspace),
        }
    }
}

/// `setup`: installs what building and testing need; the other tasks install what only they need.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    ensure(workspace, &[BUILD, TEST])?;
    print_line("everything that `build`, `run` and `test` need is installed")
}

/// `doctor`: prints what each task needs and what of it is missing.
///
/// # Errors
/// Something is missing.
pub(crate) fn doctor(workspace: &Workspace) -> Result<()> {
    let mut is_complete = true;
    for needs in [BUILD, TEST, VM, CLUSTER, BENCH, RELEASE, LINT, ARM64, FUZZ] {
        let mut missing = missing_packages(needs.packages())?;
        missing.extend(needs.missing_programs(workspace).map(Program::name));
        is_complete &= missing.is_empty();
        print_line(if missing.is_empty() {
            let programs = needs.programs.iter().map(Program::name);
            let all: Vec<_> = needs.packages().chain(programs).collect();
            format!("✓ {}: {}", needs.task, all.join(", "))
        } else {
            format!("✗ {}: missing {}", needs.task, missing.join(", "))
        })?;
    }
    ensure!(
        is_complete,
        "each task installs what it needs if it is run as root"
    );
    Ok(())
}

/// Installs what is missing for these tasks; prints nothing if nothing is.
///
/// # Errors
/// Something is missing that may not be installed here, or an installation failed.
pub(crate) fn ensure(workspace: &Workspace, tasks: &[Needs]) -> Result<()> {
    install_packages(tasks.iter().flat_map(Needs::packages))?;
    for program in tasks
        .iter()
        .flat_map(|needs| needs.missing_programs(workspace))
    {
        let name = program.name();
        eprintln!("setup: installing {name}");
        program
            .install(workspace)
            .with_context(|| format!("could not install {name}"))?;
    }
    Ok(())
}

/// Installs those of these packages that are missing.
///
/// # Errors
/// As [`ensure()`].
pub(crate) fn install_packages(packages: impl IntoIterator<Item = &'static str>) -> Result<()> {
    let missing = missing_packages(packages)?;
    if missing.is_empty() {
        return Ok(());
    }
    let missing_text = missing.join(" ");
    ensure!(
        geteuid().is_root(),
        "these Debian packages are missing, and root installs them: {missing_text}"
    );
    eprintln!("setup: installing {missing_text}");
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
            .args(missing),
    )
    .context(ELSEWHERE)
}

/// Those that are not installed.
///
/// # Errors
/// This is not a Debian system, and another compiler or linker is not selected.
fn missing_packages(packages: impl IntoIterator<Item = &'static str>) -> Result<Vec<&'static str>> {
    let mut missing: Vec<_> = packages
        .into_iter()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let listed = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${Package} ${db:Status-Status}\n"])
        .args(&missing)
        // Complains about packages that were never installed.
        .stderr(Stdio::null())
        .output();
    let Ok(listed) = listed else {
        let needs_toolchain =
            |package| COMPILER_PACKAGES.contains(package) || LINKER_PACKAGES.contains(package);
        if missing.iter().any(needs_toolchain) {
            bail!("the tasks install Debian packages; {ELSEWHERE}");
        }
        // A program that is missing is named when a task starts it.
        return Ok(Vec::new());
    };
    let listed = String::from_utf8_lossy(&listed.stdout);
    let installed: BTreeSet<_> = listed
        .lines()
        .filter_map(|line| line.strip_suffix(" installed"))
        .collect();
    missing.retain(|package| !installed.contains(package));
    Ok(missing)
}

#[cfg(all(test, feature = "privileged-tests"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn only_absent_packages_are_missing() {
        let missing = missing_packages(["dpkg", "ipconflict-absent"]);
        assert_eq!(missing.unwrap(), ["ipconflict-absent"]);
    }
}
