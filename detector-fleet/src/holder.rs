//! What a node writes into the `IPConflict` while it holds the `IPClaim`, or after it has left the conflict.

use detector_engine::LeaveReason;

use super::{
    LocalClaim,
    cause::explained,
    conflict::{completed, reporter},
    contest::Contest,
    context::Context,
    objects::{ConflictClaimant, ConflictSpec, ConflictState},
};

/// What is done with an `IPConflict`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ConflictWrite {
    Replace(ConflictSpec),
    Delete,
}

/// The write of the holder: confirms the questions of contenders, because `local` is alive at this moment, and removes contenders
/// that are gone. A conflict that does not name this node is left alone: contenders name it as soon as they have read the claim.
pub(super) fn write_as_holder(
    current: &ConflictSpec,
    known: u64,
    local: &LocalClaim,
    contest: &Contest,
    cx: &Context<'_>,
) -> Option<ConflictWrite> {
    if !takes_part(current, cx) {
        return None;
    }
    let mut contenders = others(current, known, cx);
    if contenders.is_empty() {
        return Some(end(current, known, false, cx));
    }
    for contender in &mut contenders {
        contender.confirmed = contender.asked;
    }
    let mut claimants = vec![ConflictClaimant {
        party: local.party.clone(),
        // A contender that became the holder continues to report.
        active: contest.proof.is_some(),
        terminating: local.terminating,
        rightful: local.rightful,
        ..ConflictClaimant::default()
    }];
    claimants.append(&mut contenders);
    change(current, claimants, contest, cx)
}

/// The write of a node that no longer has the address and holds no `IPClaim`.
pub(super) fn write_as_leaver(
    current: &ConflictSpec,
    known: u64,
    cx: &Context<'_>,
) -> Option<ConflictWrite> {
    let first = current.claimants.first()?;
    if !takes_part(current, cx) {
        return None;
    }
    let mut others = others(current, known, cx);
    if first.party.node == cx.me.node {
        if others.is_empty() {
            return Some(end(current, known, true, cx));
        }
        // The contenders watch the conflict only: this is how they learn that the claim is free.
        let mut me = first.clone();
        me.left = me.left.or(Some(LeaveReason::AddressRemoved));
        me.active = false;
        others.insert(0, me);
        return change(current, others, &Contest::default(), cx);
    }
    // The holder may have left before.
    let is_holder_first = others
        .first()
        .is_some_and(|c| c.party.node == first.party.node);
    if others.len() <= usize::from(is_holder_first) {
        return Some(end(current, known, true, cx));
    }
    if !is_holder_first {
        others.insert(0, first.clone());
    }
    change(current, others, &Contest::default(), cx)
}

/// The write of the last one that takes part beside a holder, and of a holder that is left alone. What was never active is not kept.
fn end(current: &ConflictSpec, known: u64, is_leaving: bool, cx: &Context<'_>) -> ConflictWrite {
    if current.state != ConflictState::Active || !cx.keeps_resolved {
        return ConflictWrite::Delete;
    }
    let mut spec = current.clone();
    for c in spec.claimants.iter_mut().filter(|c| c.left.is_none()) {
        if c.party.node == cx.me.node {
            c.left = is_leaving.then_some(LeaveReason::AddressRemoved);
        } else if cx.nodes.is_void(&c.party, known) {
            c.left = Some(LeaveReason::Expired);
        }
    }
    // The one that still has the address first.
    spec.claimants.sort_by_key(|c| c.left.is_some());
    spec.state = ConflictState::Resolved;
    spec.resolved_at = cx.wall;
    ConflictWrite::Replace(spec)
}

/// Whether `change` takes away the claimant that has reported the conflict, and no agent is left to report its end.
pub(super) fn drops_reporter(
    current: &ConflictSpec,
    change: &ConflictWrite,
    cx: &Context<'_>,
) -> bool {
    let had = reporter(current).is_some_and(|c| c.party.node != cx.me.node);
    had && match change {
        ConflictWrite::Replace(spec) => reporter(spec).is_none(),
        ConflictWrite::Delete => true,
    }
}

fn takes_part(current: &ConflictSpec, cx: &Context<'_>) -> bool {
    current.claimants.iter().any(|c| c.party.node == cx.me.node)
}

/// The claimants other than this node that take part.
fn others(current: &ConflictSpec, known: u64, cx: &Context<'_>) -> Vec<ConflictClaimant> {
    let is_live = |c: &&ConflictClaimant| {
        c.left.is_none() && c.party.node != cx.me.node && !cx.nodes.is_void(&c.party, known)
    };
    current.claimants.iter().filter(is_live).cloned().collect()
}

fn change(
    current: &ConflictSpec,
    claimants: Vec<ConflictClaimant>,
    contest: &Contest,
    cx: &Context<'_>,
) -> Option<ConflictWrite> {
    let desired = ConflictSpec {
        claimants,
        ..current.clone()
    };
    let own_cause = contest.cause.as_deref();
    let desired = explained(completed(desired, cx.wall), Some(current), own_cause);
    (desired != *current).then_some(ConflictWrite::Replace(desired))
}
