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
        let peer = peer?;
        self.updated_at_snapshot
            .insert((peer, address), self.snapshots);
        Some(Observation::PodAddress(peer, info(address)))
    }

    pub(in super::super) fn unassign(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
    ) -> Option<Observation> {
        let device = self.links.get_mut(&ifindex)?;
        device.addresses.remove(&address)?;
        let peer = device.link.peer?;
        self.updated_at_snapshot
            .insert((peer, address), self.snapshots);
        self.withdraw_evidence(ifindex, address);
        // Linux answers for an address on each interface of its namespace.
        let others = self.links.iter().filter_map(|(other, d)| {
            let is_same_pod = d.link.peer.is_some_and(|p| p.nsid == peer.nsid);
            (is_same_pod && *other != ifindex).then_some((*other, d.addresses.get(&address)))
        });
        let others: Vec<_> = others.collect();
        if others.iter().all(|(_, known)| *known != Some(&true)) {
            let others: Vec<_> = others.into_iter().map(|(other, _)| other).collect();
            for other in others {
                self.withdraw_evidence(other, address);
            }
        }
        Some(Observation::PodAddressGone(peer, info(address).id()))
    }

    /// What the agent saw of an address on a device no longer counts: it was removed in the pod.
    fn withdraw_evidence(&mut self, ifindex: IfIndex, address: IpAddr) {
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
