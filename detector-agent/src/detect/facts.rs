//! What the kernel and the pods said, by address: the only place where evidence is kept.
//!
//! Invariants: an address without facts has no entry; `owners` lists exactly the addresses an owner has facts for;
//! frame facts per device and assigned addresses per peer stay within [`Bounds::claims_per_device`].

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use super::{
    observation::{
        AssignedAddress, FrameKind, IfIndex, Mac, Neighbour, NudState, Peer, Timestamp, Vlan,
    },
    settings::Bounds,
};

/// An address assigned inside a pod's namespace.
#[derive(Clone, Debug)]
pub(super) struct Assigned {
    pub(super) peer: Peer,
    pub(super) info: AssignedAddress,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// An address of the node itself.
#[derive(Clone, Debug)]
pub(super) struct HostAddress {
    pub(super) ifindex: IfIndex,
    pub(super) info: AssignedAddress,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// A hardware address that a bridge's neighbour entry held before, and may hold again.
#[derive(Clone, Copy, Debug)]
pub(super) struct FormerLladdr {
    pub(super) mac: Mac,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    /// The entry went back and forth between this one and another: both answer.
    pub(super) flapped: bool,
}

/// A neighbour entry of the kernel.
#[derive(Clone, Debug)]
pub(super) struct NeighbourFact {
    pub(super) ifindex: IfIndex,
    pub(super) lladdr: Mac,
    pub(super) state: NudState,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    /// The address was removed in the pod after this entry was last confirmed.
    pub(super) refuted: bool,
    /// On a bridge: what the entry held before, newest last, few.
    pub(super) former: Vec<FormerLladdr>,
}

/// A claim heard in frames.
#[derive(Clone, Debug)]
pub(super) struct FrameFact {
    pub(super) ifindex: IfIndex,
    pub(super) vlan: Vlan,
    pub(super) kind: FrameKind,
    pub(super) mac: Mac,
    pub(super) ether_source: Mac,
    pub(super) tentative: bool,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// Everything known of one address.
#[derive(Clone, Debug, Default)]
pub(super) struct AddressFacts {
    pub(super) assigned: Vec<Assigned>,
    pub(super) host: Vec<HostAddress>,
    pub(super) neighbours: Vec<NeighbourFact>,
    pub(super) frames: Vec<FrameFact>,
    /// When the address was removed inside the pod of a device, so that a frame sent before is not believed after.
    pub(super) removed: Vec<(IfIndex, Timestamp)>,
}

impl AddressFacts {
    fn is_empty(&self) -> bool {
        self.assigned.is_empty()
            && self.host.is_empty()
            && self.neighbours.is_empty()
            && self.frames.is_empty()
    }

    /// How many facts there are that could each make a claimant.
    pub(super) fn len(&self) -> usize {
        self.assigned.len() + self.host.len() + self.neighbours.len() + self.frames.len()
    }

    pub(super) fn assigned_on(&self, peer: Peer) -> bool {
        self.assigned.iter().any(|a| a.peer == peer)
    }
}

/// Whose facts: those of a link of the node, or of a pod's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    Link(IfIndex),
    Peer(Peer),
}

/// What storing a fact came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// The set of claimants may have changed.
    Changed,
    /// Only a time moved.
    Refreshed,
    /// A bound was reached.
    Refused,
}

/// How many former hardware addresses of one entry are remembered.
const FORMER: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Facts {
    by_address: HashMap<IpAddr, AddressFacts>,
    owners: HashMap<Owner, HashSet<IpAddr>>,
    frames_per_device: HashMap<IfIndex, usize>,
    /// Which addresses a bridge's neighbour entries give for a hardware address.
    behind: HashMap<(IfIndex, Mac), HashSet<IpAddr>>,
    neighbours: usize,
}

impl Facts {
    pub(super) fn get(&self, address: IpAddr) -> Option<&AddressFacts> {
        self.by_address.get(&address)
    }

    pub(super) fn len(&self) -> usize {
        self.by_address.len()
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.by_address.keys().copied()
    }

    pub(super) fn owned_by(&self, owner: Owner) -> Vec<IpAddr> {
        self.owners
            .get(&owner)
            .map(|set| set.iter().copied().collect())
            .unwrap_or_default()
    }

    /// Addresses whose neighbour entry on `bridge` gives, or lately gave, `mac`.
    pub(super) fn behind(&self, bridge: IfIndex, mac: Mac) -> Vec<IpAddr> {
        self.behind
            .get(&(bridge, mac))
            .map(|set| set.iter().copied().collect())
            .unwrap_or_default()
    }

    pub(super) fn assign(
        &mut self,
        peer: Peer,
        info: AssignedAddress,
        at: Timestamp,
        bounds: &Bounds,
    ) -> Stored {
        let owner = Owner::Peer(peer);
        let entry = self.by_address.entry(info.address).or_default();
        if let Some(known) = entry.assigned.iter_mut().find(|a| a.peer == peer) {
            known.last = at;
            let changed = known.info != info;
            known.info = info;
            return if changed {
                Stored::Changed
            } else {
                Stored::Refreshed
            };
        }
        if self
            .owners
            .get(&owner)
            .is_some_and(|set| set.len() >= bounds.claims_per_device)
        {
            self.drop_if_empty(info.address);
            return Stored::Refused;
        }
        entry.assigned.push(Assigned {
            peer,
            info,
            first: at,
            last: at,
        });
        self.owners.entry(owner).or_default().insert(info.address);
        Stored::Changed
    }

