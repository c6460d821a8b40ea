//! What is known of the IPAM pool that an address belongs to.

mod aws;
mod calico;
mod followed;
mod host_local;
mod record;

use std::{
    collections::HashMap,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use detector_engine::{
    IfIndex, Ipam,
    diagnosis::{Known, NetworkConfig, Source, UnixTime},
};
use detector_event::Pod;

use super::{
    Watched,
    files::{not_checked, source, unix},
    requests::Requests,
};
use crate::{
    ipam::{IpamSettings, configured_networks},
    process::clock,
};
use aws::Ipamd;
use calico::Blocks;
use record::Allocations;
pub(super) use record::{Candidate, FoundPool};

/// The type of Calico's IPAM, whose state is in the datastore of the API server.
const CALICO: &str = "calico-ipam";

/// Reads pools, once for all findings that were due by then.
#[derive(Debug)]
pub(super) struct PoolReader {
    settings: IpamSettings,
    watched: Watched,
    known: Option<(Instant, Networks)>,
    blocks: Blocks,
    ipamd: Ipamd,
}

/// The node's networks, as they were read at one time.
#[derive(Debug)]
struct Networks {
    configured: Result<Vec<NetworkConfig>, String>,
    /// The reservations in each directory.
    reservations: HashMap<PathBuf, Result<Arc<Allocations>, String>>,
    /// The pods that there were before the reservations were read: all of them had theirs by then.
    pods: HashMap<IfIndex, Arc<Pod>>,
}

impl PoolReader {
    pub(super) fn new(settings: &IpamSettings, watched: &Watched) -> Self {
        Self {
            settings: settings.clone(),
            watched: watched.clone(),
            known: None,
            blocks: Blocks::new(Arc::clone(&watched.blocks), Arc::clone(&watched.pools)),
            ipamd: Ipamd::default(),
        }
    }

    /// What was read before `due` is read again.
    pub(super) fn refresh(&mut self, due: Instant) {
        self.known.take_if(|(read_at, _)| *read_at < due);
        self.blocks.refresh(due);
        self.ipamd.refresh(due);
    }

    pub(super) fn cni_configuration(&self) -> &Path {
        &self.settings.cni_conf_dir
    }

    pub(super) fn source(&self) -> Source {
        source(&self.settings.cni_conf_dir)
    }

    /// The configured networks besides `own` whose ranges overlap with its ranges.
    pub(super) fn overlapping(&mut self, own: &NetworkConfig) -> Known<Vec<NetworkConfig>> {
        let place = self.source();
        let networks = match &self.networks().configured {
            Ok(networks) => networks,
            Err(why) => return not_checked("other networks of the node", why.clone()),
        };
        let is_other =
            |other: &&NetworkConfig| other.name != own.name && own.shares_range_with(other);
        let others: Vec<_> = networks.iter().filter(is_other).cloned().collect();
        match others.is_empty() {
            true => Known::Absent(place),
            false => Known::Value(others, place),
        }
    }

    /// Whether the state of a network is in the datastore of the API server.
    pub(super) fn is_any_in_datastore(&self) -> bool {
        let is_in_datastore = |network: &NetworkConfig| {
            let ipams = [Ipam::Calico, Ipam::Whereabouts, Ipam::Spiderpool];
            ipams.iter().any(|ipam| ipam.name() == network.ipam)
        };
        let networks = configured_networks(&self.settings);
        networks.is_ok_and(|all| all.iter().any(is_in_datastore)) || self.watched.pools.has_leases()
    }

    /// When the record of an address was read, if it was found by a lease.
    pub(super) fn recorded_at(&self, address: IpAddr) -> Option<UnixTime> {
        let pool = self.watched.pools.by_lease(address)?;
        let mut parts = pool.parts.iter().flatten();
        let record = parts.find(|part| part.range == (address..=address))?;
        unix(clock::moment().wall_at(record.confirmed_at?))
    }

    /// The pods of the node, by the index of their device.
    pub(super) fn pods(&mut self) -> &HashMap<IfIndex, Arc<Pod>> {
        &self.networks().pods
    }

    /// The pool that assigns `address` on `node`: one of `host-local` whose configuration or state has the address, else one whose
    /// plugin gave it to a pod, that of Calico, of the AWS VPC CNI, or of another network whose allocations are followed.
    ///
    /// # Errors
    /// Why there is none, or it is not known.
    pub(super) fn find(
        &mut self,
        address: IpAddr,
        node: &str,
        requests: &mut Requests,
    ) -> Result<FoundPool, String> {
        if let Some(pool) = self.host_local(address)? {
            return Ok(pool);
        }
        if let Some(pool) = self.watched.pools.by_lease(address) {
            let network = NetworkConfig {
                name: pool.source.network.clone(),
                ipam: pool.source.ipam.name().to_owned(),
                data_dir: None,
                ranges: Vec::new(),
            };
            return Ok(followed::pool(&network, false, &pool));
        }
        let configured = self.networks().configured.clone()?;
        let of = |ipam: &str| configured.iter().find(|network| network.ipam == ipam);
        if let Some(network) = of(CALICO)
            && let Some(pool) = self.blocks.find(network, address, node, requests)?
        {
            return Ok(pool);
        }
        let is_only_network = |name: &str| configured.iter().all(|other| other.name == name);
        if let Some(network) = of("aws-cni") {
            let is_only = is_only_network(&network.name);
            let (settings, plugins) = (&self.settings, &self.watched.plugins);
            return Ok(self
                .ipamd
                .pool(network, is_only, settings, plugins, requests));
        }
        let mut others = configured
            .iter()
            .filter(|network| network.data_dir.is_none() && network.ipam != CALICO);
        let found = others.find_map(|network| {
            let pool = self.watched.pools.pool(&network.name, address)?;
            let is_only = is_only_network(&network.name);
            followed::may_have(&pool, address).then(|| followed::pool(network, is_only, &pool))
        });
        if let Some(pool) = found {
            return Ok(pool);
        }
        Err("no configured network assigns the address whose IPAM can be read".to_owned())
    }

    /// The `host-local` network that assigns the address.
    fn host_local(&mut self, address: IpAddr) -> Result<Option<FoundPool>, String> {
        let history = Arc::clone(&self.watched.pools);
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
        Ok(candidates.first().map(|(network, directory)| {
            let reservations = networks.reservations.get(directory).cloned();
            let reservations = reservations.unwrap_or_else(|| Err("it was not read".to_owned()));
            host_local::pool(network, directory, reservations, address, &history)
        }))
    }

    fn networks(&mut self) -> &Networks {
        let known = self.known.take();
        let known = known.unwrap_or_else(|| {
            let read_at = Instant::now();
            let pods = self.watched.pods.present();
            let configured = configured_networks(&self.settings);
            let directories = configured.iter().flatten().filter_map(|network| {
                let data_dir = network.data_dir.as_ref()?;
                Some(Path::new(data_dir).join(&network.name))
            });
            let reservations = directories
                .map(|directory| (directory.clone(), host_local::reservations(&directory)))
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use std::fs;

    use detector_engine::diagnosis::LivePods;
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
        let settings = IpamSettings {
            cni_conf_dir: configuration,
            ..IpamSettings::default()
        };
        PoolReader::new(&settings, &Watched::default())
    }

    fn find(reader: &mut PoolReader, address: &str) -> Result<FoundPool, String> {
        let mut requests = Requests::new(None).unwrap();
        reader.find(address.parse().unwrap(), "node-1", &mut requests)
    }

    #[test]
    fn pods_without_a_reservation_of_their_own_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let reservations = [("10.0.0.2", "id-web-1"), ("10.0.0.3", "id-other")];
        let mut reader = reader(directory.path(), &reservations);
        let pool = find(&mut reader, "10.0.0.2").unwrap();
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
        let facts = pool.facts("10.0.0.2".parse().unwrap(), &[], &pods);
        let live = *facts.live_pods.value().unwrap();
        let expected = LivePods {
            total: 3,
            without_allocation: 2,
            addresses_without_allocation: 2,
        };
        assert_eq!(live, expected);
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
        let is_reserved = |reader: &mut PoolReader| {
            let pool = find(reader, "10.0.0.2").unwrap();
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
        assert!(find(&mut reader, "192.168.0.2").is_err());
    }
}
