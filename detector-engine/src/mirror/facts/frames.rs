//! Claims seen in frames.

use std::net::IpAddr;

use crate::{
    mirror::{
        StoreOutcome,
        facts::{Claimer, Facts, Owner},
    },
    model::{FrameFact, IfIndex, Peer, Vlan},
    small_set::push_compact,
};

/// Which share of a device's claims makes room at its bound: few scans for many claims.
const EVICTED_SHARE: usize = 8;

impl Facts {
    /// Adds a claim of the pod whose peer is `peer`.
    pub(crate) fn add_frame(
        &mut self,
        fact: FrameFact,
        address: IpAddr,
        peer: Option<Peer>,
    ) -> StoreOutcome {
        // Tagged frames are about other links of the pod than the one whose addresses are read.
        let removed = self.removals.last(fact.ifindex, address);
        let removed = removed.filter(|_| fact.vlan == Vlan::default());
        if removed.is_some_and(|removed| fact.seen.last <= removed) {
            return StoreOutcome::Outdated;
        }
        let same =
            |k: &FrameFact| k.ifindex == fact.ifindex && k.vlan == fact.vlan && k.kind == fact.kind;
        let entry = self.by_address.get_mut(&address);
        let known = entry.and_then(|entry| entry.frames.iter_mut().find(|k| same(k)));
        if let Some(known) = known {
            // A real claim makes a tentative one real, never the other way round.
            let mut changed = known.tentative && !fact.tentative;
            known.tentative &= fact.tentative;
            if fact.seen.first < known.seen.first {
                known.seen.first = fact.seen.first;
                known.seen.beginning = fact.seen.beginning;
            }
            if fact.seen.last >= known.seen.last {
                // The hardware address may separate it from another claimant, or identify both as
                // one.
                changed |= known.mac != fact.mac;
                known.seen.last = fact.seen.last;
                known.mac = fact.mac;
                known.ether_source = fact.ether_source;
            }
            return if changed {
                StoreOutcome::Changed
            } else {
                StoreOutcome::Known
            };
        }
        let count = self.frames.of(&fact.ifindex);
        let claimer = Claimer {
            device: fact.ifindex,
            peer,
        };
        if count >= self.bounds.claims_per_device
            && !self.is_accepted_beyond(address, claimer, count)
        {
            return StoreOutcome::Refused;
        }
        let at = fact.seen.last;
        self.frames.add(fact.ifindex);
        self.owners.insert(Owner::Link(fact.ifindex), address);
        let entry = self.by_address.entry(address).or_default();
        push_compact(&mut entry.frames, fact);
        self.promote(address, at);
        StoreOutcome::Changed
    }

    /// Makes room on a device at its bound: removes an eighth of its claims, the oldest of those that nothing contests. Returns
    /// their addresses.
    pub(crate) fn evict_frames(&mut self, device: IfIndex) -> Vec<IpAddr> {
        let addresses = self.owned_by(Owner::Link(device)).into_iter();
        let uncontested = addresses.filter_map(|address| {
            let facts = self.get(address).filter(|facts| !facts.can_conflict())?;
            let frame = facts.frames.iter().find(|frame| frame.ifindex == device)?;
            Some((frame.seen.last, address))
        });
        let mut uncontested: Vec<_> = uncontested.collect();
        uncontested.sort_unstable();
        uncontested.truncate(self.bounds.claims_per_device.div_ceil(EVICTED_SHARE));
        let evicted: Vec<_> = uncontested
            .into_iter()
            .map(|(_, address)| address)
            .collect();
        for address in &evicted {
            self.remove_frames(device, *address, |_| true);
        }
        evicted
    }

    /// Removes frame facts of a device for one address; `true` if there were any.
    pub(crate) fn remove_frames(
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
        for _ in 0..gone {
            self.frames.subtract(ifindex);
        }
        self.unindex_link(ifindex, address);
        self.drop_if_empty(address);
        true
    }
}
