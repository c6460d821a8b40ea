//! Matching devices with the pods of one source's snapshot. Pure.

mod sources;

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    net::IpAddr,
    sync::{Arc, OnceLock},
};

use detector_engine::{NsId, PodDevice};
use detector_event::{MAX_SECONDARY_ADDRESSES, Pod};

use super::name_hash::HashedNames;
pub(super) use sources::SourceMatchers;

/// A pod in a source's snapshot, with what identifies its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRecord {
    /// The pod; `via` is the source.
    pub pod: Pod,
    /// Id of its network namespace relative to the agent's, when the record was made.
    pub namespace: Option<NsId>,
    /// Names of the host ends of its devices.
    pub devices: Vec<String>,
    /// The name of the CNI network that the devices are in, from the CNI result cache.
    pub network: Option<String>,
    /// The addresses of its primary interface.
    pub addresses: Vec<IpAddr>,
    /// The addresses of its secondary interfaces, from the CNI result cache.
    pub secondary_addresses: Vec<IpAddr>,
    /// The uid that the container runtime uses instead of the API's (static pods).
    pub runtime_uid: Option<String>,
    /// Whether it runs. A stopped pod is matched by its namespace only: its device's name may have been reused.
    pub running: bool,
    /// Orders the records of one source by age; the newer of two matching records wins.
    pub created: i64,
}

/// A device for matching by address.
#[derive(Clone, Debug)]
pub(super) struct AddressCandidate<D> {
    pub(super) device: D,
    /// The first address of each family on the pod's end: a pod can add others.
    pub(super) addresses: Vec<IpAddr>,
    /// The namespace was read and shows no address: it may be that of any pod whose stack is not
    /// the kernel's.
    pub(super) is_bare: bool,
    /// Its pod, if that is known already.
    pub(super) pod: Option<Arc<Pod>>,
}

/// One source's snapshot, indexed by what identifies devices.
#[derive(Debug, Default)]
pub struct DeviceMatcher {
    records: Vec<PodRecord>,
    by_namespace: HashMap<NsId, usize>,
    by_device: HashMap<String, usize>,
    by_name: HashMap<String, usize>,
    by_address: HashMap<IpAddr, Vec<usize>>,
    /// Of those with addresses, by the id of the sandbox: with several interfaces, that of the primary one.
    by_sandbox: HashMap<String, usize>,
    /// Those of secondary interfaces, by the id of the sandbox.
    secondary_addresses: HashMap<String, Vec<IpAddr>>,
    hashed: OnceLock<HashedNames>,
}

impl DeviceMatcher {
    /// Indexes `records`.
    #[must_use]
    pub fn new(mut records: Vec<PodRecord>) -> Self {
        // In the maps below a later record replaces an earlier one.
        records.sort_by_key(|record| (record.running, record.created));
        let mut by_namespace = HashMap::new();
        let mut by_device = HashMap::new();
        let mut by_name = HashMap::new();
        let mut by_address: HashMap<IpAddr, Vec<usize>> = HashMap::new();
        let mut by_sandbox = HashMap::new();
        let mut secondary_addresses: HashMap<String, Vec<IpAddr>> = HashMap::new();
        for (index, record) in records.iter().enumerate() {
            by_namespace.extend(record.namespace.map(|namespace| (namespace, index)));
            by_name.insert(full_name(&record.pod.namespace, &record.pod.name), index);
            if let Some(id) = &record.pod.container_id {
                if !record.addresses.is_empty() {
                    by_sandbox.insert(id.clone(), index);
                }
                if !record.secondary_addresses.is_empty() {
                    let secondary = secondary_addresses.entry(id.clone()).or_default();
                    let room = MAX_SECONDARY_ADDRESSES.saturating_sub(secondary.len());
                    secondary.extend(record.secondary_addresses.iter().take(room));
                }
            }
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
            by_sandbox,
            secondary_addresses,
            hashed: OnceLock::new(),
        }
    }

    /// The pod in the network namespace of the device's peer, else the pod that owns a device of this name.
    #[must_use]
    pub fn by_network(&self, device: &PodDevice) -> Option<&Pod> {
        let in_namespace = device
            .peer
            .and_then(|peer| self.by_namespace.get(&peer.nsid));
        let record = match in_namespace {
            Some(index) => self.records.get(*index),
            None => self.record_of(device),
        };
        record.map(|record| &record.pod)
    }

    /// The name of the CNI network that a device is in.
    pub(super) fn network_of(&self, device: &PodDevice) -> Option<&str> {
        self.record_of(device)?.network.as_deref()
    }

