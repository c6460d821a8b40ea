//! Python programs that only tests use, in an environment of this checkout alone.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::{process, requirements::Missing, workspace::Workspace};

/// Debian's packages that make such an environment.
pub(crate) const PACKAGES: &[&str] = &["python3", "python3-venv"];

/// Kubernetes' JSON schemas of many versions, and what checks a file against them. It brings `jsonschema`, which the
/// tests use for the chart's values, too.
const VALIDATE: &str = "kubernetes-validate==1.37.0";

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.tools().join("python")
}

fn python(workspace: &Workspace) -> PathBuf {
    folder(workspace).join("bin").join("python3")
}

/// Finds it, in the version that is wanted.
pub(crate) fn probe(workspace: &Workspace) -> Result<String, Missing> {
    let version = "import importlib.metadata as m; print(m.version('kubernetes-validate'))";
    let found = process::probe(Command::new(python(workspace)).args(["-c", version]));
    match found {
        Some(version) if VALIDATE.ends_with(&format!("=={}", version.trim())) => {
            Ok(folder(workspace).display().to_string())
        }
        _ => {
            let folder = folder(workspace).display().to_string();
            Err(Missing::absent(
                format!("not in {folder}"),
                format!("python3 -m venv {folder} && {folder}/bin/pip install {VALIDATE}"),
            ))
        }
    }
}

/// Is there a Python that can make an environment?
pub(crate) fn can_be_made() -> bool {
    process::probe(Command::new("python3").args(["-c", "import venv, ensurepip"])).is_some()
}

/// Makes the environment in `target/tools`.
pub(crate) fn install(workspace: &Workspace) -> Result<()> {
    let folder = folder(workspace);
    process::run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    process::run(Command::new(folder.join("bin").join("pip")).args([
        "install",
        "--quiet",
        "--disable-pip-version-check",
        VALIDATE,
    ]))
}
