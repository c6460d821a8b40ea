//! Address updates that cannot be applied yet. After a loss of notifications, until a snapshot
//! repairs it, a namespace id and link index may belong to another device than the engine knows.

use crate::{
    model::{effect::Effect, observation::Peer},
    step::Engine,
};

impl Engine {
    /// Snapshots in flight may be older than what was lost, and no peer is certain any more.
    pub(super) fn notifications_lost(&mut self) {
        self.reads.in_flight.discard_all();
        self.mirror.links.mark_stale();
    }

    /// Whether an address update on `peer` cannot be applied yet: after a loss, until it is certain
    /// whose peer that is; and while a snapshot is in flight that may show a device with this peer,
    /// because the snapshot's addresses are older than this update. The device is then read instead,
    /// and nothing is lost.
    pub(super) fn defer_address_update(&mut self, peer: Peer, effects: &mut Vec<Effect>) -> bool {
        let holder = self.mirror.links.pod_by_peer(peer);
        let must_wait = match holder {
            Some(link) => link.is_stale,
            None => self.reads.in_flight.is_any(),
        };
        if must_wait && self.reads.deferred_peers.len() >= self.settings.bounds.links {
            effects.push(Effect::Resync);
        } else if must_wait {
            self.reads.deferred_peers.insert(peer);
        }
        must_wait
    }

    /// Requests the devices with deferred updates whose peer is certain now.
    pub(super) fn read_deferred(&mut self, effects: &mut Vec<Effect>) {
        let (links, in_flight) = (&self.mirror.links, &self.reads.in_flight);
        self.reads.deferred_peers.retain(|peer| {
            let Some(holder) = links.pod_by_peer(*peer) else {
                return in_flight.is_any();
            };
            if !holder.is_stale {
                effects.push(Effect::ReadDevice(holder.device()));
            }
            holder.is_stale
        });
    }
}