    /// The record with a device of this name. One in another namespace than the device's peer belongs to an earlier device
    /// of that name.
    fn record_of(&self, device: &PodDevice) -> Option<&PodRecord> {
        let record = self.records.get(*self.by_device.get(&device.name)?)?;
        let is_another = matches!((record.namespace, device.peer),
            (Some(namespace), Some(peer)) if namespace != peer.nsid);
        (!is_another).then_some(record)
    }

    /// The pod that the device's name is derived from.
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

    /// The primary addresses of the pod with this sandbox, if its record has any.
    fn addresses_of_sandbox(&self, id: &str) -> Option<&[IpAddr]> {
        let record = self.records.get(*self.by_sandbox.get(id)?)?;
        Some(&record.addresses)
    }

    /// The addresses of the secondary interfaces of the pod with this sandbox.
    fn secondary_addresses_of_sandbox(&self, id: &str) -> &[IpAddr] {
        self.secondary_addresses.get(id).map_or(&[], Vec::as_slice)
    }

    fn record_by_name(&self, namespace: &str, name: &str) -> Option<&PodRecord> {
        let index = self.by_name.get(&full_name(namespace, name))?;
        self.records.get(*index)
    }

    /// Whether this pod still runs, and all of its addresses are among `addresses`.
    pub(super) fn is_at(&self, pod: &Pod, addresses: &[IpAddr]) -> bool {
        let record = self.record_by_name(&pod.namespace, &pod.name);
        record.is_some_and(|record| {
            record.running
                && record.pod.uid == pod.uid
                && !record.addresses.is_empty()
                && record.addresses.iter().all(|a| addresses.contains(a))
        })
    }

    /// The records whose addresses are all among `addresses`.
    fn records_at(&self, addresses: &[IpAddr]) -> BTreeSet<usize> {
        let with_one = addresses.iter().filter_map(|a| self.by_address.get(a));
        with_one
            .flatten()
            .copied()
            .filter(|index| {
                let record = self.records.get(*index);
                record.is_some_and(|r| r.addresses.iter().all(|a| addresses.contains(a)))
            })
            .collect()
    }

    /// Matches devices and pods by address: a match counts only if the device fits no other pod and the pod no other
    /// device. `candidates` are all devices; those with a known pod take it out of the choice. Returns for each other
    /// device with a fitting pod either that pod or, for people, why the match is ambiguous.
    ///
    /// A pod may have taken the address of one whose namespace shows none, or may have been given it. So while there
    /// is an unknown device of that kind, no address identifies a pod.
    pub(super) fn by_address<D: Copy + Eq + Hash>(
        &self,
        candidates: &[AddressCandidate<D>],
    ) -> HashMap<D, Result<&Pod, String>> {
        let taken: BTreeSet<usize> = candidates
            .iter()
            .filter_map(|candidate| {
                let pod = candidate.pod.as_ref()?;
                self.by_name
                    .get(&full_name(&pod.namespace, &pod.name))
                    .copied()
            })
            .collect();
        let fitting: Vec<(D, BTreeSet<usize>)> = candidates
            .iter()
            .filter(|candidate| candidate.pod.is_none())
            .map(|c| (c.device, &self.records_at(&c.addresses) - &taken))
            .collect();
        let mut devices_per_pod: HashMap<usize, usize> = HashMap::new();
        for index in fitting.iter().flat_map(|(_, pods)| pods) {
            *devices_per_pod.entry(*index).or_default() += 1;
        }
        let mut unknown = candidates.iter().filter(|c| c.pod.is_none());
        let any_is_bare = unknown.any(|candidate| candidate.is_bare);
        let mut matches = HashMap::new();
        for (device, pods) in fitting {
            let mut pods = pods.into_iter();
            let outcome = match (pods.next(), pods.next()) {
                (None, _) => continue,
                (Some(only), None) if any_is_bare => Err(format!(
                    "it has the address of {}, but may have taken it: the pod of another device shows none",
                    self.name_of(only)
                )),
                (Some(only), None) if devices_per_pod.get(&only) == Some(&1) => {
                    match self.records.get(only) {
                        Some(record) => Ok(&record.pod),
                        None => continue,
                    }
                }
                (Some(only), None) => Err(format!(
                    "another device also has the address of {}",
                    self.name_of(only)
                )),
                (Some(one), Some(two)) => {
                    let others = pods.count();
                    let others = (others > 0).then(|| format!(" and {others} more"));
                    Err(format!(
                        "its address is shared by {}, {}{}",
                        self.name_of(one),
                        self.name_of(two),
                        others.unwrap_or_default()
                    ))
                }
            };
            matches.insert(device, outcome);
        }
        matches
    }

    fn name_of(&self, index: usize) -> String {
        let record = self.records.get(index);
        record.map_or_else(String::new, |r| full_name(&r.pod.namespace, &r.pod.name))
    }
}

fn full_name(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

#[cfg(test)]
mod tests;
