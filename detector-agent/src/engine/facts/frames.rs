//! Claims seen in frames.

use std::net::IpAddr;

use super::{Facts, StoreOutcome};
use crate::engine::{
    observation::{FrameKind, IfIndex, Mac, Timestamp, Vlan},
    settings::Bounds,
};

/// A claim seen in frames: one per device, VLAN and protocol.
#[derive(Clone, Debug)]
pub(in crate::engine) struct FrameFact {
    pub(in crate::engine) ifindex: IfIndex,
    pub(in crate::engine) vlan: Vlan,
    pub(in crate::engine) kind: FrameKind,
    pub(in crate::engine) mac: Mac,
    pub(in crate::engine) ether_source: Mac,
    pub(in crate::engine) tentative: bool,
    pub(in crate::engine) first: Timestamp,
    pub(in crate::engine) last: Timestamp,
}

impl Facts {
    pub(in crate::engine) fn add_frame(
        &mut self,
        fact: FrameFact,
        address: IpAddr,
        bounds: &Bounds,
    ) -> StoreOutcome {
        // Tagged frames are about other links of the pod than the one whose addresses are read.
        if fact.vlan == Vlan::default()
            && self.removals.is_outdated(fact.ifindex, address, fact.last)
        {
            return StoreOutcome::Refreshed;
        }
        let count = self.frames.of(fact.ifindex);
        let entry = self.by_address.entry(address).or_default();
        let same =
            |k: &FrameFact| k.ifindex == fact.ifindex && k.vlan == fact.vlan && k.kind == fact.kind;
        if let Some(known) = entry.frames.iter_mut().find(|k| same(k)) {
            // A real claim makes a tentative one real, never the other way round.
            let mut changed = known.tentative && !fact.tentative;
            known.tentative &= fact.tentative;
            known.first = known.first.min(fact.first);
            if fact.last >= known.last {
                // The hardware address may separate it from another claimant, or identify both as
                // one.
                changed |= known.mac != fact.mac;
                known.last = fact.last;
                known.mac = fact.mac;
                known.ether_source = fact.ether_source;
            }
            return if changed {
                StoreOutcome::Changed
            } else {
                StoreOutcome::Refreshed
            };
        }
        if count >= bounds.claims_per_device {
            self.drop_if_empty(address);
            return StoreOutcome::Refused;
        }
        self.frames.add(fact.ifindex);
        self.index_link(fact.ifindex, address);
        self.by_address
            .entry(address)
            .or_default()
            .frames
            .push(fact);
        StoreOutcome::Changed
    }

    /// Removes frame facts of a device for one address; `true` if there were any.
    pub(in crate::engine) fn remove_frames(
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
        self.frames.subtract(ifindex, gone);
        self.unindex_link(ifindex, address);
        self.drop_if_empty(address);
        true
    }
}
