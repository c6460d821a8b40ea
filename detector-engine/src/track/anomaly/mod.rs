//! Anomalies: states that lead to a conflict, or that cost a pod its traffic without one
//! (`docs/detection-rules.md`, section 14).
//!
//! IPAM's allocations ([`Pool`](crate::Pool)) are compared with the addresses that pods hold: a live address
//! that IPAM counts as free may be given to the next pod too (`ipam_drift`); an allocation that no
//! pod uses shrinks the pool (`ipam_leak`). The other kinds need no IPAM: a pod that
//! requests its gateway again and again (`gateway_unresolved`), a host route that does not lead to the holder of the
//! address (`route_astray`), an address that its pod cannot use (`address_unusable`), a device that
//! contests many addresses (`address_sweep`), one that sends router advertisements (`rogue_router`),
//! and a hardware address that two pods have (`mac_duplicate`) or that was learned on another port
//! than its pod's (`mac_moved`). A range that
//! several nodes have (`pod_cidr_overlap`) is found by the fleet, not by the engine.
//!
//! Invariants: no I/O and no clock; an anomaly is raised once and resolved once and keeps its id in
//! between; allocations that were read before an address was first seen raise nothing about it;
//! everything is bounded.

mod allocations;
mod contests;
mod device_frames;
mod lifecycle;
mod macs;
mod restored;
mod routes;
mod sweep;
mod unusable;

pub(crate) use device_frames::quiet_after;
pub(crate) use lifecycle::{Anomalies, AnomalyDetails, AnomalyKey};
pub(crate) use macs::{MacFault, MacKey};
pub(crate) use routes::StrayTarget;
