//! `lint`: everything about the sources that a machine can judge without running them.
//!
//! Every check runs, also after one has failed, so that one run shows all there is to mend. None
//! needs a BPF toolchain: the kernel programs are linted as code for this machine.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{
    process,
    requirements::Group,
    setup,
    test::PRIVILEGED_FEATURES,
    tools::{self, Tool},
    workspace::Workspace,
};

/// The feature without which the fuzzer itself is not built.
const FUZZER_FEATURE: &str = "detector-fuzz/libfuzzer";

/// A check and the command that makes it.
struct Check {
    name: &'static str,
    command: Command,
}

/// Runs every check.
///
/// # Errors
/// Names the checks that failed.
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

fn checks(workspace: &Workspace) -> Result<Vec<Check>> {
    let cargo = |args: &[&str]| {
        let mut command = workspace.cargo();
        command.args(args);
        command
    };
    let host = ["--workspace", "--exclude", "detector-ebpf"];
    let kernel = ["--package", "detector-ebpf", "--bins"];

    let mut clippy = cargo(&["clippy", "--all-targets", "--features", PRIVILEGED_FEATURES]);
    clippy
        .args(["--features", FUZZER_FEATURE])
        .args(host)
        .args(["--", "--deny", "warnings"]);
    let mut clippy_kernel = cargo(&["clippy"]);
    clippy_kernel
        .args(kernel)
        .args(["--", "--deny", "warnings"]);
    let mut doc = cargo(&["doc", "--no-deps", "--document-private-items"]);
    doc.args(host);
    let mut doc_kernel = cargo(&["doc", "--no-deps", "--document-private-items"]);
    doc_kernel.args(kernel);
    for command in [&mut doc, &mut doc_kernel] {
        command.env("RUSTDOCFLAGS", "--deny warnings");
    }
    // Without a panic strategy that aborts, this machine's target asks for an unwinder.
    for command in [&mut clippy_kernel, &mut doc_kernel] {
        command.env("CARGO_PROFILE_DEV_PANIC", "abort");
    }

    let mut deny = tool(workspace, &tools::DENY)?;
    // Advisories need a clone of their database from the net at every run: not here.
    deny.args(["check", "--hide-inclusion-graph"])
        .args(["bans", "licenses", "sources"]);
    let mut machete = tool(workspace, &tools::MACHETE)?;
    machete.args(["--skip-target-dir", "."]);

    let check = |name, command| Check { name, command };
    Ok(vec![
        check("format", cargo(&["fmt", "--all", "--check"])),
        check("clippy", clippy),
        check("clippy of the kernel programs", clippy_kernel),
        check("documentation", doc),
        check("documentation of the kernel programs", doc_kernel),
        check("licences, sources and bans", deny),
        check("unused dependencies", machete),
    ])
}

fn tool(workspace: &Workspace, tool: &Tool) -> Result<Command> {
    let path = tool
        .find(workspace)
        .with_context(|| format!("{} is gone since it was installed", tool.name()))?;
    let mut command = Command::new(path);
    command.current_dir(workspace.root());
    Ok(command)
}
