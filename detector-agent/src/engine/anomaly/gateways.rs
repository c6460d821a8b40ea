//! Pods that request their gateway again and again.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use super::{
    super::observation::{IfIndex, Timestamp, Vlan},
    lifecycle::AnomalyKey,
    model::AnomalyKind,
};

/// How many pairs of a device and a gateway are tracked at once.
const MAX_REQUESTS: usize = 4096;
/// How many of them are of one device.
const MAX_PER_DEVICE: usize = 64;
/// An anomaly is resolved after this time without a request. (A pod that has nothing to send does
/// not ask either.)
pub(in crate::engine) const QUIET: Duration = Duration::from_secs(60);

/// When each device last requested a gateway repeatedly.
#[derive(Debug, Default)]
pub(in crate::engine) struct GatewayRequests {
    last_request: BTreeMap<AnomalyKey, Timestamp>,
}

impl GatewayRequests {
    /// Records a request; `false` at the bound.
    pub(in crate::engine) fn record(&mut self, key: AnomalyKey, at: Timestamp) -> bool {
        if !self.last_request.contains_key(&key) {
            let of_device = self.keys().filter(|known| known.device == key.device);
            if of_device.count() >= MAX_PER_DEVICE || self.last_request.len() >= MAX_REQUESTS {
                return false;
            }
        }
        let last = self.last_request.entry(key).or_insert(at);
        *last = at.max(*last);
        true
    }

    pub(in crate::engine) fn remove(&mut self, key: &AnomalyKey) {
        self.last_request.remove(key);
    }

    /// The devices that request one address, and when each last did.
    pub(in crate::engine) fn of(&self, address: IpAddr) -> Vec<(AnomalyKey, Timestamp)> {
        let from = AnomalyKey::of(AnomalyKind::GatewayUnresolved, address);
        self.last_request
            .range(from..)
            .take_while(|(key, _)| key.address == address)
            .map(|(key, last)| (*key, *last))
            .collect()
    }

    pub(in crate::engine) fn keys(&self) -> impl Iterator<Item = &AnomalyKey> {
        self.last_request.keys()
    }

    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.last_request.is_empty()
    }
}

impl AnomalyKey {
    /// The key of a `gateway_unresolved` anomaly: one for each device, VLAN and gateway.
    pub(in crate::engine) fn of_gateway(
        gateway: IpAddr,
        ifindex: IfIndex,
        generation: u64,
        vlan: Vlan,
    ) -> Self {
        Self {
            device: Some((ifindex, generation)),
            vlan,
            ..Self::of(AnomalyKind::GatewayUnresolved, gateway)
        }
    }
}
