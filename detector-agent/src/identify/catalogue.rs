//! What a source knows, and joining it with devices. Pure.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    net::IpAddr,
    sync::{Arc, OnceLock},
};

use super::{Pod, Via, name_hash::HashedNames};
use crate::detect::{Device, NsId};

/// A pod as a source tells it, and what its devices can be told by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The pod; `via` is the source.
    pub pod: Pod,
    /// Its network namespace, as the agent's namespace numbered it when the record was made.
    pub namespace: Option<NsId>,
    /// The names of its devices' host ends.
    pub devices: Vec<String>,
    /// The pod's addresses, where its namespace and devices are not known.
    pub addresses: Vec<IpAddr>,
    /// Another uid that the container runtime knows it by.
    pub known_as: Option<String>,
    /// Whether it runs. Of one that does not, only the namespace counts: its device's name may be another's by now.
    pub running: bool,
    /// Orders the records of one source by age; of two that fit, the newer is right.
    pub created: i64,
}

/// Everything one source told at one time, ready to be asked by device.
#[derive(Debug, Default)]
pub struct Catalogue {
    records: Vec<Record>,
    by_namespace: HashMap<NsId, usize>,
    by_device: HashMap<String, usize>,
    by_name: HashMap<String, usize>,
    by_address: HashMap<IpAddr, Vec<usize>>,
    hashed: OnceLock<HashedNames>,
}

impl Catalogue {
    /// The catalogue of these records.
    #[must_use]
    pub fn new(mut records: Vec<Record>) -> Self {
        // The later of two that fit replaces the earlier below.
        records.sort_by_key(|record| (record.running, record.created));
        let mut by_namespace = HashMap::new();
        let mut by_device = HashMap::new();
        let mut by_name = HashMap::new();
        let mut by_address: HashMap<IpAddr, Vec<usize>> = HashMap::new();
        for (index, record) in records.iter().enumerate() {
            by_namespace.extend(record.namespace.map(|namespace| (namespace, index)));
            by_name.insert(full_name(&record.pod.namespace, &record.pod.name), index);
            if record.running {
                for address in &record.addresses {
                    by_address.entry(*address).or_default().push(index);
                }
                by_device.extend(record.devices.iter().cloned().map(|name| (name, index)));
            }
        }
        Self {
            records,
            by_namespace,
            by_device,
            by_name,
            by_address,
            hashed: OnceLock::new(),
        }
    }

    /// Every record.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The pod whose network namespace the device leads to, or whose device has this name.
    #[must_use]
    pub fn by_network(&self, device: &Device) -> Option<&Pod> {
        let namespace = device
            .peer
            .and_then(|peer| self.by_namespace.get(&peer.nsid));
        let found = namespace.or_else(|| {
            // A record that stands in another namespace than the device's peer names an earlier device.
            self.by_device.get(&device.name).filter(|index| {
                let record = self.records.get(**index).and_then(|r| r.namespace);
                !matches!((record, device.peer), (Some(namespace), Some(peer)) if namespace != peer.nsid)
            })
        })?;
        self.records.get(*found).map(|record| &record.pod)
    }

    /// The pod that the device's name is made of.
    #[must_use]
    pub fn by_hash(&self, device: &Device) -> Option<&Pod> {
        let hashed = self
            .hashed
            .get_or_init(|| HashedNames::new(self.records.iter().map(|record| &record.pod)));
        let record = self.records.get(hashed.find(&device.name)?)?;
        Some(&record.pod)
    }

    /// The pod of this name.
    #[must_use]
    pub fn by_pod_name(&self, namespace: &str, name: &str) -> Option<&Pod> {
        self.record_by_name(namespace, name)
            .map(|record| &record.pod)
    }

    fn record_by_name(&self, namespace: &str, name: &str) -> Option<&Record> {
        let index = self.by_name.get(&full_name(namespace, name))?;
        self.records.get(*index)
    }

