//! The kernel model: the true state of a node, and the observation that each change causes.
//!
//! Some fields are knowledge of the agent rather than kernel state, because the rules depend on it:
//! which peers were read, where lost peers were, which frames were seen, which neighbour entries were refuted, the former
//! lladdrs of bridge entries, and the ports of aged MACs.

mod addresses;
mod frames;
mod neighbours;
mod snapshots;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::*;
use crate::tests::model::expected::Expected;

pub(super) const PODS: std::ops::RangeInclusive<IfIndex> = 1..=5;
pub(super) const UPLINK: IfIndex = 7;
pub(super) const BRIDGES: [IfIndex; 2] = [8, 9];
pub(super) const WINDOW: Duration = Duration::from_secs(180);

#[derive(Clone, Debug)]
pub(super) struct ModelDevice {
    pub(super) link: Link,
    /// Distinguishes devices that had the same ifindex.
    pub(super) serial: u64,
    since: Timestamp,
    /// The peer in the pod. The link shows it once the kernel has given its namespace an nsid.
    pub(super) peer: Option<Peer>,
    pub(super) readable: bool,
    /// The agent has read the addresses of the peer.
    pub(super) read: bool,
    /// The hardware address of the peer.
    pub(super) mac: Mac,
    /// The one that the agent knows.
    pub(super) known_mac: Option<Mac>,
    /// It was another one before.
    pub(super) has_changed_mac: bool,
    /// Addresses of the peer, and whether the agent can know about each.
    pub(super) addresses: BTreeMap<IpAddr, bool>,
    /// Those that have failed duplicate address detection since they were first reported.
    pub(super) failed: BTreeSet<IpAddr>,
    /// Addresses on internal interfaces of the pod for which it answers on this one.
    pub(super) internal: BTreeSet<IpAddr>,
    /// Those that the agent has read.
    pub(super) known_internal: BTreeSet<IpAddr>,
    /// Addresses the peer has or ever had.
    pub(super) ever: BTreeSet<IpAddr>,
    removed: BTreeMap<IpAddr, Timestamp>,
}

