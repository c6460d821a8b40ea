//! Allocations of the CNI plugin `host-local`: a file per address in the network's directory, named by the address.
//!
//! Only the file's existence counts, as it does for the plugin, which creates it with `O_EXCL`. Its content (the container's
//! id) is shown to people. The plugin's `lock` is never opened.
//!
//! To release an address the plugin removes that one file; `lock` and `last_reserved_ip.*` stay. If these are gone, or the
//! directory, or nearly all files at once, something else deleted them: [`Completeness::Deleted`].

use std::{
    collections::BTreeMap,
    fs, io,
    net::IpAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use detector_engine::{Allocation, Completeness, Coverage, Ipam, Pool, PoolId, PoolSource};
use detector_event::{State, counted};
use futures_util::future::BoxFuture;
use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, statfs};
use serde_json::Value;

use super::{
    files, is_container_id,
    network::Network,
    snapshot_history::SnapshotHistory,
    source::{PoolRead, PoolReader, Source},
};
use crate::process::clock;

/// Most entries of a directory: more than a /16 has.
const MAX_ENTRIES: usize = 70_000;
/// Bytes read of one file: an id of 64 characters and an interface's name are shorter.
const MAX_BYTES: u64 = 512;
/// Most released addresses that are remembered.
const MAX_PREVIOUS: usize = 70_000;
/// Plugins that give every pod a device on the host, so that an allocation without one is a leak. Others, such as macvlan,
/// do not.
const PLUGINS_WITH_DEVICES: [&str; 5] = ["antrea", "bridge", "calico", "kindnet", "ptp"];
/// The directory that a configuration without `dataDir` means.
const DATA_DIR: &str = "/var/lib/cni/networks";
/// The same with Antrea, whose agent runs the plugin in a container that has this directory of the node at /var/lib/cni.
const ANTREA_DATA_DIR: &str = "/var/run/antrea/cni/networks";

pub(super) const SOURCE: Source = Source {
    ipam: Ipam::HostLocal,
    serves: |_, ipam| ipam == "host-local",
    is_found_by_leases: false,
    reader: |id, network, _| Box::new(HostLocalReader::new(id, network.clone())),
};

/// The directory with a subdirectory for each network, by the plugin and its `ipam` section.
pub(super) fn data_dir(ipam: &Value, plugin: &str) -> PathBuf {
    let configured = ipam.get("dataDir").and_then(Value::as_str);
    let configured = configured.filter(|d| !d.is_empty());
    let default = match plugin {
        "antrea" => ANTREA_DATA_DIR,
        _ => DATA_DIR,
    };
    configured.unwrap_or(default).into()
}

/// A file's inode, which another file may have after it was removed, and when it was written, in seconds and nanoseconds.
type FileVersion = (u64, i64, i64);
/// The version of the file, and the allocation it stands for.
type Reservation = (FileVersion, Allocation);
/// The reservations of one network.
type Reservations = BTreeMap<IpAddr, Reservation>;

/// The state of the network's directory.
#[derive(Debug, PartialEq, Eq)]
enum DirectoryState {
    /// It was read.
    Read {
        reservations: Reservations,
        /// The plugin's `lock` exists.
        has_lock: bool,
        /// Entries that are not the plugin's.
        foreign_entries: usize,
    },
    /// It does not exist, and was never seen since the agent started.
    NeverSeen(String),
    /// It was deleted.
    Deleted,
    /// The mounted directory was deleted on the node, and its replacement is not visible through the agent's mount.
    Orphaned,
    /// It cannot be read.
    Unreadable(String),
}

/// Reads the reservations of one network.
#[derive(Debug)]
struct HostLocalReader {
    id: PoolId,
    network: Network,
    data_dir: PathBuf,
    directory: PathBuf,
    source: Arc<PoolSource>,
    history: SnapshotHistory<Reservation>,
    /// The directory was read at least once.
    was_seen: bool,
}

impl PoolReader for HostLocalReader {
    fn directory(&self) -> Option<&Path> {
        Some(&self.directory)
    }

    fn read(&mut self, thorough: bool) -> BoxFuture<'_, Option<PoolRead>> {
        Box::pin(async move { Some(self.read_directory(thorough)) })
    }
}

