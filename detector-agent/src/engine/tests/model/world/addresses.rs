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
        device.removed.insert(address, self.now);
        self.frames.retain(|h| {
            (h.claim.ifindex, h.claim.address) != (ifindex, address)
                || h.claim.vlan != Vlan::default()
        });
        if let Some(entry) = self.neighbours.get_mut(&(ifindex, address)) {
            entry.refuted = true;
        }
        if let Some(bridge) = self.bridge_of(ifindex)
            && let Some(entry) = self.neighbours.get_mut(&(bridge, address))
        {
            let leads_there =
                |mac: Mac| self.fdb.get(&(bridge, mac)).map(|s| s.port) == Some(ifindex);
            entry.refuted |= leads_there(entry.mac);
            let known = entry.former.keys().copied().chain([entry.mac]);
            for mac in known.filter(|mac| leads_there(*mac)).collect::<Vec<_>>() {
                entry.history.push(EntryEvent::Cleared(mac));
            }
        }
        Some(Observation::PodAddressGone(peer, info(address).id()))
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
