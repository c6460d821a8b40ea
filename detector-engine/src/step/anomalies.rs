//! Compares facts with IPAM's allocations and with the routes, and passes the result to
//! [`Anomalies`](crate::track::anomaly).

use std::net::IpAddr;

use crate::{
    mirror::links::LinkState,
    model::{
        Anomaly, AnomalyKind, Claimant, ClaimantId, EvidenceDetail, IfIndex, NODE_WIDE, NetworkId,
        PoolUpdate, ResolveReason, Route, Timestamp,
    },
    step::Engine,
    track::{Step, anomaly::StrayTarget},
};

impl Engine {
    /// What an IPAM has allocated became known or changed.
    pub(super) fn update_pool(&mut self, update: PoolUpdate, step: &mut Step<'_>) {
        let changed = self.tracked.anomalies.update_pool(update);
        if !self.mirror.is_complete {
            return;
        }
        let addresses = changed.unwrap_or_else(|| {
            let mut addresses = self.tracked.anomalies.addresses();
            addresses.extend(self.mirror.facts.addresses());
            addresses
        });
        for address in addresses {
            if self.tracked.lifecycle.has_open(address) {
                // Whose the allocation is matters for its claimants.
                self.dirty.insert(address);
            } else {
                self.check_anomalies(address, step);
            }
        }
    }

    /// A full snapshot is merged: from now on, what is not known does not exist.
    pub(super) fn mark_full_snapshot(&mut self, at: Timestamp) {
        if !self.mirror.is_complete {
            self.mirror.is_complete = true;
            self.continue_sweeps(at);
            self.continue_routers(at);
            self.tracked.anomalies.on_full_snapshot(at);
            self.dirty.extend(self.mirror.facts.addresses());
            self.dirty.extend(self.tracked.anomalies.addresses());
        }
    }

    pub(super) fn expire_anomalies(&mut self, step: &mut Step<'_>) {
        let step = &mut step.by_time();
        while let Some(address) = self.tracked.anomalies.pop_due(step.now) {
            self.check_anomalies(address, step);
        }
        self.tracked.anomalies.expire_restored(step);
    }

    /// Checks one address for anomalies.
    pub(super) fn check_anomalies(&mut self, address: IpAddr, step: &mut Step<'_>) {
        if !self.mirror.is_complete {
            return;
        }
        self.end_restored(address, step);
        self.check_device_frames(address, step);
        self.check_unusable(address, step);
        let links = &self.mirror.links;
        let in_main = |table| links.domain_of_table(table) == NetworkId::Node;
        let host_route = self.mirror.routes.host_route(address, in_main);
        let routes_matter = host_route.is_some() || self.tracked.anomalies.tracks_route(address);
        let allocation_matters =
            self.tracked.anomalies.has_pools() || self.tracked.anomalies.tracks_allocation(address);
        if !routes_matter && !allocation_matters {
            return;
        }
        let mut derived = self.claim_context().derive(address, step.now);
        // The node may have it reserved for itself.
        let in_use = derived
            .values()
            .flatten()
            .any(|c| c.id == ClaimantId::Host || self.is_holder(address, c));
        let mut holders = derived.remove(&NODE_WIDE).unwrap_or_default();
        let context = self.claim_context();
        let receiver = context.derived_receiver(address, NODE_WIDE, &holders);
        let mut is_reachable = receiver.is_some();
        holders.retain(|claimant| self.is_holder(address, claimant));
        if self.settings.is_allowed(address) {
            // It moves, and usually comes from no pool: any holder is legitimate.
            (holders, is_reachable) = (Vec::new(), false);
        }
        if routes_matter {
            self.check_host_route(address, host_route, &holders, is_reachable, step);
        }
        let (links, facts) = (&self.mirror.links, &self.mirror.facts);
        // A pod whose addresses cannot be seen may have it.
        let is_unknown = |link: &LinkState| {
            let is_bare = || link.link.peer.is_none_or(|peer| facts.is_bare(peer));
            link.is_pod() && (!link.is_namespace_readable() || is_bare())
        };
        let has_unknown_addresses = || links.iter().any(is_unknown);
        let pod_of = |sandbox: &str| links.pod_of_sandbox(sandbox);
        self.tracked
            .anomalies
            .check_drift(address, &holders, pod_of, step);
        self.tracked
            .anomalies
            .check_leak(address, in_use, has_unknown_addresses, step);
    }

