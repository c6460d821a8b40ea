//! What is true on a node, kept plainly, and what the kernel says when it changes.
//!
//! A few things are the agent's knowledge rather than the kernel's state, because rules speak of it: which pods' ends are
//! read, what was heard, which neighbour entries were refuted, what a bridge's entry held before, and behind which port
//! an aged hardware address stood.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::*;
use super::claims::Expected;

pub(super) const PODS: std::ops::RangeInclusive<IfIndex> = 1..=5;
pub(super) const UPLINK: IfIndex = 7;
pub(super) const BRIDGES: [IfIndex; 2] = [8, 9];
pub(super) const WINDOW: Duration = Duration::from_secs(180);

#[derive(Clone, Debug)]
pub(super) struct ModelDevice {
    pub(super) link: Link,
    /// Tells devices of one index apart.
    pub(super) serial: u64,
    since: Timestamp,
    /// The pod's end, whether the kernel has numbered its namespace yet or not. The link tells it once it has.
    pub(super) end: Option<Peer>,
    pub(super) readable: bool,
    /// The agent has read the pod's end.
    pub(super) read: bool,
    /// Addresses at the pod's end, and whether the agent can know.
    pub(super) addresses: BTreeMap<IpAddr, bool>,
    /// Addresses it has or ever had.
    pub(super) ever: BTreeSet<IpAddr>,
    removed: BTreeMap<IpAddr, Timestamp>,
}

#[derive(Clone, Debug)]
pub(super) struct Heard {
    pub(super) claim: FrameClaim,
    pub(super) last: Timestamp,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Past {
    /// The entry took this hardware address.
    Took(Timestamp, Mac),
    /// The address was removed in the pod that this hardware address leads to.
    Cleared(Mac),
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) mac: Mac,
    pub(super) state: NudState,
    pub(super) refuted: bool,
    pub(super) past: Vec<Past>,
    /// What it held before and when that ended, as far as it was not over when it last changed.
    former: BTreeMap<Mac, Timestamp>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Station {
    pub(super) port: IfIndex,
    pub(super) aged: bool,
}

/// What a reading found, and of which devices.
#[derive(Clone, Debug)]
pub(super) struct Dump {
    pub(super) snapshot: Snapshot,
    serials: BTreeMap<IfIndex, u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct World {
    pub(super) now: Timestamp,
    pub(super) serial: u64,
    /// How many readings were begun so far.
    pub(super) readings: u64,
    /// How many had been begun when the device of an index went last.
    pub(super) went_at: BTreeMap<IfIndex, u64>,
    /// How many when a pod's end went to another device last, and when something was last told of its address.
    pub(super) moved_at: HashMap<Peer, u64>,
    pub(super) told_at: HashMap<(Peer, IpAddr), u64>,
    pub(super) links: BTreeMap<IfIndex, ModelDevice>,
    pub(super) hosts: BTreeSet<(IfIndex, IpAddr)>,
    pub(super) neighbours: BTreeMap<(IfIndex, IpAddr), Entry>,
    pub(super) fdb: BTreeMap<(IfIndex, Mac), Station>,
    pub(super) routes: BTreeMap<IpAddr, IfIndex>,
    pub(super) heard: Vec<Heard>,
}

impl World {
    // ---- links ----

    /// A new link; a pod's end that another device has is taken from it.
    pub(super) fn create(&mut self, mut link: Link, end: Option<Peer>, told: bool) -> Observation {
        self.serial += 1;
        if link.kind == LinkKind::Pod {
            link.name = format!("veth{}", self.serial);
        }
        if let Some(peer) = end {
            for device in self.links.values_mut().filter(|d| d.end == Some(peer)) {
                device.end = None;
                device.link.peer = None;
                device.read = false;
                device.readable = false;
                device.addresses.clear();
                self.moved_at.insert(peer, self.readings);
            }
        }
        link.peer = end.filter(|_| told);
        let ifindex = link.ifindex;
        let device = ModelDevice {
            link,
            serial: self.serial,
            since: self.now,
            end,
            readable: end.is_some(),
            read: false,
            addresses: BTreeMap::new(),
            ever: BTreeSet::new(),
            removed: BTreeMap::new(),
        };
        self.links.insert(ifindex, device);
        self.link(ifindex)
    }

    fn link(&self, ifindex: IfIndex) -> Observation {
        Observation::Link(self.links[&ifindex].link.clone())
    }

    pub(super) fn tell_end(&mut self, ifindex: IfIndex) -> Option<Observation> {
        let device = self.links.get_mut(&ifindex)?;
        if device.end.is_none() || device.link.peer.is_some() {
            return None;
        }
        device.link.peer = device.end;
        Some(self.link(ifindex))
    }

