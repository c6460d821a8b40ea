//! Allocations of Cilium, in every IPAM mode but delegated ones: the endpoints' state. When cilium-agent starts, it reserves
//! the addresses in it again.
//!
//! Each endpoint has a directory named by its number, with `ep_config.json` (`serializableEndpoint` in Cilium's
//! `pkg/endpoint/restore.go`). A new state is written to `<number>_next`, which then replaces `<number>`, moved to
//! `<number>_stale` meanwhile (`pkg/endpoint/directory.go`). Only what the CiliumNode has in the API depends on the mode,
//! and in none does it name every address in time.

use std::{
    collections::BTreeMap,
    fs, io,
    net::IpAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use detector_engine::{Allocation, Ipam, PoolId};
use detector_event::counted;
use futures_util::future::BoxFuture;
use serde::Deserialize;

use super::{
    files, is_container_id,
    snapshot_history::SnapshotHistory,
    source::{PoolRead, PoolReader, Source},
    whole_pool::{self, Allocations, Found, MAX_ADDRESSES, WholePool},
};
use crate::process::clock;

/// Prefix of device names.
const DEVICE_PREFIX: &str = "lxc";
/// The file with an endpoint's state.
const STATE_FILE: &str = "ep_config.json";
/// Suffixes of an endpoint's directory, the newest complete state first.
const SUFFIXES: [&str; 4] = ["", "_next", "_next_fail", "_stale"];
/// Most entries of the directory; endpoint numbers have 16 bits.
const MAX_ENTRIES: usize = 70_000;
/// Longest state in bytes: it contains DNS answers.
const MAX_BYTES: u64 = 4 << 20;
/// The state is first written when the endpoint's program is built, which waits for its identity, and on a busy node for
/// others.
const RECORD_DELAY: Duration = Duration::from_secs(60);

pub(super) const SOURCE: Source = Source {
    ipam: Ipam::Cilium,
    serves: |plugin, ipam| plugin == "cilium-cni" && ipam.is_empty(),
    is_found_by_leases: false,
    reader: |id, network, context| {
        let directory = context.settings.cilium_state_dir.clone();
        Box::new(CiliumReader::new(id, network.name.clone(), directory))
    },
};

/// Reads the endpoints' state.
#[derive(Debug)]
struct CiliumReader {
    pool: WholePool,
    directory: PathBuf,
    /// The states as last read, by the name of the endpoint's directory.
    known: BTreeMap<String, KnownState>,
}

#[derive(Clone, Debug)]
struct KnownState {
    /// Inode and time of change: the file is replaced as a whole.
    version: (u64, i64, i64),
    state: Result<EndpointState, String>,
}

/// The addresses in an endpoint's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndpointState {
    pub(super) addresses: Vec<IpAddr>,
    allocation: Allocation,
}

impl PoolReader for CiliumReader {
    fn directory(&self) -> Option<&Path> {
        Some(&self.directory)
    }

    fn read(&mut self, thorough: bool) -> BoxFuture<'_, Option<PoolRead>> {
        Box::pin(async move {
            let read_at = clock::now();
            let found = self.list(thorough);
            let place = self.directory.display().to_string();
            Some(self.pool.apply(place, found, read_at, None))
        })
    }
}

impl CiliumReader {
    fn new(id: PoolId, network: String, directory: PathBuf) -> Self {
        Self {
            pool: WholePool {
                id,
                ipam: Ipam::Cilium,
                network,
                device_prefixes: vec![DEVICE_PREFIX.to_owned()],
                can_detect_leaks: true,
                // It would be reported without waiting for a new endpoint's state.
                can_detect_deletion: false,
                record_delay: RECORD_DELAY,
                history: SnapshotHistory::new(MAX_ADDRESSES),
            },
            directory,
            known: BTreeMap::new(),
        }
    }

