//! The Kubernetes servers, built from Debian's source package, and Debian's etcd.
//!
//! Debian ships only the client of Kubernetes. apt uses a list of sources of its own, so the machine's configuration is not
//! changed; etcd is unpacked rather than installed, so no service is started.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{ARCHITECTURE, require_architecture};
use crate::{
    cache::Cached,
    files,
    process::{self, output as stdout_of},
    setup,
    workspace::Workspace,
};

/// Debian packages that the build needs.
const PACKAGES: [&str; 5] = [
    "golang-go",
    "golang-github-modern-go-reflect2-dev",
    "jq",
    "make",
    "rsync",
];

/// The directory that contains the programs of [`COMMANDS`] and `etcd`. The number behind the version counts changes of
/// the build.
pub(crate) const SERVERS: Cached = Cached {
    name: "kubernetes-servers",
    version: "1.20.2-1",
};

const COMMANDS: [&str; 4] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
];

/// The upstream source in Debian's source package, and its checksum.
const SOURCE: &str = "kubernetes_1.20.5+really1.20.2.orig.tar.gz";
const SOURCE_SHA256: &str = "b83c0780efb182d928dc63d46488a847f161f04e40a94b96bf5247dd671ecdfc";

/// A library among the sources that crashes the API server when a custom resource is created, if it was compiled by
/// Go 1.18 or newer; Debian packages a corrected version.
const REFLECT: &str = "github.com/modern-go/reflect2";
const GO_LIBRARIES: &str = "/usr/share/gocode/src";

/// Builds them, which takes about five minutes on two cores.
pub(crate) fn install(workspace: &Workspace) -> Result<()> {
    require_architecture()?;
    SERVERS.install(workspace, build)
}

fn build(work: &Path, output: &Path) -> Result<()> {
    setup::install_packages(PACKAGES)?;
    let apt = Apt::new(work)?;
    process::run(
        apt.command()
            .args(["source", "--download-only", "kubernetes"]),
    )?;
    process::run(apt.command().args(["download", "etcd-server"]))?;
    unpack_etcd(work, output)?;
    let source = unpack_source(work)?;
    let packages: Vec<String> = COMMANDS
        .iter()
        .map(|command| format!("cmd/{command}"))
        .collect();
    process::run(
        // Everything else on the machine takes precedence.
        Command::new("nice")
            .args(["-n", "10", "make"])
            .arg(format!("WHAT={}", packages.join(" ")))
            .arg("GOLDFLAGS=-s -w")
            .current_dir(&source)
            .env("GOPATH", work.join("go"))
            .env("GOCACHE", work.join("go-cache"))
            .env("GO111MODULE", "off")
            .env("CGO_ENABLED", "0")
            // Without a repository, the build cannot determine these.
            .env("KUBE_GIT_VERSION", "v1.20.2")
            .env("KUBE_GIT_MAJOR", "1")
            .env("KUBE_GIT_MINOR", "20")
            .env("KUBE_GIT_TREE_STATE", "clean")
            .env(
                "KUBE_GIT_COMMIT",
                "faecb196815e248d3ecfb03c680a4507229c2a56",
            )
            .env("KUBE_BUILD_PLATFORMS", format!("linux/{ARCHITECTURE}")),
    )?;
    for command in COMMANDS {
        let built = format!("_output/local/bin/linux/{ARCHITECTURE}/{command}");
        files::copy(&source.join(built), &output.join(command))?;
    }
    Ok(())
}

/// apt with its own sources: those of the machine, for binary and source packages.
struct Apt {
    work: PathBuf,
}

