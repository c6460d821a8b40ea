//! What a source knows, and joining it with devices. Pure.

mod join;

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    net::IpAddr,
    sync::{Arc, OnceLock},
};

use super::{Pod, name_hash::HashedNames};
use crate::engine::{NsId, PodDevice};
pub(super) use join::Catalogues;

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

/// A device, the addresses on its pod's end, and its pod where that is known.
type Standing<D> = (D, Vec<IpAddr>, Option<Arc<Pod>>);

/// Everything one source told at one time, ready to be asked by device.
#[derive(Debug, Default)]
pub struct DeviceMatcher {
    records: Vec<Record>,
    by_namespace: HashMap<NsId, usize>,
    by_device: HashMap<String, usize>,
    by_name: HashMap<String, usize>,
    by_address: HashMap<IpAddr, Vec<usize>>,
    hashed: OnceLock<HashedNames>,
}

impl DeviceMatcher {
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
    pub fn by_network(&self, device: &PodDevice) -> Option<&Pod> {
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
    pub fn by_hash(&self, device: &PodDevice) -> Option<&Pod> {
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
        devices: &[Standing<D>],
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

#[cfg(test)]
mod tests;
