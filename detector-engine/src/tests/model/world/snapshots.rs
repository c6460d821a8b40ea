//! What a snapshot contains, and what it and a restart change in the knowledge of the agent.

use super::*;

impl World {
    pub(in super::super) fn dump(&self, scope: SnapshotScope) -> Dump {
        let is_covered = |ifindex: IfIndex| match scope {
            SnapshotScope::Node => true,
            SnapshotScope::Device(wanted) => ifindex == wanted,
        };
        let devices = self.links.iter().filter(|(i, _)| is_covered(**i));
        let pods = devices.clone().filter_map(|(_, d)| {
            let addresses = d.addresses.keys().map(|a| d.info(*a)).collect();
            Some(PodAddresses {
                peer: d.link.peer?,
                mac: Some(d.mac),
                addresses: d.readable.then_some(addresses),
                is_truncated: false,
                internal: d
                    .internal
                    .iter()
                    .filter(|_| d.readable)
                    .map(|address| internal_address(address, "lo"))
                    .collect(),
                is_missing_internal: false,
            })
        });
        let neighbours = self.neighbours.iter().filter(|((i, _), _)| is_covered(*i));
        let mut snapshot = Snapshot {
            links: devices.clone().map(|(_, d)| d.link.clone()).collect(),
            pods: pods.collect(),
            neighbours: neighbours
                .map(|((ifindex, address), e)| Neighbour {
                    ifindex: *ifindex,
                    address: *address,
                    lladdr: Some(e.mac),
                    state: e.state,
                })
                .collect(),
            ..Snapshot::default()
        };
        if scope == SnapshotScope::Node {
            let live = self.fdb.iter().filter(|(_, s)| !s.aged);
            let port_vlan = |ifindex: &IfIndex| PortVlan {
                ifindex: *ifindex,
                pvid: self.pvids.get(ifindex).copied(),
            };
            snapshot.port_vlans = self.links.keys().map(port_vlan).collect();
            snapshot.host = self.hosts.iter().map(|(i, a)| (*i, info(*a))).collect();
            snapshot.fdb = live
                .map(|((bridge, mac), s)| fdb(*bridge, s.port, *mac))
                .collect();
            snapshot.routes = self
                .routes
                .iter()
                .map(|(a, i)| host_route(*a, *i))
                .collect();
        }
        Dump {
            snapshot,
            serials: devices.map(|(i, d)| (*i, d.serial)).collect(),
        }
    }

    /// The agent merges the snapshot with this number. It takes no addresses for a device that
    /// replaced another one of the same ifindex meanwhile, because their owner is unknown; that
    /// device is read on its own once attached. The same holds for an address with a live update
    /// meanwhile if the peer moved to another device meanwhile.
    pub(in super::super) fn merge_dump(&mut self, dump: &Dump, number: u64) {
        let mut gone = Vec::new();
        for (ifindex, device) in &mut self.links {
            let is_same = dump.serials.get(ifindex) == Some(&device.serial)
                && self
                    .removed_at
                    .get(ifindex)
                    .is_none_or(|then| *then < number);
            let Some(peer) = device.link.peer.filter(|_| is_same) else {
                continue;
            };
            for found in dump.snapshot.pods.iter().filter(|p| p.peer == peer) {
                device.read = true;
                let since = |at: Option<&u64>| at.is_some_and(|at| *at >= number);
                if !since(self.mac_known_at.get(&peer)) {
                    device.learn_mac(found.mac);
                }
                let moved = since(self.peer_moved_at.get(&peer));
                let is_doubtful =
                    |address| moved && since(self.updated_at_snapshot.get(&(peer, address)));
                for info in found.addresses.iter().flatten() {
                    if is_doubtful(info.address) {
                        continue;
                    }
                    device
                        .addresses
                        .entry(info.address)
                        .and_modify(|known| *known = true);
                }
                if found.addresses.is_some() {
                    let now: BTreeSet<_> = found.internal.iter().map(|f| f.address).collect();
                    let before = std::mem::replace(&mut device.known_internal, now.clone());
                    gone.extend(before.difference(&now).map(|address| (peer.nsid, *address)));
                }
            }
        }
        for (nsid, address) in gone {
            self.withdraw_in_pod(nsid, address);
        }
    }

    /// A new agent starts: knowledge of the former one is lost, except for its records of open
    /// conflicts, also of those that are over and may begin again (`quiet`).
    pub(in super::super) fn restart_agent(&mut self, addresses: &[IpAddr], quiet: Vec<Expected>) {
        let mut open = self.expected(addresses);
        open.extend(quiet);
        let frames = std::mem::take(&mut self.frames);
        let records = frames.into_iter().filter(|h| {
            let c = &h.claim;
            let name = &self.links[&c.ifindex].link.name;
            let (vlan, _) = self.scope(c.address, c.vlan, c.ifindex);
            let vlan = (vlan.outer, vlan.inner);
            let is_same = |e: &Expected| e.address == c.address && e.vlan == vlan;
            open.iter()
                .any(|e| is_same(e) && e.claimants.contains(name))
        });
        self.frames = records.collect();
        self.fdb.retain(|_, s| !s.aged);
        for device in self.links.values_mut() {
            device.read = false;
            device.learn_mac(None);
            device.known_internal.clear();
            device.removed.clear();
            for known in device.addresses.values_mut() {
                *known = false;
            }
        }
        for entry in self.neighbours.values_mut() {
            entry.refuted = false;
            entry.confirmed = false;
            entry.former.clear();
            entry.history = vec![EntryEvent::Took(self.now, entry.mac)];
        }
    }
}
