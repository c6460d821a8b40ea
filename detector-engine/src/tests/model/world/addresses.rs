//! Addresses of pods and of the host.

use super::*;

impl World {
    pub(in super::super) fn assign(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
    ) -> Option<Observation> {
        let device = self.links.get_mut(&ifindex).filter(|d| d.readable)?;
        device.ever.insert(address);
        let peer = device.link.peer;
        let known = device.addresses.entry(address).or_default();
        *known |= peer.is_some();
        let info = device.info(address);
        let peer = peer?;
        self.updated_at_snapshot
            .insert((peer, address), self.snapshots);
        Some(Observation::PodAddress(peer, info))
    }

    /// An address that the peer does not have yet, and that the kernel reports only now that it cannot be used.
    pub(in super::super) fn assign_failed(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
    ) -> Option<Observation> {
        let device = self.links.get_mut(&ifindex).filter(|d| d.readable)?;
        if address.is_ipv4() || device.addresses.contains_key(&address) {
            return None;
        }
        device.failed.insert(address);
        self.assign(ifindex, address)
    }

    pub(in super::super) fn unassign(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
    ) -> Option<Observation> {
        let device = self.links.get_mut(&ifindex)?;
        device.addresses.remove(&address)?;
        device.failed.remove(&address);
        let peer = device.link.peer?;
        self.updated_at_snapshot
            .insert((peer, address), self.snapshots);
        self.withdraw_evidence(ifindex, address);
        self.withdraw_in_pod(peer.nsid, address);
        Some(Observation::PodAddressGone(peer, info(address).id()))
    }

    /// Adds or removes an address on an internal interface of the pod behind a device.
    pub(in super::super) fn set_internal(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
        is_there: bool,
    ) -> Option<Observation> {
        let device = self.links.get_mut(&ifindex).filter(|d| d.readable)?;
        let has_changed = if is_there {
            device.internal.insert(address)
        } else {
            device.internal.remove(&address)
        };
        let nsid = device.link.peer.filter(|_| has_changed)?.nsid;
        let lo = Peer { nsid, ifindex: 1 };
        Some(if is_there {
            Observation::PodAddress(lo, info(address))
        } else {
            Observation::PodAddressGone(lo, info(address).id())
        })
    }

    /// An address is no longer on one interface of a pod. Linux answers for an address on each interface of its namespace.
    pub(super) fn withdraw_in_pod(&mut self, nsid: NsId, address: IpAddr) {
        let in_pod = |d: &&ModelDevice| d.link.peer.is_some_and(|p| p.nsid == nsid);
        let mut devices = self.links.values().filter(in_pod);
        if devices.any(|d| {
            d.addresses.get(&address) == Some(&true) || d.known_internal.contains(&address)
        }) {
            return;
        }
        let devices = self.links.values().filter(in_pod);
        let devices: Vec<_> = devices.map(|d| d.link.ifindex).collect();
        for device in devices {
            self.withdraw_evidence(device, address);
        }
    }

    /// What the agent saw of an address on a device no longer counts: it was removed in the pod.
    pub(super) fn withdraw_evidence(&mut self, ifindex: IfIndex, address: IpAddr) {
        if let Some(device) = self.links.get_mut(&ifindex) {
            device.removed.insert(address, self.now);
        }
        self.frames.retain(|h| {
            (h.claim.ifindex, h.claim.address) != (ifindex, address)
                || h.claim.vlan != Vlan::default()
        });
        if let Some(entry) = self.neighbours.get_mut(&(ifindex, address)) {
            entry.refuted = true;
            entry.confirmed = false;
        }
        if let Some(bridge) = self.bridge_of(ifindex)
            && let Some(entry) = self.neighbours.get_mut(&(bridge, address))
        {
            let leads_there =
                |mac: Mac| self.fdb.get(&(bridge, mac)).map(|s| s.port) == Some(ifindex);
            entry.refuted |= leads_there(entry.mac);
            entry.confirmed &= !leads_there(entry.mac);
            let known = entry.former.keys().copied().chain([entry.mac]);
            for mac in known.filter(|mac| leads_there(*mac)).collect::<Vec<_>>() {
                entry.history.push(EntryEvent::Cleared(mac));
            }
        }
    }

    pub(in super::super) fn host(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
    ) -> Option<Observation> {
        self.links.get(&ifindex)?;
        self.hosts.insert((ifindex, address));
        Some(Observation::HostAddress(ifindex, info(address)))
    }

    pub(in super::super) fn remove_host(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
    ) -> Option<Observation> {
        self.hosts
            .remove(&(ifindex, address))
            .then(|| Observation::HostAddressGone(ifindex, info(address).id()))
    }
}
