//! Host routes of live addresses that lead to no claimant (`route_astray`).

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

/// Where a host route leads that leads to no claimant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StrayTarget {
    /// To this device.
    Device(String),
    /// Nowhere: it discards or rejects packets.
    Discarded,
    /// There is none any more.
    Gone,
}

impl Anomalies {
    /// Addresses whose host route leads or led to a claimant, or leads to none.
    pub(crate) fn routed_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.routed.iter().chain(self.stray_since.keys()).copied()
    }

    /// Whether the host route of an address is tracked.
    pub(crate) fn tracks_route(&self, address: IpAddr) -> bool {
        self.routed.contains(&address) || self.stray_since.contains_key(&address)
    }

    /// The host route of a live address leads to a claimant, or it has none and needs none.
    pub(crate) fn host_route_correct(
        &mut self,
        address: IpAddr,
        by_host_route: bool,
        step: &mut Step<'_>,
    ) {
        if by_host_route && self.routed.len() < self.settings.bounds.kernel_entries {
            self.routed.insert(address);
        }
        self.stray_since.remove(&address);
        let key = AnomalyKey::of(AnomalyKind::RouteAstray, address);
        match by_host_route {
            true => self.end(&key, ResolveReason::RouteRight, step),
            false => self.resolve(&key, ResolveReason::RouteRight, step),
        }
    }

    /// The host route of an address was replaced by one that is not judged.
    pub(crate) fn stop_tracking_route(&mut self, address: IpAddr) {
        self.routed.remove(&address);
    }

    /// No pod holds the address any more.
    pub(crate) fn host_route_unneeded(&mut self, address: IpAddr, step: &mut Step<'_>) {
        self.routed.remove(&address);
        self.stray_since.remove(&address);
        let key = AnomalyKey::of(AnomalyKind::RouteAstray, address);
        self.resolve(&key, ResolveReason::AddressGone, step);
    }

    /// The host route of a live address leads to `target`, which is no claimant.
    pub(crate) fn host_route_stray(
        &mut self,
        address: IpAddr,
        target: StrayTarget,
        holders: &[Claimant],
        step: &mut Step<'_>,
    ) {
        let key = AnomalyKey::of(AnomalyKind::RouteAstray, address);
        let leads_nowhere = !matches!(target, StrayTarget::Device(_));
        if self.is_open(&key) || (leads_nowhere && !self.routed.contains(&address)) {
            return;
        }
        let grace = self.settings.anomalies.stray_route_grace;
        if !self.has_lasted(|a| &mut a.stray_since, address, grace, step.now) {
            return;
        }
        let on = first_device(holders);
        let (cause, detail) = match target {
            StrayTarget::Device(device) => (
                AnomalyCause::OtherDevice,
                format!(
                    "{address} is in use on {on}, but the host route for it leads to {device}: its packets do not arrive"
                ),
            ),
            StrayTarget::Discarded => (
                AnomalyCause::RouteGone,
                format!(
                    "{address} is in use on {on}, but the host route for it discards or rejects its packets: they do not arrive"
                ),
            ),
            StrayTarget::Gone => (
                AnomalyCause::RouteGone,
                format!(
                    "{address} is in use on {on}, but the host route to it is gone: its packets do not arrive"
                ),
            ),
        };
        let details = AnomalyDetails::new(cause, holders.to_vec(), detail);
        self.raise(key, details, step);
    }
}
