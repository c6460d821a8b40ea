//! The table of requirements.

use super::{
    Group, Requirement,
    probes::{
        probe_cargo, probe_cni_plugins, probe_compiler, probe_go, probe_linker, probe_program,
        probe_programs, probe_static_c, probe_tool, probe_virtual_machines,
    },
};
use crate::{compiler, linker, python, tools};

/// All requirements; `doctor` lists them in this order.
pub(crate) const REQUIREMENTS: &[Requirement] = &[
    Requirement {
        name: "eBPF compiler",
        purpose: "compiles the eBPF programs and their `core` library",
        groups: &[Group::Build],
        probe: probe_compiler,
        packages: compiler::PACKAGES,
        needs_packages: always,
        installer: None,
    },
    Requirement {
        name: "bpf-linker",
        purpose: "links the eBPF programs and writes their BTF",
        groups: &[Group::Build],
        probe: probe_linker,
        packages: linker::PACKAGES,
        needs_packages: || !linker::has_llvm(),
        installer: Some(linker::install),
    },
    Requirement {
        name: "ip",
        purpose: "sets up the network namespaces of simulated nodes and pods",
        groups: &[Group::Demo, Group::Test],
        probe: |_| probe_program("ip", "iproute2"),
        packages: &["iproute2"],
        needs_packages: always,
        installer: None,
    },
    Requirement {
        name: "CNI plugins",
        purpose: "the tests create pods with the real ptp, bridge and host-local plugins",
        groups: &[Group::Test, Group::Bench],
        probe: |_| probe_cni_plugins(),
        packages: &["containernetworking-plugins"],
        needs_packages: always,
        installer: None,
    },
    Requirement {
        name: "containerd",
        purpose: "the tests look up real pods through CRI; includes runc, and iptables for the CNI plugins",
        groups: &[Group::Test, Group::Bench],
        probe: |_| {
            probe_programs(&[
                ("ctr", "containerd"),
                ("runc", "runc"),
                ("iptables", "iptables"),
                ("containerd", "containerd"),
            ])
        },
        packages: &["containerd", "runc", "iptables"],
        needs_packages: always,
        installer: None,
    },
    Requirement {
        name: "C compiler",
        purpose: "the tests build a static pause program for their pods",
        groups: &[Group::Test, Group::Bench],
        probe: |_| probe_static_c(),
        packages: &["gcc", "libc6-dev"],
        needs_packages: always,
        installer: None,
    },
    Requirement {
        name: "C++ compiler",
        purpose: "builds libFuzzer for the fuzz targets",
        groups: &[Group::Fuzz, Group::Lint],
        probe: |_| probe_program("g++", "g++"),
        packages: &["g++"],
        needs_packages: always,
        installer: None,
    },
    Requirement {
        name: "Prometheus",
        purpose: "the tests scrape the agent with it",
        groups: &[Group::Test],
        probe: |_| probe_program("prometheus", "prometheus"),
        packages: &["prometheus"],
        needs_packages: always,
        installer: None,
    },
    Requirement {
        name: "jq",
        purpose: "the tests run the commands of the runbooks",
        groups: &[Group::Test],
        probe: |_| probe_program("jq", "jq"),
        packages: &["jq"],
        needs_packages: always,
        installer: None,
    },
    Requirement {
        name: "Chromium",
        purpose: "the tests open the status page in it",
        groups: &[Group::Test],
        probe: |_| {
            probe_programs(&[
                ("chromium", "chromium"),
                ("chromedriver", "chromium-driver"),
            ])
        },
        packages: &["chromium", "chromium-driver"],
        needs_packages: always,
        installer: None,
    },
    Requirement {
        name: "prometheus-alertmanager",
        purpose: "the tests send alerts to it and query them with amtool",
        groups: &[Group::Test],
        probe: |_| {
            probe_programs(&[
                ("prometheus-alertmanager", "prometheus-alertmanager"),
                ("amtool", "prometheus-alertmanager"),
            ])
        },
        packages: &["prometheus-alertmanager"],
        needs_packages: always,
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
        needs_packages: always,
        installer: None,
    },
    Requirement {
        name: "comparison programs",
        purpose: "the benchmarks show them the same conflicts",
        groups: &[Group::Bench],
        probe: |_| {
            probe_programs(&[
                ("arpwatch", "arpwatch"),
                ("arpalert", "arpalert"),
                ("bpftrace", "bpftrace"),
                ("tcpdump", "tcpdump"),
            ])
        },
        packages: &["arpwatch", "arpalert", "tcpdump", "bpftrace"],
        needs_packages: always,
        installer: None,
    },
    Requirement {
        name: "kubectl",
        purpose: "the tests build the manifests with its kustomize",
        groups: &[Group::Test],
        probe: |_| probe_program("kubectl", "kubernetes-client"),
        packages: &["kubernetes-client"],
        needs_packages: always,
        installer: None,
    },
    Requirement {
        name: "Go",
        purpose: "the tests render the Helm chart with Go templates and sprig",
        groups: &[Group::Test],
        probe: |_| probe_go(),
        packages: &[
            "golang-go",
            "golang-github-masterminds-sprig-dev",
            "golang-gopkg-yaml.v3-dev",
        ],
        needs_packages: always,
        installer: None,
    },
    Requirement {
        name: "kubernetes-validate",
        purpose: "the tests validate the manifests against the Kubernetes schemas",
        groups: &[Group::Test],
        probe: python::probe,
        packages: python::PACKAGES,
        needs_packages: || !python::has_venv(),
        installer: Some(python::install),
    },
    Requirement {
        name: "buildah",
        purpose: "the tests build the container image",
        groups: &[Group::Test],
        probe: |_| probe_program("buildah", "buildah"),
        packages: &["buildah"],
        needs_packages: always,
        installer: None,
    },
    Requirement {
        name: "rustfmt",
        purpose: "checks the formatting of the sources",
        groups: &[Group::Lint],
        probe: |workspace| probe_cargo(workspace, "fmt", "rustfmt"),
        packages: &[],
        needs_packages: || false,
        installer: None,
    },
    Requirement {
        name: "clippy",
        purpose: "lints the sources",
        groups: &[Group::Lint],
        probe: |workspace| probe_cargo(workspace, "clippy", "clippy"),
        packages: &[],
        needs_packages: || false,
        installer: None,
    },
    Requirement {
        name: "cargo-deny",
        purpose: "checks licences and sources of dependencies",
        groups: &[Group::Lint],
        probe: |workspace| probe_tool(workspace, &tools::DENY),
        packages: &[],
        needs_packages: || false,
        installer: Some(|workspace| tools::DENY.install(workspace)),
    },
    Requirement {
        name: "cargo-machete",
        purpose: "finds unused dependencies",
        groups: &[Group::Lint],
        probe: |workspace| probe_tool(workspace, &tools::MACHETE),
        packages: &[],
        needs_packages: || false,
        installer: Some(|workspace| tools::MACHETE.install(workspace)),
    },
];

fn always() -> bool {
    true
}