    /// Whether this pod still runs and has no other addresses than these.
    pub(super) fn gives(&self, pod: &Pod, addresses: &[IpAddr]) -> bool {
        let record = self.record_by_name(&pod.namespace, &pod.name);
        record.is_some_and(|record| {
            record.running
                && record.pod.uid == pod.uid
                && !record.addresses.is_empty()
                && record.addresses.iter().all(|a| addresses.contains(a))
        })
    }

    /// The pods all of whose addresses stand on a device.
    fn by_addresses(&self, addresses: &[IpAddr]) -> BTreeSet<usize> {
        let at_least_one = addresses.iter().filter_map(|a| self.by_address.get(a));
        at_least_one
            .flatten()
            .copied()
            .filter(|index| {
                let record = self.records.get(*index);
                record.is_some_and(|r| r.addresses.iter().all(|a| addresses.contains(a)))
            })
            .collect()
    }

    /// Which device is whose by the addresses alone: a device and a pod that fit each other and nobody else. `devices`
    /// are all there are, each with its pod where that is known already. Gives for each of the others the pod, or
    /// the reason why it cannot be said.
    pub(super) fn by_address<D: Copy + Eq + Hash>(
        &self,
        devices: &[(D, Vec<IpAddr>, Option<Arc<Pod>>)],
    ) -> HashMap<D, Result<&Pod, String>> {
        let name = |index: usize| {
            let record = self.records.get(index);
            record.map_or_else(String::new, |r| full_name(&r.pod.namespace, &r.pod.name))
        };
        let taken: BTreeSet<usize> = devices
            .iter()
            .filter_map(|(_, _, pod)| {
                let pod = pod.as_ref()?;
                self.by_name
                    .get(&full_name(&pod.namespace, &pod.name))
                    .copied()
            })
            .collect();
        let fitting: Vec<(D, BTreeSet<usize>)> = devices
            .iter()
            .filter(|(_, _, pod)| pod.is_none())
            .map(|(device, addresses, _)| (*device, &self.by_addresses(addresses) - &taken))
            .collect();
        let mut wanted: HashMap<usize, usize> = HashMap::new();
        for index in fitting.iter().flat_map(|(_, pods)| pods) {
            *wanted.entry(*index).or_default() += 1;
        }
        let mut outcome = HashMap::new();
        for (device, pods) in fitting {
            let mut pods = pods.into_iter();
            let verdict = match (pods.next(), pods.next()) {
                (None, _) => continue,
                (Some(only), None) if wanted.get(&only) == Some(&1) => {
                    match self.records.get(only) {
                        Some(record) => Ok(&record.pod),
                        None => continue,
                    }
                }
                (Some(only), None) => Err(format!(
                    "{} has its address, and so has another device",
                    name(only)
                )),
                (Some(one), Some(two)) => {
                    let more = pods.count();
                    let more = (more > 0).then(|| format!(" and {more} more"));
                    Err(format!(
                        "{}, {}{} have its address",
                        name(one),
                        name(two),
                        more.unwrap_or_default()
                    ))
                }
            };
            outcome.insert(device, verdict);
        }
        outcome
    }
}

