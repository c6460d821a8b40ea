//! The programs of the cluster, as `cargo xtask` installs them.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

/// Two directories of programs.
#[derive(Clone, Debug)]
pub struct Programs {
    servers: PathBuf,
    clients: PathBuf,
}

impl Programs {
    /// Those in `target/tools`.
    ///
    /// # Errors
    /// They are not installed.
    pub fn in_tools(tools: &Path) -> Result<Self> {
        let programs = Self {
            servers: tools.join("kubernetes-servers"),
            clients: tools.join("kubernetes-clients"),
        };
        for directory in [&programs.servers, &programs.clients] {
            ensure!(
                directory.is_dir(),
                "{} is missing: `cargo xtask cluster` and `cargo xtask test --cluster` install it",
                directory.display()
            );
        }
        Ok(programs)
    }

    /// The path of a server, of etcd or of kubelet.
    #[must_use]
    pub fn server(&self, name: &str) -> PathBuf {
        self.servers.join(name)
    }

    /// The path of `helm` or `kubectl`.
    #[must_use]
    pub fn client(&self, name: &str) -> PathBuf {
        self.clients.join(name)
    }

    /// The directory of `helm` and `kubectl`, for `PATH`.
    #[must_use]
    pub fn clients(&self) -> &Path {
        &self.clients
    }
}
