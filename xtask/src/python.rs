//! Python programs that only tests use, in a virtual environment of this checkout.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::{process, requirements::MissingDependency, workspace::Workspace};

/// Debian packages that provide Python with `venv`.
pub(crate) const PACKAGES: &[&str] = &["python3", "python3-venv"];

/// Validates manifests against the JSON schemas of Kubernetes versions. It depends on `jsonschema`,
/// which the tests use for the chart's values.
const VALIDATE: &str = "kubernetes-validate==1.37.0";

fn environment(workspace: &Workspace) -> PathBuf {
    workspace.tools().join("python")
}

fn program(workspace: &Workspace, name: &str) -> PathBuf {
    environment(workspace).join("bin").join(name)
}

/// Checks that the environment holds the pinned version; returns its path.
pub(crate) fn probe(workspace: &Workspace) -> Result<String, MissingDependency> {
    let print_version = "import importlib.metadata as m; print(m.version('kubernetes-validate'))";
    let version = process::try_output(
        Command::new(program(workspace, "python3")).args(["-c", print_version]),
    );
    let environment = environment(workspace).display().to_string();
    match version {
        Some(version) if VALIDATE.ends_with(&format!("=={}", version.trim())) => Ok(environment),
        _ => Err(MissingDependency::absent(
            format!("not in {environment}"),
            format!("python3 -m venv {environment} && {environment}/bin/pip install {VALIDATE}"),
        )),
    }
}

/// Whether the system's Python can create an environment.
pub(crate) fn has_venv() -> bool {
    process::try_output(Command::new("python3").args(["-c", "import venv, ensurepip"])).is_some()
}

/// Creates the environment in `target/tools`.
pub(crate) fn install(workspace: &Workspace) -> Result<()> {
    let environment = environment(workspace);
    process::run(
        Command::new("python3")
            .args(["-m", "venv"])
            .arg(environment),
    )?;
    process::run(Command::new(program(workspace, "pip")).args([
        "install",
        "--quiet",
        "--disable-pip-version-check",
        VALIDATE,
    ]))
}
