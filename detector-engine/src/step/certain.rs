//! The claims that are certain, for the comparison with other nodes, and which of them may have changed.
//!
//! Off the hot path: a step only notes addresses, and the event loop takes them after its round.

use std::{collections::BTreeSet, mem, net::IpAddr};

use crate::step::Engine;

impl Engine {
    /// Takes the addresses whose claims may have changed, if [`Settings::follow_claims`](crate::Settings::follow_claims) is set.
    pub fn take_changed_claims(&mut self) -> BTreeSet<IpAddr> {
        self.noted
            .changed
            .as_mut()
            .map(mem::take)
            .unwrap_or_default()
    }
}
