//! The objects of the registry, group `ipconflict.io/v1alpha1`, cluster-scoped. Their schemas are in `deploy/crds`.
//!
//! Fields are only added. Unknown ones are dropped on writing, so an agent of an earlier version never adds to an object that a later
//! one wrote without reading it first.

use std::collections::BTreeMap;

use detector_engine::{
    Confidence, ConflictId, ConflictKind, ConflictScope, EvidenceKind, LeaveReason, Mac, Network,
};
use detector_event::{WallTime, names};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::Subject;
pub use super::cause::ConflictCause;

/// The API group.
pub const GROUP: &str = "ipconflict.io";
/// The version.
pub const VERSION: &str = "v1alpha1";
/// The most claimants of an `IPConflict`. The schema refuses more.
pub const MAX_CLAIMANTS: usize = 64;
/// The most characters of [`ConflictSpec::nodes`] and of [`ConflictSpec::pods`].
pub const MAX_COLUMN: usize = 1024;
/// The most characters of [`ConflictClaimant::unconfirmed_because`] and of [`ConflictCause::summary`].
pub const MAX_REASON: usize = 512;
/// The most characters of [`ConflictCause::repair`].
pub const MAX_REPAIR: usize = 1024;
/// The most characters of [`ConflictCause::name`] and of [`ConflictCause::confidence`].
pub const MAX_CAUSE: usize = 64;
/// The label of an `IPConflict` with its scope. One without it was written by an agent that knew no labels.
pub const SCOPE_LABEL: &str = "ipconflict.io/scope";
/// The prefix of the labels with the nodes of its claimants.
pub const NODE_LABEL: &str = "node.ipconflict.io/";
/// The longest name of a label behind the prefix, in bytes.
const LABEL_NAME: usize = 63;

/// The label of the `IPConflict`s that name `node`. A Node's name that is too long for a label is shortened to its beginning and a
/// hash.
#[must_use]
pub fn node_label(node: &str) -> String {
    if node.len() <= LABEL_NAME {
        return format!("{NODE_LABEL}{node}");
    }
    let hash: String = Sha256::digest(node)
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let begin: String = node.chars().take(LABEL_NAME - 1 - hash.len()).collect();
    format!("{NODE_LABEL}{begin}-{hash}")
}

/// Who has an address or a range: a pod device of a node, or for a range the node itself. Kept small: a cluster has one for each
/// address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Party {
    /// The node's name.
    pub node: String,
    /// The node's boot (`/proc/sys/kernel/random/boot_id`, and `status.nodeInfo.bootID` of the Node). A claim from another boot is void.
    pub boot_id: String,
    /// The pod device; empty for a range.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub device: String,
    /// The device's index; 0 for a range.
    #[serde(skip_serializing_if = "is_zero")]
    pub ifindex: u32,
    /// The MAC address of its newest evidence.
    #[serde(with = "names::optional_mac", skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// The pod's namespace; empty for a range.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The pod's name; empty for a range.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod: String,
    /// The pod's uid.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod_uid: String,
    /// The sandbox.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// The evidence: `address` or `neighbour` (PERMANENT) of an address.
    #[serde(with = "names::optional_name", skip_serializing_if = "Option::is_none")]
    pub evidence: Option<EvidenceKind>,
    /// Where a range comes from: `podCIDR`, or the IPAM; empty for an address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub source: String,
}

impl Party {
    /// Whether both are the same pod by name: a StatefulSet's pod that moved, or a live migration.
    #[must_use]
    pub fn is_same_pod_name(&self, other: &Self) -> bool {
        !self.pod.is_empty() && (&self.namespace, &self.pod) == (&other.namespace, &other.pod)
    }
}

/// The `spec` of an `IPClaim`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSpec {
    /// What is claimed.
    pub address: Subject,
    /// Who claims it.
    #[serde(flatten)]
    pub party: Party,
}

/// The `spec` of an `IPConflict`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConflictSpec {
    /// What is claimed twice.
    pub address: Subject,
    /// The id in events.
    pub conflict_id: ConflictId,
    /// Which kind of conflict it is.
    #[serde(with = "names::name")]
    pub kind: ConflictKind,
    /// Whether the claimants are on different nodes.
    pub scope: ConflictScope,
    /// The network of a node-local conflict.
    #[serde(default)]
    pub network: Network,
    /// How far it is proven.
    pub state: ConflictState,
    /// How certain it is.
    #[serde(with = "names::name")]
    pub confidence: Confidence,
    /// When it became active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raised_at: Option<WallTime>,
    /// When it was resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_at: Option<WallTime>,
    /// The nodes of the claimants, for the column; absent if it is empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nodes: String,
    /// The pods of the claimants, for the column; absent if it is empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pods: String,
    /// Why it came about, as far as the agents of its claimants know. No agent concludes anything from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Box<ConflictCause>>,
    /// The holder of the `IPClaim` first, then the contenders in the order in which they joined. In a node-local conflict, all claimants.
    pub claimants: Vec<ConflictClaimant>,
}

impl ConflictSpec {
    /// The labels by which agents select the conflicts that name their node, even if it has left, and people those that they look for.
    /// A resolved one has the label of `writer` alone, the node whose agent writes it: only that agent reads it, and deletes it.
    #[must_use]
    pub fn labels(&self, writer: &str) -> BTreeMap<String, String> {
        let nodes = self.claimants.iter().map(|c| c.party.node.as_str());
        let mut labels: BTreeMap<_, _> = nodes
            .filter(|node| !node.is_empty() && (!self.is_resolved() || *node == writer))
            .map(|node| (node_label(node), String::new()))
            .collect();
        let scope = match self.scope {
            ConflictScope::Node => "node",
            ConflictScope::Fleet => "fleet",
        };
        labels.insert(SCOPE_LABEL.to_owned(), scope.to_owned());
        labels
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        self.state == ConflictState::Resolved
    }
}

/// Shortens a text to at most `most` bytes.
pub(super) fn bound_text(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or_default());
        text.shrink_to_fit();
    }
}

/// How far a conflict is proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConflictState {
    /// The holder has not confirmed yet, or a handover is possible.
    Suspected,
    /// It is reported.
    Active,
    /// It is over. The object is kept for people; no agent concludes anything from it.
    Resolved,
}

/// A claimant of an `IPConflict`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConflictClaimant {
    /// Who it is.
    #[serde(flatten)]
    pub party: Party,
    /// Contenders only: the number of the last question to the holder whether it still has the address. Only the contender's agent
    /// writes it.
    #[serde(skip_serializing_if = "is_zero")]
    pub asked: u32,
    /// Contenders only: the `asked` that the holder's agent confirmed. Only the holder's agent writes it. If it equals `asked`, both had
    /// the address at the time of the confirmation.
    #[serde(skip_serializing_if = "is_zero")]
    pub confirmed: u32,
    /// Whether its agent has proven the conflict. The first such claimant reports it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub active: bool,
    /// Whether its pod is being deleted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub terminating: bool,
    /// Holder only: why it counts without a confirmation, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unconfirmed_because: Option<String>,
    /// Conflicts between nodes only: whether records on its node give it the address; `None` if no record is known there. Only its own
    /// agent writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rightful: Option<bool>,
    /// Why it no longer has the address; `None` while it has it.
    #[serde(with = "names::optional_name", skip_serializing_if = "Option::is_none")]
    pub left: Option<LeaveReason>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}
