//! What a decision about a subject may read in addition to its own beliefs.

use detector_engine::{ConflictId, Timestamp};
use detector_event::WallTime;

use super::{Identity, Settings, Subject, nodes::Nodes};

pub(super) struct Context<'a> {
    pub(super) subject: Subject,
    pub(super) me: &'a Identity,
    pub(super) settings: &'a Settings,
    pub(super) nodes: &'a Nodes,
    pub(super) now: Timestamp,
    /// Whether all claims of this node are known.
    pub(super) is_complete: bool,
    /// Whether the conflicts have been listed.
    pub(super) is_listed: bool,
    /// Whether a conflict that ends is kept as resolved.
    pub(super) keeps_resolved: bool,
    /// For `raisedAt` and `resolvedAt`, when a request is made.
    pub(super) wall: Option<WallTime>,
    /// For a new conflict.
    pub(super) fresh_id: ConflictId,
}
