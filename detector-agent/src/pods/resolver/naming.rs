//! Joining what the sources told with the devices, and the reason where nothing fits.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{Identifier, device_lookup::Followed};
use crate::pods::{SourceState, Via};

/// More devices than these are not told apart by their addresses: each costs the kernel some 40 µs.
const BY_ADDRESS: usize = 1_024;

impl Identifier {
    /// How many devices a source was asked about.
    pub(super) fn asked(&self, via: Via, round: u64) -> usize {
        self.devices
            .values()
            .filter(|followed| followed.since <= round && followed.could_do_with(via))
            .count()
    }

    /// Names what can be named now; `told` is the source that just told, and its round.
    pub(super) fn name_devices(&mut self, told: Option<(Via, u64)>) {
        let mut named: BTreeMap<Via, usize> = BTreeMap::new();
        let mut not_found = 0;
        for (id, followed) in &mut self.devices {
            if followed.gone {
                continue;
            }
            let asked = told
                .is_some_and(|(via, round)| followed.since <= round && followed.could_do_with(via));
            let told_of = self
                .catalogues
                .name(&followed.device, followed.since)
                .filter(|pod| followed.could_do_with(pod.via) || followed.is_better(pod));
            if told_of.is_some() {
                followed.by_address = None;
            }
            let pod = told_of.or_else(|| {
                let pod = followed.pod.as_ref()?;
                let complete = self.catalogues.complete(Arc::clone(pod));
                (!Arc::ptr_eq(pod, &complete)).then_some(complete)
            });
            let Some(pod) = pod else {
                not_found += usize::from(asked);
                continue;
            };
            if followed.via() != Some(pod.via) {
                *named.entry(pod.via).or_default() += 1;
            }
            if followed.becomes(pod) {
                self.news.push(*id);
            }
            self.stale = true;
        }
        if self.catalogues.kube().is_some() {
            let by_address = self.name_by_address();
            *named.entry(Via::Kube).or_default() += by_address;
            not_found -= by_address.min(not_found);
        }
        for (via, devices) in named {
            self.count(via, "named", devices);
        }
        if let Some((via, _)) = told {
            self.count(via, "not_found", not_found);
        }
    }

    /// Names devices that only their addresses can tell of; gives how many. Such a name stands as long as the API gives
    /// the pod those addresses: an address that is handed on may stand for a moment at the pod that had it before.
    fn name_by_address(&mut self) -> usize {
        let Some(kube) = self.catalogues.kube() else {
            return 0;
        };
        let open = |followed: &Followed| match (&followed.pod, &followed.by_address) {
            (None, _) => true,
            (Some(pod), Some(addresses)) => !kube.gives(pod, addresses),
            (Some(_), None) => false,
        };
        let live = || self.devices.iter().filter(|(_, followed)| !followed.gone);
        if !live().any(|(_, followed)| open(followed)) || live().count() > BY_ADDRESS {
            return 0;
        }
        let namespaces = &mut self.namespaces;
        let mut devices = Vec::new();
        for (id, followed) in live() {
            // What is known is not asked for again.
            let open = open(followed);
            let addresses = match followed.device.peer.filter(|_| open) {
                Some(peer) => namespaces.addresses_at(peer),
                None => Vec::new(),
            };
            devices.push((*id, addresses, followed.pod.clone().filter(|_| !open)));
        }
        let verdicts = kube.by_address(&devices);
        let mut addresses: HashMap<_, _> = devices.into_iter().map(|(id, a, _)| (id, a)).collect();
        let mut named = 0;
        for (id, verdict) in verdicts {
            let Some(followed) = self.devices.get_mut(&id) else {
                continue;
            };
            match verdict {
                Ok(pod) => {
                    named += 1;
                    followed.hint = None;
                    followed.by_address = addresses.remove(&id);
                    if followed.becomes(Arc::new(pod.clone())) {
                        self.news.push(id);
                    }
                }
                Err(why) => followed.hint = Some(why),
            }
            self.stale = true;
        }
        named
    }

    /// Why a device that no source names is not known.
    pub(super) fn because(&self) -> String {
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
                        format!("{via}: nothing in {} names it", status.target)
                    }
                    (SourceState::Working, _) => format!("{via}: no pod fits"),
                    (_, _) => format!("{via}: {}", status.detail),
                }
            })
            .collect();
        clauses.join("; ")
    }
}