    fn list(&mut self, thorough: bool) -> Found {
        let shown = self.directory.display();
        let names = match endpoint_directories(&self.directory) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Found::Absent(format!(
                    "{shown} does not exist, or is not mounted into the agent: drift is not checked"
                ));
            }
            Err(error) => return Found::Failed(error.to_string()),
        };
        let mut known = BTreeMap::new();
        let mut allocated = Allocations::new();
        let mut failed = 0;
        let mut why = String::new();
        for name in names {
            let path = self.directory.join(&name).join(STATE_FILE);
            let Some(state) = self.state(&name, &path, thorough) else {
                // Being written or replaced, and another notification follows; a complete endpoint without the file is of a
                // version that keeps the state elsewhere.
                if !name.contains('_') && self.directory.join(&name).is_dir() {
                    failed += 1;
                    why = format!("{} does not exist", path.display());
                }
                continue;
            };
            match &state.state {
                Ok(endpoint) => {
                    for address in &endpoint.addresses {
                        whole_pool::add(&mut allocated, *address, endpoint.allocation.clone());
                    }
                }
                Err(reason) => {
                    failed += 1;
                    why = format!("{} {reason}", path.display());
                }
            }
            known.insert(name, state);
        }
        self.known = known;
        if failed > 0 {
            let endpoints = counted(failed, "endpoint", "endpoints");
            return Found::InPart(allocated, format!("{endpoints} cannot be read: {why}"));
        }
        if allocated.len() > MAX_ADDRESSES {
            return Found::Failed(format!("it has more than {MAX_ADDRESSES} addresses"));
        }
        Found::All(allocated)
    }

    /// The state in a file; `None` if there is no such file.
    fn state(&self, name: &str, path: &Path, thorough: bool) -> Option<KnownState> {
        let metadata = fs::symlink_metadata(path).ok()?;
        let version = (metadata.ino(), metadata.mtime(), metadata.mtime_nsec());
        let known = self.known.get(name);
        if let Some(known) = known.filter(|known| !thorough && known.version == version) {
            return Some(known.clone());
        }
        let state = match files::read(path, MAX_BYTES) {
            Ok(bytes) => parse(&bytes),
            Err(files::FileError::Missing) => return None,
            Err(error) => Err(error.to_string()),
        };
        Some(KnownState { version, state })
    }
}

/// The directory of each endpoint that has one.
fn endpoint_directories(directory: &Path) -> io::Result<Vec<String>> {
    if fs::metadata(directory)?.nlink() == 0 {
        return Err(io::Error::other(
            "it was deleted on the node, and the agent's mount still shows the deleted directory; restart this container",
        ));
    }
    let mut newest = BTreeMap::new();
    for (number, entry) in fs::read_dir(directory)?.enumerate() {
        if number >= MAX_ENTRIES {
            let reason = format!("it has more than {MAX_ENTRIES} entries");
            return Err(io::Error::other(reason));
        }
        let name = entry?.file_name().to_string_lossy().into_owned();
        let end = name.find('_').unwrap_or(name.len());
        let (id, suffix) = name.split_at(end);
        let rank = SUFFIXES.iter().position(|known| *known == suffix);
        let (Ok(id), Some(rank)) = (id.parse::<u16>(), rank) else {
            continue;
        };
        let known = newest.entry(id).or_insert((rank, name.clone()));
        if rank < known.0 {
            *known = (rank, name);
        }
    }
    Ok(newest.into_values().map(|(_, name)| name).collect())
}

