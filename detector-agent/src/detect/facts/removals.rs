//! Which addresses were just removed inside a pod: a frame may be read after the removal that it was sent before.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
};

use crate::detect::observation::{IfIndex, Timestamp};

/// Removals remembered, the newest; a frame waits in the ring buffer for milliseconds.
const REMEMBERED: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Removals {
    when: HashMap<(IfIndex, IpAddr), Timestamp>,
    order: VecDeque<(Timestamp, IfIndex, IpAddr)>,
}

impl Removals {
    pub(super) fn note(&mut self, device: IfIndex, address: IpAddr, at: Timestamp) {
        self.when.insert((device, address), at);
        self.order.push_back((at, device, address));
        if self.order.len() > REMEMBERED
            && let Some((at, device, address)) = self.order.pop_front()
            && self.when.get(&(device, address)) == Some(&at)
        {
            self.when.remove(&(device, address));
        }
    }

    /// Whether what `device` said at `at` was said before the address was removed there.
    pub(super) fn before(&self, device: IfIndex, address: IpAddr, at: Timestamp) -> bool {
        self.when
            .get(&(device, address))
            .is_some_and(|removed| at <= *removed)
    }
}
