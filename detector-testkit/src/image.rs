//! The agent's image, built from the real Dockerfile.
//!
//! A released image contains a static agent and no base image. An agent of a test is not static: its libraries, of this
//! machine, are the base image.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::command::run_command;

/// The name of the image with the libraries.
const BASE: &str = "localhost/ipconflict-base:test";

/// The certificate authorities that become part of the image.
pub const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// A built image in a directory.
#[derive(Debug)]
pub struct AgentImage {
    directory: PathBuf,
    name: String,
}

impl AgentImage {
    /// Builds the image `name` from the Dockerfile of a checkout and an agent that was built there, in a new directory.
    ///
    /// # Errors
    /// buildah, binutils or ca-certificates is missing, or the agent needs a library that could not be linked statically.
    pub fn build(
        directory: &Path,
        checkout: &Path,
        agent: &Path,
        name: &str,
        revision: &str,
    ) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let image = Self {
            directory: directory.to_owned(),
            name: name.to_owned(),
        };
        let path = directory;
        let base = path.join("base");
        for library in libraries(agent)? {
            let to = base.join(library.strip_prefix("/").unwrap_or(&library));
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::copy(&library, to).with_context(|| format!("copying {}", library.display()))?;
        }
        let dockerfile = path.join("Dockerfile.base");
        fs::write(&dockerfile, "FROM scratch\nCOPY . /\n")?;
        let bud = ["--isolation", "chroot", "--pull-never", "--quiet"];
        let mut build = image.buildah("bud");
        build
            .args(bud)
            .args(["-t", BASE, "-f"])
            .arg(&dockerfile)
            .arg(&base);
        run(build)?;
        let ready = path.join("ready");
        fs::create_dir(&ready)?;
        let mut strip = Command::new("strip");
        strip
            .args(["--strip-debug", "-o"])
            .arg(ready.join("detector-agent"))
            .arg(agent);
        run(strip)?;
        fs::copy(CERTIFICATES, ready.join("ca-certificates.crt"))
            .with_context(|| format!("copying {CERTIFICATES}"))?;
        let mut build = image.buildah("bud");
        build
            .args(bud)
            .args(["-t", name, "-f"])
            .arg(checkout.join("deploy/Dockerfile"))
            .args(["--target", "runtime"])
            .args(["--build-arg", "AGENT=ready", "--build-arg"])
            .arg(format!("BASE={BASE}"))
            .arg("--build-arg")
            .arg(format!("REVISION={revision}"))
            .arg(&ready);
        run(build)?;
        let mut push = image.buildah("push");
        push.args(["--quiet", name])
            .arg(format!("oci-archive:{}:{name}", image.archive().display()));
        run(push)?;
        Ok(image)
    }

    /// A buildah command on the storage that contains the image.
    #[must_use]
    pub fn buildah(&self, command: &str) -> Command {
        let store = self.directory.join("storage");
        let mut buildah = Command::new("buildah");
        buildah
            .arg("--root")
            .arg(store.join("root"))
            .arg("--runroot")
            .arg(store.join("run"))
            .args(["--storage-driver", "vfs", command]);
        buildah
    }

    /// The image as an OCI archive.
    #[must_use]
    pub fn archive(&self) -> PathBuf {
        self.directory.join("agent.tar")
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The shared libraries of the agent, and its loader.
fn libraries(agent: &Path) -> Result<Vec<PathBuf>> {
    let mut ldd = Command::new("ldd");
    ldd.arg(agent);
    let found: Vec<PathBuf> = run(ldd)?
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect();
    // The agent of a release links these statically; of others there is no static library.
    let is_expected = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        ["libc.so.6", "libgcc_s.so.1", "libm.so.6"].contains(&name.as_ref())
            || name.starts_with("ld-linux")
    };
    ensure!(found.iter().all(is_expected), "{found:?}");
    Ok(found)
}

fn run(command: Command) -> Result<String> {
    run_command(command, None).context("`cargo xtask setup` installs what is missing")
}
