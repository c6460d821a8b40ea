//! Compares the state of a device before and after a self-check's snapshot was merged.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    limits::in_flight_snapshots::StateKey,
    mirror::facts::Owner,
    model::{DevicePart, Discrepancy, Effect, IfIndex, PartValue},
    step::Engine,
    track::Step,
};

/// What the engine holds about a device.
pub(super) type DeviceState = BTreeMap<DevicePart, PartValue>;

impl Engine {
    /// What the engine holds about a pod device; `None` if it has no such device, or if it does not know
    /// some of the state because of a bound.
    pub(super) fn device_state(&self, ifindex: IfIndex) -> Option<DeviceState> {
        let link = &self.mirror.links.pod(ifindex)?.link;
        let facts = &self.mirror.facts;
        let has_overflowed = |peer| !facts.overflowed_assignments(Owner::Peer(peer)).is_empty();
        if self.reads.schedule.is_incomplete(ifindex) || link.peer.is_some_and(has_overflowed) {
            return None;
        }
        let peer = link
            .peer
            .map(|peer| (DevicePart::Peer, PartValue::Peer(peer)));
        let master = link
            .master
            .map(|master| (DevicePart::Master, PartValue::Link(master)));
        let addresses = link.peer.map(|peer| facts.assignments(Owner::Peer(peer)));
        let addresses = addresses.into_iter().flatten();
        let addresses = addresses.map(|id| (DevicePart::Address(id), PartValue::Present));
        let neighbours = facts.owned_by(Owner::Link(ifindex)).into_iter();
        let neighbours = neighbours.filter_map(|address| {
            let lladdr = facts.get(address)?.neighbour_on(ifindex)?.lladdr;
            Some((DevicePart::Neighbour(address), PartValue::Lladdr(lladdr)))
        });
        let parts = peer.into_iter().chain(master);
        Some(parts.chain(addresses).chain(neighbours).collect())
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
        let parts: BTreeSet<_> = before.keys().chain(after.keys()).copied().collect();
        for part in parts {
            let [believed, kernel] = [before, &after].map(|state| state.get(&part).copied());
            if believed == kernel {
                continue;
            }
            // The live update that would explain it.
            let key = match part {
                DevicePart::Peer | DevicePart::Master => StateKey::Link(ifindex),
                DevicePart::Neighbour(address) => StateKey::Neighbour(ifindex, address),
                DevicePart::Address(id) => {
                    let peer = after
                        .get(&DevicePart::Peer)
                        .or(before.get(&DevicePart::Peer));
                    let Some(PartValue::Peer(peer)) = peer else {
                        continue;
                    };
                    StateKey::Assignment(Owner::Peer(*peer), id)
                }
            };
            let discrepancy = Discrepancy {
                device: device.name.clone(),
                ifindex,
                part,
                believed,
                kernel,
            };
            if let Some(discrepancy) = self.reads.discrepancies.add(step.at, key, discrepancy) {
                step.effects.push(Effect::Corrected(discrepancy));
            }
        }
    }
}
