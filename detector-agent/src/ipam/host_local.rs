//! `host-local`'s reservations: a file for each address in the network's directory, named by the address.
//!
//! That a file is there is what counts, as it does for the plugin, which makes it with `O_EXCL`; its content (the
//! container's id) is shown to people only. The plugin's `lock` is never opened.
//!
//! A plugin that gives an address free removes that one file and leaves `lock` and `last_reserved_ip.*`. Where those are
//! gone, or the directory is, or nearly all reservations at once, somebody else deleted the books: [`Completeness::Deleted`].

use std::{
    collections::BTreeMap,
    fs, io,
    net::IpAddr,
    os::unix::fs::{DirEntryExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, statfs};

use super::{Read, config::HostLocalNetwork, files, kept::Kept};
use crate::{
    clock,
    engine::{Allocation, Completeness, Coverage, Ipam, Pool, PoolId, PoolSource},
    health::State,
};

/// Entries of a directory that are looked at: more than a /16 has.
const MAX_ENTRIES: usize = 70_000;
/// Bytes of one reservation that are looked at: an id of 64 characters and an interface's name.
const MAX_BYTES: u64 = 512;
/// Longest container id that is believed.
pub(super) const MAX_ID: usize = 128;
/// Formerly held addresses that are remembered.
const MAX_FORMERLY: usize = 70_000;
/// Plugins whose pods all stand on devices that are followed; those of macvlan and the like do not.
const FOLLOWED: [&str; 4] = ["bridge", "calico", "kindnet", "ptp"];

/// The file's inode, and what it says.
type Reservation = (u64, Allocation);
/// The reservations of one network.
type Held = BTreeMap<IpAddr, Reservation>;

/// What was found of the directory.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// Its reservations, whether the plugin's `lock` is there, and so many entries that are neither.
    Read {
        held: Held,
        has_lock: bool,
        foreign: usize,
    },
    /// There is no directory, and there never was one since the agent started.
    NeverSeen(String),
    /// The directory was deleted.
    Deleted,
    /// What is seen was deleted on the node, and what stands there now is not seen: the agent's mount shows the old one.
    Orphaned,
    /// It cannot be read.
    Unreadable(String),
}

/// Reads the reservations of one network, remembering what it has read.
#[derive(Debug)]
pub(super) struct HostLocal {
    id: PoolId,
    pub(super) network: HostLocalNetwork,
    pub(super) directory: PathBuf,
    source: Arc<PoolSource>,
    kept: Kept<Reservation>,
    /// The directory was read at least once.
    seen: bool,
}

impl HostLocal {
    pub(super) fn new(id: PoolId, network: HostLocalNetwork) -> Self {
        let directory = network.data_dir.join(&network.name);
        Self {
            id,
            source: Arc::new(PoolSource {
                ipam: Ipam::HostLocal,
                network: network.name.clone(),
                place: directory.display().to_string(),
            }),
            network,
            directory,
            kept: Kept::new(MAX_FORMERLY),
            seen: false,
        }
    }

    /// Reads the directory. `thoroughly`: also the content of files that look unchanged.
    pub(super) fn read(&mut self, thoroughly: bool) -> Read {
        let read_at = clock::now();
        let found = self.list(thoroughly);
        let (state, told) = self.tell(&found);
        let orphaned = matches!(found, Found::Orphaned);
        let (held, books) = match found {
            Found::Read { held, has_lock, .. } => {
                self.seen = true;
                let losing = self.kept.is_losing(&held, read_at);
                let books = if !has_lock || losing {
                    Completeness::Deleted
                } else {
                    Completeness::Complete
                };
                (Some(held), books)
            }
            Found::Deleted | Found::Orphaned => (Some(Held::new()), Completeness::Deleted),
            // What was read last still stands; nothing is concluded from what it lacks.
            Found::NeverSeen(_) | Found::Unreadable(_) => (None, Completeness::Unknown),
        };
        let touched = self.kept.replace(held, books, &self.source.place);
        let kept = &self.kept;
        let judged = self.network.is_first || !kept.formerly.is_empty() || !kept.held.is_empty();
        let pool = Pool {
            id: self.id,
            source: Arc::clone(&self.source),
            coverage: Coverage {
                // A configuration that nobody uses may have the subnet of the one in use.
                // Nor is anything known of what was handed out since, where only a deleted directory is seen.
                ranges: if judged && !orphaned {
                    self.network.ranges.clone()
                } else {
                    Vec::new()
                },
                device_prefixes: Vec::new(),
                previously_allocated: self.kept.formerly.clone(),
            },
            completeness: books,
            allocated: kept
                .held
                .iter()
                .map(|(address, (_, allocation))| (*address, allocation.clone()))
                .collect(),
            can_detect_leaks: books == Completeness::Complete
                && FOLLOWED.contains(&self.network.plugin.as_str()),
            read_at,
        };
        Read {
            pool: Arc::new(pool),
            touched,
            state,
            told,
        }
    }

