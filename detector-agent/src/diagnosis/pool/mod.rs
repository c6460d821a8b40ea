//! What is known of the IPAM pool that an address belongs to.

use std::{
    collections::HashMap,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use detector_engine::{
    IfIndex,
    diagnosis::{
        AllocationOwner, ClaimantFacts, Known, LivePods, NetworkConfig, OwnedBy, PoolFacts,
        PoolState, Source,
    },
};
use detector_event::Pod;

use super::{
    PoolHistory,
    files::{file, filesystem, not_checked, source},
};
use crate::{
    ipam::{self, IpamMode, IpamSettings, read_file},
    pods::PodDirectory,
};

/// Most reservations of one network that are read: more than a /16 has.
const MAX_RESERVATIONS: usize = 70_000;
/// Bytes read of a reservation: a container's id and an interface's name are shorter.
const MAX_BYTES: u64 = 512;

/// Reads pools, once for all findings that were due by then.
#[derive(Debug)]
pub(super) struct PoolReader {
    cni_configuration: PathBuf,
    is_off: bool,
    directory: Arc<PodDirectory>,
    known: Option<(Instant, Networks)>,
}

/// The node's networks, as they were read at one time.
#[derive(Debug)]
struct Networks {
    configured: Result<Vec<NetworkConfig>, String>,
    /// The owner of each reservation, by directory.
    reservations: HashMap<PathBuf, Result<HashMap<IpAddr, String>, String>>,
    /// The pods that there were before the reservations were read: all of them had theirs by then.
    pods: HashMap<IfIndex, Arc<Pod>>,
}

/// The pool of an address, with who has what in it.
pub(super) struct FoundPool {
    network: NetworkConfig,
    directory: PathBuf,
    reservations: Result<HashMap<IpAddr, String>, String>,
}

impl PoolReader {
    pub(super) fn new(settings: &IpamSettings, directory: Arc<PodDirectory>) -> Self {
        Self {
            cni_configuration: settings.cni_conf_dir.clone(),
            is_off: settings.ipam == IpamMode::Off,
            directory,
            known: None,
        }
    }

    /// What was read before `due` is read again.
    pub(super) fn refresh(&mut self, due: Instant) {
        self.known.take_if(|(read_at, _)| *read_at < due);
    }

    pub(super) fn cni_configuration(&self) -> &Path {
        &self.cni_configuration
    }

    pub(super) fn source(&self) -> Source {
        source(&self.cni_configuration)
    }

    /// The configured networks besides `own` whose ranges overlap with its ranges.
    pub(super) fn overlapping(&mut self, own: &NetworkConfig) -> Known<Vec<NetworkConfig>> {
        let place = self.cni_configuration.clone();
        let networks = match &self.networks().configured {
            Ok(networks) => networks,
            Err(why) => return not_checked("other networks of the node", why.clone()),
        };
        let is_other =
            |other: &&NetworkConfig| other.name != own.name && own.shares_range_with(other);
        let others: Vec<_> = networks.iter().filter(is_other).cloned().collect();
        match others.is_empty() {
            true => Known::Absent(source(&place)),
            false => Known::Value(others, source(&place)),
        }
    }

    /// The pods of the node, by the index of their device.
    pub(super) fn pods(&mut self) -> &HashMap<IfIndex, Arc<Pod>> {
        &self.networks().pods
    }

    /// The `host-local` network that assigns `address`; why there is none.
    pub(super) fn find(&mut self, address: IpAddr) -> Result<FoundPool, String> {
        let networks = self.networks();
        let configured = networks.configured.as_ref().map_err(Clone::clone)?;
        let host_local = configured.iter().filter_map(|network| {
            let data_dir = network.data_dir.as_ref()?;
            Some((network, Path::new(data_dir).join(&network.name)))
        });
        let has = |directory: &PathBuf| {
            let known = networks.reservations.get(directory);
            known.is_some_and(|known| known.as_ref().is_ok_and(|all| all.contains_key(&address)))
        };
        let mut candidates: Vec<_> = host_local
            .filter(|(network, directory)| has(directory) || network.assigns(address))
            .collect();
        candidates.sort_by_key(|(_, directory)| !has(directory));
        let (network, directory) = candidates
            .into_iter()
            .next()
            .ok_or("no configured network whose state is in files assigns the address")?;
        let reservations = networks.reservations.get(&directory).cloned();
        Ok(FoundPool {
            network: network.clone(),
            reservations: reservations.unwrap_or_else(|| Err("it was not read".to_owned())),
            directory,
        })
    }

    fn networks(&mut self) -> &Networks {
        let known = self.known.take();
        let known = known.unwrap_or_else(|| {
            let read_at = Instant::now();
            let pods = self.directory.present();
            let configured = match self.is_off {
                true => Err("--ipam is off".to_owned()),
                false => ipam::configured_networks(&self.cni_configuration),
            };
            let directories = configured.iter().flatten().filter_map(|network| {
                let data_dir = network.data_dir.as_ref()?;
                Some(Path::new(data_dir).join(&network.name))
            });
            let reservations = directories
                .map(|directory| (directory.clone(), reservations(&directory)))
                .collect();
            let networks = Networks {
                configured,
                reservations,
                pods,
            };
            (read_at, networks)
        });
        &self.known.insert(known).1
    }
}

fn reservations(directory: &Path) -> Result<HashMap<IpAddr, String>, String> {
    let mut all = HashMap::new();
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(all),
        Err(error) => return Err(error.to_string()),
    };
    for entry in entries {
        let entry = entry.map_err(|error| error.to_string())?;
        let name = entry.file_name();
        let Ok(address) = name.to_string_lossy().parse::<IpAddr>() else {
            continue;
        };
        if all.len() >= MAX_RESERVATIONS {
            return Err(format!("it has more than {MAX_RESERVATIONS} reservations"));
        }
        // One that was released meanwhile is none.
        if let Ok(content) = read_file(&entry.path(), MAX_BYTES) {
            let content = String::from_utf8_lossy(&content);
            let owner = content.lines().next().unwrap_or_default().trim();
            all.insert(address, owner.to_owned());
        }
    }
    Ok(all)
}

