//! The addresses that are claimed on the node, for the kernel programs: a claim of an address that another device has is
//! published although the device that makes it has exceeded its budget.
//!
//! Invariants: each device, and the node, has a share of the table that others cannot fill; in it, addresses that are
//! assigned take precedence over those that were only observed. An address is listed if one of its claimants has it within
//! its share. What does not fit is counted ([`ClaimedAddresses::omitted`]).

use std::{collections::BTreeSet, net::IpAddr};

use crate::{hash::HashMap, model::IfIndex, small_set::SmallSet};

/// The maximum number of listed addresses.
pub const MAX_CLAIMED_ADDRESSES: usize = 32_768;

/// Changes kept until they are taken; after more, the whole table is taken.
const MAX_CHANGES: usize = 4_096;

/// Who claims a listed address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressHolder {
    /// One device alone.
    Device(IfIndex),
    /// The node, or more than one device.
    Several,
}

/// What changed in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimedUpdate {
    /// These entries; `None` is not listed. Claims of these addresses are published again.
    Changed(Vec<(IpAddr, Option<AddressHolder>)>),
    /// The table has exactly these entries. All claims are published again.
    All(Vec<(IpAddr, AddressHolder)>),
}

/// The claimant whose share an address counts towards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ShareOwner {
    Node,
    Device(IfIndex),
}

/// Why an address is claimed, the better reason first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Support {
    /// It is assigned to an interface.
    Assigned,
    /// Frames or neighbour entries show it.
    Observed,
}

/// How many addresses are listed at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    pub(crate) device: usize,
    pub(crate) node: usize,
    pub(crate) all: usize,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            device: 256,
            // In IPVS mode, kube-proxy assigns the address of every service to the node.
            node: 8_192,
            all: MAX_CLAIMED_ADDRESSES,
        }
    }
}

/// The addresses of one claimant. None waits while there is room, and none that waits has better support than an admitted
/// one.
#[derive(Debug, Default)]
struct Share {
    admitted: SmallSet<(Support, IpAddr)>,
    waiting: SmallSet<(Support, IpAddr)>,
}

impl Share {
    /// Adds an address; returns the one that it displaced.
    fn add(&mut self, support: Support, address: IpAddr, limit: usize) -> Option<IpAddr> {
        if self.admitted.len() < limit {
            self.admitted.insert((support, address));
            return None;
        }
        let worst = self.admitted.last().copied();
        let displaced = worst.filter(|(worst, _)| *worst > support);
        let Some(displaced) = displaced else {
            self.waiting.insert((support, address));
            return None;
        };
        self.admitted.remove(&displaced);
        self.waiting.insert(displaced);
        self.admitted.insert((support, address));
        Some(displaced.1)
    }

    /// Removes an address; returns the one that takes its place.
    fn remove(&mut self, support: Support, address: IpAddr) -> Option<IpAddr> {
        if !self.admitted.remove(&(support, address)) {
            self.waiting.remove(&(support, address));
            return None;
        }
        let next = self.waiting.pop_first()?;
        self.admitted.insert(next);
        Some(next.1)
    }

    fn is_empty(&self) -> bool {
        self.admitted.is_empty() && self.waiting.is_empty()
    }
}

/// One claimant of an address. A claimant has each address once, with the best support.
pub(crate) type AddressClaim = (ShareOwner, Support);

/// An address with claimants.
#[derive(Debug, Default)]
struct ClaimedAddress {
    /// Sorted; empty only while the last of them is removed.
    claims: Box<[AddressClaim]>,
    /// As it is listed; `None` if it is not.
    listed: Option<AddressHolder>,
}

/// The table, and what its reader does not know yet.
#[derive(Debug, Default)]
pub(crate) struct ClaimedAddresses {
    limits: Shares,
    addresses: HashMap<IpAddr, ClaimedAddress>,
    /// How many of them are listed.
    listed: usize,
    shares: HashMap<ShareOwner, Share>,
    changed: BTreeSet<IpAddr>,
    is_rewrite_due: bool,
}

