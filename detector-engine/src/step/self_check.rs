//! Compares the state of a device before and after a self-check's snapshot was merged.

use crate::{
    limits::self_check::DeviceState,
    mirror::facts::Owner,
    model::{
        effect::{Discrepancy, Effect},
        observation::IfIndex,
    },
    step::Engine,
    track::Step,
};

impl Engine {
    /// What the engine holds about a pod device; `None` if it has no such device, or if it lacks
    /// some of the state because of a bound.
    pub(super) fn device_state(&self, ifindex: IfIndex) -> Option<DeviceState> {
        let link = &self.mirror.links.pod(ifindex)?.link;
        let facts = &self.mirror.facts;
        let has_overflowed = |peer| !facts.overflowed_assignments(Owner::Peer(peer)).is_empty();
        if self.reads.schedule.lacks(ifindex) || link.peer.is_some_and(has_overflowed) {
            return None;
        }
        let addresses = link
            .peer
            .map(|peer| self.mirror.facts.assignments(Owner::Peer(peer)));
        let neighbours = self.mirror.facts.owned_by(Owner::Link(ifindex)).into_iter();
        Some(DeviceState {
            peer: link.peer,
            master: link.master,
            addresses: addresses.into_iter().flatten().collect(),
            neighbours: neighbours
                .filter_map(|address| {
                    let entry = self.mirror.facts.get(address)?.neighbour_on(ifindex)?;
                    Some((address, entry.lladdr))
                })
                .collect(),
        })
    }

    /// Remembers what the snapshot changed, until a live update explains it or the time for that is
    /// over.
    pub(super) fn compare_device(
        &mut self,
        ifindex: IfIndex,
        before: &DeviceState,
        step: &mut Step<'_>,
    ) {
        let (Some(after), Some(device)) = (self.device_state(ifindex), self.view().device(ifindex))
        else {
            return;
        };
        for (key, difference) in before.differences(&after, ifindex) {
            let discrepancy = Discrepancy {
                device: device.name.clone(),
                ifindex,
                difference,
            };
            if let Some(discrepancy) = self.reads.discrepancies.add(step.at, key, discrepancy) {
                step.effects.push(Effect::Corrected(discrepancy));
            }
        }
    }
}
