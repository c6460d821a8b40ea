//! Objects and reports for the unit tests of this crate.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use detector_engine::{
    Confidence, ConflictId, ConflictKind, ConflictScope, EvidenceKind, Network, Timestamp,
};

use super::{
    Report, Subject,
    objects::{ConflictCause, ConflictClaimant, ConflictSpec, ConflictState, Party},
};

/// The claimant on a node: `veth-a` on `node-a`.
fn claimant(name: &str, is_address: bool) -> ConflictClaimant {
    let text = |text: String| if is_address { text } else { String::new() };
    ConflictClaimant {
        party: Party {
            node: format!("node-{name}"),
            device: text(format!("veth-{name}")),
            namespace: text("default".to_owned()),
            pod: text(name.to_owned()),
            evidence: is_address.then_some(EvidenceKind::Address),
            ..Party::default()
        },
        ..ConflictClaimant::default()
    }
}

/// That two nodes have one podCIDR.
pub fn cause() -> ConflictCause {
    ConflictCause {
        name: "pod_cidr_twice".to_owned(),
        confidence: "proven".to_owned(),
        summary: "The nodes node-a and node-b have one podCIDR.".to_owned(),
        repair: "Give one of them another one.".to_owned(),
        ..ConflictCause::default()
    }
}

/// `node-b` reports that `node-a` has the same address or range.
pub fn report(subject: &str) -> Report {
    let address: Subject = subject.parse().unwrap();
    let is_address = matches!(address, Subject::Address(_));
    Report {
        conflict: ConflictSpec {
            address,
            conflict_id: ConflictId(7),
            kind: ConflictKind::Duplicate,
            scope: ConflictScope::Fleet,
            network: Network::Node,
            state: ConflictState::Active,
            confidence: Confidence::Certain,
            raised_at: None,
            resolved_at: None,
            nodes: "node-a, node-b".to_owned(),
            pods: String::new(),
            cause: None,
            claimants: vec![claimant("a", is_address), claimant("b", is_address)],
        },
        is_resolved: false,
        is_reporter: true,
        is_update: false,
        began: Timestamp(1),
    }
}
