//! Why a conflict came about, in its object.
//!
//! Of a conflict between nodes, the agent of each claimant looks for the cause, because each has facts that the others cannot read. One
//! that is more certain than the one in the object replaces it; all others stay, so two agents cannot replace theirs in turn.

use detector_engine::{
    ConflictId, Timestamp,
    diagnosis::{Cause, CauseConfidence, Source},
};
use detector_event::{
    Affected, ContractName as _, DiagnosisData, DiagnosisEvidence, WallTime, clean,
};
use serde::{Deserialize, Serialize};

use super::{
    conflict::claimant,
    contest::ClaimIdentity,
    objects::{ConflictSpec, ConflictState, MAX_CAUSE, MAX_REASON, MAX_REPAIR, bound_text},
};

/// Why a conflict came about. Texts, because later versions know further causes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConflictCause {
    /// Conflicts between nodes only: the node whose agent found it, which alone writes it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Its name in events.
    pub name: String,
    /// `proven` or `likely`.
    pub confidence: String,
    /// When it began; `None` if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<WallTime>,
    /// In a sentence or two; for people.
    pub summary: String,
    /// What to do, in a safe order; for people. Absent if it is empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub repair: String,
}

impl ConflictCause {
    /// The cause that was found, if there is one.
    #[must_use]
    pub fn of(diagnosis: &DiagnosisData) -> Option<Self> {
        let mut cause = Self {
            node: String::new(),
            name: diagnosis.cause.name().to_owned(),
            confidence: diagnosis.confidence.name().to_owned(),
            since: diagnosis.since,
            summary: clean(&diagnosis.summary).into_owned(),
            repair: clean(&diagnosis.repair).into_owned(),
        };
        cause.bound();
        diagnosis.has_cause().then_some(cause)
    }

    /// Bounds its texts: the schema refuses longer ones, and with them the conflict.
    pub(super) fn bound(&mut self) {
        bound_text(&mut self.name, MAX_CAUSE);
        bound_text(&mut self.confidence, MAX_CAUSE);
        bound_text(&mut self.summary, MAX_REASON);
        bound_text(&mut self.repair, MAX_REPAIR);
    }

    /// Whether `new` does not replace it: the same cause from the same node, in whatever words, or one from another node that is not
    /// more certain.
    fn outlasts(&self, new: &Self) -> bool {
        let is_proven = |cause: &Self| cause.confidence == CauseConfidence::Proven.name();
        if self.node == new.node {
            (&self.name, &self.confidence) == (&new.name, &new.confidence)
        } else {
            is_proven(self) || !is_proven(new)
        }
    }
}

/// The cause that this agent found for a conflict of its node's claim.
#[derive(Clone, Debug)]
pub(super) struct OwnCause {
    pub(super) conflict: ConflictId,
    /// When the claim began.
    pub(super) began: Timestamp,
    pub(super) cause: ConflictCause,
}

impl ConflictSpec {
    /// Sets the cause, unless the one that it has outlasts it. A cause that is no longer known stays.
    pub fn set_cause(&mut self, cause: Option<&ConflictCause>) {
        let now = self.cause.as_ref();
        if let Some(new) = cause.filter(|new| now.is_none_or(|now| !now.outlasts(new))) {
            self.cause = Some(Box::new(new.clone()));
        }
    }

    /// Keeps the cause of an earlier state of the same conflict, and its words, unless another cause is known now.
    pub fn keep_cause(&mut self, earlier: &Self) {
        if self.conflict_id == earlier.conflict_id {
            let now = std::mem::replace(&mut self.cause, earlier.cause.clone());
            self.set_cause(now.as_deref());
        }
    }

    /// What the agent of another node found, as a diagnosis; `None` if this version does not know that cause.
    #[must_use]
    pub fn found_elsewhere(&self) -> Option<DiagnosisData> {
        let found = self.cause.as_ref()?;
        let (node, name) = (&found.node, self.address.object_name());
        claimant(self, node)?;
        let on_node = |text: &str| format!("On node {node}: {text}");
        Some(DiagnosisData {
            cause: Cause::from_contract_name(&found.name)?,
            confidence: CauseConfidence::from_contract_name(&found.confidence)?,
            since: found.since,
            summary: on_node(&found.summary),
            evidence: vec![DiagnosisEvidence {
                fact: format!("the agent of node {node} found this, and has the evidence"),
                source: Source::KubernetesObject(format!("ipconflict {name}")).to_string(),
                at: None,
            }],
            affected: Affected {
                addresses: 1,
                pods: self.claimants.len(),
            },
            repair: on_node(&found.repair),
            ruled_out: Vec::new(),
            not_checked: Vec::new(),
        })
    }
}

/// `spec` as the agent of a claimant writes it after `before`: without the cause of a claim that has ended, and with its own, unless
/// the one that is there outlasts it.
pub(super) fn explained(
    mut spec: ConflictSpec,
    before: Option<&ConflictSpec>,
    own: Option<&OwnCause>,
) -> ConflictSpec {
    let claim_on = |spec: &ConflictSpec, node: &str| {
        claimant(spec, node).map(|claimant| ClaimIdentity::of(&claimant.party))
    };
    let is_outdated = spec.cause.as_ref().is_some_and(|cause| {
        let claim = claim_on(&spec, &cause.node);
        claim.is_none() || before.is_some_and(|before| claim_on(before, &cause.node) != claim)
    });
    spec.cause.take_if(|_| is_outdated);
    let own = own.filter(|own| own.conflict == spec.conflict_id);
    if spec.state == ConflictState::Active {
        spec.set_cause(own.map(|own| &own.cause));
    }
    spec
}
