//! Pods that become known after a conflict was raised.

use std::sync::Arc;

use super::{Effect, Engine};
use crate::{
    conflict::{ClaimantId, Conflict},
    known_pod::KnownPod,
    lifecycle::DecisionTime,
    observation::{IfIndex, Timestamp},
};

impl Engine {
    /// What the sources know of the pods behind these devices (index, generation), as far as it matters for claims.
    pub fn pod_records_known(
        &mut self,
        now: Timestamp,
        devices: impl IntoIterator<Item = (IfIndex, u64, KnownPod)>,
        effects: &mut Vec<Effect>,
    ) {
        for (ifindex, generation, pod) in devices {
            let link = self.mirror.links.get_mut(ifindex);
            let Some(link) = link.filter(|link| link.generation == generation) else {
                continue;
            };
            if link.pod.as_deref() == Some(&pod) {
                continue;
            }
            let given = pod.addresses.clone();
            link.pod = Some(Arc::new(pod));
            self.mark_link_dirty(ifindex);
            // Whoever has an address that is another pod's.
            self.dirty.extend(given);
        }
        let decided_at = now;
        self.apply_pending(DecisionTime { now, decided_at }, effects);
    }

    /// Updates the open conflicts that have one of these devices (index and generation) as a claimant, because the pod
    /// behind it became known or changed. A sweep of such a device is updated when it may be.
    pub fn pods_known(
        &mut self,
        now: Timestamp,
        devices: &[(IfIndex, u64)],
        effects: &mut Vec<Effect>,
    ) {
        for device in devices {
            self.tracked.anomalies.sweeps.pod_known(*device);
        }
        let has_device = |conflict: &Conflict| {
            conflict.present().any(|claimant| {
                matches!(claimant.id, ClaimantId::Device(ifindex, generation)
                    if devices.contains(&(ifindex, generation)))
            })
        };
        for address in self.conflict_addresses() {
            if !self
                .tracked
                .lifecycle
                .open_of(address)
                .any(|(_, c)| has_device(c))
            {
                continue;
            }
            for conflict in self.conflicts_of(address, now) {
                if has_device(&conflict) {
                    self.tracked
                        .lifecycle
                        .refresh(conflict, now, &self.settings, effects);
                }
            }
        }
    }
}
