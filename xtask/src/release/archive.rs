//! The archive with the executables, their shell completions and manual pages, and the agent's unit for systemd.

use std::{
    fs::Permissions,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{NAME, PROGRAMS, Release};
use crate::{architecture::Architecture, files, process, workspace::Workspace};

/// Shells, and what they add before and after a program's name in that of its completions.
const COMPLETIONS: [(&str, &str, &str); 3] = [
    ("bash", "", ".bash"),
    ("zsh", "_", ""),
    ("fish", "", ".fish"),
];

/// Files of the repository that go into the archive.
const DOCUMENTS: [&str; 5] = [
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "deploy/systemd/ip-conflict-detector.service",
];

/// Writes `ip-conflict-detector-VERSION-linux-ARCH.tar.gz` with the executables in `programs`; returns its path.
pub(super) fn build(
    workspace: &Workspace,
    release: &Release,
    architecture: Architecture,
    programs: &Path,
    dist: &Path,
) -> Result<PathBuf> {
    let name = format!("{NAME}-{}-linux-{}", release.version, architecture.name());
    let staging = workspace.staging();
    let directory = staging.join(&name);
    super::empty(&directory)?;
    for document in DOCUMENTS {
        let from = workspace.root().join(document);
        let name = from.file_name().context("a file has a name")?;
        files::copy(&from, &directory.join(name))?;
    }
    let completions = directory.join("completions");
    files::create_dir(&completions)?;
    for name in PROGRAMS {
        let program = programs.join(name);
        install_executable(&program, &directory.join(name))?;
        for (shell, before, after) in COMPLETIONS {
            let script =
                process::output(command(architecture, &program).args(["completions", shell]))?;
            files::write(&completions.join(format!("{before}{name}{after}")), script)?;
        }
        process::run(
            command(architecture, &program)
                .arg("man")
                .arg(directory.join("man/man1")),
        )?;
    }
    let archive = dist.join(format!("{name}.tar.gz"));
    pack(&staging, &name, release.epoch, &archive)?;
    Ok(archive)
}

/// Copies a program so that everyone may execute it and only its owner write it.
pub(super) fn install_executable(from: &Path, to: &Path) -> Result<()> {
    files::copy(from, to)?;
    std::fs::set_permissions(to, Permissions::from_mode(0o755))
        .with_context(|| format!("could not make {} executable", to.display()))
}

/// A command that runs a program, in an emulator if it is for another architecture.
pub(crate) fn command(architecture: Architecture, program: &Path) -> Command {
    match architecture.emulator() {
        None => Command::new(program),
        Some(emulator) => {
            let mut command = Command::new(emulator);
            command.arg(program);
            command
        }
    }
}

/// Packs a directory so that equal content gives an equal archive: sorted, with one time and owner.
fn pack(parent: &Path, name: &str, epoch: u64, archive: &Path) -> Result<()> {
    process::run(
        Command::new("tar")
            .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
            .args(["--format=ustar", "--mode=u=rwX,go=rX"])
            .arg(format!("--mtime=@{epoch}"))
            .args(["--use-compress-program", "gzip --no-name -9"])
            .arg("--create")
            .arg("--file")
            .arg(archive)
            .arg("--directory")
            .arg(parent)
            .arg(name),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::{fs, time::SystemTime};

    use super::*;
    use crate::release::tests::{programs, release};

    #[test]
    fn archive_has_the_programs_completions_pages_and_licences() {
        let workspace = Workspace::locate().unwrap();
        let dist = tempfile::tempdir().unwrap();
        let programs = programs(dist.path());
        let here = Architecture::of_this_machine().unwrap();
        let archive = build(&workspace, &release(), here, &programs, dist.path()).unwrap();
        let name = format!("ip-conflict-detector-1.2.3-linux-{}", here.name());
        assert_eq!(archive, dist.path().join(format!("{name}.tar.gz")));
        let listed = process::output(
            Command::new("tar")
                .arg("--list")
                .arg("--file")
                .arg(&archive),
        );
        let listed = listed.unwrap();
        let files: Vec<_> = listed
            .lines()
            .filter(|line| !line.ends_with('/'))
            .map(|line| line.strip_prefix(&name).unwrap())
            .collect();
        assert_eq!(
            files,
            [
                "/CHANGELOG.md",
                "/LICENSE-APACHE",
                "/LICENSE-MIT",
                "/README.md",
                "/completions/_detector-agent",
                "/completions/_kubectl-ipconflict",
                "/completions/detector-agent.bash",
                "/completions/detector-agent.fish",
                "/completions/kubectl-ipconflict.bash",
                "/completions/kubectl-ipconflict.fish",
                "/detector-agent",
                "/ip-conflict-detector.service",
                "/kubectl-ipconflict",
                "/man/man1/detector-agent.1",
                "/man/man1/kubectl-ipconflict.1",
            ]
        );
    }

    #[test]
    fn equal_content_gives_an_equal_archive() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("release");
        let fill = |files: [&str; 2]| {
            fs::create_dir_all(directory.join("bin")).unwrap();
            for file in files {
                files::write(&directory.join("bin").join(file), file).unwrap();
            }
        };
        fill(["a", "b"]);
        install_executable(&directory.join("bin/a"), &directory.join("c")).unwrap();
        let (first, second) = (parent.path().join("1.tgz"), parent.path().join("2.tgz"));
        pack(parent.path(), "release", 1_700_000_000, &first).unwrap();

        fs::remove_dir_all(&directory).unwrap();
        fill(["b", "a"]);
        install_executable(&directory.join("bin/a"), &directory.join("c")).unwrap();
        let file = fs::File::open(directory.join("c")).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        fs::set_permissions(directory.join("bin/a"), Permissions::from_mode(0o600)).unwrap();
        pack(parent.path(), "release", 1_700_000_000, &second).unwrap();
        assert!(fs::read(&first).unwrap() == fs::read(&second).unwrap());

        let listed = process::output(
            Command::new("tar")
                .args(["--utc", "--list", "--verbose", "--file"])
                .arg(&first),
        )
        .unwrap();
        let executable = listed.lines().find(|line| line.ends_with("release/c"));
        let executable = executable.unwrap();
        assert!(executable.starts_with("-rwxr-xr-x 0/0 "), "{executable}");
        assert!(executable.contains("2023-11-14 22:13"), "{executable}");
    }
}