    /// Resolves what the previous run left open about an address, if its device is gone and no other one can have it.
    fn end_restored(&mut self, address: IpAddr, step: &mut Step<'_>) {
        let (links, facts) = (&self.mirror.links, &self.mirror.facts);
        let is_there = |holder: &Claimant| {
            let link = links.get(holder.ifindex);
            !links.is_complete() || link.is_some_and(|link| link.link.name == holder.device)
        };
        let ended = |anomaly: &Anomaly| {
            if anomaly.holder.as_ref().is_none_or(is_there) {
                return None;
            }
            match anomaly.kind {
                AnomalyKind::IpamDrift | AnomalyKind::RouteAstray => {
                    let is_gone = facts.get(address).is_none();
                    is_gone.then_some(ResolveReason::AddressGone)
                }
                AnomalyKind::GatewayUnresolved | AnomalyKind::RogueRouter => {
                    Some(ResolveReason::DeviceGone)
                }
                _ => None,
            }
        };
        self.tracked.anomalies.end_restored(address, ended, step);
    }

    /// Checks whether pods have the address and cannot use it, and nothing conflicts with it.
    fn check_unusable(&mut self, address: IpAddr, step: &mut Step<'_>) {
        let facts = self.mirror.facts.get(address);
        let has_failed = facts.is_some_and(|f| {
            f.assigned
                .iter()
                .any(|a| a.info().is_some_and(|info| info.dad_failed))
        });
        if !has_failed && !self.tracked.anomalies.tracks_unusable(address) {
            return;
        }
        let mut holders = Vec::new();
        let mut reason = ResolveReason::AddressGone;
        for (scope, claimants) in self.claim_context().derive(address, step.now) {
            let mut assigned = claimants;
            assigned.retain(|c| matches!(c.id, ClaimantId::Device(..)) && c.has_address());
            let is_failed = |c: &Claimant| {
                let mut evidence = c.evidence.iter();
                evidence.any(|e| e.detail == Some(EvidenceDetail::DadFailed))
            };
            if self
                .tracked
                .lifecycle
                .open_of(address)
                .any(|(open, _)| open == scope)
            {
                reason = ResolveReason::InConflict;
            } else if assigned.iter().any(is_failed) {
                holders.extend(assigned.into_iter().filter(is_failed));
            } else if !assigned.is_empty() && reason == ResolveReason::AddressGone {
                reason = ResolveReason::Usable;
            }
        }
        if holders.is_empty() {
            self.tracked
                .anomalies
                .address_not_unusable(address, reason, step);
        } else {
            self.tracked
                .anomalies
                .address_unusable(address, holders, step);
        }
    }

    /// Checks whether the host route leads to a claimant. Wider routes are not judged: many plugins
    /// have no route for each pod.
    fn check_host_route(
        &mut self,
        address: IpAddr,
        host_route: Option<IfIndex>,
        holders: &[Claimant],
        is_reachable: bool,
        step: &mut Step<'_>,
    ) {
        if holders.is_empty() {
            self.tracked.anomalies.host_route_unneeded(address, step);
            return;
        }
        let target = host_route.and_then(|out| self.mirror.links.get(out));
        // Claimants behind a bridge, or in a pod whose addresses cannot be seen, are not known well
        // enough.
        let context = self.claim_context();
        let is_ambiguous = target.is_some_and(|link| {
            self.mirror.links.is_bridge(link.link.ifindex)
                || (link.is_pod() && !context.is_authoritative(link, address))
        });
        if is_reachable || is_ambiguous {
            let by_host_route = is_reachable && host_route.is_some();
            self.tracked
                .anomalies
                .host_route_correct(address, by_host_route, step);
            return;
        }
        let target = match target {
            Some(link) => StrayTarget::Device(link.link.name.clone()),
            None if host_route == Some(Route::NOWHERE) => StrayTarget::Discarded,
            None => StrayTarget::Gone,
        };
        self.tracked
            .anomalies
            .host_route_stray(address, target, holders, step);
    }

    /// Whether a claimant is a pod that surely holds the address: it is assigned, the node has a
    /// permanent neighbour entry, or the namespace is not authoritative and there is other evidence.
    fn is_holder(&self, address: IpAddr, claimant: &Claimant) -> bool {
        let context = self.claim_context();
        let is_unknown = |link: &LinkState| !context.is_authoritative(link, address);
        match claimant.id {
            ClaimantId::Device(ifindex, _) => {
                claimant.is_certain() || self.mirror.links.pod(ifindex).is_some_and(is_unknown)
            }
            ClaimantId::BehindBridge(..) | ClaimantId::Host | ClaimantId::Registered(_) => false,
        }
    }
}

/// A device as the holder of an anomaly that concerns the device rather than a claim.
pub(super) fn device_as_holder(link: &LinkState) -> Claimant {
    let (name, ifindex) = (link.link.name.clone(), link.link.ifindex);
    Claimant {
        mac: link.peer_mac,
        peer: link.link.peer,
        ..Claimant::new(link.id(), name, ifindex, link.since)
    }
}