    /// How the books are, and the same in a sentence.
    fn tell(&self, found: &Found) -> (State, String) {
        let shown = self.directory.display();
        match found {
            Found::Read { held, foreign, .. } => {
                let foreign = match foreign {
                    0 => String::new(),
                    n => format!("; {n} entries there are no reservations"),
                };
                let told = format!("{} reservations in {shown}{foreign}", held.len());
                (State::Works, told)
            }
            Found::NeverSeen(why) => (State::Off, why.clone()),
            Found::Deleted => {
                let told = format!("{shown} is not there: no address is reserved");
                (State::Degraded, told)
            }
            Found::Orphaned => {
                let told = format!(
                    "{shown} was deleted on the node, and the mount here still shows the deleted one: addresses handed out since are not judged; restart this container, or mount the directory above"
                );
                (State::Failed, told)
            }
            Found::Unreadable(why) => {
                let told = format!("{shown} cannot be read: {why}; drift is not judged by it");
                (State::Failed, told)
            }
        }
    }

    fn list(&self, thoroughly: bool) -> Found {
        let is_orphan = |path: &Path| fs::metadata(path).is_ok_and(|m| m.nlink() == 0);
        if is_orphan(&self.network.data_dir) || is_orphan(&self.directory) {
            return Found::Orphaned;
        }
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.missing();
            }
            Err(error) => return Found::Unreadable(error.to_string()),
        };
        let mut held = Held::new();
        let mut has_lock = false;
        let mut foreign = 0;
        for (number, entry) in entries.enumerate() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return Found::Unreadable(error.to_string()),
            };
            if number >= MAX_ENTRIES {
                let why = format!("it holds more than {MAX_ENTRIES} entries");
                return Found::Unreadable(why);
            }
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name == "lock" {
                has_lock = true;
            } else if let Ok(address) = name.parse::<IpAddr>() {
                let inode = entry.ino();
                let known = self.kept.held.get(&address);
                let same = |(i, a): &&Reservation| *i == inode && a.owner.is_some();
                let allocation = match known.filter(|k| !thoroughly && same(k)) {
                    Some((_, allocation)) => allocation.clone(),
                    None => Allocation {
                        owner: owner(&entry.path()),
                        ..Allocation::default()
                    },
                };
                held.insert(address, (inode, allocation));
            } else if !name.starts_with("last_reserved_ip") {
                foreign += 1;
            }
        }
        Found::Read {
            held,
            has_lock,
            foreign,
        }
    }

    /// Whether a directory that is not there was deleted, or may only not be seen from here.
    fn missing(&self) -> Found {
        if let Ok(target) = fs::read_link(&self.directory) {
            return Found::Unreadable(format!(
                "it is a symbolic link to {}, which is not there; the agent has to see that place too",
                target.display()
            ));
        }
        if self.seen || self.network.data_dir.is_dir() {
            return Found::Deleted;
        }
        let mut ancestors = self.network.data_dir.ancestors().skip(1);
        let there = ancestors.find(|path| path.exists());
        // In a container everything but mounts is the image's: what is not there may well be on the node.
        let in_image = there.is_none_or(|path| {
            statfs(path).is_ok_and(|fs| fs.filesystem_type() == OVERLAYFS_SUPER_MAGIC)
        });
        if in_image {
            Found::NeverSeen(format!(
                "{} is not there: no pod was given an address yet, or the agent does not see the node's directory (mount it)",
                self.network.data_dir.display()
            ))
        } else {
            Found::Deleted
        }
    }
}

/// The container's id; none where the file is being written, is foreign, or cannot be read.
fn owner(path: &Path) -> Option<Arc<str>> {
    owner_in(&files::head(path, MAX_BYTES).ok()?)
}

/// The same of a reservation's content.
pub(super) fn owner_in(bytes: &[u8]) -> Option<Arc<str>> {
    let text = std::str::from_utf8(bytes).ok()?;
    // `<id>\r\n<interface>`, of old the id alone.
    let id = text.lines().next()?.trim();
    let sane = !id.is_empty() && id.len() <= MAX_ID && id.chars().all(|c| c.is_ascii_graphic());
    sane.then(|| id.into())
}