    /// The address is no longer assigned on `peer`; `device` is the pod device there, whose frames and unconfirmed
    /// neighbour entries for it are no longer believed.
    pub(super) fn unassign(
        &mut self,
        peer: Peer,
        address: IpAddr,
        device: Option<IfIndex>,
        at: Timestamp,
    ) -> bool {
        let Some(entry) = self.by_address.get_mut(&address) else {
            return false;
        };
        let before = entry.assigned.len();
        entry.assigned.retain(|a| a.peer != peer);
        let removed = entry.assigned.len() != before;
        if removed {
            if let Some(device) = device {
                entry.removed.retain(|(ifindex, _)| *ifindex != device);
                entry.removed.push((device, at));
            }
            self.unindex(Owner::Peer(peer), address);
        }
        if let Some(device) = device {
            self.forget_frames(device, address, |frame| frame.vlan == Vlan::default());
        }
        self.drop_if_empty(address);
        removed
    }

    /// Marks the neighbour entry on `ifindex` as refuted, if it gives `mac` or no particular one is asked for.
    pub(super) fn refute_neighbour(&mut self, ifindex: IfIndex, address: IpAddr) {
        if let Some(entry) = self.by_address.get_mut(&address) {
            for neighbour in entry.neighbours.iter_mut().filter(|n| n.ifindex == ifindex) {
                neighbour.refuted = true;
            }
        }
    }

    pub(super) fn host(
        &mut self,
        ifindex: IfIndex,
        info: AssignedAddress,
        at: Timestamp,
    ) -> Stored {
        let entry = self.by_address.entry(info.address).or_default();
        if let Some(known) = entry.host.iter_mut().find(|h| h.ifindex == ifindex) {
            known.last = at;
            known.info = info;
            return Stored::Refreshed;
        }
        entry.host.push(HostAddress {
            ifindex,
            info,
            first: at,
            last: at,
        });
        self.owners
            .entry(Owner::Link(ifindex))
            .or_default()
            .insert(info.address);
        Stored::Changed
    }

    pub(super) fn unhost(&mut self, ifindex: IfIndex, address: IpAddr) -> bool {
        let Some(entry) = self.by_address.get_mut(&address) else {
            return false;
        };
        let before = entry.host.len();
        entry.host.retain(|h| h.ifindex != ifindex);
        let changed = entry.host.len() != before;
        self.unindex_link(ifindex, address);
        self.drop_if_empty(address);
        changed
    }

    /// `live`: told as it happened, so that a reachable state is a fresh confirmation.
    pub(super) fn neighbour(
        &mut self,
        n: Neighbour,
        lladdr: Mac,
        at: Timestamp,
        live: bool,
        keep_former: Option<std::time::Duration>,
        bounds: &Bounds,
    ) -> Stored {
        let entry = self.by_address.entry(n.address).or_default();
        if let Some(known) = entry.neighbours.iter_mut().find(|k| k.ifindex == n.ifindex) {
            let confirmed = live && n.state == NudState::Reachable;
            let same_lladdr = known.lladdr == lladdr;
            let changed = !same_lladdr || known.state != n.state || (known.refuted && confirmed);
            if !same_lladdr {
                if let Some(window) = keep_former {
                    remember(known, lladdr, at, window);
                }
                known.first = at;
                known.refuted = false;
            }
            known.last = at;
            known.lladdr = lladdr;
            known.state = n.state;
            known.refuted &= !confirmed;
            self.behind
                .entry((n.ifindex, lladdr))
                .or_default()
                .insert(n.address);
            return if changed {
                Stored::Changed
            } else {
                Stored::Refreshed
            };
        }
        if self.neighbours >= bounds.kernel_entries {
            self.drop_if_empty(n.address);
            return Stored::Refused;
        }
        entry.neighbours.push(NeighbourFact {
            ifindex: n.ifindex,
            lladdr,
            state: n.state,
            first: at,
            last: at,
            refuted: false,
            former: Vec::new(),
        });
        self.neighbours += 1;
        self.owners
            .entry(Owner::Link(n.ifindex))
            .or_default()
            .insert(n.address);
        self.behind
            .entry((n.ifindex, lladdr))
            .or_default()
            .insert(n.address);
        Stored::Changed
    }

    pub(super) fn forget_neighbour(&mut self, ifindex: IfIndex, address: IpAddr) -> bool {
        let Some(entry) = self.by_address.get_mut(&address) else {
            return false;
        };
        let Some(position) = entry.neighbours.iter().position(|n| n.ifindex == ifindex) else {
            return false;
        };
        let gone = entry.neighbours.swap_remove(position);
        self.neighbours -= 1;
        for mac in gone.former.iter().map(|f| f.mac).chain([gone.lladdr]) {
            if let Some(set) = self.behind.get_mut(&(ifindex, mac)) {
                set.remove(&address);
                if set.is_empty() {
                    self.behind.remove(&(ifindex, mac));
                }
            }
        }
        self.unindex_link(ifindex, address);
        self.drop_if_empty(address);
        true
    }