impl Apt {
    fn new(work: &Path) -> Result<Self> {
        let sources = work.join("sources");
        files::create_dir(&sources)?;
        files::create_dir(&work.join("lists/partial"))?;
        let apt = Path::new("/etc/apt");
        let mut found = vec![apt.join("sources.list")];
        for entry in fs::read_dir(apt.join("sources.list.d"))
            .into_iter()
            .flatten()
        {
            found.push(entry?.path());
        }
        for file in found {
            let Ok(text) = fs::read_to_string(&file) else {
                continue;
            };
            let extension = file.extension().unwrap_or_default();
            let text = if extension == "list" {
                with_source_lines(&text)
            } else if extension == "sources" {
                with_source_types(&text)
            } else {
                continue;
            };
            files::write(&sources.join(file.file_name().unwrap_or_default()), text)?;
        }
        let apt = Self {
            work: work.to_owned(),
        };
        // A repository without source packages makes it fail; if Debian's are missing, the downloads fail.
        let _ = apt
            .command()
            .arg("update")
            .status()
            .context("could not start apt-get")?;
        Ok(apt)
    }

    fn command(&self) -> Command {
        let mut command = Command::new("apt-get");
        command
            .args(["-q", "-o", "Dir::Etc::SourceList=/dev/null", "-o"])
            .arg(format!(
                "Dir::Etc::SourceParts={}",
                self.work.join("sources").display()
            ))
            .arg("-o")
            .arg(format!(
                "Dir::State::Lists={}",
                self.work.join("lists").display()
            ))
            // The user `_apt` cannot read the directory.
            .args(["-o", "APT::Sandbox::User=root"])
            .current_dir(&self.work);
        command
    }
}

/// A `sources.list` with a line for source packages for every one for binary packages.
fn with_source_lines(text: &str) -> String {
    let binary = text.lines().filter(|line| {
        line.strip_prefix("deb")
            .is_some_and(|rest| rest.starts_with([' ', '\t', '[']))
    });
    binary
        .flat_map(|line| [format!("{line}\n"), format!("deb-src{}\n", &line[3..])])
        .collect()
}

/// A deb822 file of sources whose entries are for binary and source packages.
fn with_source_types(text: &str) -> String {
    text.lines()
        .map(|line| match line.split_once(':') {
            Some(("Types", _)) => "Types: deb deb-src\n".to_owned(),
            _ => format!("{line}\n"),
        })
        .collect()
}

fn unpack_etcd(work: &Path, output: &Path) -> Result<()> {
    let package = files::read_dir(work)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|name| name == "deb"));
    let package = package.context("apt-get downloaded no package")?;
    let unpacked = work.join("etcd");
    process::run(
        Command::new("dpkg-deb")
            .arg("--extract")
            .arg(package)
            .arg(&unpacked),
    )?;
    files::copy(&unpacked.join("usr/bin/etcd"), &output.join("etcd"))
}

/// Unpacks the sources where the build expects them, and returns the directory.
fn unpack_source(work: &Path) -> Result<PathBuf> {
    let sum = stdout_of(Command::new("sha256sum").arg(SOURCE).current_dir(work))?;
    if !sum.starts_with(SOURCE_SHA256) {
        bail!("{SOURCE} has the SHA-256 checksum {sum}, expected {SOURCE_SHA256}");
    }
    let source = work.join("go/src/k8s.io/kubernetes");
    files::create_dir(&source)?;
    process::run(
        Command::new("tar")
            .args(["--extract", "--strip-components=1", "--file"])
            .arg(work.join(SOURCE))
            .arg("--directory")
            .arg(&source),
    )?;
    let vendored = source.join("vendor").join(REFLECT);
    fs::remove_dir_all(&vendored)
        .with_context(|| format!("could not remove {}", vendored.display()))?;
    process::run(
        Command::new("cp")
            .args(["--recursive", "--dereference"])
            .arg(Path::new(GO_LIBRARIES).join(REFLECT))
            .arg(&vendored),
    )?;
    Ok(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_packages_are_added_to_both_formats() {
        assert_eq!(
            with_source_lines(
                "# x\ndeb [signed-by=/k] http://h/d stable main\ndeb-src http://h/d stable main\n"
            ),
            "deb [signed-by=/k] http://h/d stable main\ndeb-src [signed-by=/k] http://h/d stable main\n"
        );
        assert_eq!(
            with_source_types("Types: deb\nURIs: http://h/d\nSuites: stable\n"),
            "Types: deb deb-src\nURIs: http://h/d\nSuites: stable\n"
        );
    }
}
