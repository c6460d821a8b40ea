//! The detection engine: a pure state machine without I/O and without a clock of its own.
//!
//! [`Engine::step`] takes one [`Observation`] and returns [`Effect`]s: also what pods, IPAM and the clock say is an observation.
//! [`Engine::next_deadline`] says when the next one is due at the latest. [`Engine::view`] looks at what it holds; what others follow is
//! taken after a step (`take_…`). The flow is
//!
//! 1. **observation** ([`observation`]): a change of the kernel's state, a frame, or a snapshot;
//! 2. **facts** ([`facts`], [`links`], [`topology`], [`bridge`], [`routes`]): the observation updates them and
//!    marks the affected addresses dirty (`step/claims.rs`, `step/topology.rs`, `step/merge.rs`);
//! 3. **claimants** ([`claimants`], [`bridge_entries`], [`beginning`], [`dedup`]): for each dirty address they are derived from the
//!    facts;
//! 4. **decision** (`step/decide.rs`): which conflict, if any, the claimants of a scope are;
//! 5. **lifecycle** ([`lifecycle`], [`moves`], [`anomaly`]): the decision is compared with what is
//!    open;
//! 6. **effects**: the difference, as raised, updated and resolved conflicts and anomalies, and
//!    jobs for the attach worker and the IPAM watcher.
//!
//! Claims are never stored, only counted. The same facts give the same claims in whatever order
//! they arrived, which makes a resync equal to a fresh start. [`route_lookups`] holds what the
//! kernel answered about the addresses in conflict. What may end without an observation is
//! scheduled in [`expiry`]; [`in_flight_snapshots`] lets live updates take precedence over an older
//! snapshot; [`refusals`] requests again what was refused at bounds; [`claimed_addresses`] is what the
//! kernel programs know of the claims.
//!
//! The rules are described in `docs/detection-rules.md`.

mod anomaly;
mod beginning;
mod bridge;
mod bridge_entries;
mod change_budget;
mod claimants;
mod claimed_addresses;
mod cni_networks;
mod conflict;
mod conflict_room;
mod counts;
mod dedup;
mod evidence;
mod evidence_detail;
mod expiry;
mod facts;
mod further_reads;
#[doc(hidden)]
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod hash;
mod ids;
mod in_flight_snapshots;
mod kernel_objects;
mod known_pod;
mod lifecycle;
mod links;
mod mirror;
mod moves;
mod network;
mod observation;
mod record;
mod refusals;
mod repeats;
mod route_lookups;
mod route_query;
mod routes;
mod scope;
mod self_check;
mod settings;
mod small_set;
mod snapshot;
mod step;
#[cfg(test)]
mod tests;
mod topology;
mod tracked_conflict;
mod traffic_receiver;

pub use anomaly::{
    Allocation, Anomaly, AnomalyCause, AnomalyEffect, AnomalyId, AnomalyKind, ChangedAddresses,
    Completeness, Contested, Coverage, Ipam, Pool, PoolId, PoolPart, PoolRequest, PoolSource,
    PoolUpdate, RangeOverlap, ResolveReason,
};
pub use beginning::{Beginning, UnknownBeginning};
pub use claimed_addresses::{AddressHolder, ClaimedUpdate, MAX_CLAIMED_ADDRESSES};
pub use conflict::*;
pub use evidence_detail::EvidenceDetail;
pub use facts::MAX_ASSIGNMENTS;
pub use known_pod::KnownPod;
pub use links::PodDevice;
pub use network::{Network, NotANetwork};
pub use observation::*;
pub use record::OpenConflict;
pub use refusals::BoundKind;
pub use route_query::{
    BridgePath, BridgePort, RouteAnswers, RouteQuery, RouteTarget, RoutingChange,
};
pub use self_check::{Difference, Discrepancy};
pub use settings::{AnomalyRules, Bounds, SWEEP_FROM, Settings};
pub use snapshot::*;
pub use step::{
    BoundReached, CertainClaim, DropCounters, Effect, Engine, ListedClaim, RereadReason, View,
};
