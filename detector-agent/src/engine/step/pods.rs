//! Pods that become known after a conflict was raised.

use super::{Effect, Engine};
use crate::engine::{
    conflict::{ClaimantId, Conflict},
    observation::{IfIndex, Timestamp},
};

impl Engine {
    /// Updates the open conflicts that have one of these devices (index and generation) as a claimant, because the pod
    /// behind it became known or changed. A sweep of such a device is updated when it may be.
    pub fn pods_known(
        &mut self,
        now: Timestamp,
        devices: &[(IfIndex, u64)],
        effects: &mut Vec<Effect>,
    ) {
        for device in devices {
            self.anomalies.sweeps.pod_known(*device);
        }
        let has_device = |conflict: &Conflict| {
            conflict.present().any(|claimant| {
                matches!(claimant.id, ClaimantId::Device(ifindex, generation)
                    if devices.contains(&(ifindex, generation)))
            })
        };
        for address in self.conflict_addresses() {
            if !self.lifecycle.open_of(address).any(|(_, c)| has_device(c)) {
                continue;
            }
            for conflict in self.conflicts_of(address, now) {
                if has_device(&conflict) {
                    self.lifecycle.refresh(conflict, now, effects);
                }
            }
        }
    }
}
