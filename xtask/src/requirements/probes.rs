//! Probes for the requirements: each returns what was found, or what is missing and the fix.

use std::{path::Path, process::Command};

use super::MissingDependency;
use crate::{
    architecture::Architecture,
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

pub(super) fn probe_file(path: &str, package: &str) -> Result<String, MissingDependency> {
    if Path::new(path).is_file() {
        return Ok(path.to_owned());
    }
    Err(MissingDependency::absent(
        format!("{path} does not exist"),
        apt_install(package),
    ))
}

/// A cross compiler on any other machine, the native one on arm64.
pub(super) fn probe_cross_compiler() -> Result<String, MissingDependency> {
    probe_static_libc(
        &Architecture::Arm64.c_compiler(),
        "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    )
}

pub(super) fn probe_static_c() -> Result<String, MissingDependency> {
    probe_static_libc("gcc", "gcc libc6-dev")
}

fn probe_static_libc(compiler: &str, packages: &str) -> Result<String, MissingDependency> {
    let gcc = probe_program(compiler, packages)?;
    // gcc prints the bare file name if it does not find the library.
    let library = process::try_output(Command::new(&gcc).arg("-print-file-name=libc.a"));
    match library {
        Some(path) if path.starts_with('/') => Ok(gcc),
        _ => Err(MissingDependency::absent(
            format!("{compiler} finds no libc.a"),
            apt_install(packages),
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