impl FoundPool {
    pub(super) fn network(&self) -> &NetworkConfig {
        &self.network
    }

    /// The addresses that are reserved for a sandbox.
    pub(super) fn addresses_of(&self, sandbox: &str) -> Known<Vec<IpAddr>> {
        match &self.reservations {
            Ok(all) => {
                let own = all.iter().filter(|(_, owner)| *owner == sandbox);
                let mut own: Vec<_> = own.map(|(address, _)| *address).collect();
                own.sort_unstable();
                match own.is_empty() {
                    true => Known::Absent(source(&self.directory)),
                    false => Known::Value(own, source(&self.directory)),
                }
            }
            Err(why) => not_checked(self.directory.display().to_string(), why.clone()),
        }
    }

    /// The facts about the pool. `claimants` have their sandboxes' ids, and `pods` are those of the node.
    pub(super) fn facts(
        &self,
        address: IpAddr,
        claimants: &[(ClaimantFacts, Option<String>)],
        pods: &HashMap<IfIndex, Arc<Pod>>,
        history: &PoolHistory,
    ) -> PoolFacts {
        let directory = &self.directory;
        let place = directory.display().to_string();
        let unread = |why: &String| not_checked(place.clone(), why.clone());
        let owners = match &self.reservations {
            Ok(all) => match all.get(&address) {
                Some(owner) => Known::Value(
                    vec![self.owner(owner, claimants)],
                    source(&directory.join(address.to_string())),
                ),
                None => Known::Absent(source(directory)),
            },
            Err(why) => unread(why),
        };
        let live_pods = match &self.reservations {
            Ok(all) => Known::Value(self.live_pods(all, pods), source(directory)),
            Err(why) => not_checked(place.clone(), why.clone()),
        };
        PoolFacts {
            network: self.network.clone(),
            place,
            owners,
            live_pods,
            state: PoolState::HostLocal {
                directory: file(directory),
                lock: file(&directory.join("lock")),
                filesystem: filesystem(directory),
                removals: history.at(&directory.display().to_string()),
            },
        }
    }

    fn owner(&self, id: &str, claimants: &[(ClaimantFacts, Option<String>)]) -> AllocationOwner {
        let is_its =
            |(_, sandbox): &(ClaimantFacts, Option<String>)| sandbox.as_deref() == Some(id);
        let index = claimants.iter().position(is_its);
        let is_comparable = claimants.iter().all(|(_, sandbox)| sandbox.is_some());
        AllocationOwner {
            name: id.to_owned(),
            is: match index {
                Some(index) => OwnedBy::Claimants(vec![index]),
                None if is_comparable => OwnedBy::Other,
                None => OwnedBy::NotComparable,
            },
            is_pod_name: false,
            allocated_at: None,
        }
    }

