//! When something may have to end without anybody saying so: one look at most planned per address.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use super::observation::Timestamp;

/// Addresses to look at, each at one time. An early look is harmless: it decides nothing by itself, and plans the next.
#[derive(Debug, Default)]
pub(super) struct Expiry {
    queue: BTreeSet<(Timestamp, IpAddr)>,
    planned: HashMap<IpAddr, Timestamp>,
}

impl Expiry {
    /// Plans a look at `at`, unless an earlier one is planned: every look plans the next by itself.
    pub(super) fn look_at(&mut self, address: IpAddr, at: Timestamp) {
        match self.planned.get(&address) {
            Some(planned) if *planned <= at => return,
            Some(planned) => {
                self.queue.remove(&(*planned, address));
            }
            None => {}
        }
        self.planned.insert(address, at);
        self.queue.insert((at, address));
    }

    pub(super) fn forget(&mut self, address: IpAddr) {
        if let Some(planned) = self.planned.remove(&address) {
            self.queue.remove(&(planned, address));
        }
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
        self.planned.remove(&address);
        Some(address)
    }
}
