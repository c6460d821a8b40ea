//! The lookup of one device's pod, and when it is tried.

use std::{net::IpAddr, sync::Arc, time::Duration};

use detector_engine::{PodDevice, is_link_local};
use detector_event::{Pod, Via};
use tokio::time::Instant;
use tracing::debug;

use super::PodResolver;
use crate::pods::directory::DeviceId;

/// Most devices that are tracked, the same as the bound on links.
pub(super) const MAX_DEVICES: usize = 16_384;
/// Most removed devices whose pod is remembered: conflicts list claimants that left.
pub(super) const MAX_GONE: usize = 2_048;
/// Delays between the attempts for a device.
const RETRY_DELAYS: [Duration; 8] = [
    Duration::from_millis(25),
    Duration::from_millis(75),
    Duration::from_millis(150),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(7),
    Duration::from_secs(20),
];
/// Shortest time after the last attempt before a conflict starts new ones.
const RETRY_COOLDOWN: Duration = Duration::from_secs(10);

/// A device and the state of its lookup.
#[derive(Debug)]
pub(super) struct DeviceLookup {
    pub(super) device: PodDevice,
    /// The first round whose snapshots may be matched by network.
    pub(super) first_round: u64,
    pub(super) pod: Option<Arc<Pod>>,
    /// The name of the CNI network that the device is in was found.
    pub(super) is_network_known: bool,
    /// The first address of each family that was read on the pod's end.
    pub(super) first_addresses: Vec<IpAddr>,
    /// The device's addresses, if the pod was matched by nothing else.
    pub(super) matched_addresses: Option<Vec<IpAddr>>,
    /// Why a match by address was not possible.
    pub(super) ambiguity: Option<String>,
    /// Rounds it took part in.
    pub(super) attempts: usize,
    pub(super) last_attempt: Option<Instant>,
    /// `None`: no further attempt is planned.
    pub(super) next_attempt: Option<Instant>,
    pub(super) is_gone: bool,
}

/// What is new about a device's pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodChange {
    /// It is not the pod that was known before.
    OtherPod,
    /// More or something else is known about the same pod.
    Details,
}

impl DeviceLookup {
    fn new(device: PodDevice, first_round: u64, now: Instant) -> Self {
        Self {
            device,
            first_round,
            pod: None,
            is_network_known: false,
            first_addresses: Vec::new(),
            matched_addresses: None,
            ambiguity: None,
            attempts: 0,
            last_attempt: None,
            next_attempt: Some(now),
            is_gone: false,
        }
    }

    /// Notes the addresses that the pod's end has now, in the kernel's order. Which of a family is known stays: the pod may
    /// have added the others, or replaced the first.
    pub(super) fn note_addresses(&mut self, addresses: &[IpAddr]) {
        // Linux lists the oldest IPv4 address first (`__inet_insert_ifa` in net/ipv4/devinet.c), and
        // the oldest IPv6 address of a scope last (`ipv6_link_dev_addr` in net/ipv6/addrconf.c).
        let usable = || addresses.iter().filter(|a| !is_link_local(**a));
        let oldest = [
            usable().find(|address| address.is_ipv4()),
            usable().rfind(|address| address.is_ipv6()),
        ];
        for address in oldest.into_iter().flatten() {
            let is_known = |known: &IpAddr| known.is_ipv4() == address.is_ipv4();
            if !self.first_addresses.iter().any(is_known) {
                // Without room for more: nearly all pods have one, or one of each family.
                self.first_addresses.reserve_exact(1);
                self.first_addresses.push(*address);
            }
        }
    }

    pub(super) fn via(&self) -> Option<Via> {
        self.pod.as_ref().map(|pod| pod.via)
    }

    /// Sets the pod.
    pub(super) fn set_pod(&mut self, pod: Arc<Pod>) -> PodChange {
        debug!(
            device = self.device.name,
            via = pod.via.name(),
            namespace = pod.namespace,
            pod = pod.name,
            "pod found"
        );
        if pod.via == Via::Cri {
            // There is no better source.
            self.next_attempt = None;
        }
        let is_same = self.pod.as_ref().is_some_and(|old| old.is_same_pod(&pod));
        self.pod = Some(pod);
        if is_same {
            PodChange::Details
        } else {
            PodChange::OtherPod
        }
    }

    /// Whether `pod`, matched by more than addresses, replaces a pod that the same source matched by address.
    pub(super) fn is_address_match_replaced_by(&self, pod: &Pod) -> bool {
        !self.is_gone
            && self.matched_addresses.is_some()
            && self.pod.as_ref().is_some_and(|old| !old.is_same_pod(pod))
            && Some(pod.via) == self.via()
    }

    /// Whether this source could find the pod, or is better than the one that did.
    pub(super) fn can_improve_with(&self, via: Via) -> bool {
        !self.is_gone && self.via().is_none_or(|known| via < known)
    }