    pub(super) fn gone(&mut self, ifindex: IfIndex) -> Option<Observation> {
        self.links.remove(&ifindex)?;
        self.went_at.insert(ifindex, self.readings);
        self.hosts.retain(|(i, _)| *i != ifindex);
        self.neighbours.retain(|(i, _), _| *i != ifindex);
        self.fdb
            .retain(|(bridge, _), s| *bridge != ifindex && s.port != ifindex);
        self.routes.retain(|_, i| *i != ifindex);
        self.heard.retain(|h| h.claim.ifindex != ifindex);
        self.purge();
        Some(Observation::LinkGone(ifindex))
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
        }
        device.link.up = up;
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

    // ---- addresses ----

    pub(super) fn assign(&mut self, ifindex: IfIndex, address: IpAddr) -> Option<Observation> {
        let device = self.links.get_mut(&ifindex).filter(|d| d.readable)?;
        device.ever.insert(address);
        let told = device.link.peer;
        let known = device.addresses.entry(address).or_default();
        *known |= told.is_some();
        let peer = told?;
        self.told_at.insert((peer, address), self.readings);
        Some(Observation::PodAddress(peer, info(address)))
    }

    pub(super) fn unassign(&mut self, ifindex: IfIndex, address: IpAddr) -> Option<Observation> {
        let device = self.links.get_mut(&ifindex)?;
        device.addresses.remove(&address)?;
        let peer = device.link.peer?;
        self.told_at.insert((peer, address), self.readings);
        device.removed.insert(address, self.now);
        self.heard.retain(|h| {
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
                entry.past.push(Past::Cleared(mac));
            }
        }
        Some(Observation::PodAddressGone(
            peer,
            address,
            info(address).prefix_len,
        ))
    }

    pub(super) fn host(&mut self, ifindex: IfIndex, address: IpAddr) -> Option<Observation> {
        self.links.get(&ifindex)?;
        self.hosts.insert((ifindex, address));
        Some(Observation::HostAddress(ifindex, info(address)))
    }

    pub(super) fn unhost(&mut self, ifindex: IfIndex, address: IpAddr) -> Option<Observation> {
        self.hosts
            .remove(&(ifindex, address))
            .then(|| Observation::HostAddressGone(ifindex, address, info(address).prefix_len))
    }

    // ---- neighbours, forwarding, routes ----

    pub(super) fn neighbour(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
        mac: Mac,
        state: NudState,
    ) -> Option<Observation> {
        self.links.get(&ifindex)?;
        let now = self.now;
        let entry = self
            .neighbours
            .entry((ifindex, address))
            .or_insert_with(|| Entry {
                mac,
                state,
                refuted: false,
                past: vec![Past::Took(now, mac)],
                former: BTreeMap::new(),
            });
        if entry.mac != mac {
            entry.former.retain(|_, left| now.since(*left) < WINDOW);
            entry.former.insert(entry.mac, now);
            entry.former.remove(&mac);
            entry.past.push(Past::Took(now, mac));
            entry.refuted = false;
            entry.mac = mac;
        }
        entry.refuted &= state != NudState::Reachable;
        entry.state = state;
        self.purge();
        Some(Observation::Neighbour(Neighbour {
            ifindex,
            address,
            lladdr: Some(mac),
            state,
        }))
    }

    pub(super) fn neighbour_gone(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
    ) -> Option<Observation> {
        self.neighbours.remove(&(ifindex, address))?;
        self.purge();
        Some(Observation::NeighbourGone(ifindex, address))
    }

    pub(super) fn learn(
        &mut self,
        bridge: IfIndex,
        port: IfIndex,
        mac: Mac,
    ) -> Option<Observation> {
        if self.bridge_of(port) != Some(bridge) {
            return None;
        }
        let station = Station { port, aged: false };
        self.fdb.insert((bridge, mac), station);
        Some(Observation::Fdb(fdb(bridge, port, mac)))
    }

    pub(super) fn age(&mut self, bridge: IfIndex, mac: Mac) -> Option<Observation> {
        let station = self.fdb.get_mut(&(bridge, mac)).filter(|s| !s.aged)?;
        station.aged = true;
        let port = station.port;
        self.purge();
        Some(Observation::FdbGone(fdb(bridge, port, mac)))
    }

    /// Aged hardware addresses are remembered while an entry on the bridge gives them.
    fn purge(&mut self) {
        let neighbours = &self.neighbours;
        self.fdb.retain(|(bridge, mac), station| {
            let gives = |e: &Entry| e.mac == *mac || e.former.contains_key(mac);
            let mut on_bridge = neighbours.iter().filter(|((i, _), _)| i == bridge);
            !station.aged || on_bridge.any(|(_, e)| gives(e))
        });
    }

    pub(super) fn route(&mut self, address: IpAddr, ifindex: IfIndex) -> Option<Observation> {
        self.links.get(&ifindex).filter(|d| d.link.up)?;
        self.routes.insert(address, ifindex);
        Some(Observation::Route(host_route(address, ifindex)))
    }

