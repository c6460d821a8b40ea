//! When something may have to end without anybody saying so: one ordered queue of looks to take.

use std::{collections::BTreeSet, net::IpAddr};

use super::observation::Timestamp;

/// Addresses to look at, each at a time. An early look is harmless: it decides nothing by itself.
#[derive(Debug, Default)]
pub(super) struct Expiry {
    queue: BTreeSet<(Timestamp, IpAddr)>,
}

impl Expiry {
    pub(super) fn look_at(&mut self, address: IpAddr, at: Timestamp) {
        // Rounded up to a tenth of a second, so that one address claimed often is queued seldom.
        const GRAIN: u64 = 100_000_000;
        self.queue.insert((
            Timestamp(at.0.div_ceil(GRAIN).saturating_mul(GRAIN)),
            address,
        ));
    }

    pub(super) fn next(&self) -> Option<Timestamp> {
        self.queue.first().map(|(at, _)| *at)
    }

    pub(super) fn due(&mut self, now: Timestamp) -> Option<IpAddr> {
        let (at, address) = *self.queue.first()?;
        if at > now {
            return None;
        }
        self.queue.pop_first();
        Some(address)
    }
}
