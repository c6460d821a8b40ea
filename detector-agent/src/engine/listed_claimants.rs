//! The claimants that a conflict lists.

use std::collections::BTreeSet;

use super::{
    conflict::{Claimant, ClaimantId, LeaveReason},
    lifecycle::Decision,
    settings::Bounds,
};

/// The present claimants whose hardware address is known.
pub(super) fn with_mac(claimants: &[Claimant]) -> BTreeSet<ClaimantId> {
    let present = claimants.iter().filter(|c| c.left.is_none());
    let known = present.filter(|c| c.mac.is_some());
    known.map(|c| c.id).collect()
}

/// The claimants that are not present any more, each with its reason; bounded, the newest are kept.
pub(super) fn departed(
    before: Vec<Claimant>,
    present: &BTreeSet<ClaimantId>,
    leave_reason: &impl Fn(&Claimant) -> LeaveReason,
    bounds: &Bounds,
) -> Vec<Claimant> {
    let mut left: Vec<_> = before
        .into_iter()
        .filter(|c| !present.contains(&c.id))
        .collect();
    left.sort_by_key(|c| c.left.is_none());
    for claimant in left.iter_mut().filter(|c| c.left.is_none()) {
        claimant.left = Some(leave_reason(claimant));
        claimant.is_newest = false;
    }
    let surplus = left.len().saturating_sub(bounds.claimants_per_conflict);
    left.drain(..surplus);
    left
}

/// The claimants within the bound, the oldest first, and how many are beyond it. The receiver of the
/// traffic is always among the listed ones: it takes the last place if it is younger.
pub(super) fn listed(decision: Decision, bounds: &Bounds) -> (Vec<Claimant>, usize) {
    let Decision {
        mut claimants,
        receiver,
        ..
    } = decision;
    let bound = bounds.claimants_per_conflict;
    let omitted = claimants.len().saturating_sub(bound);
    let position = claimants.iter().position(|c| Some(c.id) == receiver);
    if let (Some(position), Some(last)) = (position, bound.checked_sub(1))
        && position > last
    {
        claimants.swap(last, position);
    }
    claimants.truncate(bound);
    (claimants, omitted)
}
