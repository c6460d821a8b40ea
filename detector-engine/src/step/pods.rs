//! Pods that become known after a conflict was raised.

use std::sync::Arc;

use crate::{
    model::{Conflict, PodsKnown},
    step::Engine,
    track::Step,
};

impl Engine {
    /// What the sources know of the pods behind devices, as far as it matters for claims; and updates what is open about those
    /// whose pod became known or changed. A sweep of such a device is updated when it may be.
    pub(super) fn pods_known(&mut self, known: PodsKnown, step: &mut Step<'_>) {
        for (ifindex, generation, pod) in known.records {
            let Some(link) = self.mirror.links.same_mut((ifindex, generation)) else {
                continue;
            };
            if link.pod.as_deref() == Some(&pod) {
                continue;
            }
            let given = pod.addresses.clone();
            link.pod = Some(Arc::new(pod));
            self.mark_link_dirty(ifindex);
            // Others may have an address that is this pod's.
            self.dirty.extend(given);
        }
        // Otherwise the new report would not contain it.
        self.apply_pending(step);
        let devices = known.devices;
        for device in &devices {
            self.tracked.anomalies.sweeps.pod_known(*device);
        }
        let has_device = |conflict: &Conflict| {
            let mut present = conflict.present().filter_map(|c| c.id.device());
            present.any(|device| devices.contains(&device))
        };
        for address in self.view().conflict_addresses() {
            if !self
                .tracked
                .lifecycle
                .open_of(address)
                .any(|(_, c)| has_device(c))
            {
                continue;
            }
            for conflict in self.view().conflicts_of(address, step.now) {
                if has_device(&conflict) {
                    self.tracked.lifecycle.refresh(conflict, step);
                }
            }
        }
    }
}
