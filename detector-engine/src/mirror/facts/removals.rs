//! Addresses recently removed in a pod, and neighbour entries recently withdrawn: a frame may be
//! processed after a removal although it was sent before, and an entry's state be published after
//! its end although it was read before.

use std::{collections::VecDeque, net::IpAddr};

use crate::{
    hash::HashMap,
    model::{IfIndex, Timestamp},
};

/// Bound on remembered removals, the newest; a frame waits in the ring buffer for milliseconds.
const MAX_REMOVALS: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct RecentRemovals {
    when: HashMap<(IfIndex, IpAddr), Timestamp>,
    order: VecDeque<(Timestamp, IfIndex, IpAddr)>,
}

impl RecentRemovals {
    pub(super) fn record(&mut self, device: IfIndex, address: IpAddr, at: Timestamp) {
        self.when.insert((device, address), at);
        self.order.push_back((at, device, address));
        if self.order.len() > MAX_REMOVALS
            && let Some((at, device, address)) = self.order.pop_front()
            && self.when.get(&(device, address)) == Some(&at)
        {
            self.when.remove(&(device, address));
        }
    }

    /// When the address was last removed there, as far as that is remembered.
    pub(super) fn last(&self, device: IfIndex, address: IpAddr) -> Option<Timestamp> {
        self.when.get(&(device, address)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nth(n: usize) -> IpAddr {
        IpAddr::from((n as u128).to_be_bytes())
    }

    fn at(n: usize) -> Timestamp {
        Timestamp(n as u64)
    }

    #[test]
    fn the_newest_4096_removals_are_remembered() {
        let mut removals = RecentRemovals::default();
        for n in 0..4096 {
            removals.record(1, nth(n), at(n));
        }
        assert_eq!(removals.last(1, nth(0)), Some(at(0)));
        for n in 4096..5000 {
            removals.record(1, nth(n), at(n));
        }
        assert_eq!(removals.last(1, nth(903)), None);
        assert_eq!(removals.last(1, nth(904)), Some(at(904)));
        assert_eq!((removals.when.len(), removals.order.len()), (4096, 4096));
    }

    #[test]
    fn a_repeated_removal_counts_as_new() {
        let mut removals = RecentRemovals::default();
        for n in 0..4096 {
            removals.record(1, nth(n), at(n));
        }
        removals.record(1, nth(0), at(4096));
        removals.record(1, nth(1), at(4097));
        assert_eq!(removals.last(1, nth(0)), Some(at(4096)));
    }
}
