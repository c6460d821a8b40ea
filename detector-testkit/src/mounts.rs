//! A mount namespace of our own, in which `/var/lib` is empty and nobody else's: CNI plugins keep their state at paths that
//! no configuration moves, and the machine's own must not be touched.

use std::{fs, fs::File, path::Path, thread};

use anyhow::{Context as _, Result};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns, unshare},
};

use crate::netns::Netns;

/// Where the CNI specification's own plugins keep what they remember.
const STATE: &str = "/var/lib";

/// The namespace; it goes away with the value and the processes in it.
#[derive(Debug)]
pub struct PrivateMounts {
    namespace: File,
}

impl PrivateMounts {
    /// Makes the namespace. Network namespaces that are made later appear in it, too.
    ///
    /// # Errors
    /// Where the kernel refuses: it takes `CAP_SYS_ADMIN`.
    pub fn new() -> Result<Self> {
        let namespace = on_own_thread(|| {
            unshare(CloneFlags::CLONE_NEWNS).context("making a mount namespace (is this root?)")?;
            // Slave: nothing that is mounted here is seen outside, what is mounted outside is seen here.
            let flags = MsFlags::MS_SLAVE | MsFlags::MS_REC;
            mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)
                .context("cutting the mounts off")?;
            mount(
                Some("tmpfs"),
                STATE,
                Some("tmpfs"),
                MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
                Some("size=16m"),
            )
            .with_context(|| format!("mounting an empty {STATE}"))?;
            File::open("/proc/thread-self/ns/mnt").context("opening the mount namespace")
        })?;
        Ok(Self { namespace })
    }

    /// Runs `body` on a thread of its own that sees these mounts and, where given, stands in a network namespace;
    /// processes it spawns do too.
    ///
    /// # Errors
    /// Where a namespace cannot be entered, and the body's own.
    pub fn run_in<T: Send>(
        &self,
        netns: Option<&Netns>,
        body: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        // Opened outside: the path is the machine's.
        let network = netns
            .map(|netns| File::open(netns.path()).context("opening the network namespace"))
            .transpose()?;
        on_own_thread(|| {
            // The kernel lets only a thread whose working directory is its own change its mounts.
            unshare(CloneFlags::CLONE_FS).context("leaving the shared working directory")?;
            setns(&self.namespace, CloneFlags::CLONE_NEWNS)
                .context("entering the mount namespace")?;
            if let Some(network) = &network {
                setns(network, CloneFlags::CLONE_NEWNET)
                    .context("entering the network namespace")?;
            }
            body()
        })
    }

    /// Removes a directory of theirs with all that is in it; nothing where there is none.
    ///
    /// # Errors
    /// Where it cannot be removed.
    pub fn remove(&self, directory: &Path) -> Result<()> {
        self.run_in(None, || match fs::remove_dir_all(directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", directory.display()))
            }
            _ => Ok(()),
        })
    }

    /// The names in a directory of theirs, sorted; none where there is no such directory.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn list(&self, directory: &Path) -> Result<Vec<String>> {
        self.run_in(None, || {
            let entries = match fs::read_dir(directory) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
                other => other.with_context(|| format!("reading {}", directory.display()))?,
            };
            let mut names = entries
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect::<Result<Vec<_>>>()?;
            names.sort_unstable();
            Ok(names)
        })
    }
}

fn on_own_thread<T: Send>(body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        scope
            .spawn(body)
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
