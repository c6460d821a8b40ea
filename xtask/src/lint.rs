//! `lint`: static checks of the sources.
//!
//! All checks run even if one fails, so that one run lists every problem. None needs a BPF
//! toolchain: the eBPF programs are linted as code for the host.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{
    process,
    requirements::Group,
    setup,
    test::PRIVILEGED_FEATURES,
    tools::{self, Tool},
    vm,
    workspace::Workspace,
};

/// The feature that builds the fuzzer itself.
const FUZZER_FEATURE: &str = "detector-fuzz/libfuzzer";

struct LintCheck {
    name: &'static str,
    command: Command,
}

/// Runs every check.
///
/// # Errors
/// At least one check failed; the error names them.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    setup::ensure(workspace, &[Group::Lint])?;
    let mut failed = Vec::new();
    for mut check in checks(workspace)? {
        eprintln!("lint: {}", check.name);
        if let Err(error) = process::run(&mut check.command) {
            eprintln!("lint: {error:#}");
            failed.push(check.name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn checks(workspace: &Workspace) -> Result<Vec<LintCheck>> {
    let cargo = |args: &[&str]| {
        let mut command = workspace.cargo();
        command.args(args);
        command
    };
    let host = ["--workspace", "--exclude", "detector-ebpf"];
    let ebpf = ["--package", "detector-ebpf", "--bins"];

    let mut clippy = cargo(&["clippy", "--all-targets", "--features", PRIVILEGED_FEATURES]);
    clippy
        .args(["--features", FUZZER_FEATURE])
        .args(host)
        .args(["--", "--deny", "warnings"]);
    let mut clippy_guest = cargo(&["clippy", "--test", vm::GUEST_ONLY]);
    clippy_guest
        .args(["--features", PRIVILEGED_FEATURES])
        .args(host)
        .args(["--", "--deny", "warnings"]);
    let mut clippy_ebpf = cargo(&["clippy"]);
    clippy_ebpf.args(ebpf).args(["--", "--deny", "warnings"]);
    let mut doc = cargo(&["doc", "--no-deps", "--document-private-items"]);
    doc.args(host);
    let mut doc_ebpf = cargo(&["doc", "--no-deps", "--document-private-items"]);
    doc_ebpf.args(ebpf);
    for command in [&mut doc, &mut doc_ebpf] {
        command.env("RUSTDOCFLAGS", "--deny warnings");
    }
    // The host target unwinds by default, which `no_std` code without an unwinder cannot link.
    for command in [&mut clippy_ebpf, &mut doc_ebpf] {
        command.env("CARGO_PROFILE_DEV_PANIC", "abort");
    }

    let mut deny = tool_command(workspace, &tools::DENY)?;
    // Without `advisories`, which would clone the advisory database on every run.
    deny.args(["check", "--hide-inclusion-graph"])
        .args(["bans", "licenses", "sources"]);
    let mut machete = tool_command(workspace, &tools::MACHETE)?;
    machete.args(["--skip-target-dir", "."]);

    let check = |name, command| LintCheck { name, command };
    Ok(vec![
        check("format", cargo(&["fmt", "--all", "--check"])),
        check("clippy", clippy),
        check("clippy of the guests' tests", clippy_guest),
        check("clippy of the eBPF programs", clippy_ebpf),
        check("documentation", doc),
        check("documentation of the eBPF programs", doc_ebpf),
        check("licences, sources and bans", deny),
        check("unused dependencies", machete),
    ])
}

fn tool_command(workspace: &Workspace, tool: &Tool) -> Result<Command> {
    let path = tool
        .find(workspace)
        .with_context(|| format!("{} was installed but cannot be found", tool.name()))?;
    let mut command = Command::new(path);
    command.current_dir(workspace.root());
    Ok(command)
}
