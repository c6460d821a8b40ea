//! What to do when something is refused at a bound, and when there is room again
//! ([`ReadSchedule`](crate::limits::reads)).

use std::net::IpAddr;

use crate::{
    limits::reads::ReadTarget,
    mirror::{
        facts::{MAX_ASSIGNMENTS, SideEffects},
        links::LinkState,
    },
    model::{
        BoundKind, BoundReached, Effect, IfIndex, MAX_INTERNAL_ADDRESSES, Peer, RereadReason,
        Timestamp,
    },
    step::Engine,
    track::Step,
};

impl Engine {
    /// Something was refused at a bound of a device or of the node.
    pub(super) fn refused(&mut self, owner: ReadTarget, bound: BoundKind) {
        let position = self.reads.in_flight.position();
        self.reads.schedule.refused(owner, bound, position);
    }

    /// A device at its bound makes a new claim in a frame: its oldest claims that nothing contests
    /// make room. `true` if there were any.
    pub(super) fn evict_frames(&mut self, device: IfIndex) -> bool {
        let evicted = self.mirror.facts.evict_frames(device);
        if evicted.is_empty() {
            return false;
        }
        self.drops.claims += evicted.len() as u64;
        self.refused(ReadTarget::Device(device), BoundKind::FrameClaims);
        self.dirty.extend(evicted);
        true
    }

    /// Whether the device with this peer has budget left for a change of this address.
    pub(super) fn spend_change(&mut self, peer: Peer, address: IpAddr, now: Timestamp) -> bool {
        let (links, facts) = (&mut self.mirror.links, &self.mirror.facts);
        let device = links.index_by_peer(peer);
        let Some((device, link)) = device.and_then(|device| Some((device, links.get_mut(device)?)))
        else {
            return true;
        };
        let is_contested = || facts.is_claimed_by_another(address, (device, peer));
        let has_spent = link.changes.spend(&self.settings.bounds, now, is_contested);
        if !has_spent {
            self.drops.address_changes += 1;
            self.refused(ReadTarget::Device(device), BoundKind::AddressChanges);
        }
        has_spent
    }

    /// What became of addresses beyond the bounds of their devices.
    pub(super) fn note_overflow(&mut self, facts: &SideEffects) {
        for peer in facts.contested_internal.iter().copied() {
            if let Some(device) = self.mirror.links.index_by_peer(peer) {
                self.reads.schedule.changed(device);
            }
        }
        self.dirty.extend(&facts.demoted);
        for peer in facts.overflow_losers.iter().copied() {
            self.drops.claims += 1;
            if let Some(device) = self.mirror.links.index_by_peer(peer) {
                self.refused(ReadTarget::Device(device), BoundKind::Addresses);
            }
        }
    }

    /// A neighbour entry was refused: at the bound of its device, or at that of the node.
    pub(super) fn neighbour_refused(&mut self, ifindex: IfIndex) {
        self.drops.kernel_entries += 1;
        if self.has_room_on(ifindex, BoundKind::DeviceNeighbours) {
            self.refused(ReadTarget::Node, BoundKind::Neighbours);
        } else {
            self.refused(ReadTarget::Device(ifindex), BoundKind::DeviceNeighbours);
        }
    }

    /// A forwarding entry was refused: at the bound of its port, or at that of the node.
    pub(super) fn forwarding_refused(&mut self, port: IfIndex) {
        self.drops.kernel_entries += 1;
        if self.has_room_on(port, BoundKind::PortForwarding) {
            self.refused(ReadTarget::Node, BoundKind::Forwarding);
        } else {
            self.refused(ReadTarget::Device(port), BoundKind::PortForwarding);
        }
    }

    /// Names the bounds that were reached in this step.
    pub(super) fn report_bounds(&mut self, step: &mut Step<'_>) {
        for (owner, bound) in self.reads.schedule.take_new(step.now) {
            let device = match owner {
                ReadTarget::Node => None,
                ReadTarget::Device(ifindex) => {
                    self.mirror.links.get(ifindex).map(LinkState::device)
                }
            };
            step.effects.push(Effect::BoundReached(BoundReached {
                device,
                bound,
                limit: self.limit(bound),
            }));
        }
    }

