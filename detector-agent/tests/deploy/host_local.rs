//! The state of `host-local`, written as its plugin does.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use serde_json::json;

/// A network `net` of `ptp` with `host-local`.
pub(crate) struct HostLocal {
    folder: tempfile::TempDir,
}

impl HostLocal {
    /// A network with these subnets and without reservations, configured in this directory.
    pub(crate) fn new(configurations: &Path, subnets: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ranges: Vec<_> = subnets.iter().map(|s| json!([{"subnet": s}])).collect();
        let network = json!({"cniVersion": "0.3.1", "name": "net", "plugins": [{"type": "ptp", "ipam":
            {"type": "host-local", "dataDir": folder.path(), "ranges": ranges}}]});
        fs::write(configurations.join("10-net.conflist"), network.to_string()).unwrap();
        let network = Self { folder };
        fs::create_dir(network.path("")).unwrap();
        fs::write(network.path("lock"), "").unwrap();
        network
    }

    /// Its data directory.
    pub(crate) fn data_dir(&self) -> &Path {
        self.folder.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("net").join(name)
    }

    /// Reserves an address for the sandbox with this id, instead of another one if there is one.
    pub(crate) fn reserve(&self, address: IpAddr, id: &str) {
        let file = self.path(&address.to_string());
        // The plugin writes no file anew.
        let _ = fs::remove_file(&file);
        fs::write(file, format!("{id}\r\neth0")).unwrap();
    }

    /// Removes a reservation.
    pub(crate) fn release(&self, address: IpAddr) {
        fs::remove_file(self.path(&address.to_string())).unwrap();
    }
}
