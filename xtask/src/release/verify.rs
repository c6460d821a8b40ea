//! Runs the built executables, those for other architectures in an emulator.

use std::{
    path::Path,
    process::{Command, Output},
};

use anyhow::{Context as _, Result, ensure};

use super::{PROGRAMS, archive::command};
use crate::{
    architecture::Architecture,
    build::{AGENT, PLUGIN},
    files, process,
    workspace::Workspace,
};

/// A name service switch that names a module, which a static executable must not load.
const SWITCH: &str = "hosts: mymachines files dns\n";

/// A cluster at a name that does not exist.
const KUBECONFIG: &str = "apiVersion: v1
kind: Config
current-context: absent
contexts: [{name: absent, context: {cluster: absent, user: absent}}]
clusters: [{name: absent, cluster: {server: 'http://cluster.invalid:6443'}}]
users: [{name: absent, user: {}}]
";

/// Checks that the executables in `directory` start, are of this version, and resolve names without shared libraries.
///
/// # Errors
/// One does not; the message has its output.
pub(super) fn programs(
    workspace: &Workspace,
    architecture: Architecture,
    directory: &Path,
    version: &str,
) -> Result<()> {
    for name in PROGRAMS {
        let program = directory.join(name);
        let printed = process::output(command(architecture, &program).arg("--version"))?;
        ensure!(
            printed.trim_end() == format!("{name} {version}"),
            "{name} for {} printed the version {printed:?}",
            architecture.name()
        );
    }
    if architecture.emulator().is_none() {
        return Ok(());
    }
    let run = |name, args: &[&str]| {
        let mut emulated = command(architecture, &directory.join(name));
        emulated.args(args);
        resolves_without_libraries(workspace, name, &emulated)
    };
    run(AGENT, &["check", "--url", "http://agent.invalid:9842"])?;
    let config = workspace.staging().join("kubeconfig");
    files::write(&config, KUBECONFIG)?;
    run(PLUGIN, &["--kubeconfig", &config.to_string_lossy()])
}

/// The emulator lists the system calls of a program that looks up a name, in a namespace without a network.
fn resolves_without_libraries(workspace: &Workspace, name: &str, emulated: &Command) -> Result<()> {
    let switch = workspace.staging().join("nsswitch.conf");
    files::write(&switch, SWITCH)?;
    let mut command = Command::new("unshare");
    command
        .args(["--net", "--mount", "sh", "-c"])
        .arg(r#"mount --bind "$0" /etc/nsswitch.conf && exec "$@""#)
        .arg(&switch)
        .arg(emulated.get_program())
        .arg("-strace")
        .args(emulated.get_args());
    let Output { status, stderr, .. } = command.output().context("could not start `unshare`")?;
    let trace = String::from_utf8_lossy(&stderr);
    // Nothing can be asked there.
    ensure!(
        status.code() == Some(2) && trace.contains("/etc/hosts"),
        "{name} did not look up a name ({status}):\n{trace}"
    );
    ensure!(
        !trace.contains("libnss_"),
        "{name} loads modules of the name service:\n{trace}"
    );
    Ok(())
}
