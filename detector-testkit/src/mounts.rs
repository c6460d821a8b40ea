//! A private mount namespace with an empty `/var/lib`: CNI plugins keep state at paths that no configuration changes, and the
//! machine's own state must not be modified.

use std::{
    fs::{self, File},
    os::fd::{AsRawFd as _, RawFd},
    path::Path,
};

use anyhow::{Context as _, Result};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns, unshare},
};

use crate::netns::{Netns, on_new_thread};

/// The parent directory of the state of the reference CNI plugins.
const STATE: &str = "/var/lib";

/// The namespace; it disappears with this value and the processes in it.
#[derive(Debug)]
pub struct PrivateMounts {
    namespace: File,
}

impl PrivateMounts {
    /// Creates the namespace. Network namespaces that are created later appear in it as well.
    ///
    /// # Errors
    /// The kernel refuses; `CAP_SYS_ADMIN` is required.
    pub fn new() -> Result<Self> {
        Self::create(|| {
            // Slave: mounts outside appear here, mounts here do not appear outside.
            let flags = MsFlags::MS_SLAVE | MsFlags::MS_REC;
            mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)
                .context("making the mounts slaves")?;
            mount(
                Some("tmpfs"),
                STATE,
                Some("tmpfs"),
                MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
                Some("size=16m"),
            )
            .with_context(|| format!("mounting an empty {STATE}"))
        })
    }

    /// Creates the namespace with the mounts that `mount` makes in it.
    pub(crate) fn create(mount: impl FnOnce() -> Result<()> + Send) -> Result<Self> {
        let namespace = on_new_thread(|| {
            unshare(CloneFlags::CLONE_NEWNS)
                .context("creating a mount namespace (requires root)")?;
            mount()?;
            File::open("/proc/thread-self/ns/mnt").context("opening the mount namespace")
        })?;
        Ok(Self { namespace })
    }

    /// The descriptor of the namespace, for `nsenter`.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.namespace.as_raw_fd()
    }

    /// Runs `body` on a new thread with these mounts and, if given, inside a network namespace; processes that it spawns
    /// inherit both.
    ///
    /// # Errors
    /// A namespace cannot be entered, or `body` fails.
    pub fn run_in<T: Send>(
        &self,
        netns: Option<&Netns>,
        body: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        self.run_in_network(netns.map(Netns::path), body)
    }

    /// As [`PrivateMounts::run_in`], with the path of a network namespace.
    pub(crate) fn run_in_network<T: Send>(
        &self,
        network: Option<&Path>,
        body: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        // Opened before entering: the path belongs to the machine's mount namespace.
        let network = network
            .map(|path| File::open(path).context("opening the network namespace"))
            .transpose()?;
        on_new_thread(|| {
            // setns(2): a thread that shares its filesystem attributes cannot enter a mount namespace.
            unshare(CloneFlags::CLONE_FS).context("unsharing the filesystem attributes")?;
            setns(&self.namespace, CloneFlags::CLONE_NEWNS)
                .context("entering the mount namespace")?;
            if let Some(network) = &network {
                setns(network, CloneFlags::CLONE_NEWNET)
                    .context("entering the network namespace")?;
            }
            body()
        })
    }

    /// Removes a directory of this mount namespace recursively; does nothing if it does not exist.
    ///
    /// # Errors
    /// The directory cannot be removed.
    pub fn remove(&self, directory: &Path) -> Result<()> {
        self.run_in(None, || match fs::remove_dir_all(directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", directory.display()))
            }
            _ => Ok(()),
        })
    }

    /// The sorted names in a directory of this mount namespace; empty if it does not exist.
    ///
    /// # Errors
    /// The directory cannot be read.
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
