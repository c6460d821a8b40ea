//! Why the node does not answer for a gateway, and where a route leads.

use super::Proof;
use crate::diagnosis::{
    facts::{DeviceSysctls, Facts, RouteHolder},
    text::evidence,
};

/// RFC 3704: packets are accepted only on the device that the route to their source leads to.
const STRICT: u8 = 1;

/// Whether the filter drops what comes from an address whose route leads to another device. On a device without an address, each mode
/// of it does (net/ipv4/fib_frontend.c, `__fib_validate_source`).
fn drops_strays(sysctls: DeviceSysctls) -> bool {
    sysctls.rp_filter == STRICT || sysctls.rp_filter != 0 && !sysctls.has_address
}

/// Whether the route to the pod's address leads to it; `None` if there is no route, or that was not checked.
fn is_route_to_pod(facts: &Facts) -> Option<bool> {
    let route = facts.route.value()?;
    let mut claimants = facts.claimants.iter();
    Some(claimants.any(|claimant| claimant.is_reached_by(&route.device)))
}

pub(super) fn filter_drops_requests(facts: &Facts) -> Option<Proof> {
    let sysctls = facts.sysctls.value()?;
    let is_dropped = is_route_to_pod(facts) == Some(false) && drops_strays(*sysctls);
    let since = facts.route.value().and_then(|route| route.changed_at);
    let loose = (sysctls.rp_filter != STRICT).then(evidence::no_address);
    let evidence = [
        evidence::route(facts),
        evidence::rp_filter(facts),
        loose.flatten(),
    ];
    is_dropped.then(|| Proof::of_claimants(since, evidence))
}

pub(super) fn filter_passes_requests(facts: &Facts) -> bool {
    let sysctls = facts.sysctls.value();
    is_route_to_pod(facts) == Some(true) || sysctls.is_some_and(|sysctls| !drops_strays(*sysctls))
}

/// Whether the node would answer for the gateway, as far as that depends on routes.
fn is_gateway_reached(facts: &Facts) -> Option<bool> {
    if facts.gateway_on_node.value().is_some() {
        return Some(true);
    }
    // Proxy ARP answers only for what is routed to another device.
    let leads_back = |device: &str| facts.claimants.iter().any(|c| c.is_reached_by(device));
    let is_routed = match facts.gateway_route.value() {
        Some(route) => !leads_back(&route.device),
        None if facts.gateway_route.is_absent() => false,
        None => return None,
    };
    (is_routed || facts.gateway_on_node.is_absent()).then_some(is_routed)
}

pub(super) fn node_has_no_route(facts: &Facts) -> Option<Proof> {
    let evidence = if is_gateway_reached(facts) == Some(false) {
        [
            evidence::gateway_route(facts),
            evidence::gateway_on_node(facts),
        ]
    } else if facts.route.is_absent() && facts.sysctls.value()?.rp_filter != 0 {
        // Each mode of the filter drops what comes from an address without a route.
        [evidence::route(facts), evidence::rp_filter(facts)]
    } else {
        return None;
    };
    Some(Proof::of_claimants(None, evidence))
}

pub(super) fn node_has_routes(facts: &Facts) -> bool {
    facts.route.value().is_some() && is_gateway_reached(facts) == Some(true)
}

pub(super) fn proxy_arp_is_off(facts: &Facts) -> Option<Proof> {
    let sysctls = facts.sysctls.value()?;
    let is_off = !sysctls.proxy_arp && facts.gateway_on_node.is_absent();
    let evidence = [evidence::proxy_arp(facts), evidence::gateway_on_node(facts)];
    is_off.then(|| Proof::of_claimants(None, evidence))
}

pub(super) fn node_answers_for_gateway(facts: &Facts) -> bool {
    let sysctls = facts.sysctls.value();
    facts.gateway_on_node.value().is_some() || sysctls.is_some_and(|sysctls| sysctls.proxy_arp)
}

/// Who the device of a route that does not lead to the pod belongs to.
fn holder_of_stray_route(facts: &Facts) -> Option<&RouteHolder> {
    let holder = facts.route.value()?.holder.value()?;
    (is_route_to_pod(facts) == Some(false)).then_some(holder)
}

fn route(facts: &Facts) -> Proof {
    let since = facts.route.value().and_then(|route| route.changed_at);
    let evidence = [evidence::route(facts), evidence::route_holder(facts)];
    Proof::of_claimants(since, evidence)
}

fn leads_to_deleted_pod(facts: &Facts) -> bool {
    holder_of_stray_route(facts) == Some(&RouteHolder::DeletedPod)
}

fn leads_to_other_pod(facts: &Facts) -> bool {
    matches!(holder_of_stray_route(facts), Some(RouteHolder::Pod(_)))
}

pub(super) fn route_leads_to_deleted_pod(facts: &Facts) -> Option<Proof> {
    leads_to_deleted_pod(facts).then(|| route(facts))
}

pub(super) fn route_does_not_lead_to_deleted_pod(facts: &Facts) -> bool {
    has_other_route(facts) && !leads_to_deleted_pod(facts)
}

pub(super) fn route_leads_to_other_pod(facts: &Facts) -> Option<Proof> {
    leads_to_other_pod(facts).then(|| route(facts))
}

pub(super) fn route_does_not_lead_to_other_pod(facts: &Facts) -> bool {
    has_other_route(facts) && !leads_to_other_pod(facts)
}

/// Whether there is no route, or it is known where it leads.
fn has_other_route(facts: &Facts) -> bool {
    let route = facts.route.value();
    facts.route.is_absent() || route.is_some_and(|route| route.holder.value().is_some())
}
