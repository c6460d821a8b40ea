//! The persisted form of an open conflict: what was reported, and the part of its evidence that the
//! kernel does not hold for the next agent to read.
//!
//! The serialised field names are an on-disk format.

use serde::{Deserialize, Serialize};

use super::{
    beginning::Beginning,
    conflict::{Claimant, Conflict},
    observation::{FrameKind, IfIndex, Mac, Peer, Timestamp, Vlan},
};

/// A persisted open conflict. All timestamps are of one boot and are meaningless after the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenConflict {
    /// The conflict with its evidence at the time of writing.
    pub conflict: Conflict,
    /// It contains a change that no event had contained then.
    #[serde(default)]
    pub(super) has_unreported_change: bool,
    /// The link that identifies the network, unless it is `node`.
    pub(super) domain: Option<LinkName>,
    /// The claimants' frame evidence.
    pub(super) frames: Vec<PersistedFrame>,
    /// Former hardware addresses of bridge neighbour entries that flapped.
    pub(super) former: Vec<PersistedFormerLladdr>,
    /// Moves of an allowed address.
    pub(super) moves: Option<PersistedMoves>,
}

impl OpenConflict {
    /// Whether the next agent can read all of its evidence from the kernel.
    #[must_use]
    pub fn is_in_kernel(&self) -> bool {
        self.frames.is_empty() && self.former.is_empty() && self.moves.is_none()
    }
}

/// A link, identified by index and name: either may be reused, but hardly both together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LinkName {
    pub(super) ifindex: IfIndex,
    pub(super) name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PersistedFrame {
    pub(super) device: LinkName,
    pub(super) peer: Option<Peer>,
    pub(super) vlan: Vlan,
    pub(super) kind: FrameKind,
    pub(super) mac: Mac,
    pub(super) ether_source: Mac,
    pub(super) tentative: bool,
    pub(super) first: Timestamp,
    #[serde(default = "Beginning::seen")]
    pub(super) beginning: Beginning,
    pub(super) last: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PersistedFormerLladdr {
    pub(super) bridge: LinkName,
    pub(super) mac: Mac,
    pub(super) first: Timestamp,
    #[serde(default)]
    pub(super) beginning: Beginning,
    pub(super) last: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PersistedMoves {
    pub(super) moves: Vec<Timestamp>,
    /// Who took part and when last; the last one is the holder.
    pub(super) participants: Vec<(Timestamp, Claimant)>,
}
