//! Anomalies: what is not yet a conflict but will be one, or what already costs a pod its traffic without one.
//!
//! IPAM's books ([`Pool`]) are compared with the addresses that pods hold: a live address that IPAM counts as free is
//! the next pod's too (`ipam_drift`), a reservation that nobody uses is lost to all (`ipam_leak`). The other two kinds
//! need no IPAM: a pod whose gateway does not answer (`gateway_unresolved`), and a host route that leads past whoever
//! holds the address (`route_astray`).
//!
//! Invariants: no I/O and no clock; an anomaly is raised once and resolved once and keeps its id in between; nothing is
//! raised by books that were read before the address they are compared with was seen; everything is bounded.

mod allocations;
mod gateways;
mod lifecycle;
mod model;
mod pools;
mod routes;

pub(super) use gateways::QUIET;
pub(super) use lifecycle::{Anomalies, AnomalyDetails, AnomalyKey};
pub use model::{Anomaly, AnomalyCause, AnomalyEffect, AnomalyId, AnomalyKind, ResolveReason};
pub use pools::{
    Allocation, ChangedAddresses, Completeness, Coverage, Ipam, Pool, PoolId, PoolSource,
    PoolUpdate,
};