fn full_name(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// The catalogues of all sources, each with the round it was read in.
#[derive(Debug, Default)]
pub(super) struct Catalogues {
    cri: Dated,
    cni_cache: Dated,
    kube: Dated,
}

#[derive(Debug, Default)]
struct Dated {
    catalogue: Catalogue,
    round: u64,
}

impl Catalogues {
    /// What the Kubernetes API told, where it told anything.
    pub(super) fn kube(&self) -> Option<&Catalogue> {
        Some(&self.kube.catalogue).filter(|catalogue| !catalogue.records.is_empty())
    }

    /// Adds what the Kubernetes API knows of the same pod.
    pub(super) fn complete(&self, pod: Arc<Pod>) -> Arc<Pod> {
        let record = self
            .kube
            .catalogue
            .record_by_name(&pod.namespace, &pod.name);
        let Some(record) = record else {
            return pod;
        };
        let known = &record.pod;
        let same = pod.uid.is_none() || pod.uid == known.uid || pod.uid == record.known_as;
        let complete = Pod {
            uid: known.uid.clone(),
            labels: known.labels.clone(),
            owner: known.owner.clone(),
            terminating: known.terminating,
            ..Pod::clone(&pod)
        };
        if same && complete != *pod {
            Arc::new(complete)
        } else {
            pod
        }
    }

    pub(super) fn set(&mut self, via: Via, round: u64, catalogue: Catalogue) {
        let dated = Dated { catalogue, round };
        match via {
            Via::Cri => self.cri = dated,
            Via::CniCache => self.cni_cache = dated,
            Via::Kube => self.kube = dated,
            // Has no records of its own.
            Via::NameHash => {}
        }
    }

    /// The pod behind a device, by the best source that knows it. A catalogue read before round `since` says nothing
    /// of the device's network: what it holds may be of an earlier device.
    pub(super) fn name(&self, device: &Device, since: u64) -> Option<Arc<Pod>> {
        self.told(device, since).map(|pod| self.complete(pod))
    }

    fn told(&self, device: &Device, since: u64) -> Option<Arc<Pod>> {
        for dated in [&self.cri, &self.cni_cache] {
            let fresh = Some(&dated.catalogue).filter(|_| dated.round >= since);
            if let Some(pod) = fresh.and_then(|catalogue| catalogue.by_network(device)) {
                return Some(Arc::new(pod.clone()));
            }
        }
        let spelled = device.alias.as_deref().and_then(spelled_out);
        let kube = &self.kube.catalogue;
        let in_kube = spelled
            .and_then(|(namespace, name)| kube.by_pod_name(namespace, name))
            .or_else(|| kube.by_hash(device));
        if let Some(pod) = in_kube {
            return Some(Arc::new(pod.clone()));
        }
        // The device's own word: good whenever the candidate was read, as it holds the pod's name or container id.
        for catalogue in [&self.cri.catalogue, &self.cni_cache.catalogue] {
            let told = spelled
                .and_then(|(namespace, name)| catalogue.by_pod_name(namespace, name))
                .or_else(|| catalogue.by_hash(device));
            if let Some(pod) = told {
                let via = Via::NameHash;
                return Some(Arc::new(Pod { via, ..pod.clone() }));
            }
        }
        let (namespace, name) = spelled?;
        Some(Arc::new(Pod::named(namespace, name, Via::NameHash)))
    }
}

/// Namespace and name out of the alias that newer kindnet gives its devices: `link-pod <namespace>/<name>`.
fn spelled_out(alias: &str) -> Option<(&str, &str)> {
    let (namespace, name) = alias.strip_prefix("link-pod ")?.split_once('/')?;
    let fits = |part: &str| {
        let part = part.as_bytes();
        !part.is_empty()
            && part.len() <= 253
            && part
                .iter()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
    };
    (fits(namespace) && fits(name)).then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::detect::Peer;

    fn pod(name: &str, via: Via) -> Pod {
        Pod {
            uid: Some(format!("uid-{name}")),
            container_id: Some(format!("cid-{name}")),
            ..Pod::named("default", name, via)
        }
    }

    fn record(name: &str, namespace: Option<NsId>, device: &str, created: i64) -> Record {
        Record {
            pod: pod(name, Via::Cri),
            namespace,
            devices: vec![device.to_owned()],
            addresses: Vec::new(),
            known_as: None,
            running: true,
            created,
        }
    }

    fn device(name: &str, nsid: Option<NsId>) -> Device {
        Device {
            ifindex: 7,
            generation: 1,
            name: name.to_owned(),
            alias: None,
            peer: nsid.map(|nsid| Peer { nsid, ifindex: 2 }),
        }
    }

    fn named(catalogue: &Catalogue, device: &Device) -> Option<String> {
        catalogue.by_network(device).map(|pod| pod.name.clone())
    }

    #[test]
    fn the_namespace_decides_before_the_name() {
        let catalogue = Catalogue::new(vec![
            record("a", Some(1), "veth1", 1),
            record("b", Some(2), "veth2", 1),
        ]);
        assert_eq!(named(&catalogue, &device("veth1", Some(2))).unwrap(), "b");
        assert_eq!(named(&catalogue, &device("net1", Some(1))).unwrap(), "a");
    }

    #[test]
    fn a_name_counts_where_one_of_the_namespaces_is_unknown() {
        let catalogue = Catalogue::new(vec![
            record("a", Some(1), "veth1", 1),
            record("b", None, "veth2", 1),
        ]);
        assert_eq!(named(&catalogue, &device("veth1", None)).unwrap(), "a");
        assert_eq!(named(&catalogue, &device("veth2", Some(9))).unwrap(), "b");
        assert_eq!(named(&catalogue, &device("veth1", Some(9))), None);
    }

    #[test]
    fn of_two_pods_with_one_device_name_the_newer_is_right() {
        let catalogue = Catalogue::new(vec![
            record("new", None, "cali1", 20),
            record("old", None, "cali1", 10),
        ]);
        assert_eq!(named(&catalogue, &device("cali1", None)).unwrap(), "new");
    }

    #[test]
    fn a_stopped_pod_is_found_by_its_namespace_only() {
        let mut stopped = record("a", Some(1), "veth1", 1);
        stopped.running = false;
        let catalogue = Catalogue::new(vec![stopped]);
        assert_eq!(named(&catalogue, &device("veth1", None)), None);
        assert_eq!(named(&catalogue, &device("veth1", Some(1))).unwrap(), "a");
    }

    #[test]
    fn a_catalogue_older_than_the_device_names_nothing_by_network() {
        let mut catalogues = Catalogues::default();
        let catalogue = Catalogue::new(vec![record("a", Some(1), "veth1", 1)]);
        catalogues.set(Via::Cri, 3, catalogue);
        assert!(catalogues.name(&device("veth1", Some(1)), 4).is_none());
        assert!(catalogues.name(&device("veth1", Some(1)), 3).is_some());
    }

    #[test]
    fn the_better_source_names_the_device() {
        let mut catalogues = Catalogues::default();
        let from = |via| {
            let mut record = record("a", Some(1), "cali0d7763386da", 1);
            record.pod = pod("web-0", via);
            Catalogue::new(vec![record])
        };
        let kube_only = |mut catalogue: Catalogue| {
            for record in &mut catalogue.records {
                record.namespace = None;
                record.devices.clear();
            }
            Catalogue::new(catalogue.records)
        };
        let device = device("cali0d7763386da", Some(1));
        let via = |catalogues: &Catalogues| catalogues.name(&device, 0).map(|pod| pod.via);
        assert_eq!(via(&catalogues), None);
        catalogues.set(Via::CniCache, 1, kube_only(from(Via::CniCache)));
        assert_eq!(via(&catalogues), Some(Via::NameHash));
        catalogues.set(Via::Kube, 1, kube_only(from(Via::Kube)));
        assert_eq!(via(&catalogues), Some(Via::Kube));
        catalogues.set(Via::CniCache, 1, from(Via::CniCache));
        assert_eq!(via(&catalogues), Some(Via::CniCache));
        catalogues.set(Via::Cri, 1, from(Via::Cri));
        assert_eq!(via(&catalogues), Some(Via::Cri));
    }

    #[test]
    fn kindnets_alias_spells_the_pod_out() {
        let mut device = device("knet0a1b2c3d", None);
        device.alias = Some("link-pod default/web-0".to_owned());
        let pod = Catalogues::default().name(&device, 0).unwrap();
        assert_eq!((&*pod.namespace, &*pod.name), ("default", "web-0"));
        assert_eq!(pod.via, Via::NameHash);
        for alias in ["link-pod /x", "link-pod x", "link-pod a/b c", "uplink a/b"] {
            assert_eq!(spelled_out(alias), None, "{alias}");
        }
    }

    fn with_addresses(name: &str, addresses: &[&str]) -> Record {
        Record {
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            devices: Vec::new(),
            ..record(name, None, "", 1)
        }
    }

    /// Each device's pod, or why it is not known.
    fn by_address(
        records: Vec<Record>,
        devices: &[(u8, &[&str], Option<&str>)],
    ) -> Vec<(u8, Result<String, String>)> {
        let catalogue = Catalogue::new(records);
        let devices: Vec<_> = devices
            .iter()
            .map(|(device, addresses, known)| {
                let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
                (
                    *device,
                    addresses,
                    known.map(|name| Arc::new(pod(name, Via::Cri))),
                )
            })
            .collect();
        let mut found: Vec<_> = catalogue
            .by_address(&devices)
            .into_iter()
            .map(|(device, verdict)| (device, verdict.map(|pod| pod.name.clone())))
            .collect();
        found.sort();
        found
    }

    #[test]
    fn an_address_that_one_pod_has_and_one_device_tells_the_pod() {
        let records = vec![
            with_addresses("a", &["10.0.0.1", "fd00::1"]),
            with_addresses("b", &["10.0.0.2"]),
        ];
        let devices: [(u8, &[&str], _); 3] = [
            (1, &["fd00::1", "10.0.0.1", "fe80::1"], None),
            (2, &["10.0.0.2"], None),
            (3, &["10.0.0.3"], None),
        ];
        let expected = [(1, Ok("a".to_owned())), (2, Ok("b".to_owned()))];
        assert_eq!(by_address(records, &devices), expected);
    }

    #[test]
    fn two_pods_of_one_address_are_told_apart_by_another_address_or_not_at_all() {
        let twice = ["10.0.0.1"];
        let records = vec![with_addresses("a", &twice), with_addresses("b", &twice)];
        let found = by_address(records.clone(), &[(1, &twice, None), (2, &twice, None)]);
        let because = Err("default/a, default/b have its address".to_owned());
        assert_eq!(found, [(1, because.clone()), (2, because)]);
        // One of them is known by a better source: the other is the other.
        let found = by_address(records, &[(1, &twice, Some("a")), (2, &twice, None)]);
        assert_eq!(found, [(2, Ok("b".to_owned()))]);
        let records = vec![
            with_addresses("a", &["10.0.0.1", "fd00::1"]),
            with_addresses("b", &["10.0.0.1", "fd00::2"]),
        ];
        let devices: [(u8, &[&str], _); 2] = [
            (1, &["10.0.0.1", "fd00::1"], None),
            (2, &["10.0.0.1", "fd00::2"], None),
        ];
        let expected = [(1, Ok("a".to_owned())), (2, Ok("b".to_owned()))];
        assert_eq!(by_address(records, &devices), expected);
    }

    #[test]
    fn a_stolen_address_names_neither_the_thief_nor_the_owner() {
        let records = vec![with_addresses("a", &["10.0.0.1"])];
        let found = by_address(
            records,
            &[(1, &["10.0.0.1"], None), (2, &["10.0.0.1"], None)],
        );
        assert!(
            found.iter().all(|(_, verdict)| verdict.is_err()),
            "{found:?}"
        );
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn a_pod_that_ended_has_no_address() {
        let mut ended = with_addresses("a", &["10.0.0.1"]);
        ended.running = false;
        let records = vec![ended, with_addresses("b", &["10.0.0.1"])];
        let found = by_address(records, &[(1, &["10.0.0.1"], None)]);
        assert_eq!(found, [(1, Ok("b".to_owned()))]);
    }

    #[test]
    fn kubernetes_completes_what_another_source_told_of_the_same_pod_only() {
        let mut catalogues = Catalogues::default();
        let mut told = with_addresses("a", &[]);
        told.pod.terminating = true;
        told.known_as = Some("static".to_owned());
        catalogues.set(Via::Kube, 1, Catalogue::new(vec![told]));
        let complete = |uid: Option<&str>| {
            let uid = uid.map(str::to_owned);
            let pod = Pod {
                uid,
                ..Pod::named("default", "a", Via::Cri)
            };
            catalogues.complete(Arc::new(pod))
        };
        for uid in [None, Some("uid-a"), Some("static")] {
            let pod = complete(uid);
            assert_eq!((pod.uid.as_deref(), pod.terminating), (Some("uid-a"), true));
            assert_eq!(pod.via, Via::Cri);
        }
        assert!(!complete(Some("earlier")).terminating);
    }
}