impl HostLocalReader {
    fn new(id: PoolId, network: Network) -> Self {
        let data_dir = network.data_dir.clone().unwrap_or_default();
        let directory = data_dir.join(&network.name);
        Self {
            id,
            data_dir,
            source: Arc::new(PoolSource {
                ipam: Ipam::HostLocal,
                network: network.name.clone(),
                place: directory.display().to_string(),
            }),
            network,
            directory,
            history: SnapshotHistory::new(MAX_PREVIOUS),
            was_seen: false,
        }
    }

    /// Reads the directory. `thorough`: reads files again that look unchanged.
    fn read_directory(&mut self, thorough: bool) -> PoolRead {
        let read_at = clock::now();
        let directory = self.list(thorough);
        let (state, summary) = self.summary(&directory);
        let is_orphaned = matches!(directory, DirectoryState::Orphaned);
        let (reservations, completeness) = match directory {
            DirectoryState::Read {
                reservations,
                has_lock,
                ..
            } => {
                self.was_seen = true;
                let is_mass_loss = self.history.detects_mass_loss(&reservations, read_at);
                let completeness = if !has_lock || is_mass_loss {
                    Completeness::Deleted
                } else {
                    Completeness::Complete
                };
                (Some(reservations), completeness)
            }
            DirectoryState::Deleted | DirectoryState::Orphaned => {
                (Some(Reservations::new()), Completeness::Deleted)
            }
            // The last snapshot stays, but nothing is concluded from what is missing in it.
            DirectoryState::NeverSeen(_) | DirectoryState::Unreadable(_) => {
                (None, Completeness::Unknown)
            }
        };
        let changed = self
            .history
            .replace(reservations, completeness, &self.source.place);
        let pool = Pool {
            id: self.id,
            source: Arc::clone(&self.source),
            coverage: Coverage {
                // An orphaned directory says nothing about addresses allocated since.
                ranges: if self.is_in_use() && !is_orphaned {
                    self.network.ranges.clone()
                } else {
                    Vec::new()
                },
                device_prefixes: Vec::new(),
                previously_allocated: self.history.previously_allocated.clone(),
            },
            completeness,
            allocated: self
                .history
                .allocated
                .iter()
                .map(|(address, (_, allocation))| (*address, allocation.clone()))
                .collect(),
            can_detect_leaks: completeness == Completeness::Complete
                && PLUGINS_WITH_DEVICES.contains(&self.network.plugin.as_str()),
            record_delay: Duration::ZERO,
            read_at,
            parts: None,
        };
        PoolRead {
            pool: Arc::new(pool),
            changed,
            state,
            summary,
        }
    }

    /// Whether the network is in use. A configuration that is not may have the same subnet as the one that is.
    fn is_in_use(&self) -> bool {
        self.network.is_first
            || !self.history.previously_allocated.is_empty()
            || !self.history.allocated.is_empty()
    }

    fn summary(&self, directory: &DirectoryState) -> (State, String) {
        let shown = self.directory.display();
        match directory {
            DirectoryState::Read {
                reservations,
                foreign_entries,
                ..
            } => {
                let foreign = match foreign_entries {
                    0 => String::new(),
                    n => format!("; other entries skipped: {n}"),
                };
                let allocations = counted(reservations.len(), "allocation", "allocations");
                let summary = format!("{allocations} in {shown}{foreign}");
                (State::Works, summary)
            }
            DirectoryState::NeverSeen(reason) => (State::Off, reason.clone()),
            DirectoryState::Deleted => {
                let summary = format!("{shown} does not exist: no address is allocated");
                (State::Degraded, summary)
            }
            DirectoryState::Orphaned => {
                let summary = format!(
                    "{shown} was deleted on the node, and the agent's mount still shows the deleted directory; drift of addresses allocated since is not checked; restart this container, or mount the parent directory"
                );
                (State::Failed, summary)
            }
            DirectoryState::Unreadable(reason) => {
                let summary = format!("cannot read {shown}: {reason}; drift is not checked");
                (State::Failed, summary)
            }
        }
    }