#[derive(Clone, Debug)]
pub(super) struct SeenFrame {
    pub(super) claim: FrameClaim,
    pub(super) last: Timestamp,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum EntryEvent {
    /// The entry took this lladdr.
    Took(Timestamp, Mac),
    /// The present lladdr was confirmed.
    Confirmed(Mac),
    /// The address was removed in the pod behind this MAC.
    Cleared(Mac),
}

#[derive(Clone, Debug)]
pub(super) struct NeighbourEntry {
    pub(super) mac: Mac,
    pub(super) state: NudState,
    pub(super) refuted: bool,
    /// The agent saw it confirmed after any removal of the address in the pod.
    pub(super) confirmed: bool,
    pub(super) history: Vec<EntryEvent>,
    /// Former lladdrs and when each was replaced, without those that were past
    /// the window at the last change.
    former: BTreeMap<Mac, Timestamp>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct FdbPort {
    pub(super) port: IfIndex,
    pub(super) aged: bool,
}

/// The contents of a snapshot, and the serials of its devices.
#[derive(Clone, Debug)]
pub(super) struct Dump {
    pub(super) snapshot: Snapshot,
    serials: BTreeMap<IfIndex, u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct World {
    pub(super) now: Timestamp,
    pub(super) serial: u64,
    /// Number of snapshots started so far.
    pub(super) snapshots: u64,
    /// That number when the device of an ifindex was last removed.
    pub(super) removed_at: BTreeMap<IfIndex, u64>,
    /// That number when a peer last moved to another device.
    pub(super) peer_moved_at: HashMap<Peer, u64>,
    /// That number when an address of a peer was last updated live.
    pub(super) updated_at_snapshot: HashMap<(Peer, IpAddr), u64>,
    /// That number when the hardware address of a peer became known live.
    pub(super) mac_known_at: HashMap<Peer, u64>,
    pub(super) links: BTreeMap<IfIndex, ModelDevice>,
    /// Of devices whose peer is unknown now, the namespace in which the agent last knew it.
    pub(super) former_namespaces: BTreeMap<IfIndex, NsId>,
    pub(super) hosts: BTreeSet<(IfIndex, IpAddr)>,
    pub(super) neighbours: BTreeMap<(IfIndex, IpAddr), NeighbourEntry>,
    pub(super) fdb: BTreeMap<(IfIndex, Mac), FdbPort>,
    /// PVIDs of ports and bridges, with or without filtering.
    pub(super) pvids: BTreeMap<IfIndex, u16>,
    pub(super) routes: BTreeMap<IpAddr, IfIndex>,
    /// Policy rules: they come before the routes, and the agent cannot read them.
    pub(super) rules: BTreeMap<IpAddr, Option<IfIndex>>,
    pub(super) frames: Vec<SeenFrame>,
}

impl World {
    /// Adds a link; a peer that another device has is taken from that device.
    pub(super) fn create(
        &mut self,
        mut link: Link,
        peer: Option<Peer>,
        numbered: bool,
    ) -> Observation {
        self.serial += 1;
        if link.kind == LinkKind::Pod {
            link.name = format!("veth{}", self.serial);
        }
        let losers = self
            .links
            .iter()
            .filter(|(_, d)| peer.is_some() && d.peer == peer);
        let internal = losers.flat_map(|(i, d)| d.known_internal.iter().map(|a| (*i, *a)));
        for (ifindex, address) in internal.collect::<Vec<_>>() {
            self.withdraw_evidence(ifindex, address);
        }
        if let Some(peer) = peer {
            for device in self.links.values_mut().filter(|d| d.peer == Some(peer)) {
                device.peer = None;
                device.link.peer = None;
                device.read = false;
                device.learn_mac(None);
                device.readable = false;
                device.addresses.clear();
                device.failed.clear();
                device.internal.clear();
                device.known_internal.clear();
                self.peer_moved_at.insert(peer, self.snapshots);
            }
        }
        link.peer = peer.filter(|_| numbered);
        let ifindex = link.ifindex;
        let device = ModelDevice {
            link,
            serial: self.serial,
            since: self.now,
            peer,
            readable: peer.is_some(),
            read: false,
            mac: mac(u8::try_from(ifindex).unwrap()),
            known_mac: None,
            has_changed_mac: false,
            addresses: BTreeMap::new(),
            failed: BTreeSet::new(),
            internal: BTreeSet::new(),
            known_internal: BTreeSet::new(),
            ever: BTreeSet::new(),
            removed: BTreeMap::new(),
        };
        self.links.insert(ifindex, device);
        self.link(ifindex)
    }

    fn link(&self, ifindex: IfIndex) -> Observation {
        Observation::Link(self.links[&ifindex].link.clone())
    }

    pub(super) fn number_peer(&mut self, ifindex: IfIndex) -> Option<Observation> {
        let device = self.links.get_mut(&ifindex)?;
        if device.peer.is_none() || device.link.peer.is_some() {
            return None;
        }
        device.link.peer = device.peer;
        Some(self.link(ifindex))
    }

    pub(super) fn remove_link(&mut self, ifindex: IfIndex) -> Option<Observation> {
        let device = self.links.remove(&ifindex)?;
        // A later device may get it. What an older snapshot shows of its addresses is then in doubt until the device is read.
        if let Some(peer) = device.peer {
            self.peer_moved_at.insert(peer, self.snapshots);
        }
        self.removed_at.insert(ifindex, self.snapshots);
        self.hosts.retain(|(i, _)| *i != ifindex);
        self.neighbours.retain(|(i, _), _| *i != ifindex);
        self.fdb
            .retain(|(bridge, _), s| *bridge != ifindex && s.port != ifindex);
        self.pvids.remove(&ifindex);
        self.routes.retain(|_, i| *i != ifindex);
        self.rules.retain(|_, i| *i != Some(ifindex));
        self.frames.retain(|h| h.claim.ifindex != ifindex);
        self.purge_aged();
        Some(Observation::LinkGone(ifindex))
    }

    /// The interface in the pod gets another hardware address. If the agent is told of it (`live`), it knows the first
    /// one at once, and reads the pod for a further one.
    pub(super) fn set_mac(
        &mut self,
        ifindex: IfIndex,
        mac: Mac,
        live: bool,
    ) -> Option<Observation> {
        let device = self.links.get_mut(&ifindex)?;
        device.peer?;
        device.mac = mac;
        let peer = device.link.peer?;
        if live && device.known_mac.is_none() {
            device.learn_mac(Some(mac));
            self.mac_known_at.insert(peer, self.snapshots);
        }
        Some(Observation::PodLink(peer, mac))
    }