    pub(super) fn route_gone(&mut self, address: IpAddr) -> Option<Observation> {
        let ifindex = self.routes.remove(&address)?;
        Some(Observation::RouteGone(host_route(address, ifindex)))
    }

    // ---- frames ----

    /// A frame that came in at `at` is heard now. A probe is heeded only where the address is `contested`.
    pub(super) fn hear(
        &mut self,
        claim: FrameClaim,
        at: Timestamp,
        contested: bool,
    ) -> Option<Observation> {
        let device = self.pod(claim.ifindex)?;
        let removed = device.removed.get(&claim.address);
        let untagged = claim.vlan == Vlan::default();
        let refuted = untagged && removed.is_some_and(|removed| at <= *removed);
        let over = |h: &Heard| !self.counts(h);
        let over: Vec<_> = self.heard.iter().map(over).collect();
        let mut over = over.into_iter();
        self.heard.retain(|_| over.next() == Some(false));
        let device = self.pod(claim.ifindex)?;
        if at >= device.since && !refuted && (!claim.tentative || contested) {
            let key = |c: &FrameClaim| (c.ifindex, c.address, c.vlan, c.kind);
            match self.heard.iter_mut().find(|h| key(&h.claim) == key(&claim)) {
                Some(known) => {
                    known.last = known.last.max(at);
                    known.claim.tentative &= claim.tentative;
                }
                None => self.heard.push(Heard { claim, last: at }),
            }
        }
        Some(Observation::Frame(claim))
    }

    // ---- readings ----

    pub(super) fn dump(&self, scope: SnapshotScope) -> Dump {
        let of = |ifindex: IfIndex| match scope {
            SnapshotScope::Node => true,
            SnapshotScope::Device(wanted) => ifindex == wanted,
        };
        let devices = self.links.iter().filter(|(i, _)| of(**i));
        let pods = devices.clone().filter_map(|(ifindex, d)| {
            let addresses = d.addresses.keys().map(|a| info(*a)).collect();
            Some(PodAddresses {
                peer: d.link.peer?,
                mac: Some(mac(u8::try_from(*ifindex).unwrap())),
                addresses: d.readable.then_some(addresses),
            })
        });
        let neighbours = self.neighbours.iter().filter(|((i, _), _)| of(*i));
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

    /// The agent has taken over what the reading with this number found. Of a device that took another's index meanwhile it
    /// takes no addresses: it cannot tell whose they are, and reads that device by itself once it is attached to. So it is with
    /// an address of which something was told meanwhile, if its namespace's number was an earlier pod's then.
    pub(super) fn taken_over(&mut self, dump: &Dump, number: u64) {
        for (ifindex, device) in &mut self.links {
            let same = dump.serials.get(ifindex) == Some(&device.serial)
                && self.went_at.get(ifindex).is_none_or(|then| *then < number);
            let Some(peer) = device.link.peer.filter(|_| same) else {
                continue;
            };
            for found in dump.snapshot.pods.iter().filter(|p| p.peer == peer) {
                device.read = true;
                let since = |at: Option<&u64>| at.is_some_and(|at| *at >= number);
                let moved = since(self.moved_at.get(&peer));
                let doubtful = |address| moved && since(self.told_at.get(&(peer, address)));
                for info in found.addresses.iter().flatten() {
                    if doubtful(info.address) {
                        continue;
                    }
                    device
                        .addresses
                        .entry(info.address)
                        .and_modify(|known| *known = true);
                }
            }
        }
    }

    /// Another agent starts: what only the former one knew is gone, but for what it kept of open conflicts.
    pub(super) fn forget_history(&mut self, addresses: &[IpAddr]) {
        let open = self.expected(addresses);
        let heard = std::mem::take(&mut self.heard);
        let kept = heard.into_iter().filter(|h| {
            let c = &h.claim;
            let name = &self.links[&c.ifindex].link.name;
            let vlan = (c.vlan.outer, c.vlan.inner);
            let of = |e: &Expected| e.address == c.address && e.vlan == vlan;
            open.iter().any(|e| of(e) && e.claimants.contains(name))
        });
        self.heard = kept.collect();
        self.fdb.retain(|_, s| !s.aged);
        for device in self.links.values_mut() {
            device.read = false;
            device.removed.clear();
            for known in device.addresses.values_mut() {
                *known = false;
            }
        }
        for entry in self.neighbours.values_mut() {
            entry.refuted = false;
            entry.former.clear();
            entry.past = vec![Past::Took(self.now, entry.mac)];
        }
    }
}

pub(super) fn info(address: IpAddr) -> AssignedAddress {
    AssignedAddress {
        address,
        prefix_len: if address.is_ipv4() { 32 } else { 128 },
        tentative: false,
        dad_failed: false,
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
