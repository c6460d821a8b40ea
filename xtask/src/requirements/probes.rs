//! Probes for the requirements: each returns what was found, or what is missing and the fix.

use std::{path::Path, process::Command};

use super::MissingDependency;
use crate::{
    compiler,
    host::{find_program, is_executable},
    linker, process,
    tools::Tool,
    vm,
    workspace::Workspace,
};

pub(super) fn probe_compiler(workspace: &Workspace) -> Result<String, MissingDependency> {
    // Without a linker, `setup` installs its own, and the compiler has to match that one.
    let linker_llvm = linker::find(workspace).map_or(Some(linker::LLVM), |linker| linker.llvm);
    Ok(compiler::find(linker_llvm)?.rustc.display().to_string())
}

pub(super) fn probe_linker(workspace: &Workspace) -> Result<String, MissingDependency> {
    Ok(linker::find(workspace)?.path.display().to_string())
}

pub(super) fn probe_program(program: &str, package: &str) -> Result<String, MissingDependency> {
    find_program(program)
        .map(|path| path.display().to_string())
        .ok_or_else(|| {
            MissingDependency::absent(format!("`{program}` is not in PATH"), apt_install(package))
        })
}

/// Probes pairs of program and package in order; returns the last program's path.
pub(super) fn probe_programs(programs: &[(&str, &str)]) -> Result<String, MissingDependency> {
    let mut found = String::new();
    for (program, package) in programs {
        found = probe_program(program, package)?;
    }
    Ok(found)
}

pub(super) fn probe_virtual_machines() -> Result<String, MissingDependency> {
    if !is_executable(Path::new(vm::FILE_SERVER)) {
        return Err(MissingDependency::absent(
            format!("{} does not exist", vm::FILE_SERVER),
            apt_install("qemu-system-x86"),
        ));
    }
    probe_programs(&[
        ("busybox", "busybox-static"),
        ("cpio", "cpio"),
        ("depmod", "kmod"),
        ("xz", "xz-utils"),
        (vm::EMULATOR, "qemu-system-x86"),
    ])
}

pub(super) fn probe_cni_plugins() -> Result<String, MissingDependency> {
    const PLUGINS: [&str; 3] = ["ptp", "bridge", "host-local"];
    let dir = Path::new("/usr/lib/cni");
    let missing: Vec<&str> = PLUGINS
        .into_iter()
        .filter(|plugin| !is_executable(&dir.join(plugin)))
        .collect();
    if missing.is_empty() {
        return Ok(dir.display().to_string());
    }
    Err(MissingDependency::absent(
        format!("{} not in {}", missing.join(", "), dir.display()),
        apt_install("containernetworking-plugins"),
    ))
}

pub(super) fn probe_go() -> Result<String, MissingDependency> {
    const SOURCES: &str = "/usr/share/gocode/src";
    const LIBRARIES: [(&str, &str); 2] = [
        (
            "github.com/Masterminds/sprig",
            "golang-github-masterminds-sprig-dev",
        ),
        ("gopkg.in/yaml.v3", "golang-gopkg-yaml.v3-dev"),
    ];
    let go = probe_program("go", "golang-go")?;
    for (library, package) in LIBRARIES {
        if !Path::new(SOURCES).join(library).is_dir() {
            return Err(MissingDependency::absent(
                format!("the Go library {library} is not in {SOURCES}"),
                apt_install(package),
            ));
        }
    }
    Ok(go)
}

pub(super) fn probe_static_c() -> Result<String, MissingDependency> {
    let gcc = probe_program("gcc", "gcc")?;
    // gcc prints the bare file name if it does not find the library.
    let library = process::try_output(Command::new(&gcc).arg("-print-file-name=libc.a"));
    match library {
        Some(path) if path.starts_with('/') => Ok(gcc),
        _ => Err(MissingDependency::absent(
            "gcc finds no libc.a",
            apt_install("libc6-dev"),
        )),
    }
}

pub(super) fn probe_cargo(
    workspace: &Workspace,
    command: &str,
    component: &str,
) -> Result<String, MissingDependency> {
    process::try_output(workspace.cargo().args([command, "--version"]))
        .map(|version| version.trim_end().to_owned())
        .ok_or_else(|| {
            MissingDependency::absent(
                format!("`cargo {command} --version` failed"),
                format!("rustup component add {component}"),
            )
        })
}

pub(super) fn probe_tool(workspace: &Workspace, tool: &Tool) -> Result<String, MissingDependency> {
    tool.find(workspace)
        .map(|path| path.display().to_string())
        .ok_or_else(|| {
            MissingDependency::absent(
                format!("neither in {} nor in PATH", workspace.tools().display()),
                tool.install_command(),
            )
        })
}

fn apt_install(package: &str) -> String {
    format!("apt-get install -y --no-install-recommends {package}")
}