    pub(super) fn enslave(
        &mut self,
        ifindex: IfIndex,
        master: Option<IfIndex>,
    ) -> Option<Observation> {
        let device = self.links.get_mut(&ifindex)?;
        if device.link.master != master {
            device.link.master = master;
            self.fdb.retain(|_, s| s.port != ifindex);
        }
        Some(self.link(ifindex))
    }

    pub(super) fn set_up(&mut self, ifindex: IfIndex, up: bool) -> Option<Observation> {
        let device = self.links.get_mut(&ifindex)?;
        if device.link.up && !up {
            self.routes.retain(|_, i| *i != ifindex);
            self.rules.retain(|_, i| *i != Some(ifindex));
        }
        device.link.up = up;
        device.link.running = up;
        Some(self.link(ifindex))
    }

    pub(super) fn set_carrier(&mut self, ifindex: IfIndex, has: bool) -> Option<Observation> {
        let link = &mut self.links.get_mut(&ifindex)?.link;
        link.running = has && link.up;
        Some(self.link(ifindex))
    }

    pub(super) fn filter_vlans(&mut self, bridge: IfIndex, on: bool) -> Option<Observation> {
        let default_pvid = None;
        let link = &mut self.links.get_mut(&bridge)?.link;
        link.vlan_filtering = on.then_some(VlanFiltering { default_pvid });
        Some(self.link(bridge))
    }

    pub(super) fn set_pvid(&mut self, ifindex: IfIndex, pvid: Option<u16>) -> Option<Observation> {
        self.links.get(&ifindex)?;
        self.pvids.remove(&ifindex);
        self.pvids.extend(pvid.map(|pvid| (ifindex, pvid)));
        Some(Observation::PortVlan(PortVlan { ifindex, pvid }))
    }

    /// The VLAN of untagged frames at a port of a bridge, or at the bridge itself.
    pub(super) fn pvid_at(&self, bridge: IfIndex, port: IfIndex) -> Option<u16> {
        self.links.get(&bridge)?.link.vlan_filtering?;
        self.pvids.get(&port).copied()
    }

    pub(super) fn rename(&mut self, ifindex: IfIndex) -> Option<Observation> {
        let device = self.links.get_mut(&ifindex)?;
        self.serial += 1;
        device.link.name = format!("veth{}", self.serial);
        Some(self.link(ifindex))
    }

    pub(super) fn is_bridge(&self, ifindex: IfIndex) -> bool {
        BRIDGES.contains(&ifindex) && self.links.contains_key(&ifindex)
    }

    pub(super) fn bridge_of(&self, ifindex: IfIndex) -> Option<IfIndex> {
        let master = self.links.get(&ifindex)?.link.master?;
        self.is_bridge(master).then_some(master)
    }

    pub(super) fn pod(&self, ifindex: IfIndex) -> Option<&ModelDevice> {
        self.links
            .get(&ifindex)
            .filter(|d| d.link.kind == LinkKind::Pod)
    }
}

impl ModelDevice {
    pub(super) fn learn_mac(&mut self, mac: Option<Mac>) {
        let is_other = self.known_mac.is_some() && self.known_mac != mac;
        self.has_changed_mac = mac.is_some() && (self.has_changed_mac || is_other);
        self.known_mac = mac;
    }

    /// What the kernel reports of an address of the peer.
    pub(super) fn info(&self, address: IpAddr) -> AssignedAddress {
        let dad_failed = self.failed.contains(&address);
        AssignedAddress {
            dad_failed,
            no_dad: !dad_failed,
            ..info(address)
        }
    }
}

pub(super) fn info(address: IpAddr) -> AssignedAddress {
    AssignedAddress {
        address,
        prefix_len: if address.is_ipv4() { 32 } else { 128 },
        other_end: None,
        tentative: false,
        dad_failed: false,
        no_dad: true,
        autoconfigured: false,
    }
}

fn host_route(address: IpAddr, ifindex: IfIndex) -> Route {
    Route {
        destination: address,
        prefix_len: if address.is_ipv4() { 32 } else { 128 },
        ifindex,
        metric: 0,
        table: 254,
    }
}
