//! Addresses on internal interfaces of a pod's namespace.

use std::net::IpAddr;

use crate::{
    limits::in_flight_snapshots::FinishedSnapshot,
    model::{IfIndex, InternalAddress, NsId, Peer, Timestamp, is_claimable},
    step::Engine,
};

impl Engine {
    /// An address changed on a link of a namespace. If it is an internal interface of a pod, the
    /// namespace is read: only that shows whether the pod answers for the address.
    pub(super) fn internal_changed(&mut self, peer: Peer, now: Timestamp) {
        if self.mirror.links.pod_by_peer(peer).is_some() {
            return;
        }
        let devices: Vec<_> = self
            .mirror
            .links
            .pods_in(peer.nsid)
            .map(|l| l.link.ifindex)
            .collect();
        for device in devices {
            let link = self.mirror.links.get_mut(device);
            if let Some(link) = link.filter(|link| link.is_namespace_readable()) {
                link.internal_changed.get_or_insert(now);
            }
            self.reads.schedule.changed(device);
        }
    }

    /// What a snapshot contains for one device replaces what was known.
    pub(super) fn merge_internal(
        &mut self,
        peer: Peer,
        mut found: Vec<InternalAddress>,
        at: Timestamp,
    ) {
        found.retain(|internal| is_claimable(internal.address));
        let link = self.mirror.links.pod_by_peer(peer);
        let first = at.max(link.map_or(at, |link| link.since));
        let beginning = self.internal_beginning(link);
        let (added, gone) = self
            .mirror
            .facts
            .set_internal(peer, found, (first, beginning));
        self.dirty.extend(added);
        for address in gone {
            self.dirty.insert(address);
            // Maybe removed after the read started: changes on internal interfaces are not recorded.
            self.withdraw_in_namespace(peer.nsid, address, at, None);
        }
    }

    /// An address is no longer on one interface of a namespace. Linux answers for an address on each interface, so what was
    /// seen of it on any of the pod's devices counts no more, unless another interface has it.
    pub(super) fn withdraw_in_namespace(
        &mut self,
        nsid: NsId,
        address: IpAddr,
        at: Timestamp,
        read: Option<&FinishedSnapshot>,
    ) {
        let facts = self.mirror.facts.get(address);
        if facts.is_some_and(|facts| facts.is_in(nsid)) {
            return;
        }
        let devices = self.mirror.links.pods_in(nsid).map(|l| l.link.ifindex);
        let devices: Vec<IfIndex> = devices.collect();
        for device in devices {
            self.pod_evidence_withdrawn(device, address, at, read);
        }
    }
}
