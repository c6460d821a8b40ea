//! Requests to the server and their outcomes.

use crate::{
    Subject,
    objects::{ClaimSpec, ConflictSpec},
};

/// The version of a stored object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
}

/// An object as the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored<T> {
    /// Its version.
    pub version: Version,
    /// Its content.
    pub spec: T,
}

/// Identifies a call until its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub(super) u64);

/// A request to be sent now. Each gets exactly one answer; without one within the driver's deadline, that is [`Outcome::Failed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Has to be returned with the answer.
    pub id: CallId,
    /// The subject, which gives the object its name ([`Subject::object_name`]). Meaningless for [`Request::GetNode`].
    pub subject: Subject,
    /// What is requested.
    pub request: Request,
}

/// A request to the server about one subject. Replacing and deleting are conditional on the version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Create the `IPClaim`.
    CreateClaim(ClaimSpec),
    /// Read the `IPClaim`.
    GetClaim,
    /// Replace it.
    ReplaceClaim(Version, ClaimSpec),
    /// Delete it.
    DeleteClaim(Version),
    /// Create the `IPConflict`.
    CreateConflict(ConflictSpec),
    /// Read the `IPConflict`.
    GetConflict,
    /// Replace it.
    ReplaceConflict(Version, ConflictSpec),
    /// Delete it.
    DeleteConflict(Version),
    /// Read a Node.
    GetNode(String),
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Created, read or replaced: the claim as it is now.
    Claim(Stored<ClaimSpec>),
    /// Created, read or replaced: the conflict as it is now.
    Conflict(Stored<ConflictSpec>),
    /// Deleted.
    Deleted,
    /// The state of the Node.
    Node(NodeState),
    /// There is no such object.
    NotFound,
    /// An object with this name exists.
    AlreadyExists,
    /// The object has another version by now.
    Outdated,
    /// The server refuses the content or the permission; repeating it makes no difference for now.
    Rejected,
    /// No answer, or one that asks to try again later: the request may have taken effect, or may still take effect within a minute from
    /// now.
    Failed,
}

/// The part of a Node that the protocol uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// `metadata.uid`.
    pub uid: String,
    /// `status.nodeInfo.bootID`.
    pub boot_id: String,
    /// The condition `Ready` is `True`.
    pub is_ready: bool,
}
