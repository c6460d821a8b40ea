//! `lint`: static checks of the sources.
//!
//! All checks run even if one fails, so that one run lists every problem. None needs a BPF
//! linker: the eBPF programs are linted as code for the host.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{
    architecture::Architecture,
    process, python, setup, static_agent,
    test::{CLUSTER_TESTS, PRIVILEGED_FEATURES},
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

/// Arguments of `lint`.
#[derive(clap::Args)]
pub(crate) struct LintOptions {
    /// Only type-check the agent for arm64, with the compiler of a release
    #[arg(long)]
    arm64: bool,
}

/// Runs every check; the one for arm64, which takes longer than all others, only on request.
///
/// # Errors
/// At least one check failed; the error names them.
pub(crate) fn run(workspace: &Workspace, options: &LintOptions) -> Result<()> {
    if options.arm64 {
        setup::ensure(workspace, &[setup::ARM64])?;
        return process::run(&mut static_agent::check(workspace, Architecture::Arm64)?);
    }
    setup::ensure(workspace, &[setup::LINT])?;
    let mut failed = Vec::new();
    for mut check in checks(workspace) {
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

fn checks(workspace: &Workspace) -> Vec<LintCheck> {
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
    let mut clippy_on_request = cargo(&["clippy", "--test", vm::GUEST_ONLY]);
    clippy_on_request
        .args(["--test", CLUSTER_TESTS])
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

    let tool = |tool: Tool| {
        let mut command = Command::new(tool.path(workspace));
        command.current_dir(workspace.root());
        command
    };
    let mut deny = tool(tools::DENY);
    // Without `advisories`, which would clone the advisory database on every run.
    deny.args(["check", "--hide-inclusion-graph"])
        .args(["bans", "licenses", "sources"]);
    let mut machete = tool(tools::MACHETE);
    machete.args(["--skip-target-dir", "."]);

    let mut workflows = Command::new(python::program(workspace, "actionlint"));
    workflows.current_dir(workspace.root());

    let check = |name, command| LintCheck { name, command };
    vec![
        check("format", cargo(&["fmt", "--all", "--check"])),
        check("clippy", clippy),
        check(
            "clippy of the tests in guests and in a cluster",
            clippy_on_request,
        ),
        check("clippy of the eBPF programs", clippy_ebpf),
        check("documentation", doc),
        check("documentation of the eBPF programs", doc_ebpf),
        check("licences, sources and bans", deny),
        check("unused dependencies", machete),
        check("workflows", workflows),
    ]
}
