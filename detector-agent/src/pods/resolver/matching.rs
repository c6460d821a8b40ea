//! Matching the sources' snapshots with the devices, and the reason if none matches.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use detector_event::{Pod, Via};

use super::{
    PodResolver,
    device_lookup::{DeviceLookup, PodChange},
};
use crate::pods::{SourceState, matcher::AddressCandidate};

/// With more devices than this, none is matched by address: reading a pod's addresses takes some 40 µs.
const MAX_DEVICES_BY_ADDRESS: usize = 1_024;

impl PodResolver {
    /// How many lookups a query to this source was for.
    pub(super) fn open_lookups(&self, via: Via, round: u64) -> usize {
        self.devices
            .values()
            .filter(|lookup| lookup.first_round <= round && lookup.can_improve_with(via))
            .count()
    }

    /// Matches all devices with the latest snapshots. `reported`: the source that reported just now and its round, whose
    /// unsuccessful lookups are counted.
    pub(super) fn match_devices(&mut self, reported: Option<(Via, u64)>) {
        let mut found: BTreeMap<Via, usize> = BTreeMap::new();
        let mut not_found = 0;
        for (id, lookup) in &mut self.devices {
            if lookup.is_gone {
                continue;
            }
            if !lookup.is_network_known
                && let Some(network) = self.matchers.network_of(&lookup.device, lookup.first_round)
            {
                self.named_networks.push((id.0, id.1, network.into()));
                lookup.is_network_known = true;
            }
            let was_queried = reported.is_some_and(|(via, round)| {
                lookup.first_round <= round && lookup.can_improve_with(via)
            });
            let matched = self
                .matchers
                .find(&lookup.device, lookup.first_round)
                .filter(|pod| {
                    lookup.can_improve_with(pod.via) || lookup.is_address_match_replaced_by(pod)
                });
            if matched.is_some() {
                lookup.matched_addresses = None;
            }
            let pod = matched.or_else(|| {
                let pod = lookup.pod.as_ref()?;
                let detailed = self.matchers.with_details(Arc::clone(pod));
                (!Arc::ptr_eq(pod, &detailed)).then_some(detailed)
            });
            let Some(pod) = pod else {
                not_found += usize::from(was_queried);
                continue;
            };
            if lookup.via() != Some(pod.via) {
                *found.entry(pod.via).or_default() += 1;
            }
            match lookup.set_pod(pod) {
                PodChange::OtherPod => self.changed.push(*id),
                PodChange::Details => self.detailed.push(*id),
            }
            self.is_stale = true;
        }
        if self.matchers.kube().is_some() {
            let by_address = self.match_by_address();
            *found.entry(Via::Kube).or_default() += by_address;
            not_found -= by_address.min(not_found);
        }
        for (via, devices) in found {
            self.count(via, "named", devices);
        }
        if let Some((via, _)) = reported {
            self.count(via, "not_found", not_found);
        }
    }

    /// Matches the remaining devices by address; returns how many. Such a match holds as long as the API lists the pod
    /// with those addresses: an address that changes hands may for a moment still be listed at its previous pod.
    fn match_by_address(&mut self) -> usize {
        let Some(kube) = self.matchers.kube() else {
            return 0;
        };
        let is_open = |lookup: &DeviceLookup| match (&lookup.pod, &lookup.matched_addresses) {
            (None, _) => true,
            (Some(pod), Some(addresses)) => !kube.is_at(pod, addresses),
            (Some(_), None) => false,
        };
        let present = || self.devices.iter().filter(|(_, lookup)| !lookup.is_gone);
        if !present().any(|(_, lookup)| is_open(lookup))
            || present().count() > MAX_DEVICES_BY_ADDRESS
        {
            return 0;
        }
        let netns = &mut self.netns;
        let mut candidates = Vec::new();
        for (id, lookup) in self.devices.iter_mut().filter(|(_, l)| !l.is_gone) {
            let is_open = is_open(&*lookup);
            // Only open lookups are worth the kernel's time.
            let peer = lookup.device.peer.filter(|_| is_open);
            if let Some(peer) = peer {
                lookup.note_addresses(&netns.addresses_at(peer));
            }
            let addresses = lookup.first_addresses.clone();
            candidates.push(AddressCandidate {
                device: *id,
                is_bare: peer.is_some() && addresses.is_empty(),
                addresses,
                pod: lookup.pod.clone().filter(|_| !is_open),
            });
        }
        let matches = kube.by_address(&candidates);
        let mut addresses: HashMap<_, _> = candidates
            .into_iter()
            .map(|candidate| (candidate.device, candidate.addresses))
            .collect();
        let mut found = 0;
        for (id, outcome) in matches {
            let Some(lookup) = self.devices.get_mut(&id) else {
                continue;
            };
            match outcome {
                Ok(pod) => {
                    found += 1;
                    lookup.ambiguity = None;
                    lookup.matched_addresses = addresses.remove(&id);
                    let pod = Pod {
                        is_matched_by_address: true,
                        ..pod.clone()
                    };
                    let pod = self.matchers.with_details(Arc::new(pod));
                    match lookup.set_pod(pod) {
                        PodChange::OtherPod => self.changed.push(id),
                        PodChange::Details => self.detailed.push(id),
                    }
                }
                Err(ambiguity) => lookup.ambiguity = Some(ambiguity),
            }
            self.is_stale = true;
        }
        found
    }

    /// Why no source identifies a device, one clause per source.
    pub(super) fn unknown_reason(&self) -> String {
        let clauses: Vec<String> = self
            .sources
            .iter()
            .map(|status| {
                let via = status.via;
                match (status.state, via) {
                    (SourceState::Off, _) => format!("{via} is off"),
                    (SourceState::Untried, _) => format!("{via} has not answered yet"),
                    (SourceState::Working, Via::Cri) => {
                        format!("{via}: no pod of {} has this device", status.target)
                    }
                    (SourceState::Working, Via::CniCache) => {
                        format!("{via}: no entry in {} has this device", status.target)
                    }
                    (SourceState::Working, _) => format!("{via}: no pod matches"),
                    (_, _) => format!("{via}: {}", status.detail),
                }
            })
            .collect();
        clauses.join("; ")
    }
}
