//! Anomalies of a device that only frames show: a pod that requests its gateway again and again, and one that sends router
//! advertisements. Each lasts until no such frame was seen for a while.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use crate::{
    index::Index,
    model::{AnomalyKind, DeviceKey, Timestamp, Vlan},
    track::anomaly::lifecycle::AnomalyKey,
};

/// How many anomalies are tracked at once.
const MAX_TRACKED: usize = 4096;
/// How many of them are of one device.
const MAX_PER_DEVICE: usize = 64;
/// The kinds.
const KINDS: [AnomalyKind; 2] = [AnomalyKind::GatewayUnresolved, AnomalyKind::RogueRouter];

/// When the last frame of each anomaly was seen.
#[derive(Debug, Default)]
pub(crate) struct DeviceFrames {
    last_seen: BTreeMap<AnomalyKey, Timestamp>,
    /// The same keys, at most [`MAX_PER_DEVICE`] of each device.
    by_device: Index<Option<DeviceKey>, AnomalyKey>,
}

impl DeviceFrames {
    /// Records a frame; `false` at the bound.
    pub(crate) fn record(&mut self, key: AnomalyKey, at: Timestamp) -> bool {
        if !self.last_seen.contains_key(&key) {
            let of_device = self.by_device.len_of(&key.device);
            if of_device >= MAX_PER_DEVICE || self.last_seen.len() >= MAX_TRACKED {
                return false;
            }
            self.by_device.insert(key.device, key);
        }
        let last = self.last_seen.entry(key).or_insert(at);
        *last = at.max(*last);
        true
    }

    pub(crate) fn remove(&mut self, key: &AnomalyKey) {
        self.last_seen.remove(key);
        self.by_device.remove(key.device, key);
    }

    /// The anomalies about one address, and when the last frame of each was seen.
    pub(crate) fn of(&self, address: IpAddr) -> Vec<(AnomalyKey, Timestamp)> {
        let of_kind = |kind| {
            self.last_seen
                .range(AnomalyKey::of(kind, address)..)
                .take_while(move |(key, _)| (key.kind, key.address) == (kind, address))
        };
        KINDS
            .into_iter()
            .flat_map(of_kind)
            .map(|(key, last)| (*key, *last))
            .collect()
    }

    /// The anomaly of the router on a device.
    pub(crate) fn router(&self, device: DeviceKey) -> Option<AnomalyKey> {
        let mut of_device = self.by_device.of(&Some(device));
        of_device
            .find(|key| key.kind == AnomalyKind::RogueRouter)
            .copied()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &AnomalyKey> {
        self.last_seen.keys()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.last_seen.is_empty()
    }
}

/// An anomaly is resolved after this time without a frame.
pub(crate) fn quiet_after(kind: AnomalyKind) -> Duration {
    match kind {
        // The longest time between two advertisements of a router (MaxRtrAdvInterval, RFC 4861 section 6.2.1).
        AnomalyKind::RogueRouter => Duration::from_secs(1800),
        // A pod that has nothing to send does not ask either.
        _ => Duration::from_secs(60),
    }
}

impl AnomalyKey {
    /// The key of an anomaly of frames: one for each device, VLAN and address.
    pub(crate) fn of_frames(
        kind: AnomalyKind,
        address: IpAddr,
        device: DeviceKey,
        vlan: Vlan,
    ) -> Self {
        Self {
            device: Some(device),
            vlan,
            ..Self::of(kind, address)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kind: AnomalyKind, device: DeviceKey, n: usize) -> AnomalyKey {
        let [high, low] = u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes();
        let address = IpAddr::from([10, 0, high, low]);
        AnomalyKey::of_frames(kind, address, device, Vlan::default())
    }

    #[test]
    fn what_is_removed_makes_room_for_its_device() {
        let mut frames = DeviceFrames::default();
        let gateway = |device, n| key(AnomalyKind::GatewayUnresolved, device, n);
        let (device, other) = ((1, 1), (1, 2));
        for n in 0..MAX_PER_DEVICE {
            assert!(frames.record(gateway(device, n), Timestamp(1)));
            // The same again is no further one.
            assert!(frames.record(gateway(device, n), Timestamp(2)));
        }
        let router = key(AnomalyKind::RogueRouter, device, 0);
        assert!(!frames.record(router, Timestamp(1)));
        assert!(frames.record(gateway(other, 0), Timestamp(1)));
        assert_eq!(frames.router(device), None);
        frames.remove(&gateway(device, 7));
        frames.remove(&gateway(device, 7));
        assert!(frames.record(router, Timestamp(1)));
        assert_eq!(frames.router(device), Some(router));
        assert_eq!(frames.router(other), None);
        let keys: Vec<_> = frames.keys().copied().collect();
        assert_eq!(keys.len(), MAX_PER_DEVICE + 1);
        for key in keys {
            frames.remove(&key);
        }
        assert!(frames.is_empty() && frames.by_device.is_empty());
    }
}
