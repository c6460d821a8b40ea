//! Address updates that cannot be applied yet. After a loss of notifications, until a snapshot
//! repairs it, a namespace id and link index may belong to another device than the engine knows.

use crate::{limits::in_flight_snapshots::StateKey, model::Peer, step::Engine};

impl Engine {
    /// Snapshots in flight may be older than what was lost, and no peer is certain any more.
    pub(super) fn notifications_lost(&mut self) {
        self.reads.in_flight.discard_all();
        self.mirror.links.mark_stale();
    }

    /// Whether an address update on `peer` can be applied: not after a loss, until it is certain whose peer that is, nor while
    /// the device is unknown. A snapshot that starts later contains the update. One that is in flight may show the peer and be
    /// older than the update; its device is then read again.
    pub(super) fn is_applicable(&mut self, peer: Peer) -> bool {
        match self.mirror.links.pod_by_peer(peer) {
            Some(link) if !link.is_stale => return true,
            Some(link) => self.reads.schedule.changed(link.link.ifindex),
            None => {}
        }
        self.touch(StateKey::UnappliedUpdate(peer));
        false
    }
}
