//! The detection engine: a pure state machine without I/O and without a clock of its own.
//!
//! [`Engine::step`] takes one [`Observation`] and returns [`Effect`]s: also what pods, IPAM and the clock say is an observation.
//! [`Engine::next_deadline`] says when the next one is due at the latest. [`Engine::view`] reads what it holds; queries of
//! routes and changes of claims are taken after a step (`take_…`).
//!
//! The modules follow the flow, and each uses those before it only:
//!
//! | module | job |
//! | --- | --- |
//! | [`model`] | plain data: observations, claims, conflicts, anomalies, effects, settings |
//! | [`limits`] | what is read again and when, what was refused at bounds, the table of claimed addresses for the kernel programs |
//! | [`mirror`] | what the kernel and IPAM have, as far as they were observed |
//! | [`rules`] | what follows from the mirror: the claimants of an address, their scope, who receives the traffic |
//! | [`track`] | what is open: conflicts, moves, sweeps, anomalies; what is new is an effect |
//! | [`step`] | [`Engine`]: an observation updates the mirror and marks addresses dirty, which are decided at the end of the step |
//!
//! Beside the flow is [`diagnosis`]: why something was found. It uses the model alone, and nothing of the engine uses it.
//!
//! Claims are never stored, only counted. The same facts give the same claims in whatever order they arrived, which makes a resync
//! equal to a fresh start.
//!
//! The rules are described in `docs/detection-rules.md`.

mod ascii;
mod counts;
pub mod diagnosis;
#[doc(hidden)]
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod hash;
mod index;
mod limits;
mod mirror;
mod model;
mod names;
mod rules;
mod small_set;
mod sorted_map;
mod step;
#[cfg(test)]
mod tests;
mod track;

pub use ascii::{ASCII, serialize_ascii};
pub use limits::claimed_addresses::{AddressHolder, ClaimedUpdate, MAX_CLAIMED_ADDRESSES};
pub use mirror::facts::MAX_ASSIGNMENTS;
pub use model::*;
pub use step::{Engine, View};
