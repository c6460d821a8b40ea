//! An open conflict as it is kept over a restart of the agent: what was reported, and of its evidence what the kernel
//! does not hold for the next agent to read.

use serde::{Deserialize, Serialize};

use super::{
    conflict::{Claimant, Conflict},
    observation::{FrameKind, IfIndex, Mac, Peer, Timestamp, Vlan},
};

/// An open conflict, kept. All times are of one boot: after another one, nothing of it holds any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenConflict {
    /// What was reported last, with its evidence as it was when this was kept.
    pub conflict: Conflict,
    /// For a link-local address: the L2 domain.
    pub(super) domain: Option<LinkName>,
    /// What the claimants' frames said.
    pub(super) frames: Vec<PersistedFrame>,
    /// What bridges' neighbour entries held before, where they went back and forth.
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

/// A link that is found again by both: indices and names are given anew, both together hardly are.
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
    pub(super) last: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PersistedFormerLladdr {
    pub(super) bridge: LinkName,
    pub(super) mac: Mac,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PersistedMoves {
    pub(super) moves: Vec<Timestamp>,
    /// Who took part and when last; the last one holds the address.
    pub(super) participants: Vec<(Timestamp, Claimant)>,
}
