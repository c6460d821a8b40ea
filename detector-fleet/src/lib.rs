//! The agent's side of the protocol between nodes, as a pure state machine: local claims, outcomes of requests and watched conflicts go in, requests
//! and effects come out. It has no clock and does no I/O; the driver of the registry does both.
//!
//! ```text
//! loop {
//!     set_local, conflict_changed, answer, …          whatever arrived
//!     take_effects                                    journal first (`Remember`), then the reports
//!     while pacing permits: next_request ──► server   at most one in flight for each subject
//!     sleep until next_due
//! }
//! ```
//!
//! Every step is level-triggered: what is believed about the server is compared with what this node has, and the difference is the next
//! request. An outcome only changes beliefs, so an answer that is lost makes a belief unknown, and it is read again.

mod answers;
mod cause;
mod claim;
pub mod conditions;
mod conflict;
mod contest;
mod context;
mod entry;
mod holder;
mod machine;
mod nodes;
pub mod objects;
mod pace;
mod queue;
mod report;
mod requests;
#[cfg(any(test, feature = "samples"))]
pub mod samples;
mod subject;
#[cfg(test)]
mod tests;

use std::time::Duration;

use detector_engine::Timestamp;
use serde::{Deserialize, Serialize};

pub use conflict::columns;
pub use machine::Protocol;
use objects::{ConflictSpec, Party};
pub use requests::{Call, CallId, NodeState, Outcome, Request, Stored, Version};
pub use subject::{NotASubject, Subject};

/// The identity of this agent: its node and the node's boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The node's name.
    pub node: String,
    /// The id of the node's boot.
    pub boot_id: String,
}

/// Time spans of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a pod that is being deleted, or that has the same name, may keep the address before the overlap is reported.
    pub handover: Duration,
    /// How long a holder's agent may take to confirm.
    pub confirmation: Duration,
}

/// A claim of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalClaim {
    /// Who claims it; [`Protocol::set_local`] sets its node and boot.
    pub party: Party,
    /// When the claim began: claims of one address that differ in it are not the same claim.
    pub began: Timestamp,
    /// Whether its pod is being deleted.
    pub terminating: bool,
    /// Whether records give its pod the address; `None` if none is known.
    pub rightful: Option<bool>,
    /// Registered, or only looked up.
    pub mode: Mode,
}

/// What is done about a local claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// An `IPClaim` is created.
    Register,
    /// The `IPClaim` of others is read. For addresses that pods assigned to themselves: these must not take them from others.
    Lookup,
}

/// What the driver does in addition to sending requests, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Report the conflict. Repeated for each change of its contents.
    Report(Box<Report>),
    /// Replace the journal's record of this subject. It has to be durable before the next request is taken.
    Remember(Box<Memory>),
    /// Remove the journal's record of this subject.
    Forget(Subject),
}

/// What has to survive a restart of the agent about a subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// The subject, which may be registered in this node's name.
    pub subject: Subject,
    /// The open conflict that this agent has reported, if it is the one that sends the events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<Box<ConflictSpec>>,
}

/// The state of a fleet conflict with a claimant on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The conflict, the holder of the `IPClaim` first. Once it is resolved, each claimant that left has the reason.
    pub conflict: ConflictSpec,
    /// Whether it is over, as far as this node is concerned.
    pub is_resolved: bool,
    /// Whether this agent, and no other, sends the events about it. An agent that was the reporter and is no longer reports the conflict
    /// resolved as the reporter, and then open again as another claimant.
    pub is_reporter: bool,
    /// Whether this agent has reported it as open before in the same role, perhaps before a restart.
    pub is_update: bool,
    /// When this node's claim began, from which the latency is measured; zero if it is not known after a restart.
    pub began: Timestamp,
}

/// Numbers for metrics and health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Subjects that are registered in this node's name.
    pub registered: usize,
    /// Local claims that still have to be registered: neither in this node's name, nor known to be another node's.
    pub unregistered: usize,
    /// Local claims whose `IPClaim` belongs to another node.
    pub contested: usize,
    /// Subjects with a request that waits to be sent, for its time or for the pacing.
    pub waiting: usize,
    /// Open conflicts in which this node takes part.
    pub conflicts: usize,
    /// Objects of the registry that were ignored since the start: another subject has the name, or too many name this node.
    pub unusable_objects: u64,
}
