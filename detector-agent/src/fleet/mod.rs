//! Duplicates across nodes: addresses are registered in the Kubernetes API, where creating an object whose name exists fails.
//!
//! ```text
//! engine ──claims──► claim_selector ──► protocol ──requests──► registry ──► Kubernetes API
//!                                        │ pure  ◄──outcomes──    │ paced
//!                                        │       ◄──conflicts──  watch
//!                                        └──► reports ──► event loop ──► events, API, metrics
//! ```
//!
//! Each live address of a pod on this node is an `IPClaim` named after the address ([`detector_fleet::objects`]). `AlreadyExists` on its creation is
//! the detection; an `IPConflict` carries the confirmation between the agents ([`detector_fleet`], the pure protocol). Node-local detection does not depend
//! on any of this: the claims arrive through a bounded, deduplicated queue, and a server that is away costs only delay.
//!
//! The conflicts within this node are published as `IPConflict`s as well ([`conflict_selector`], [`local_conflicts`]), for people only:
//! no agent reads those of another node.

mod calls;
mod claim_selector;
mod clock;
mod conflict_selector;
mod driver;
mod health;
mod inbox;
mod journal;
mod local_conflicts;
mod pacing;
mod registry;
mod report;
mod settings;
mod start;
#[cfg(test)]
mod tests;
mod watch;

pub use claim_selector::{Candidate, ClaimSelector, MAX_LOOKUPS};
pub use conflict_selector::{ConflictSelector, ConflictUpdate, MAX_PUBLISHED, PodsAndCauses};
pub use inbox::{ClaimUpdate, Inbox};
pub(crate) use report::{conflict, overlap};
pub use settings::{FleetMode, FleetSettings};
pub use start::{Fleet, FleetMessage, Surroundings, start};