    fn list(&self, thorough: bool) -> DirectoryState {
        let is_orphan = |path: &Path| fs::metadata(path).is_ok_and(|m| m.nlink() == 0);
        if is_orphan(&self.data_dir) || is_orphan(&self.directory) {
            return DirectoryState::Orphaned;
        }
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.missing_directory();
            }
            Err(error) => return DirectoryState::Unreadable(error.to_string()),
        };
        let mut reservations = Reservations::new();
        let mut has_lock = false;
        let mut foreign_entries = 0;
        for (number, entry) in entries.enumerate() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return DirectoryState::Unreadable(error.to_string()),
            };
            if number >= MAX_ENTRIES {
                let reason = format!("it has more than {MAX_ENTRIES} entries");
                return DirectoryState::Unreadable(reason);
            }
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name == "lock" {
                has_lock = true;
            } else if let Ok(address) = name.parse::<IpAddr>() {
                // One that was removed meanwhile is not reserved any more.
                let Ok(metadata) = entry.metadata() else {
                    continue;
                };
                let version = (metadata.ino(), metadata.mtime(), metadata.mtime_nsec());
                let known = self.history.allocated.get(&address);
                let is_same = |(v, a): &&Reservation| *v == version && a.owner.is_some();
                let allocation = match known.filter(|known| !thorough && is_same(known)) {
                    Some((_, allocation)) => allocation.clone(),
                    None => Allocation {
                        owner: read_owner(&entry.path()),
                        ..Allocation::default()
                    },
                };
                reservations.insert(address, (version, allocation));
            } else if !name.starts_with("last_reserved_ip") {
                foreign_entries += 1;
            }
        }
        DirectoryState::Read {
            reservations,
            has_lock,
            foreign_entries,
        }
    }

    /// Whether a missing directory was deleted, or is only not visible to the agent.
    fn missing_directory(&self) -> DirectoryState {
        if let Ok(target) = fs::read_link(&self.directory) {
            let target = target.display().to_string();
            let reason = format!("it {}", files::FileError::Dangling(target));
            return DirectoryState::Unreadable(reason);
        }
        if self.was_seen || self.data_dir.is_dir() {
            return DirectoryState::Deleted;
        }
        let mut ancestors = self.data_dir.ancestors().skip(1);
        let existing = ancestors.find(|path| path.exists());
        // In a container everything except mounts belongs to the image: the directory may well exist on the node.
        let is_in_image = existing.is_none_or(|path| {
            statfs(path).is_ok_and(|fs| fs.filesystem_type() == OVERLAYFS_SUPER_MAGIC)
        });
        if is_in_image {
            DirectoryState::NeverSeen(format!(
                "{} does not exist: no address was allocated yet, or the node's directory is not mounted into the agent",
                self.data_dir.display()
            ))
        } else {
            DirectoryState::Deleted
        }
    }
}

/// The container's id; `None` if the file is incomplete, foreign or unreadable.
fn read_owner(path: &Path) -> Option<Arc<str>> {
    parse_owner(&files::head(path, MAX_BYTES).ok()?)
}

/// The container's id in a file's content: `<id>\r\n<interface>`, or in old versions the id alone.
pub(super) fn parse_owner(bytes: &[u8]) -> Option<Arc<str>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let id = text.lines().next()?.trim();
    is_container_id(id).then(|| id.into())
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::panic,
        reason = "a test that cannot set itself up fails"
    )]

    use super::*;

    /// Written by hand, for example.
    #[test]
    fn reservation_for_another_sandbox_is_read_whatever_its_inode() {
        let folder = tempfile::tempdir().unwrap();
        let network = Network {
            name: "net".to_owned(),
            ipam: Some(Ipam::HostLocal),
            ipam_type: "host-local".to_owned(),
            plugin: "ptp".to_owned(),
            device_prefix: None,
            data_dir: Some(folder.path().to_owned()),
            ranges: Vec::new(),
            is_first: true,
        };
        fs::create_dir(folder.path().join("net")).unwrap();
        let file = folder.path().join("net/10.244.2.2");
        let mut reader = HostLocalReader::new(PoolId(1), network);
        for owner in ["a".repeat(64), "b".repeat(64)] {
            // Keeps the inode.
            fs::write(&file, &owner).unwrap();
            let DirectoryState::Read { reservations, .. } = reader.list(false) else {
                panic!("not read");
            };
            let (_, allocation) = reservations.values().next().unwrap();
            assert_eq!(allocation.owner.as_deref(), Some(&*owner));
            reader.history.allocated = reservations;
        }
    }
}
