//! What the kernel and IPAM have, as far as they were observed.

pub(crate) mod bridge;
pub(crate) mod cni_networks;
pub(crate) mod facts;
pub(crate) mod links;
pub(crate) mod pools;
pub(crate) mod route_lookups;
pub(crate) mod routes;
pub(crate) mod topology;

use crate::{
    mirror::{
        bridge::Fdb, facts::Facts, links::Links, route_lookups::RouteLookups, routes::Routes,
    },
    model::Bounds,
};

/// The result of storing something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreOutcome {
    /// What follows from it may have changed.
    Changed,
    /// It was known; at most its times changed.
    Known,
    /// It is older than what ended it.
    Outdated,
    /// Rejected at a bound.
    Refused,
}

/// What the kernel has, as far as it was reported. Claims are derived from it ([`ClaimContext`](crate::rules::claimants::ClaimContext)).
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    /// The devices, and who is at their other end.
    pub(crate) links: Links,
    /// What was seen of each address.
    pub(crate) facts: Facts,
    /// The forwarding tables of bridges.
    pub(crate) fdb: Fdb,
    /// The routes that matter for pods.
    pub(crate) routes: Routes,
    /// Where the kernel sends packets for addresses in conflict.
    pub(crate) route_lookups: RouteLookups,
    /// A snapshot of the whole node was merged at least once: what is not known does not exist.
    pub(crate) is_complete: bool,
}

impl Mirror {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            facts: Facts::new(bounds),
            ..Self::default()
        }
    }
}