    fn restart(&mut self, now: Instant) {
        self.attempts = 0;
        self.next_attempt = Some(now);
    }
}

impl PodResolver {
    pub(super) fn device_appeared(&mut self, device: PodDevice, now: Instant) {
        let id = (device.ifindex, device.generation);
        let first_round = self.round + 1;
        if let Some(lookup) = self.devices.get_mut(&id) {
            if lookup.device.peer == device.peer {
                lookup.device = device;
                lookup.restart(now);
            } else {
                // Its peer moved to another namespace, so it belongs to another pod.
                **lookup = DeviceLookup {
                    last_attempt: lookup.last_attempt,
                    is_gone: lookup.is_gone,
                    ..DeviceLookup::new(device, first_round, now)
                };
            }
        } else if self.devices.len() < MAX_DEVICES + self.gone.len() {
            let lookup = DeviceLookup::new(device, first_round, now);
            self.devices.insert(id, Box::new(lookup));
        }
        self.is_stale = true;
    }

    pub(super) fn pod_wanted(&mut self, device: PodDevice, now: Instant) {
        let id = (device.ifindex, device.generation);
        let Some(lookup) = self.devices.get_mut(&id) else {
            return self.device_appeared(device, now);
        };
        let has_cooled_down = lookup
            .last_attempt
            .is_none_or(|last| now.duration_since(last) >= RETRY_COOLDOWN);
        if lookup.next_attempt.is_none() && !lookup.is_gone && has_cooled_down {
            lookup.restart(now);
        }
    }

    pub(super) fn device_gone(&mut self, id: DeviceId) {
        let Some(lookup) = self.devices.get_mut(&id) else {
            return;
        };
        if lookup.is_gone {
            return;
        }
        lookup.is_gone = true;
        lookup.next_attempt = None;
        self.gone.push_back(id);
        if self.gone.len() > MAX_GONE
            && let Some(oldest) = self.gone.pop_front()
        {
            self.devices.remove(&oldest);
            self.is_stale = true;
        }
    }

    /// Begins a round if an attempt is due; `true` if it did.
    pub(in crate::pods) fn begin_round(&mut self, now: Instant) -> bool {
        let usable: Vec<Via> = self
            .sources
            .iter()
            .filter(|source| source.state.is_usable())
            .map(|source| source.via)
            .collect();
        let mut is_due = false;
        for lookup in self.devices.values_mut() {
            if lookup.next_attempt.is_none_or(|due| due > now) {
                continue;
            }
            is_due = true;
            lookup.last_attempt = Some(now);
            let can_improve = usable.iter().any(|via| lookup.can_improve_with(*via));
            lookup.next_attempt = RETRY_DELAYS
                .get(lookup.attempts)
                .filter(|_| can_improve)
                .map(|delay| now + *delay);
            lookup.attempts += 1;
            // The published reason depends on whether another attempt is planned.
            self.is_stale |= lookup.next_attempt.is_none();
        }
        if is_due {
            self.round += 1;
            // Names and aliases of new devices may match snapshots that are already here.
            self.match_devices(None);
        }
        is_due
    }

    /// Cancels all planned attempts.
    pub(in crate::pods) fn stop_lookups(&mut self) {
        for lookup in self.devices.values_mut() {
            lookup.next_attempt = None;
        }
        self.is_stale = true;
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.devices
            .values()
            .filter_map(|lookup| lookup.next_attempt)
            .min()
    }

    /// Starts finished lookups again that a source, working again, could improve.
    pub(super) fn retry_lookups(&mut self, via: Via) {
        let now = Instant::now();
        for lookup in self.devices.values_mut() {
            if lookup.can_improve_with(via) && lookup.next_attempt.is_none() {
                lookup.restart(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use super::*;

    #[test]
    fn first_address_of_a_family_is_kept() {
        let device = PodDevice {
            ifindex: 1,
            generation: 1,
            name: "veth1".to_owned(),
            alias: None,
            peer: None,
        };
        let mut lookup = DeviceLookup::new(device, 0, Instant::now());
        let note = |lookup: &mut DeviceLookup, addresses: &[&str]| {
            let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
            lookup.note_addresses(&addresses);
            let first = lookup.first_addresses.iter();
            first.map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(note(&mut lookup, &["fe80::1"]).is_empty());
        assert_eq!(note(&mut lookup, &["10.0.0.1", "10.0.0.9"]), ["10.0.0.1"]);
        let both = ["10.0.0.1", "fd00::1"];
        let later = ["10.0.0.9", "fd00::9", "fd00::1", "fe80::1"];
        assert_eq!(note(&mut lookup, &later), both);
        assert_eq!(note(&mut lookup, &["10.0.0.9", "fd00::9"]), both);
    }
}
