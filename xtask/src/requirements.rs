//! What building and testing need of the machine, as one table.
//!
//! `setup` installs from it and `doctor` prints it: a new need is one new row.
//! It is longer than a file should be because it is one table: who looks for a need, or adds one, reads down one list.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use crate::{
    compiler,
    host::{find_program, is_executable},
    linker, process, python,
    tools::{self, Tool},
    vm,
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
    /// `test --vm`, besides what testing needs.
    Vm,
    /// `bench`, besides what the demo needs.
    Bench,
    /// `lint`.
    Lint,
    /// `fuzz`.
    Fuzz,
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
    pub(crate) probe: fn(&Workspace) -> Result<String, Missing>,
    /// Debian's packages that bring it, or that the installer below needs.
    pub(crate) packages: &'static [&'static str],
    /// Are those packages still to be installed? Asked only when the probe found nothing.
    pub(crate) wants_packages: fn() -> bool,
    /// A further step after the packages, for what no package brings.
    pub(crate) installer: Option<fn(&Workspace) -> Result<()>>,
}

/// What is not there, and the one command that mends it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; fix: {fix}")]
pub(crate) struct Missing {
    what: String,
    fix: String,
    installable: bool,
}

impl Missing {
    /// It is not on this machine; `fix` is for where `setup` may not install it.
    pub(crate) fn absent(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            fix: fix.into(),
            installable: true,
        }
    }

    /// An environment variable names something wrong: installing would not help.
    pub(crate) fn misconfigured(what: impl Into<String>, variable: &str) -> Self {
        Self {
            what: what.into(),
            fix: format!("unset {variable}, or name another one"),
            installable: false,
        }
    }

    /// Can `setup` do anything about it?
    pub(crate) fn is_installable(&self) -> bool {
        self.installable
    }
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
    },
    Requirement {
        name: "bpf-linker",
        purpose: "links the kernel programs and writes their BTF",
        groups: &[Group::Build],
        probe: probe_linker,
        packages: linker::PACKAGES,
        wants_packages: || !linker::can_be_built(),
        installer: Some(linker::install),
    },
    Requirement {
        name: "ip",
        purpose: "lays out network namespaces that play a node and its pods",
        groups: &[Group::Demo, Group::Test],
        probe: |_| probe_program("ip", "iproute2"),
        packages: &["iproute2"],
        wants_packages: always,
        installer: None,
    },
    Requirement {
        name: "CNI plugins",
        purpose: "the tests make pods with the real ptp, bridge and host-local",
        groups: &[Group::Test, Group::Bench],
        probe: |_| probe_cni_plugins(),
        packages: &["containernetworking-plugins"],
        wants_packages: always,
        installer: None,
    },
    Requirement {
        name: "containerd",
        purpose: "the tests name real pods: a runtime with its CRI, runc, and iptables for the plugins",
        groups: &[Group::Test, Group::Bench],
        probe: |_| probe_containerd(),
        packages: &["containerd", "runc", "iptables"],
        wants_packages: always,
        installer: None,
    },
    Requirement {
        name: "C compiler",
        purpose: "the tests build the program of their smallest pod, static",
        groups: &[Group::Test, Group::Bench],
        probe: |_| probe_static_c(),
        packages: &["gcc", "libc6-dev"],
        wants_packages: always,
        installer: None,
    },
    Requirement {
        name: "C++ compiler",
        purpose: "builds libFuzzer, which drives the fuzz targets",
        groups: &[Group::Fuzz, Group::Lint],
        probe: |_| probe_program("g++", "g++"),
        packages: &["g++"],
        wants_packages: always,
        installer: None,
    },
    Requirement {
        name: "Prometheus",
        purpose: "the tests let it scrape the agent",
        groups: &[Group::Test],
        probe: |_| probe_program("prometheus", "prometheus"),
        packages: &["prometheus"],
        wants_packages: always,
        installer: None,
    },
    Requirement {
        name: "Chromium",
        purpose: "the tests look at the status page with it",
        groups: &[Group::Test],
        probe: |_| {
            probe_program("chromium", "chromium")
                .and_then(|_| probe_program("chromedriver", "chromium-driver"))
        },
        packages: &["chromium", "chromium-driver"],
        wants_packages: always,
        installer: None,
    },
    Requirement {
        name: "prometheus-alertmanager",
        purpose: "the tests send alerts to the real one and ask its amtool",
        groups: &[Group::Test],
        probe: |_| {
            probe_program("prometheus-alertmanager", "prometheus-alertmanager")?;
            probe_program("amtool", "prometheus-alertmanager")
        },
        packages: &["prometheus-alertmanager"],
        wants_packages: always,
        installer: None,
    },
    Requirement {
        name: "virtual machines",
        purpose: "the tests run on other kernels in an emulator that shares this file system",
        groups: &[Group::Vm],
        probe: |_| probe_virtual_machines(),
        packages: &[
            "qemu-system-x86",
            "busybox-static",
            "cpio",
            "kmod",
            "xz-utils",
        ],
        wants_packages: always,
        installer: None,
    },
    Requirement {
        name: "programs to compare with",
        purpose: "the benches show them the same conflicts",
        groups: &[Group::Bench],
        probe: |_| probe_peers(),
        packages: &["arpwatch", "arpalert", "tcpdump", "bpftrace"],
        wants_packages: always,
        installer: None,
    },
    Requirement {
        name: "kubectl",
        purpose: "the tests build the manifests with its kustomize",
        groups: &[Group::Test],
        probe: |_| probe_program("kubectl", "kubernetes-client"),
        packages: &["kubernetes-client"],
        wants_packages: always,
        installer: None,
    },
    Requirement {
        name: "Go",
        purpose: "the tests render the Helm chart with Go's templates and sprig",
        groups: &[Group::Test],
        probe: |_| probe_go(),
        packages: &[
            "golang-go",
            "golang-github-masterminds-sprig-dev",
            "golang-gopkg-yaml.v3-dev",
        ],
        wants_packages: always,
        installer: None,
    },
    Requirement {
        name: "kubernetes-validate",
        purpose: "the tests hold the manifests against Kubernetes' schemas",
        groups: &[Group::Test],
        probe: python::probe,
        packages: python::PACKAGES,
        wants_packages: || !python::can_be_made(),
        installer: Some(python::install),
    },
    Requirement {
        name: "buildah",
        purpose: "the tests build the container image",
        groups: &[Group::Test],
        probe: |_| probe_program("buildah", "buildah"),
        packages: &["buildah"],
        wants_packages: always,
        installer: None,
    },
    Requirement {
        name: "rustfmt",
        purpose: "checks the format of the sources",
        groups: &[Group::Lint],
        probe: |workspace| probe_cargo(workspace, "fmt", "rustfmt"),
        packages: &[],
        wants_packages: || false,
        installer: None,
    },
    Requirement {
        name: "clippy",
        purpose: "lints the sources",
        groups: &[Group::Lint],
        probe: |workspace| probe_cargo(workspace, "clippy", "clippy"),
        packages: &[],
        wants_packages: || false,
        installer: None,
    },
    Requirement {
        name: "cargo-deny",
        purpose: "checks licences and sources of the dependencies",
        groups: &[Group::Lint],
        probe: |workspace| probe_tool(workspace, &tools::DENY),
        packages: &[],
        wants_packages: || false,
        installer: Some(|workspace| tools::DENY.install(workspace)),
    },
    Requirement {
        name: "cargo-machete",
        purpose: "finds dependencies that nothing uses",
        groups: &[Group::Lint],
        probe: |workspace| probe_tool(workspace, &tools::MACHETE),
        packages: &[],
        wants_packages: || false,
        installer: Some(|workspace| tools::MACHETE.install(workspace)),
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

fn probe_compiler(workspace: &Workspace) -> Result<String, Missing> {
    // Without a linker `setup` installs its own, and the compiler has to suit that one.
    let linker_llvm = linker::find(workspace).map_or(Some(linker::LLVM), |linker| linker.llvm);
    Ok(compiler::find(linker_llvm)?.rustc.display().to_string())
}

fn probe_linker(workspace: &Workspace) -> Result<String, Missing> {
    Ok(linker::find(workspace)?.path.display().to_string())
}

fn probe_program(name: &str, package: &str) -> Result<String, Missing> {
    find_program(name)
        .map(|path| path.display().to_string())
        .ok_or_else(|| Missing::absent(format!("`{name}` is not in PATH"), apt(package)))
}

fn probe_containerd() -> Result<String, Missing> {
    for (program, package) in [
        ("ctr", "containerd"),
        ("runc", "runc"),
        ("iptables", "iptables"),
    ] {
        probe_program(program, package)?;
    }
    probe_program("containerd", "containerd")
}

fn probe_virtual_machines() -> Result<String, Missing> {
    for (program, package) in [
        ("busybox", "busybox-static"),
        ("cpio", "cpio"),
        ("depmod", "kmod"),
        ("xz", "xz-utils"),
    ] {
        probe_program(program, package)?;
    }
    if !is_executable(Path::new(vm::FILE_SERVER)) {
        let what = format!("{} is not there", vm::FILE_SERVER);
        return Err(Missing::absent(what, apt("qemu-system-x86")));
    }
    probe_program(vm::EMULATOR, "qemu-system-x86")
}

fn probe_peers() -> Result<String, Missing> {
    for program in ["arpwatch", "arpalert", "bpftrace"] {
        probe_program(program, program)?;
    }
    probe_program("tcpdump", "tcpdump")
}

fn probe_go() -> Result<String, Missing> {
    const LIBRARIES: [(&str, &str); 2] = [
        (
            "github.com/Masterminds/sprig",
            "golang-github-masterminds-sprig-dev",
        ),
        ("gopkg.in/yaml.v3", "golang-gopkg-yaml.v3-dev"),
    ];
    let go = probe_program("go", "golang-go")?;
    for (library, package) in LIBRARIES {
        if !Path::new("/usr/share/gocode/src").join(library).is_dir() {
            let what = format!("Go's library {library} is not in /usr/share/gocode");
            return Err(Missing::absent(what, apt(package)));
        }
    }
    Ok(go)
}

fn probe_static_c() -> Result<String, Missing> {
    let gcc = probe_program("gcc", "gcc")?;
    // The library's path where it is there, else its bare name.
    let library = process::probe(Command::new(&gcc).arg("-print-file-name=libc.a"));
    match library {
        Some(path) if path.starts_with('/') => Ok(gcc),
        _ => Err(Missing::absent("gcc finds no libc.a", apt("libc6-dev"))),
    }
}

fn probe_cargo(workspace: &Workspace, command: &str, component: &str) -> Result<String, Missing> {
    process::probe(workspace.cargo().args([command, "--version"]))
        .map(|version| version.trim_end().to_owned())
        .ok_or_else(|| {
            Missing::absent(
                format!("`cargo {command}` does not answer"),
                format!("rustup component add {component}"),
            )
        })
}

fn probe_tool(workspace: &Workspace, tool: &Tool) -> Result<String, Missing> {
    tool.find(workspace)
        .map(|path| path.display().to_string())
        .ok_or_else(|| {
            let folder = workspace.tools();
            Missing::absent(
                format!("neither in {} nor in PATH", folder.display()),
                tool.install_command(),
            )
        })
}

fn apt(package: &str) -> String {
    format!("apt-get install -y --no-install-recommends {package}")
}

const CNI_PLUGINS: [&str; 3] = ["ptp", "bridge", "host-local"];

fn probe_cni_plugins() -> Result<String, Missing> {
    let folder = Path::new("/usr/lib/cni");
    let missing: Vec<&str> = CNI_PLUGINS
        .into_iter()
        .filter(|plugin| !is_executable(&folder.join(plugin)))
        .collect();
    if missing.is_empty() {
        Ok(PathBuf::from(folder).display().to_string())
    } else {
        let what = format!("{} not in {}", missing.join(", "), folder.display());
        Err(Missing::absent(what, apt("containernetworking-plugins")))
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
    fn every_row_says_what_it_is_for_and_who_needs_it() {
        for row in REQUIREMENTS {
            assert!(!row.purpose.is_empty(), "{}", row.name);
            assert!(!row.groups.is_empty(), "{}", row.name);
        }
    }
}
