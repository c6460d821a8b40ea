//! Routes, and the kernel's answers about where packets go. None of them is a claim.

use std::net::IpAddr;

use crate::{
    limits::reads::ReadTarget,
    mirror::{StoreOutcome, routes::Routes},
    model::{
        BoundKind, IfIndex, Route, RouteAnswers, RoutePlace, RouteQuery, RoutingChange,
        is_link_local,
    },
    step::Engine,
};

impl Engine {
    /// Takes up to `limit` queries for the kernel, those that wait longest first: about addresses in
    /// conflict without an answer, or with one that something changed may have
    /// outdated. The answers are due as one [`Observation::RoutesLookedUp`].
    ///
    /// [`Observation::RoutesLookedUp`]: crate::Observation::RoutesLookedUp
    pub fn take_route_lookups(&mut self, limit: usize) -> Vec<RouteQuery> {
        self.mirror.route_lookups.take(limit)
    }

    pub(super) fn routes_looked_up(&mut self, answers: RouteAnswers) {
        self.dirty.extend(self.mirror.route_lookups.finish(answers));
    }

    pub(super) fn routing_changed(&mut self, change: RoutingChange) {
        match change {
            RoutingChange::Replaced(place) => {
                if let Some(route) = self.mirror.routes.first_at(place) {
                    self.route_gone(&route);
                    // Where its successor leads is not known.
                    self.tracked
                        .anomalies
                        .stop_tracking_route(place.destination);
                }
            }
            RoutingChange::Policy | RoutingChange::Destination(..) | RoutingChange::Port(_) => {}
        }
    }

    /// A route was added; without a place it replaces another one.
    pub(super) fn route(&mut self, route: Route, place: Option<RoutePlace>) {
        let bound = self.settings.bounds.kernel_entries;
        let outcome = match place {
            Some(place) => self.mirror.routes.add(route, place, bound),
            None => self.mirror.routes.replace(route, bound),
        };
        match outcome {
            StoreOutcome::Changed => {}
            StoreOutcome::Known | StoreOutcome::Outdated => return,
            StoreOutcome::Refused => {
                self.drops.kernel_entries += 1;
                self.refused(ReadTarget::Node, BoundKind::Routes);
            }
        }
        self.mark_host_route_dirty(&route);
        self.mark_open_dirty(|address| Routes::covers(&route, address));
    }

    pub(super) fn route_gone(&mut self, route: &Route) {
        if self.mirror.routes.remove(route) {
            self.mark_host_route_dirty(route);
            self.mark_open_dirty(|address| Routes::covers(route, address));
        }
    }

    /// The kernel drops the routes of a link that is removed or down, and the next hops over it,
    /// without a notification.
    pub(super) fn remove_link_routes(&mut self, ifindex: IfIndex) {
        self.mirror.route_lookups.request_all();
        self.mark_routed_link_local_dirty(ifindex);
        if self.mirror.routes.remove_link(ifindex) {
            self.dirty.extend(self.tracked.anomalies.routed_addresses());
            self.mark_open_dirty(|_| true);
        }
    }

    /// A host route to a pod device decides in which network a link-local address is.
    pub(super) fn mark_routed_link_local_dirty(&mut self, ifindex: IfIndex) {
        let routed = self.mirror.routes.host_routes_to(ifindex);
        self.dirty
            .extend(routed.filter(|address| is_link_local(*address)));
    }

    /// A host route changed: check whether it leads to a claimant.
    fn mark_host_route_dirty(&mut self, route: &Route) {
        if route.is_to_host() {
            self.dirty.insert(route.destination);
        }
    }

    fn mark_open_dirty(&mut self, which: impl Fn(IpAddr) -> bool) {
        let open = self.tracked.lifecycle.open().map(|(_, c)| c.address);
        self.dirty.extend(open.filter(|a| which(*a)));
    }
}
