//! What a decision about a subject may read besides its own beliefs.

use detector_engine::{ConflictId, Timestamp};
use detector_event::WallTime;

use super::{Identity, Settings, Subject, nodes::Nodes};

pub(super) struct Context<'a> {
    pub(super) subject: Subject,
    pub(super) me: &'a Identity,
    pub(super) settings: &'a Settings,
    pub(super) nodes: &'a Nodes,
    pub(super) now: Timestamp,
    /// Everything that this node has was fed.
    pub(super) is_complete: bool,
    /// The conflicts were listed.
    pub(super) is_listed: bool,
    /// For `raisedAt`, when a request is made.
    pub(super) wall: Option<WallTime>,
    /// For a new conflict.
    pub(super) fresh_id: ConflictId,
}