    /// Requests what is due.
    pub(super) fn read_due(&mut self, step: &mut Step<'_>) {
        let mut schedule = std::mem::take(&mut self.reads.schedule);
        let due = schedule.take_due(step.now, |owner, bound| match owner {
            ReadTarget::Node => self.has_room(bound),
            ReadTarget::Device(ifindex) => {
                self.has_room_on(ifindex, bound)
                    && (bound != BoundKind::DeviceNeighbours
                        || self.has_room(BoundKind::Neighbours))
                    && (bound != BoundKind::PortForwarding || self.has_room(BoundKind::Forwarding))
            }
        });
        self.reads.schedule = schedule;
        for target in due {
            match target {
                ReadTarget::Node => step.effects.push(Effect::ReadNode(RereadReason::Room)),
                ReadTarget::Device(ifindex) => {
                    let device = self.mirror.links.pod(ifindex).map(LinkState::device);
                    step.effects.extend(device.map(Effect::ReadDevice));
                }
            }
        }
    }

    /// Whether a bound of the node has room.
    fn has_room(&self, bound: BoundKind) -> bool {
        let used = match bound {
            BoundKind::Links => self.mirror.links.len(),
            BoundKind::HostAddresses => self.mirror.facts.host_count(),
            BoundKind::Neighbours => self.mirror.facts.neighbour_count(),
            BoundKind::Forwarding => self.mirror.fdb.len(),
            BoundKind::Routes => self.mirror.routes.len(),
            // The assignments that are left may be few enough to be remembered.
            BoundKind::Assignments => return true,
            // A read is no change, and is paced.
            BoundKind::AddressChanges => return true,
            BoundKind::Addresses
            | BoundKind::InternalAddresses
            | BoundKind::FrameClaims
            | BoundKind::DeviceNeighbours
            | BoundKind::PortForwarding => return false,
        };
        used < self.limit(bound)
    }

    /// Whether a bound of a device has room.
    fn has_room_on(&self, ifindex: IfIndex, bound: BoundKind) -> bool {
        let used = match bound {
            BoundKind::Addresses => {
                let link = self.mirror.links.pod(ifindex);
                let Some(peer) = link.and_then(|link| link.link.peer) else {
                    return false;
                };
                if self.mirror.facts.overflow_count() < self.settings.bounds.overflow_addresses {
                    return true;
                }
                self.mirror.facts.assigned_count(peer)
            }
            BoundKind::DeviceNeighbours if self.mirror.links.is_bridge(ifindex) => return true,
            BoundKind::DeviceNeighbours => self.mirror.facts.neighbours_on(ifindex),
            BoundKind::PortForwarding if self.mirror.links.pod(ifindex).is_none() => return true,
            BoundKind::PortForwarding => self.mirror.fdb.len_of_port(ifindex),
            bound => return self.has_room(bound),
        };
        used < self.limit(bound)
    }

    fn limit(&self, bound: BoundKind) -> usize {
        let bounds = &self.settings.bounds;
        match bound {
            BoundKind::Addresses
            | BoundKind::FrameClaims
            | BoundKind::DeviceNeighbours
            | BoundKind::PortForwarding => bounds.claims_per_device,
            BoundKind::InternalAddresses => MAX_INTERNAL_ADDRESSES,
            BoundKind::Assignments => MAX_ASSIGNMENTS,
            BoundKind::AddressChanges => {
                usize::try_from(bounds.address_changes.per_second()).unwrap_or(usize::MAX)
            }
            BoundKind::Links => bounds.links,
            BoundKind::HostAddresses
            | BoundKind::Neighbours
            | BoundKind::Forwarding
            | BoundKind::Routes => bounds.kernel_entries,
        }
    }
}
