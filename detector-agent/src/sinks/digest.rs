//! One message about many conflicts, for receivers that notify people.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    clock::WallTime,
    event::{Change, SubjectId, names},
};

/// When a sink gets digests instead of a message for each conflict that is `certain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestRules {
    /// How many conflicts are messages of their own
    pub first: usize,
    /// within this time.
    pub within: Duration,
    /// How long the further ones are collected for one message.
    pub every: Duration,
}

impl DigestRules {
    /// Enough for a mistake to be recognised, and not enough to drown the other messages of a channel.
    pub const FOR_PEOPLE: Self = Self {
        first: 3,
        within: Duration::from_secs(60),
        every: Duration::from_secs(10),
    };
}

/// The conflicts of a storm beyond the first ones, as one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// Unique; the same on every delivery.
    pub id: String,
    /// The same for all messages of one storm.
    pub digest_id: SubjectId,
    /// Whether the digest is new, has further conflicts, or has ended with the last of them.
    #[serde(with = "names::name")]
    pub change: Change,
    /// The node's name.
    pub node: String,
    /// When the message was created.
    pub time: WallTime,
    /// When the first of the conflicts was raised.
    pub since: WallTime,
    /// How many of them are active.
    pub active: usize,
    /// How many there were.
    pub total: usize,
    /// How many are new in this message.
    pub joined: usize,
    /// The first of those that are new, bounded.
    pub entries: Vec<DigestEntry>,
}

/// One conflict in a digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestEntry {
    /// The address, with its network and VLAN.
    pub address: String,
    /// Who claims it.
    pub claimants: String,
}

impl Digest {
    /// What happened, in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let node = &self.node;
        let addresses = |count| {
            if count == 1 {
                "1 more address is".to_owned()
            } else {
                format!("{count} more addresses are")
            }
        };
        let joined = addresses(self.joined);
        match self.change {
            Change::Raised => format!(
                "{joined} claimed by several pods on {node}, since {}",
                self.since
            ),
            Change::Updated => format!(
                "{joined} claimed by several pods on {node}; {} of {} since {} are in conflict now",
                self.active, self.total, self.since
            ),
            Change::Resolved => format!(
                "the last of {} conflicts since {} on {node} is over",
                self.total, self.since
            ),
        }
    }
}