/// An endpoint's state.
pub(super) fn parse(bytes: &[u8]) -> Result<EndpointState, String> {
    #[derive(Deserialize)]
    struct Serialized {
        #[serde(rename = "ID")]
        _id: u16,
        #[serde(rename = "dockerID")]
        container: Option<String>,
        #[serde(rename = "IPv4")]
        ipv4: Option<String>,
        #[serde(rename = "IPv6")]
        ipv6: Option<String>,
        #[serde(rename = "K8sPodName")]
        pod: Option<String>,
    }
    let state: Serialized =
        serde_json::from_slice(bytes).map_err(|error| format!("is not an endpoint: {error}"))?;
    let mut addresses = Vec::new();
    for text in [state.ipv4, state.ipv6].into_iter().flatten() {
        // The node's own endpoint has none.
        if !text.is_empty() {
            let address = text
                .parse()
                .map_err(|_| format!("has the address {text:?}"))?;
            addresses.push(address);
        }
    }
    let owner = state.container.filter(|id| is_container_id(id));
    let allocation = Allocation {
        owner: owner.map(Arc::from),
        // That of the health checks.
        not_a_pod: state.pod.is_none_or(|pod| pod.is_empty()),
        ..Allocation::default()
    };
    Ok(EndpointState {
        addresses,
        allocation,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const POD: &[u8] = include_bytes!("../../../fuzz/corpus/ipam_cilium/pod");
    const HEALTH: &[u8] = include_bytes!("../../../fuzz/corpus/ipam_cilium/health");

    fn write(directory: &Path, name: &str, state: &[u8]) {
        fs::create_dir_all(directory.join(name)).unwrap();
        fs::write(directory.join(name).join(STATE_FILE), state).unwrap();
    }

    fn reader(directory: &Path) -> CiliumReader {
        CiliumReader::new(PoolId(0), "cilium".to_owned(), directory.to_owned())
    }

    fn all(found: Found) -> Vec<String> {
        let Found::All(allocated) = found else {
            unreachable!("{found:?}");
        };
        allocated.keys().map(ToString::to_string).collect()
    }

    #[test]
    fn state_of_an_endpoint_names_addresses_and_sandbox() {
        let pod = parse(POD).unwrap();
        assert_eq!(pod.addresses.len(), 2);
        assert_eq!(pod.allocation.owner.as_deref().map(str::len), Some(64));
        assert!(!pod.allocation.not_a_pod);
        let health = parse(HEALTH).unwrap();
        assert!(health.allocation.not_a_pod && health.addresses.len() == 1);
        for broken in [
            &b""[..],
            b"{}",
            b"[]",
            br#"{"ID":1,"IPv4":"10.0.0"}"#,
            br#"{"ID":1,"IPv4":7}"#,
        ] {
            assert!(parse(broken).is_err());
        }
    }

    #[test]
    fn directory_that_is_being_replaced_counts_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut reader = reader(path);
        write(path, "7_next", POD);
        let pod = ["10.0.1.23", "fd00::1:17"];
        assert_eq!(all(reader.list(false)), pod, "its first state");
        fs::rename(path.join("7_next"), path.join("7")).unwrap();
        fs::create_dir(path.join("8_next")).unwrap();
        fs::create_dir(path.join("globals")).unwrap();
        assert_eq!(all(reader.list(false)), pod);
        fs::rename(path.join("7"), path.join("7_stale")).unwrap();
        assert_eq!(all(reader.list(false)), pod, "between the two renames");
        write(path, "7", HEALTH);
        assert_eq!(all(reader.list(false)), ["10.0.1.4"]);
        fs::remove_dir_all(path.join("7_stale")).unwrap();
        fs::remove_dir_all(path.join("7")).unwrap();
        assert_eq!(all(reader.list(false)), [""; 0]);
    }

    #[test]
    fn state_that_is_elsewhere_or_unreadable_is_unknown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut reader = reader(&path.join("state"));
        assert!(matches!(reader.list(false), Found::Absent(_)));
        // Before ep_config.json.
        fs::create_dir_all(path.join("state/5")).unwrap();
        assert!(matches!(reader.list(false), Found::InPart(..)));
        write(&path.join("state"), "5", POD);
        assert_eq!(all(reader.list(false)).len(), 2);
        write(&path.join("state"), "6", b"{");
        let Found::InPart(allocated, why) = reader.list(false) else {
            unreachable!("one endpoint is broken");
        };
        assert!(
            allocated.len() == 2 && why.contains("6/ep_config.json"),
            "{why}"
        );
    }
}
