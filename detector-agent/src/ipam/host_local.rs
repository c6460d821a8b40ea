//! `host-local`'s reservations: a file for each address in the network's directory, named by the address.
//!
//! That a file is there is what counts, as it does for the plugin, which makes it with `O_EXCL`; its content (the
//! container's id) is shown to people only. The plugin's `lock` is never opened.
//!
//! A plugin that gives an address free removes that one file and leaves `lock` and `last_reserved_ip.*`. Where those are
//! gone, or the directory is, or nearly all reservations at once, somebody else deleted the books: [`Books::Lost`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::IpAddr,
    os::unix::fs::{DirEntryExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, statfs};

use super::{config::HostLocalNetwork, files};
use crate::{
    clock,
    detect::{Allocation, Books, Coverage, Ipam, Pool, PoolId, PoolSource, Timestamp, Touched},
};

/// Entries of a directory that are looked at: more than a /16 has.
const MAX_ENTRIES: usize = 70_000;
/// Bytes of one reservation that are looked at: an id of 64 characters and an interface's name.
const MAX_BYTES: u64 = 512;
/// Longest container id that is believed.
pub(super) const MAX_ID: usize = 128;
/// Formerly held addresses that are remembered.
const MAX_FORMERLY: usize = 70_000;
/// Reservations that vanish between two readings, and the share of all, that no plugin frees at once.
const MANY: usize = 5;
/// How long after such a loss the rest of it is expected.
const LOSS_LASTS: Duration = Duration::from_secs(5);
/// Plugins whose pods all stand on devices that are followed; those of macvlan and the like do not.
const FOLLOWED: [&str; 4] = ["bridge", "calico", "kindnet", "ptp"];

/// What came of a reading.
#[derive(Debug)]
pub(super) struct Read {
    /// The books.
    pub(super) pool: Arc<Pool>,
    /// What changed in them.
    pub(super) touched: Touched,
    /// How it went, for people.
    pub(super) state: State,
}

/// How the books of one network are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Read: so many reservations, so many entries that are none.
    Read { reservations: usize, foreign: usize },
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
    known: BTreeMap<IpAddr, (u64, Allocation)>,
    formerly: BTreeSet<IpAddr>,
    /// The directory was read at least once.
    seen: bool,
    lost_until: Option<Timestamp>,
    last: Option<Books>,
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
            known: BTreeMap::new(),
            formerly: BTreeSet::new(),
            seen: false,
            lost_until: None,
            last: None,
        }
    }

    /// Reads the directory. `thoroughly`: also the content of files that look unchanged.
    pub(super) fn read(&mut self, thoroughly: bool) -> Read {
        let read_at = clock::now();
        let (found, state) = self.list(thoroughly);
        let (found, books) = match found {
            Some(Listing { held, has_lock }) => {
                self.seen = true;
                let vanished = self.known.keys().filter(|a| !held.contains_key(a)).count();
                if vanished >= MANY && vanished * 5 >= self.known.len() * 4 {
                    self.lost_until = Some(read_at + LOSS_LASTS);
                }
                let losing = self.lost_until.is_some_and(|until| until > read_at);
                let books = if !has_lock || losing {
                    Books::Lost
                } else {
                    Books::Whole
                };
                (held, books)
            }
            None if matches!(state, State::Deleted | State::Orphaned) => {
                (BTreeMap::new(), Books::Lost)
            }
            // What was read last still stands; nothing is concluded from what it lacks.
            None => (self.known.clone(), Books::Unknown),
        };
        let touched = self.replace(found, books);
        let orphaned = state == State::Orphaned;
        let judged = self.network.is_first || !self.formerly.is_empty() || !self.known.is_empty();
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
                formerly: self.formerly.clone(),
            },
            books,
            allocated: self
                .known
                .iter()
                .map(|(address, (_, allocation))| (*address, allocation.clone()))
                .collect(),
            tells_leaks: books == Books::Whole && FOLLOWED.contains(&self.network.plugin.as_str()),
            read_at,
        };
        Read {
            pool: Arc::new(pool),
            touched,
            state,
        }
    }

    /// Takes over what was found; gives the addresses that came or went.
    fn replace(&mut self, found: BTreeMap<IpAddr, (u64, Allocation)>, books: Books) -> Touched {
        let mut touched = Vec::new();
        for address in self.known.keys() {
            if !found.contains_key(address) {
                touched.push(*address);
                if self.formerly.len() < MAX_FORMERLY {
                    self.formerly.insert(*address);
                }
            }
        }
        for (address, new) in &found {
            self.formerly.remove(address);
            if self.known.get(address) != Some(new) {
                touched.push(*address);
            }
        }
        self.known = found;
        if self.last.replace(books) == Some(books) {
            Touched::These(touched)
        } else {
            Touched::All
        }
    }

    fn list(&mut self, thoroughly: bool) -> (Option<Listing>, State) {
        let is_orphan = |path: &Path| fs::metadata(path).is_ok_and(|m| m.nlink() == 0);
        if is_orphan(&self.network.data_dir) || is_orphan(&self.directory) {
            return (None, State::Orphaned);
        }
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return (None, self.missing());
            }
            Err(error) => return (None, State::Unreadable(error.to_string())),
        };
        let mut held = BTreeMap::new();
        let mut has_lock = false;
        let mut foreign = 0;
        for (number, entry) in entries.enumerate() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return (None, State::Unreadable(error.to_string())),
            };
            if number >= MAX_ENTRIES {
                let why = format!("it holds more than {MAX_ENTRIES} entries");
                return (None, State::Unreadable(why));
            }
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name == "lock" {
                has_lock = true;
            } else if let Ok(address) = name.parse::<IpAddr>() {
                let inode = entry.ino();
                let known = self.known.get(&address);
                let same = |(i, a): &&(u64, Allocation)| *i == inode && a.owner.is_some();
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
        let state = State::Read {
            reservations: held.len(),
            foreign,
        };
        (Some(Listing { held, has_lock }), state)
    }

    /// Whether a directory that is not there was deleted, or may only not be seen from here.
    fn missing(&self) -> State {
        if let Ok(target) = fs::read_link(&self.directory) {
            return State::Unreadable(format!(
                "it is a symbolic link to {}, which is not there; the agent has to see that place too",
                target.display()
            ));
        }
        if self.seen || self.network.data_dir.is_dir() {
            return State::Deleted;
        }
        let mut ancestors = self.network.data_dir.ancestors().skip(1);
        let there = ancestors.find(|path| path.exists());
        // In a container everything but mounts is the image's: what is not there may well be on the node.
        let in_image = there.is_none_or(|path| {
            statfs(path).is_ok_and(|fs| fs.filesystem_type() == OVERLAYFS_SUPER_MAGIC)
        });
        if in_image {
            State::NeverSeen(format!(
                "{} is not there: no pod was given an address yet, or the agent does not see the node's directory (mount it)",
                self.network.data_dir.display()
            ))
        } else {
            State::Deleted
        }
    }
}

#[derive(Debug)]
struct Listing {
    held: BTreeMap<IpAddr, (u64, Allocation)>,
    has_lock: bool,
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
