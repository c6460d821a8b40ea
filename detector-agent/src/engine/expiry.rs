//! Schedules checks of addresses whose claims or anomalies may end without an observation: at most
//! one per address.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use super::observation::Timestamp;

/// Addresses to check, each at one time. An early check is harmless: it changes nothing by itself
/// and schedules the next.
#[derive(Debug, Default)]
pub(super) struct ExpiryQueue {
    queue: BTreeSet<(Timestamp, IpAddr)>,
    scheduled: HashMap<IpAddr, Timestamp>,
}

impl ExpiryQueue {
    /// Schedules a check at `at`, unless an earlier one is scheduled: every check schedules the
    /// next.
    pub(super) fn schedule(&mut self, address: IpAddr, at: Timestamp) {
        match self.scheduled.get(&address) {
            Some(scheduled) if *scheduled <= at => return,
            Some(scheduled) => {
                self.queue.remove(&(*scheduled, address));
            }
            None => {}
        }
        self.scheduled.insert(address, at);
        self.queue.insert((at, address));
    }

    pub(super) fn cancel(&mut self, address: IpAddr) {
        if let Some(scheduled) = self.scheduled.remove(&address) {
            self.queue.remove(&(scheduled, address));
        }
    }

    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.queue.first().map(|(at, _)| *at)
    }

    pub(super) fn pop_due(&mut self, now: Timestamp) -> Option<IpAddr> {
        let (at, address) = *self.queue.first()?;
        if at > now {
            return None;
        }
        self.queue.pop_first();
        self.scheduled.remove(&address);
        Some(address)
    }
}
