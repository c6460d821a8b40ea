//! Host routes of live addresses that lead past their claimants.

use std::net::IpAddr;

use super::{
    super::{conflict::Claimant, lifecycle::Moment, settings::Bounds},
    allocations::first_device,
    lifecycle::{Anomalies, Key, News},
    model::{AnomalyCause, AnomalyEffect, AnomalyKind, ResolveReason},
};

impl Anomalies {
    /// Addresses whose host route leads to a claimant, did so, or leads past them.
    pub(in crate::engine) fn with_routes(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.routed.iter().chain(self.astray.keys()).copied()
    }

    /// Whether anything is known of an address as far as routes go.
    pub(in crate::engine) fn follows_route(&self, address: IpAddr) -> bool {
        self.routed.contains(&address) || self.astray.contains_key(&address)
    }

    /// The host route of a live address leads to a claimant, if it has one.
    pub(in crate::engine) fn route_right(
        &mut self,
        address: IpAddr,
        by_host_route: bool,
        at: Moment,
        bounds: &Bounds,
        said: &mut Vec<AnomalyEffect>,
    ) {
        if by_host_route && self.routed.len() < bounds.kernel_entries {
            self.routed.insert(address);
        }
        self.astray.remove(&address);
        let key = Key::of(AnomalyKind::RouteAstray, address);
        self.resolve(&key, ResolveReason::RouteRight, at, said);
    }

    /// Nobody holds the address any more.
    pub(in crate::engine) fn route_over(
        &mut self,
        address: IpAddr,
        at: Moment,
        said: &mut Vec<AnomalyEffect>,
    ) {
        self.routed.remove(&address);
        self.astray.remove(&address);
        let key = Key::of(AnomalyKind::RouteAstray, address);
        self.resolve(&key, ResolveReason::AddressGone, at, said);
    }

    /// The host route of a live address leads to none of its claimants: `instead`, or nowhere any more.
    pub(in crate::engine) fn route_astray(
        &mut self,
        address: IpAddr,
        instead: Option<String>,
        holders: &[Claimant],
        at: Moment,
        bounds: &Bounds,
        said: &mut Vec<AnomalyEffect>,
    ) {
        let key = Key::of(AnomalyKind::RouteAstray, address);
        if self.is_open(&key) || (instead.is_none() && !self.routed.contains(&address)) {
            return;
        }
        let grace = self.rules.stray_route_grace;
        if !self.has_lasted(|a| &mut a.astray, address, grace, at.now, bounds) {
            return;
        }
        let on = first_device(holders);
        let (cause, detail) = match instead {
            Some(device) => (
                AnomalyCause::OtherDevice,
                format!(
                    "{address} is in use on {on}, but the host's route for it leads to {device}: its packets do not arrive"
                ),
            ),
            None => (
                AnomalyCause::RouteGone,
                format!(
                    "{address} is in use on {on}, but the host's route to it is gone: its packets do not arrive"
                ),
            ),
        };
        let news = News {
            cause,
            holders: holders.to_vec(),
            source: None,
            owner: None,
            detail,
        };
        self.raise(key, news, at, bounds, said);
    }
}