impl ClaimedAddresses {
    /// The claimants of an address, sorted, are these now.
    pub(crate) fn update(&mut self, address: IpAddr, claims: Vec<AddressClaim>) {
        let before = self.claims_of(address);
        if before == claims {
            return;
        }
        let ended: Vec<_> = before
            .iter()
            .filter(|claim| !claims.contains(claim))
            .copied()
            .collect();
        let new: Vec<_> = claims
            .iter()
            .filter(|claim| !before.contains(claim))
            .copied()
            .collect();
        let is_gone = claims.is_empty();
        self.addresses.entry(address).or_default().claims = claims.into_boxed_slice();
        for (owner, support) in ended {
            if let Some(share) = self.shares.get_mut(&owner) {
                let admitted = share.remove(support, address);
                if share.is_empty() {
                    self.shares.remove(&owner);
                }
                self.list_again(admitted);
            }
        }
        for (owner, support) in new {
            let limit = match owner {
                ShareOwner::Node => self.limits.node,
                ShareOwner::Device(_) => self.limits.device,
            };
            let share = self.shares.entry(owner).or_default();
            let displaced = share.add(support, address, limit);
            self.list_again(displaced);
        }
        self.list_again(Some(address));
        if is_gone {
            self.addresses.remove(&address);
        }
    }

    /// A claim of the address ended that the kernel programs take for published recently: they are to publish it again.
    pub(crate) fn publish_again(&mut self, address: IpAddr) {
        self.note_change(address);
    }

    /// The table is taken as a whole next time, with what had no room in it so far.
    pub(crate) fn request_rewrite(&mut self) {
        self.is_rewrite_due = true;
        let omitted: Vec<_> = self
            .addresses
            .iter()
            .filter(|(_, known)| known.listed.is_none())
            .map(|(address, _)| *address)
            .collect();
        for address in omitted {
            self.list_again(Some(address));
        }
    }

    /// What changed since it was last taken.
    pub(crate) fn take_update(&mut self) -> Option<ClaimedUpdate> {
        let changed = std::mem::take(&mut self.changed);
        if std::mem::take(&mut self.is_rewrite_due) {
            let all = self
                .addresses
                .iter()
                .filter_map(|(address, known)| Some((*address, known.listed?)));
            return Some(ClaimedUpdate::All(all.collect()));
        }
        if changed.is_empty() {
            return None;
        }
        let entry = |address: IpAddr| (address, self.listed_as(address));
        let entries = changed.into_iter().map(entry).collect();
        Some(ClaimedUpdate::Changed(entries))
    }

    /// How many claimed addresses are not listed.
    pub(crate) fn omitted(&self) -> usize {
        self.addresses.len().saturating_sub(self.listed)
    }

    fn list_again(&mut self, address: Option<IpAddr>) {
        let Some(address) = address else {
            return;
        };
        let listed = self.listed_as(address);
        let has_room = listed.is_some() || self.listed < self.limits.all;
        let holder = self.holder(address).filter(|_| has_room);
        if holder == listed {
            return;
        }
        if let Some(known) = self.addresses.get_mut(&address) {
            known.listed = holder;
        }
        self.listed += usize::from(holder.is_some());
        self.listed -= usize::from(listed.is_some());
        self.note_change(address);
    }

    fn note_change(&mut self, address: IpAddr) {
        self.changed.insert(address);
        if self.changed.len() > MAX_CHANGES {
            self.changed.clear();
            self.is_rewrite_due = true;
        }
    }

    /// Who claims an address that a claimant has within its share.
    fn holder(&self, address: IpAddr) -> Option<AddressHolder> {
        let claims = self.claims_of(address);
        let is_admitted = |(owner, support): &AddressClaim| {
            let share = self.shares.get(owner);
            share.is_some_and(|share| share.admitted.contains(&(*support, address)))
        };
        if !claims.iter().any(is_admitted) {
            return None;
        }
        Some(match claims {
            [(ShareOwner::Device(ifindex), _)] => AddressHolder::Device(*ifindex),
            _ => AddressHolder::Several,
        })
    }

    /// How an address is listed.
    fn listed_as(&self, address: IpAddr) -> Option<AddressHolder> {
        self.addresses.get(&address)?.listed
    }

    /// The claimants of an address.
    pub(crate) fn claims_of(&self, address: IpAddr) -> &[AddressClaim] {
        let known = self.addresses.get(&address);
        known.map_or(&[], |known| &known.claims)
    }

    /// How many addresses have claimants.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.addresses.len()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "a test that cannot continue fails")]

    use std::net::Ipv4Addr;

    use super::*;

    const LIMITS: Shares = Shares {
        device: 3,
        node: 2,
        all: 8,
    };