    pub(super) fn frame(&mut self, fact: FrameFact, address: IpAddr, bounds: &Bounds) -> Stored {
        let entry = self.by_address.entry(address).or_default();
        if entry
            .removed
            .iter()
            .any(|(ifindex, when)| *ifindex == fact.ifindex && fact.last <= *when)
        {
            self.drop_if_empty(address);
            return Stored::Refreshed;
        }
        let same =
            |k: &FrameFact| k.ifindex == fact.ifindex && k.vlan == fact.vlan && k.kind == fact.kind;
        if let Some(known) = entry.frames.iter_mut().find(|k| same(k)) {
            known.last = known.last.max(fact.last);
            // A real claim after a tentative one makes the claim real; never the other way round.
            let changed = known.tentative && !fact.tentative;
            known.tentative &= fact.tentative;
            known.mac = fact.mac;
            known.ether_source = fact.ether_source;
            return if changed {
                Stored::Changed
            } else {
                Stored::Refreshed
            };
        }
        let held = self.frames_per_device.entry(fact.ifindex).or_default();
        if *held >= bounds.claims_per_device {
            self.drop_if_empty(address);
            return Stored::Refused;
        }
        *held += 1;
        self.owners
            .entry(Owner::Link(fact.ifindex))
            .or_default()
            .insert(address);
        entry.frames.push(fact);
        Stored::Changed
    }

    /// Forgets frame facts of a device for one address; says whether there were any.
    pub(super) fn forget_frames(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
        which: impl Fn(&FrameFact) -> bool,
    ) -> bool {
        let Some(entry) = self.by_address.get_mut(&address) else {
            return false;
        };
        let before = entry.frames.len();
        entry.frames.retain(|f| f.ifindex != ifindex || !which(f));
        let gone = before - entry.frames.len();
        if gone == 0 {
            return false;
        }
        if let Some(held) = self.frames_per_device.get_mut(&ifindex) {
            *held = held.saturating_sub(gone);
            if *held == 0 {
                self.frames_per_device.remove(&ifindex);
            }
        }
        self.unindex_link(ifindex, address);
        self.drop_if_empty(address);
        true
    }

    /// Forgets what a link of the node said itself (frames, neighbours, node addresses).
    pub(super) fn forget_link(&mut self, ifindex: IfIndex) -> Vec<IpAddr> {
        let addresses = self.owned_by(Owner::Link(ifindex));
        for address in &addresses {
            self.forget_frames(ifindex, *address, |_| true);
            self.forget_neighbour(ifindex, *address);
            self.unhost(ifindex, *address);
        }
        addresses
    }

    /// Forgets the addresses assigned on a pod's end.
    pub(super) fn forget_peer(&mut self, peer: Peer) -> Vec<IpAddr> {
        let addresses = self.owned_by(Owner::Peer(peer));
        for address in &addresses {
            if let Some(entry) = self.by_address.get_mut(address) {
                entry.assigned.retain(|a| a.peer != peer);
            }
            self.drop_if_empty(*address);
        }
        self.owners.remove(&Owner::Peer(peer));
        addresses
    }

    fn unindex_link(&mut self, ifindex: IfIndex, address: IpAddr) {
        let still = self.by_address.get(&address).is_some_and(|entry| {
            entry.frames.iter().any(|f| f.ifindex == ifindex)
                || entry.neighbours.iter().any(|n| n.ifindex == ifindex)
                || entry.host.iter().any(|h| h.ifindex == ifindex)
        });
        if !still {
            self.unindex(Owner::Link(ifindex), address);
        }
    }

    fn unindex(&mut self, owner: Owner, address: IpAddr) {
        if let Some(set) = self.owners.get_mut(&owner) {
            set.remove(&address);
            if set.is_empty() {
                self.owners.remove(&owner);
            }
        }
    }

    fn drop_if_empty(&mut self, address: IpAddr) {
        if self
            .by_address
            .get(&address)
            .is_some_and(AddressFacts::is_empty)
        {
            self.by_address.remove(&address);
        }
    }
}

/// The entry turns from one hardware address to another: the old one is remembered, and an entry that returns to one
/// it held within `window` proves that both of them answer.
fn remember(known: &mut NeighbourFact, next: Mac, at: Timestamp, window: std::time::Duration) {
    known.former.retain(|f| at.since(f.last) < window);
    let returns = known.former.iter().any(|f| f.mac == next);
    known
        .former
        .retain(|f| f.mac != next && f.mac != known.lladdr);
    if known.former.len() >= FORMER {
        known.former.remove(0);
    }
    known.former.push(FormerLladdr {
        mac: known.lladdr,
        first: known.first,
        last: at,
        flapped: false,
    });
    if returns {
        for former in &mut known.former {
            former.flapped = true;
        }
    }
}
