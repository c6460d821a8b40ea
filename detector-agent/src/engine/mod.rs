//! Pure detection: facts, claims, rules and the life of a conflict. No I/O, and no clock of its own.
//!
//! [`Engine::step`] takes one [`Observation`] and says what follows from it. Inside, the way is straight:
//! the observation changes *facts* ([`facts`], [`links`], [`bridge`], [`routes`]), the changed addresses are
//! *derived* anew into claimants ([`claimants`], [`dedup`]), and the difference to what was reported before becomes
//! effects ([`lifecycle`], [`moves`]). Claims are never stored: whatever order facts arrive in, the same facts give
//! the same claims, which is what makes a resync equal to a fresh start.

mod anomaly;
mod bridge;
mod claimants;
mod conflict;
mod dedup;
mod evidence;
mod expiry;
mod facts;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod in_flight_snapshots;
mod lifecycle;
mod links;
mod moves;
mod observation;
mod record;
mod routes;
mod scope;
mod settings;
mod step;
#[cfg(test)]
mod tests;

pub use anomaly::{
    Allocation, Anomaly, AnomalyCause, AnomalyEffect, AnomalyId, AnomalyKind, ChangedAddresses,
    Completeness, Coverage, Ipam, Pool, PoolId, PoolSource, PoolUpdate, ResolveReason,
};
pub use conflict::*;
pub use links::PodDevice;
pub use observation::*;
pub use record::OpenConflict;
pub use settings::{AnomalyRules, Bounds, Settings};
pub use step::{DropCounters, Effect, Engine, ListedClaim};
