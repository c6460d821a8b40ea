//! Why an address is in conflict: facts in, cause out.
//!
//! [`diagnose`] reads the [`Facts`] of one incident, which the collectors fill, and compares them with a table of [`Cause`]s (`rules`).
//! The first cause that is proven wins, else the first that is likely, else it is [`Cause::Unknown`]: nothing is guessed.
//!
//! - A fact that was not checked is no fact: it neither proves a cause nor rules one out ([`Known`]).
//! - What a pod can influence (its frames, its addresses, its labels) proves nothing against another pod. That an address is in the
//!   namespace of a pod counts only against that pod, and labels only make [`Cause::SharedOnPurpose`] likely.
//! - The engine itself does not use this module: a diagnosis is made of what the engine found, and changes nothing of it.

mod cause;
mod facts;
mod known;
mod queries;
mod rules;
#[cfg(test)]
mod tests;
mod text;
mod timeline;

pub use cause::{Cause, CauseConfidence};
pub use facts::*;
pub use known::{Known, NotChecked, Source, UnixTime};
pub use timeline::{MAX_TIMELINE, TimelineEntry, timeline};

use rules::{Proof, RULES, Rule};

/// Why something was found, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// The cause.
    pub cause: Cause,
    /// How sure that is; of an unknown cause [`CauseConfidence::Likely`].
    pub confidence: CauseConfidence,
    /// When the cause began; `None` if that is not known.
    pub since: Option<UnixTime>,
    /// The cause in a sentence or two.
    pub summary: String,
    /// The facts that speak for it.
    pub evidence: Vec<Evidence>,
    /// How much it affects.
    pub affected: Affected,
    /// What to do, in a safe order.
    pub repair: String,
    /// The other causes of the table that the facts rule out.
    pub ruled_out: Vec<Cause>,
    /// The facts that were not checked.
    pub not_checked: Vec<NotChecked>,
}

/// A fact that speaks for a cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The fact, for people.
    pub fact: String,
    /// Where it is from.
    pub source: Source,
    /// When it happened; `None` if it has no time, or that is not known.
    pub at: Option<UnixTime>,
}

/// How much a cause affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affected {
    /// Addresses.
    pub addresses: usize,
    /// Pods.
    pub pods: usize,
}

/// Explains an incident.
#[must_use]
pub fn diagnose(facts: &Facts) -> Diagnosis {
    let rules = || {
        let all = RULES.iter();
        all.filter(|rule| rule.applies_to.contains(&facts.finding))
    };
    let is_ruled_out = |rule: &Rule| (rule.is_ruled_out)(facts);
    let proven = rules().find_map(|rule| {
        let proof = (rule.proven)(facts)?;
        Some((rule.cause, CauseConfidence::Proven, proof))
    });
    let found = proven.or_else(|| {
        let mut open = rules().filter(|rule| !is_ruled_out(rule));
        open.find_map(|rule| {
            let proof = (rule.likely)(facts)?;
            Some((rule.cause, CauseConfidence::Likely, proof))
        })
    });
    let (cause, confidence, proof) = found.unwrap_or_else(|| {
        let proof = Proof::default();
        (Cause::Unknown, CauseConfidence::Likely, proof)
    });
    let ruled_out = rules().filter(|rule| rule.cause != cause && is_ruled_out(rule));
    Diagnosis {
        cause,
        confidence,
        since: proof.since,
        summary: text::summary(facts, cause, confidence, proof.since),
        affected: affected(facts, &proof),
        evidence: proof.evidence,
        repair: text::repair(facts, cause),
        ruled_out: ruled_out.map(|rule| rule.cause).collect(),
        not_checked: facts.not_checked(),
    }
}

fn affected(facts: &Facts, proof: &Proof) -> Affected {
    let pool = facts.pool.value().filter(|_| proof.affects_pool);
    let live = pool.and_then(|pool| pool.live_pods.value());
    match live {
        Some(live) => Affected {
            addresses: live.addresses_without_allocation,
            pods: live.without_allocation,
        },
        None => Affected {
            addresses: 1,
            pods: facts.claimants.len(),
        },
    }
}
