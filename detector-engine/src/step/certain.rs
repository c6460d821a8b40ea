//! The claims that are certain, for the comparison with other nodes, and which of them may have changed.
//!
//! Off the hot path: a step only notes addresses, and the event loop takes them after its round.

use std::{collections::BTreeSet, mem, net::IpAddr};

use super::Engine;
use crate::conflict::Claimant;

/// A claim of a pod device with certain evidence, in what the node routes by its main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertainClaim {
    /// The claimant.
    pub claimant: Claimant,
    /// The address is on the pod's end of the device, and not on another interface of the pod.
    pub is_on_device: bool,
    /// The node's packets for the address go there; only derived if there are several claimants.
    pub receives_traffic: bool,
}

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
