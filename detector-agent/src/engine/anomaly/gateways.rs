//! Pods that ask for an address and get no answer.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use super::{
    super::observation::{IfIndex, Timestamp, Vlan},
    lifecycle::Key,
    model::AnomalyKind,
};

/// Pods and targets that are followed at once.
const MAX_ASKING: usize = 4096;
/// Without a further question it is over after so long. (A pod that has nothing to send does not ask either.)
pub(in crate::engine) const QUIET: Duration = Duration::from_secs(60);

/// When each device last requested a gateway that does not answer.
#[derive(Debug, Default)]
pub(in crate::engine) struct Gateways {
    last_request: BTreeMap<Key, Timestamp>,
}

impl Gateways {
    /// Records a request; `false` at the bound.
    pub(in crate::engine) fn note(&mut self, key: Key, at: Timestamp) -> bool {
        if self.last_request.len() >= MAX_ASKING && !self.last_request.contains_key(&key) {
            return false;
        }
        let last = self.last_request.entry(key).or_insert(at);
        *last = at.max(*last);
        true
    }

    pub(in crate::engine) fn remove(&mut self, key: &Key) {
        self.last_request.remove(key);
    }

    /// The devices that request one address, and when each last did.
    pub(in crate::engine) fn of(&self, address: IpAddr) -> Vec<(Key, Timestamp)> {
        let from = Key::of(AnomalyKind::GatewayUnresolved, address);
        self.last_request
            .range(from..)
            .take_while(|(key, _)| key.address == address)
            .map(|(key, last)| (*key, *last))
            .collect()
    }

    /// All of them.
    pub(in crate::engine) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.last_request.keys()
    }

    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.last_request.is_empty()
    }
}

impl Key {
    /// Of a device that asks for an address.
    pub(in crate::engine) fn asked(
        target: IpAddr,
        ifindex: IfIndex,
        generation: u64,
        vlan: Vlan,
    ) -> Self {
        Self {
            device: Some((ifindex, generation)),
            vlan,
            ..Self::of(AnomalyKind::GatewayUnresolved, target)
        }
    }
}
