//! The requests of the driver that are under way.

use detector_fleet::{CallId, Outcome, Request};
use tokio::time::Instant;

use super::registry::Answer;

/// The verb of a replacement in metrics.
pub(super) const UPDATE: &str = "update";

/// The end of a request.
pub(super) struct Done {
    pub(super) origin: Origin,
    pub(super) verb: &'static str,
    pub(super) sent_at: Instant,
    pub(super) answer: Box<Answer>,
}

/// Who gets the answer to a request.
pub(super) enum Origin {
    /// The comparison between nodes.
    Protocol(CallId),
    /// The object of a conflict within this node, by name.
    LocalConflict(String),
}

/// The request's label in metrics.
pub(super) fn verb(request: &Request) -> &'static str {
    match request {
        Request::CreateClaim(_) | Request::CreateConflict(_) => "create",
        Request::GetClaim | Request::GetConflict | Request::GetNode(_) => "get",
        Request::ReplaceClaim(..) | Request::ReplaceConflict(..) => UPDATE,
        Request::DeleteClaim(_) | Request::DeleteConflict(_) => "delete",
    }
}

/// The outcome's label in metrics.
pub(super) fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Claim(_) | Outcome::Conflict(_) | Outcome::Deleted | Outcome::Node(_) => "ok",
        Outcome::NotFound => "not_found",
        Outcome::AlreadyExists => "already_exists",
        Outcome::Outdated => "outdated",
        Outcome::Rejected => "rejected",
        Outcome::Failed => "failed",
    }
}