    fn live_pods(
        &self,
        reservations: &HashMap<IpAddr, String>,
        pods: &HashMap<IfIndex, Arc<Pod>>,
    ) -> LivePods {
        let is_here = |address: &IpAddr| self.network.assigns(*address);
        let live = pods.values().filter(|pod| {
            !pod.terminating
                && !pod.is_matched_by_address
                && pod.primary_addresses.iter().any(is_here)
        });
        let has_own = |pod: &Pod| {
            let id = pod.container_id.as_deref();
            let mut addresses = pod.primary_addresses.iter();
            addresses.any(|a| {
                reservations
                    .get(a)
                    .is_some_and(|owner| id.is_none_or(|id| id == owner))
            })
        };
        let (mut total, mut without_allocation) = (0, 0);
        for pod in live {
            total += 1;
            without_allocation += usize::from(!has_own(pod));
        }
        LivePods {
            total,
            without_allocation,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use detector_event::Via;

    use super::*;

    const CONFIGURATION: &str = r#"{"cniVersion": "0.3.1", "name": "pods", "plugins": [{"type": "ptp",
        "ipam": {"type": "host-local", "dataDir": "DIR", "ranges": [[{"subnet": "10.0.0.0/24"}]]}}]}"#;

    fn pod(name: &str, address: &str) -> Arc<Pod> {
        let mut pod = Pod::named("shop", name, Via::Cri);
        pod.container_id = Some(format!("id-{name}"));
        pod.primary_addresses = vec![address.parse().unwrap()];
        Arc::new(pod)
    }

    /// A node with one `host-local` network in this directory, and these reservations.
    fn reader(directory: &Path, reservations: &[(&str, &str)]) -> PoolReader {
        let configuration = directory.join("net.d");
        fs::create_dir(&configuration).unwrap();
        let text = CONFIGURATION.replace("DIR", directory.to_str().unwrap());
        fs::write(configuration.join("10-pods.conflist"), text).unwrap();
        fs::create_dir(directory.join("pods")).unwrap();
        for (address, owner) in reservations {
            let path = directory.join("pods").join(address);
            fs::write(path, format!("{owner}\r\neth0")).unwrap();
        }
        PoolReader {
            cni_configuration: configuration,
            is_off: false,
            directory: Arc::default(),
            known: None,
        }
    }

    #[test]
    fn pods_without_a_reservation_of_their_own_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let reservations = [("10.0.0.2", "id-web-1"), ("10.0.0.3", "id-other")];
        let mut reader = reader(directory.path(), &reservations);
        let pool = reader.find("10.0.0.2".parse().unwrap()).unwrap();
        let mut leaving = Pod::clone(&pod("leaving", "10.0.0.5"));
        leaving.terminating = true;
        let pods = HashMap::from([
            (1, pod("web-1", "10.0.0.2")),
            // Its reservation is another sandbox's by now.
            (2, pod("web-2", "10.0.0.3")),
            (3, pod("web-3", "10.0.0.4")),
            (4, Arc::new(leaving)),
            (5, pod("elsewhere", "192.168.0.2")),
        ]);
        let facts = pool.facts(
            "10.0.0.2".parse().unwrap(),
            &[],
            &pods,
            &PoolHistory::default(),
        );
        let live = *facts.live_pods.value().unwrap();
        assert_eq!((live.total, live.without_allocation), (3, 2));
        assert!(facts.owners.value().is_some());
        let own = pool.addresses_of("id-web-1");
        assert_eq!(
            own.value().unwrap(),
            &["10.0.0.2".parse::<IpAddr>().unwrap()]
        );
    }

    #[test]
    fn pool_is_read_again_for_findings_that_are_due_later() {
        let directory = tempfile::tempdir().unwrap();
        let mut reader = reader(directory.path(), &[("10.0.0.2", "id-web-1")]);
        let address = "10.0.0.2".parse().unwrap();
        let is_reserved = |reader: &mut PoolReader| {
            let pool = reader.find(address).unwrap();
            pool.addresses_of("id-web-1").value().is_some()
        };
        assert!(is_reserved(&mut reader));
        fs::remove_file(directory.path().join("pods/10.0.0.2")).unwrap();
        assert!(
            is_reserved(&mut reader),
            "as for other findings due by then"
        );
        reader.refresh(Instant::now());
        assert!(!is_reserved(&mut reader));
        assert!(reader.find("192.168.0.2".parse().unwrap()).is_err());
    }
}
