//! Turns facts into evidence, and summarises the evidence of a claimant.

use super::{
    conflict::{Claimant, Evidence, EvidenceKind},
    facts::{FrameFact, NeighbourFact},
    observation::FrameKind,
};

impl Claimant {
    /// Sorts the evidence and derives `since` and `mac` from it.
    pub(super) fn finish(&mut self) {
        self.evidence.sort_by_key(|e| (e.kind, e.first_seen));
        if let Some(oldest) = self.evidence.iter().map(|e| e.first_seen).min() {
            self.since = oldest;
        }
        self.mac = self
            .evidence
            .iter()
            .filter(|e| e.mac.is_some())
            .max_by_key(|e| e.last_seen)
            .and_then(|e| e.mac);
    }

    fn has(&self, wanted: impl Fn(&Evidence) -> bool) -> bool {
        self.evidence.iter().any(wanted)
    }

    /// Whether it has certain evidence: an assigned address, or a `PERMANENT` neighbour entry
    /// (`docs/detection-rules.md`, section 7).
    pub(super) fn is_certain(&self) -> bool {
        self.has(|e| e.kind == EvidenceKind::Address)
            || self.has(|e| {
                e.kind == EvidenceKind::Neighbour && e.detail.as_deref() == Some("PERMANENT")
            })
    }
}

pub(super) fn neighbour_evidence(entry: &NeighbourFact) -> Evidence {
    Evidence {
        kind: EvidenceKind::Neighbour,
        first_seen: entry.first,
        last_seen: entry.last,
        mac: Some(entry.lladdr),
        detail: Some(entry.state.name().to_owned()),
    }
}

pub(super) fn frame_evidence(frame: &FrameFact) -> Evidence {
    let mut detail = Vec::new();
    if frame.tentative {
        detail.push("probe".to_owned());
    }
    if frame.ether_source != frame.mac {
        detail.push(format!("sent by {}", frame.ether_source));
    }
    Evidence {
        kind: match frame.kind {
            FrameKind::Arp => EvidenceKind::Arp,
            FrameKind::Ndp => EvidenceKind::Ndp,
        },
        first_seen: frame.first,
        last_seen: frame.last,
        mac: Some(frame.mac),
        detail: (!detail.is_empty()).then(|| detail.join(", ")),
    }
}
