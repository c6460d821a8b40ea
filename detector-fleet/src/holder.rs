//! What a node that holds the `IPClaim`, or has left the conflict, writes into the `IPConflict`.

use detector_engine::LeaveReason;

use super::{
    LocalClaim,
    conflict::{completed, reporter},
    context::Context,
    objects::{ConflictClaimant, ConflictSpec},
};

/// What is done with an `IPConflict`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    Replace(ConflictSpec),
    Delete,
}

/// As its holder: confirms what contenders ask, because `local` lives at this moment, and removes those that are no more. A conflict of
/// others it leaves to them: contenders name it as soon as they have read the claim.
pub(super) fn hold(
    current: &ConflictSpec,
    known: u64,
    local: &LocalClaim,
    is_proven: bool,
    cx: &Context<'_>,
) -> Option<Change> {
    if !takes_part(current, cx) {
        return None;
    }
    let mut contenders = others(current, known, cx);
    if contenders.is_empty() {
        return Some(Change::Delete);
    }
    for contender in &mut contenders {
        contender.confirmed = contender.asked;
    }
    let mut claimants = vec![ConflictClaimant {
        party: local.party.clone(),
        // Promoted from contender, it goes on reporting.
        active: is_proven,
        terminating: local.terminating,
        rightful: local.rightful,
        ..ConflictClaimant::default()
    }];
    claimants.append(&mut contenders);
    change(current, claimants, cx)
}

/// As a node that does not have the address any more, and holds no `IPClaim`.
pub(super) fn leave(current: &ConflictSpec, known: u64, cx: &Context<'_>) -> Option<Change> {
    let first = current.claimants.first()?;
    if !takes_part(current, cx) {
        return None;
    }
    let mut others = others(current, known, cx);
    if first.party.node == cx.me.node {
        if others.is_empty() {
            return Some(Change::Delete);
        }
        // The contenders watch the conflict only: this is how they learn that the claim is free.
        let mut me = first.clone();
        me.left = me.left.or(Some(LeaveReason::AddressRemoved));
        me.active = false;
        others.insert(0, me);
        return change(current, others, cx);
    }
    // The holder may have left before.
    let is_holder_first = others
        .first()
        .is_some_and(|c| c.party.node == first.party.node);
    if others.len() <= usize::from(is_holder_first) {
        return Some(Change::Delete);
    }
    if !is_holder_first {
        others.insert(0, first.clone());
    }
    change(current, others, cx)
}

/// Whether `change` takes away the claimant that has reported the conflict, and nobody is left to report its end.
pub(super) fn drops_reporter(current: &ConflictSpec, change: &Change, cx: &Context<'_>) -> bool {
    let had = reporter(current).is_some_and(|c| c.party.node != cx.me.node);
    had && match change {
        Change::Replace(spec) => reporter(spec).is_none(),
        Change::Delete => true,
    }
}

fn takes_part(current: &ConflictSpec, cx: &Context<'_>) -> bool {
    current.claimants.iter().any(|c| c.party.node == cx.me.node)
}

/// Those that take part besides this node.
fn others(current: &ConflictSpec, known: u64, cx: &Context<'_>) -> Vec<ConflictClaimant> {
    let is_live = |c: &&ConflictClaimant| {
        c.left.is_none() && c.party.node != cx.me.node && !cx.nodes.is_void(&c.party, known)
    };
    current.claimants.iter().filter(is_live).cloned().collect()
}

fn change(
    current: &ConflictSpec,
    claimants: Vec<ConflictClaimant>,
    cx: &Context<'_>,
) -> Option<Change> {
    let desired = ConflictSpec {
        claimants,
        ..current.clone()
    };
    let desired = completed(desired, cx.wall);
    (desired != *current).then_some(Change::Replace(desired))
}
