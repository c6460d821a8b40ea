//! Addresses that pods have and cannot use, although nothing conflicts with them any more (`address_unusable`).
//!
//! IPv6 duplicate address detection that failed leaves the address on the interface, and Linux neither uses it nor tries again
//! (`addrconf_dad_stop` in `net/ipv6/addrconf.c`).

use std::net::IpAddr;

use crate::{
    model::{AnomalyCause, AnomalyKind, Claimant, ResolveReason},
    track::{
        Step,
        anomaly::{
            allocations::first_device,
            lifecycle::{Anomalies, AnomalyDetails, AnomalyKey},
        },
    },
};

impl Anomalies {
    /// Whether an address is unusable in a pod, or was when it was last checked.
    pub(crate) fn tracks_unusable(&self, address: IpAddr) -> bool {
        self.unusable_since.contains_key(&address)
    }

    /// An address that failed duplicate address detection is on these devices, and in no conflict.
    pub(crate) fn address_unusable(
        &mut self,
        address: IpAddr,
        holders: Vec<Claimant>,
        step: &mut Step<'_>,
    ) {
        let key = AnomalyKey::of(AnomalyKind::AddressUnusable, address);
        let grace = self.settings.anomalies.stray_route_grace;
        if self.is_open(&key)
            || !self.has_lasted(|a| &mut a.unusable_since, address, grace, step.now)
        {
            return;
        }
        let on = first_device(&holders);
        let detail = format!(
            "duplicate address detection of {address} failed on {on}, and no other claim of it is known any more: the pod cannot use the address until it is added again"
        );
        let details = AnomalyDetails::new(AnomalyCause::DadFailed, holders, detail);
        self.raise(key, details, step);
    }

    /// No pod has the address in that state.
    pub(crate) fn address_not_unusable(
        &mut self,
        address: IpAddr,
        reason: ResolveReason,
        step: &mut Step<'_>,
    ) {
        self.unusable_since.remove(&address);
        let key = AnomalyKey::of(AnomalyKind::AddressUnusable, address);
        self.resolve(&key, reason, step);
    }
}
