//! The image for all architectures, as one OCI archive.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use detector_testkit::{cluster::chart_image, image::CERTIFICATES};
use tempfile::TempDir;

use super::{NAME, Release, archive::install_executable};
use crate::{architecture::Architecture, build::AGENT, files, process, workspace::Workspace};

/// Writes `ip-conflict-detector-VERSION.oci.tar` with an image for each architecture, whose agent is in the given directory.
/// Imported by a container runtime, it has the name that the chart uses.
pub(super) fn build(
    workspace: &Workspace,
    release: &Release,
    programs: &[(Architecture, PathBuf)],
    dist: &Path,
) -> Result<()> {
    let staging = staging(workspace)?;
    let staging = staging.path();
    let manifest = format!("localhost/{NAME}:{}", release.version);
    let name = chart_image(workspace.root())?;
    for (architecture, directory) in programs {
        let context = staging.join(architecture.name());
        files::create_dir(&context)?;
        install_executable(&directory.join(AGENT), &context.join(AGENT))?;
        files::copy(
            Path::new(CERTIFICATES),
            &context.join("ca-certificates.crt"),
        )?;
        process::run(
            buildah(staging, "bud")
                .args(["--isolation", "chroot", "--pull-never", "--quiet"])
                .args(["--target", "runtime", "--manifest", &manifest])
                .args(["--platform", &format!("linux/{}", architecture.name())])
                // Also the time of every file in the image's layer.
                .args(["--timestamp", &release.epoch.to_string()])
                .args(["--build-arg", "AGENT=ready"])
                .args(["--build-arg", &format!("VERSION={}", release.version)])
                .args(["--build-arg", &format!("REVISION={}", release.revision)])
                .arg("--file")
                .arg(workspace.root().join("deploy/Dockerfile"))
                .arg(&context),
        )?;
    }
    process::run(
        buildah(staging, "manifest")
            .args(["push", "--all", "--quiet", &manifest])
            .arg(format!(
                "oci-archive:{}:{name}",
                archive(release, dist).display()
            )),
    )
}

/// Checks that the agent starts in the image for this machine, where no other files are.
///
/// # Errors
/// It does not, or is of another version.
pub(super) fn verify(workspace: &Workspace, release: &Release, dist: &Path) -> Result<()> {
    let staging = staging(workspace)?;
    let staging = staging.path();
    let source = format!("oci-archive:{}", archive(release, dist).display());
    let container = process::output(buildah(staging, "from").args(["--quiet", &source]))?;
    let printed = process::output(
        buildah(staging, "run")
            .args(["--isolation", "chroot", container.trim_end(), "--"])
            .args(["/usr/local/bin/detector-agent", "--version"]),
    )?;
    ensure!(
        printed.trim_end() == format!("{AGENT} {}", release.version),
        "the agent in the image printed the version {printed:?}"
    );
    Ok(())
}

/// A directory of its own for what a command builds, some hundred megabytes; removed on drop.
fn staging(workspace: &Workspace) -> Result<TempDir> {
    let parent = workspace.staging();
    files::create_dir(&parent)?;
    TempDir::new_in(&parent)
        .with_context(|| format!("could not create a directory in {}", parent.display()))
}

fn archive(release: &Release, dist: &Path) -> PathBuf {
    dist.join(format!("{NAME}-{}.oci.tar", release.version))
}

/// A buildah command with a store of its own.
fn buildah(staging: &Path, command: &str) -> Command {
    let mut buildah = Command::new("buildah");
    buildah
        .arg("--root")
        .arg(staging.join("store"))
        .arg("--runroot")
        .arg(staging.join("run"))
        .args(["--storage-driver", "vfs", command]);
    buildah
}

#[cfg(all(test, feature = "privileged-tests"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use serde_json::Value;

    use super::*;
    use crate::release::tests::{programs, release};

    fn json(archive: &Path, member: &str) -> Value {
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--to-stdout", "--file"])
            .arg(archive)
            .arg(member);
        serde_json::from_str(&process::output(&mut tar).unwrap()).unwrap()
    }

    fn blob(archive: &Path, descriptor: &Value) -> Value {
        let digest = descriptor["digest"].as_str().unwrap();
        json(archive, &format!("blobs/{}", digest.replace(':', "/")))
    }

    #[test]
    fn archive_has_an_equal_image_for_each_architecture() {
        let workspace = Workspace::locate().unwrap();
        let dist = tempfile::tempdir().unwrap();
        let directory = programs(dist.path());
        let programs = Architecture::ALL.map(|architecture| (architecture, directory.clone()));
        let archive = dist.path().join("ip-conflict-detector-1.2.3.oci.tar");
        let build = || {
            build(&workspace, &release(), &programs, dist.path()).unwrap();
            json(&archive, "index.json")["manifests"][0].clone()
        };
        let index = build();
        assert_eq!(
            index["annotations"]["org.opencontainers.image.ref.name"],
            chart_image(workspace.root()).unwrap()
        );
        let manifests = blob(&archive, &index)["manifests"].clone();
        let names: Vec<_> = manifests
            .as_array()
            .unwrap()
            .iter()
            .map(|manifest| manifest["platform"]["architecture"].as_str().unwrap())
            .collect();
        assert_eq!(names, Architecture::ALL.map(Architecture::name));
        let config = blob(&archive, &blob(&archive, &manifests[1])["config"]);
        assert_eq!(config["architecture"], "arm64");
        assert_eq!(config["created"], "2023-11-14T22:13:20Z");
        let labels = &config["config"]["Labels"];
        assert_eq!(labels["org.opencontainers.image.version"], "1.2.3");
        assert_eq!(labels["org.opencontainers.image.revision"], "abc123");

        std::fs::remove_file(&archive).unwrap();
        assert_eq!(build()["digest"], index["digest"]);
    }

    #[test]
    fn agent_starts_in_the_image_only_if_it_is_static() {
        let workspace = Workspace::locate().unwrap();
        let dist = tempfile::tempdir().unwrap();
        let source = dist.path().join("agent.c");
        let text = "#include <stdio.h>\nint main(void) { puts(\"detector-agent 1.2.3\"); }\n";
        files::write(&source, text).unwrap();
        let here = Architecture::of_this_machine().unwrap();
        let programs = [(here, dist.path().to_owned())];
        for (linking, starts) in [("-static", true), ("-pie", false)] {
            process::run(
                Command::new("gcc")
                    .args([linking, "-o"])
                    .arg(dist.path().join(AGENT))
                    .arg(&source),
            )
            .unwrap();
            let _ = std::fs::remove_file(archive(&release(), dist.path()));
            build(&workspace, &release(), &programs, dist.path()).unwrap();
            let verified = verify(&workspace, &release(), dist.path());
            assert_eq!(verified.is_ok(), starts, "{linking}: {verified:?}");
        }
    }
}
