//! The persisted form of an open conflict: what was reported, and the part of its evidence that the
//! kernel does not hold for the next agent to read.
//!
//! The serialised field names are an on-disk format.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::model::{Claimant, Conflict, FrameKind, IfIndex, Mac, Peer, Seen, Timestamp, Vlan};

/// A persisted open conflict. All timestamps are of one boot and are meaningless after the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenConflict {
    /// The conflict with its evidence at the time of writing.
    pub conflict: Conflict,
    /// It contains a change that no event had contained then.
    #[serde(default)]
    pub(crate) has_unreported_change: bool,
    /// The link that identifies the network, unless it is `node`.
    pub(crate) domain: Option<LinkName>,
    /// The claimants' frame evidence.
    pub(crate) frames: Vec<PersistedFrame>,
    /// Former hardware addresses of bridge neighbour entries that flapped.
    pub(crate) former: Vec<PersistedFormerLladdr>,
    /// Moves of an allowed address.
    pub(crate) moves: Option<MoveHistory>,
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
pub(crate) struct LinkName {
    pub(crate) ifindex: IfIndex,
    pub(crate) name: String,
}

/// A claim seen in frames: one per device, VLAN and protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FrameFact {
    /// 0 in a record, which identifies the device by more than that.
    #[serde(skip)]
    pub(crate) ifindex: IfIndex,
    pub(crate) vlan: Vlan,
    pub(crate) kind: FrameKind,
    pub(crate) mac: Mac,
    pub(crate) ether_source: Mac,
    pub(crate) tentative: bool,
    #[serde(flatten)]
    pub(crate) seen: Seen,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PersistedFrame {
    pub(crate) device: LinkName,
    pub(crate) peer: Option<Peer>,
    #[serde(flatten)]
    pub(crate) fact: FrameFact,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PersistedFormerLladdr {
    pub(crate) bridge: LinkName,
    pub(crate) mac: Mac,
    #[serde(flatten)]
    pub(crate) seen: Seen,
}

/// Who held an allowed address, and when it moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MoveHistory {
    pub(crate) moves: VecDeque<Timestamp>,
    /// Who held it and when last, as they were at that time, the newest last: that is the holder.
    pub(crate) participants: VecDeque<(Timestamp, Claimant)>,
}