    fn ip(n: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, n).into()
    }

    fn table() -> ClaimedAddresses {
        ClaimedAddresses {
            limits: LIMITS,
            ..ClaimedAddresses::default()
        }
    }

    fn assigned(device: IfIndex) -> AddressClaim {
        (ShareOwner::Device(device), Support::Assigned)
    }

    fn observed(device: IfIndex) -> AddressClaim {
        (ShareOwner::Device(device), Support::Observed)
    }

    fn changes(table: &mut ClaimedAddresses) -> Vec<(IpAddr, Option<AddressHolder>)> {
        match table.take_update() {
            None => Vec::new(),
            Some(ClaimedUpdate::Changed(changed)) => changed,
            Some(all @ ClaimedUpdate::All(_)) => panic!("{all:?}"),
        }
    }

    #[test]
    fn changes_name_the_only_holder_or_several() {
        let mut table = table();
        let device = |n| Some(AddressHolder::Device(n));
        table.update(ip(1), vec![assigned(1)]);
        table.update(ip(2), vec![(ShareOwner::Node, Support::Assigned)]);
        let several = Some(AddressHolder::Several);
        assert_eq!(changes(&mut table), [(ip(1), device(1)), (ip(2), several)]);
        table.update(ip(1), vec![assigned(1)]);
        assert_eq!(changes(&mut table), []);
        table.update(ip(1), vec![assigned(1), observed(2)]);
        assert_eq!(changes(&mut table), [(ip(1), several)]);
        table.update(ip(1), vec![observed(2)]);
        table.update(ip(2), vec![]);
        assert_eq!(changes(&mut table), [(ip(1), device(2)), (ip(2), None)]);
        table.update(ip(1), vec![]);
        assert_eq!(changes(&mut table), [(ip(1), None)]);
        assert!(table.shares.is_empty() && table.addresses.is_empty());
    }

    #[test]
    fn device_at_its_share_costs_others_nothing() {
        let mut table = table();
        for n in 1..=6 {
            table.update(ip(n), vec![observed(1)]);
        }
        assert_eq!(table.omitted(), 3);
        table.update(ip(10), vec![observed(2)]);
        assert_eq!(table.omitted(), 3);
        // Claimed by another device too, it counts towards the share of that one.
        table.update(ip(6), vec![observed(1), assigned(2)]);
        assert_eq!(table.omitted(), 2);
        assert_eq!(table.holder(ip(6)), Some(AddressHolder::Several));
    }

    #[test]
    fn assigned_addresses_displace_observed_ones() {
        let mut table = table();
        for n in 1..=3 {
            table.update(ip(n), vec![observed(1)]);
        }
        for n in 11..=14 {
            table.update(ip(n), vec![assigned(1)]);
        }
        let listed = |table: &ClaimedAddresses| {
            let listed = table
                .addresses
                .iter()
                .filter(|(_, known)| known.listed.is_some());
            let mut listed: Vec<_> = listed.map(|(address, _)| *address).collect();
            assert_eq!(listed.len(), table.listed);
            listed.sort_unstable();
            listed
        };
        assert_eq!(listed(&table), [11, 12, 13].map(ip));
        // Better support takes the place, then what waits.
        table.update(ip(1), vec![]);
        table.update(ip(11), vec![]);
        assert_eq!(listed(&table), [12, 13, 14].map(ip));
        table.update(ip(12), vec![]);
        assert_eq!(listed(&table), [2, 13, 14].map(ip));
        table.update(ip(3), vec![assigned(1)]);
        assert_eq!(listed(&table), [3, 13, 14].map(ip));
    }

    #[test]
    fn rewrite_contains_the_table_and_what_has_room_now() {
        let mut table = table();
        for n in 1..=9 {
            table.update(ip(n), vec![assigned(u32::from(n))]);
        }
        assert_eq!(table.omitted(), 1, "the table is full");
        table.update(ip(1), vec![]);
        table.request_rewrite();
        let Some(ClaimedUpdate::All(all)) = table.take_update() else {
            panic!("no rewrite");
        };
        assert_eq!((all.len(), table.omitted()), (8, 0));
        assert_eq!(table.take_update(), None);
    }

    #[test]
    fn changes_that_are_never_taken_are_bounded() {
        let mut table = ClaimedAddresses::default();
        for n in 0..10_000_u32 {
            let address = Ipv4Addr::from(0x0a00_0000 + n).into();
            table.update(address, vec![assigned(n)]);
            table.update(address, vec![]);
        }
        assert!(table.changed.len() <= MAX_CHANGES);
        assert_eq!(table.take_update(), Some(ClaimedUpdate::All(vec![])));
    }
}
