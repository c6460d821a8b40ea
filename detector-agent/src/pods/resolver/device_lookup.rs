//! A device whose pod is looked for, and when it is looked up.

use std::{net::IpAddr, sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::debug;

use super::Identifier;
use crate::{
    engine::PodDevice,
    pods::{Pod, Via, directory::DeviceId},
};

/// Devices that are followed, as many as links.
pub(super) const DEVICES: usize = 16_384;
/// Devices that are gone and still remembered: conflicts name those that left.
pub(super) const GONE: usize = 2_048;
/// When a device is looked up again, counted from the time before.
const PAUSES: [Duration; 8] = [
    Duration::from_millis(25),
    Duration::from_millis(75),
    Duration::from_millis(150),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(7),
    Duration::from_secs(20),
];
/// A device that was looked up in vain is looked up again for a conflict no sooner than this.
const AGAIN: Duration = Duration::from_secs(10);

/// A device and how far its look-up has come.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) device: PodDevice,
    /// The first round that can tell of it.
    pub(super) since: u64,
    pub(super) pod: Option<Arc<Pod>>,
    /// The addresses that the pod was found by, where nothing better tells it.
    pub(super) by_address: Option<Vec<IpAddr>>,
    /// What is known without being enough.
    pub(super) hint: Option<String>,
    /// Rounds it had.
    pub(super) attempts: usize,
    /// When it was last looked up.
    pub(super) looked_up: Option<Instant>,
    /// When its next round is due; `None` where it is left alone.
    pub(super) due: Option<Instant>,
    pub(super) gone: bool,
}

impl Followed {
    pub(super) fn via(&self) -> Option<Via> {
        self.pod.as_ref().map(|pod| pod.via)
    }

    /// Takes over a pod; `true` where it is another than before.
    pub(super) fn becomes(&mut self, pod: Arc<Pod>) -> bool {
        debug!(
            device = self.device.name,
            via = pod.via.name(),
            "is of {}/{}",
            pod.namespace,
            pod.name
        );
        if pod.via == Via::Cri {
            // There is nothing better.
            self.due = None;
        }
        let another = !self.pod.as_ref().is_some_and(|old| old.is_same_pod(&pod));
        self.pod = Some(pod);
        another
    }

    /// Whether this pod is told by more than the addresses that the present one was found by.
    pub(super) fn is_better(&self, pod: &Pod) -> bool {
        !self.gone
            && self.by_address.is_some()
            && self.pod.as_ref().is_some_and(|old| !old.is_same_pod(pod))
            && Some(pod.via) == self.via()
    }

    /// Whether this source could name it, or name it better.
    pub(super) fn could_do_with(&self, via: Via) -> bool {
        !self.gone && self.via().is_none_or(|known| via < known)
    }
}

impl Identifier {
    pub(super) fn appeared(&mut self, device: PodDevice, now: Instant) {
        let id = (device.ifindex, device.generation);
        let since = self.round + 1;
        if let Some(followed) = self.devices.get_mut(&id) {
            let moved = followed.device.peer != device.peer;
            followed.device = device;
            if moved {
                // Another namespace, another pod.
                followed.since = since;
                followed.pod = None;
                followed.by_address = None;
                followed.hint = None;
            }
            followed.attempts = 0;
            followed.due = Some(now);
        } else if self.devices.len() < DEVICES + self.gone.len() {
            let followed = Followed {
                device,
                since,
                pod: None,
                by_address: None,
                hint: None,
                attempts: 0,
                looked_up: None,
                due: Some(now),
                gone: false,
            };
            self.devices.insert(id, followed);
        }
        self.stale = true;
    }

    pub(super) fn wanted(&mut self, device: PodDevice, now: Instant) {
        let id = (device.ifindex, device.generation);
        let Some(followed) = self.devices.get_mut(&id) else {
            return self.appeared(device, now);
        };
        let rested = followed
            .looked_up
            .is_none_or(|looked_up| now.duration_since(looked_up) >= AGAIN);
        if followed.due.is_none() && !followed.gone && rested {
            followed.attempts = 0;
            followed.due = Some(now);
        }
    }

    pub(super) fn is_gone(&mut self, id: DeviceId) {
        let Some(followed) = self.devices.get_mut(&id) else {
            return;
        };
        if followed.gone {
            return;
        }
        followed.gone = true;
        followed.due = None;
        self.gone.push_back(id);
        if self.gone.len() > GONE
            && let Some(oldest) = self.gone.pop_front()
        {
            self.devices.remove(&oldest);
            self.stale = true;
        }
    }

    /// Begins a round where one is due.
    pub(in crate::pods) fn begin_round(&mut self, now: Instant) -> bool {
        let mut begun = false;
        let hopeful = |via: Via| {
            self.sources
                .iter()
                .any(|source| source.via == via && source.state.is_hopeful())
        };
        let hopeful = Via::ALL.map(|via| (via, hopeful(via)));
        for followed in self.devices.values_mut() {
            if followed.due.is_none_or(|due| due > now) {
                continue;
            }
            begun = true;
            followed.looked_up = Some(now);
            let better = hopeful
                .iter()
                .any(|(via, hopeful)| *hopeful && followed.could_do_with(*via));
            followed.due = PAUSES
                .get(followed.attempts)
                .filter(|_| better)
                .map(|pause| now + *pause);
            followed.attempts += 1;
            // Not being looked up any more is another reason.
            self.stale |= followed.due.is_none();
        }
        self.round += u64::from(begun);
        if begun {
            // What the devices say themselves needs no answer.
            self.name_devices(None);
        }
        begun
    }

    /// No further round will come.
    pub(in crate::pods) fn give_up(&mut self) {
        for followed in self.devices.values_mut() {
            followed.due = None;
        }
        self.stale = true;
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.devices.values().filter_map(|f| f.due).min()
    }

    /// A source is back: what it might name is looked up once more.
    pub(super) fn look_up_again(&mut self, via: Via) {
        let now = Instant::now();
        for followed in self.devices.values_mut() {
            if followed.could_do_with(via) && followed.due.is_none() {
                followed.attempts = 0;
                followed.due = Some(now);
            }
        }
    }
}
