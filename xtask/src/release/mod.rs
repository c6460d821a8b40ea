//! `release`: builds what a release consists of into `target/dist`.
//!
//! It publishes nothing. Pushing, signing and provenance need the identity of the release workflow,
//! `.github/workflows/release.yaml`, which runs this task first.

mod archive;
mod chart;
mod checksums;
mod image;
mod krew;
mod sbom;
mod verify;
mod version;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    architecture::Architecture,
    build::{AGENT, PLUGIN, Profile},
    files, process, setup, source_paths, static_agent,
    stdout::print_line,
    workspace::Workspace,
};

/// Name of the project in files and images.
const NAME: &str = "ip-conflict-detector";

/// The executables of a release.
const PROGRAMS: [&str; 2] = [AGENT, PLUGIN];

/// What only the release workflow does.
const NOT_DONE: &[&str] = &[
    "push the image and the chart to the registry",
    "sign the image, the chart and SHA256SUMS with cosign",
    "attest the provenance of the image, the chart and the files, and attach the SBOM to the image",
    "create the release with its files",
    "submit ipconflict.yaml to krew's index, which a person does",
];

impl Workspace {
    /// Intermediate files of a release.
    fn staging(&self) -> PathBuf {
        self.target().join("dist-staging")
    }
}

/// Arguments of `release`.
#[derive(clap::Args)]
pub(crate) struct ReleaseOptions {
    /// Build from any commit; without it, HEAD must have the tag of the version, and CHANGELOG.md its date
    #[arg(long)]
    dry_run: bool,
    /// Build an unoptimised agent, for tests of this task
    #[arg(long, requires = "dry_run")]
    debug: bool,
}

/// What each artefact of one release has in common.
struct Release {
    version: String,
    /// The commit.
    revision: String,
    /// `SOURCE_DATE_EPOCH`: the time of the commit in seconds, and the time of every file in the artefacts.
    epoch: u64,
}

/// Builds every artefact and prints its path, then what is left to the release workflow.
///
/// # Errors
/// The versions in the repository differ, it is not the tagged commit, or an artefact could not be built.
pub(crate) fn run(workspace: &Workspace, options: &ReleaseOptions) -> Result<()> {
    let version = version::check(workspace, options.dry_run)?;
    let release = Release::new(workspace, version)?;
    setup::ensure(workspace, &[setup::BUILD, setup::RELEASE])?;
    let profile = Profile::from_debug_flag(options.debug);
    let dist = workspace.target().join("dist");
    empty(&dist)?;
    let mut programs = Vec::new();
    for architecture in Architecture::ALL {
        let directory = static_agent::build(workspace, architecture, profile, &PROGRAMS)?;
        for program in PROGRAMS {
            ensure_no_build_paths(workspace, &directory.join(program))?;
        }
        programs.push((architecture, directory));
    }
    let staging = workspace.staging();
    empty(&staging)?;
    for (architecture, directory) in &programs {
        verify::programs(workspace, *architecture, directory, &release.version)?;
        archive::build(workspace, &release, *architecture, directory, &dist)?;
    }
    image::build(workspace, &release, &programs, &dist)?;
    image::verify(workspace, &release, &dist)?;
    chart::package(workspace, &release, &dist)?;
    sbom::write(workspace, &release, &dist)?;
    krew::write(&release, &dist)?;
    checksums::write(&dist)?;
    let changelog = files::read_text(&workspace.root().join("CHANGELOG.md"))?;
    files::write(
        &workspace.target().join("release-notes.md"),
        version::notes(&changelog, &release.version)?,
    )?;
    for name in checksums::names(&dist)? {
        print_line(dist.join(name).display())?;
    }
    print_line("Not done here, but by .github/workflows/release.yaml unless stated otherwise:")?;
    for step in NOT_DONE {
        print_line(format_args!("- {step}"))?;
    }
    Ok(())
}

impl Release {
    fn new(workspace: &Workspace, version: String) -> Result<Self> {
        let last_commit = |format: &str| {
            let mut git = version::git(workspace);
            let text = process::output(git.args(["log", "-1"]).arg(format!("--format={format}")))?;
            anyhow::Ok(text.trim_end().to_owned())
        };
        let epoch = match env::var("SOURCE_DATE_EPOCH") {
            Ok(epoch) => epoch,
            Err(_) => last_commit("%ct")?,
        };
        let epoch = epoch
            .parse()
            .with_context(|| format!("SOURCE_DATE_EPOCH is {epoch:?}, not a number of seconds"))?;
        Ok(Self {
            version,
            revision: last_commit("%H")?,
            epoch,
        })
    }
}

fn empty(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory)
            .with_context(|| format!("could not remove {}", directory.display()))?;
    }
    files::create_dir(directory)
}

/// Fails if the executable contains the path of the checkout or of cargo's sources: it would depend on where it was built.
fn ensure_no_build_paths(workspace: &Workspace, program: &Path) -> Result<()> {
    let content = files::read(program)?;
    for path in source_paths::of_this_machine(workspace) {
        let path = path.to_string_lossy();
        ensure!(
            !contains(&content, path.as_bytes()),
            "{} contains the path {path} of this machine",
            program.display()
        );
    }
    Ok(())
}

fn contains(content: &[u8], part: &[u8]) -> bool {
    content.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    /// A release of the time 2023-11-14 22:13:20.
    pub(super) fn release() -> Release {
        Release {
            version: "1.2.3".to_owned(),
            revision: "abc123".to_owned(),
            epoch: 1_700_000_000,
        }
    }

    /// A directory with scripts that stand in for the executables.
    pub(super) fn programs(directory: &Path) -> PathBuf {
        let script = directory.join("script");
        let text = "#!/bin/sh\ncase $1 in\ncompletions) echo \"for $2\" ;;\nman) mkdir -p \"$2\" && echo page > \"$2/${0##*/}.1\" ;;\nesac\n";
        files::write(&script, text).unwrap();
        for name in PROGRAMS {
            archive::install_executable(&script, &directory.join(name)).unwrap();
        }
        directory.to_owned()
    }

    #[test]
    fn paths_are_found_in_executables() {
        assert!(contains(b"\x7fELF/home/me/src/main.rs\0", b"/home/me"));
        assert!(!contains(b"\x7fELF/src/main.rs\0", b"/home/me"));
    }
}
