//! One open conflict: how it changes, which of its claimants are listed, and when a change is reported.

use std::{net::IpAddr, sync::Arc, time::Duration};

use crate::{
    model::{
        Bounds, Claimant, ClaimantId, Conflict, ConflictId, ConflictKind, ConflictScope, Effect,
        LeaveReason, Network, Scope, Timestamp,
    },
    track::{Step, lifecycle::Decision, repeats::QUIET},
};

/// Sorted.
pub(crate) type ClaimantIds = Box<[ClaimantId]>;

/// An open conflict, and what was reported of it.
#[derive(Debug)]
pub(crate) struct TrackedConflict {
    /// Shared with the effects that report it.
    pub(crate) conflict: Arc<Conflict>,
    /// All present claimants, including those beyond the bound on listed ones.
    pub(crate) ids: ClaimantIds,
    /// A change that no event contains yet.
    pub(crate) has_unreported_change: bool,
    /// When the next update may be reported.
    next_update: Timestamp,
}

impl TrackedConflict {
    pub(crate) fn new(conflict: Conflict, ids: ClaimantIds) -> Self {
        Self {
            conflict: Arc::new(conflict),
            ids,
            has_unreported_change: false,
            next_update: Timestamp(0),
        }
    }

    /// Reports what changed, or returns when it may be: `interval` after the last update.
    pub(crate) fn report_change(
        &mut self,
        interval: Duration,
        step: &mut Step<'_>,
    ) -> Option<Timestamp> {
        if !self.has_unreported_change {
            return None;
        }
        if step.now < self.next_update {
            return Some(self.next_update);
        }
        self.has_unreported_change = false;
        self.next_update = step.now + interval;
        // The time that the update waited is no latency of the detection.
        let conflict = Arc::make_mut(&mut self.conflict);
        conflict.decided_at = Timestamp(step.now.0.saturating_sub(conflict.latency()));
        step.effects
            .push(Effect::Updated(Arc::clone(&self.conflict)));
        None
    }

    /// Whether it has begun again before, and all of its claimants are still there.
    pub(crate) fn may_begin_again(&self, leave_reason: &impl Fn(&Claimant) -> LeaveReason) -> bool {
        let mut present = self.conflict.present();
        self.conflict.repeats > 0 && present.all(|c| leave_reason(c) != LeaveReason::DeviceRemoved)
    }

    /// There is a decision that it is open: if it was over, it repeats.
    pub(crate) fn begins_again(&mut self) {
        if self.conflict.quiet_since.is_some() {
            let conflict = Arc::make_mut(&mut self.conflict);
            conflict.quiet_since = None;
            conflict.repeats = conflict.repeats.saturating_add(1);
        }
    }

    /// It is over at `now`, if it was not before: until when it is not resolved nevertheless.
    pub(crate) fn is_quiet_until(&mut self, now: Timestamp) -> Timestamp {
        let conflict = Arc::make_mut(&mut self.conflict);
        *conflict.quiet_since.get_or_insert(now) + QUIET
    }

    /// Its id is set afterwards.
    pub(crate) fn raise(
        address: IpAddr,
        scope: Scope,
        kind: ConflictKind,
        decision: Decision,
        step: &Step<'_>,
        limits: (&Bounds, usize),
    ) -> Self {
        let ids = ids(&decision.claimants);
        let traffic_goes_to = decision.traffic_goes_to();
        let confidence = decision.confidence;
        let network = decision.network.clone();
        let (claimants, claimants_omitted) = listed(decision, limits);
        let conflict = Conflict {
            scope: ConflictScope::Node,
            id: ConflictId(0),
            repeats: 0,
            quiet_since: None,
            address,
            network,
            vlan: scope.vlan,
            kind,
            confidence,
            raised_at: step.now,
            updated_at: step.now,
            resolved_at: None,
            decided_at: step.at,
            traffic_goes_to,
            claimants,
            claimants_omitted,
            sweep: None,
            reported: None,
        };
        Self::new(conflict, ids)
    }

    /// Updates the conflict; `true` if that is worth a notification.
    pub(crate) fn change(
        &mut self,
        kind: ConflictKind,
        decision: Decision,
        leave_reason: &impl Fn(&Claimant) -> LeaveReason,
        step: &Step<'_>,
        limits: (&Bounds, usize),
    ) -> bool {
        let conflict = Arc::make_mut(&mut self.conflict);
        let before = (
            conflict.kind,
            conflict.confidence,
            std::mem::take(&mut conflict.traffic_goes_to),
        );
        conflict.kind = kind;
        conflict.confidence = decision.confidence;
        conflict.traffic_goes_to = decision.traffic_goes_to();
        let joined_or_left = self.replace(decision, leave_reason, limits);
        let conflict = Arc::make_mut(&mut self.conflict);
        let changed = joined_or_left
            || before
                != (
                    conflict.kind,
                    conflict.confidence,
                    conflict.traffic_goes_to.clone(),
                );
        if changed {
            conflict.updated_at = step.now;
            conflict.decided_at = step.at;
        }
        changed
    }

    pub(crate) fn resolve(
        mut self,
        outcome: Option<Decision>,
        leave_reason: &impl Fn(&Claimant) -> LeaveReason,
        step: &Step<'_>,
        limits: (&Bounds, usize),
    ) -> Arc<Conflict> {
        let remaining = outcome.unwrap_or(Decision {
            network: Network::Node,
            kind: None,
            confidence: self.conflict.confidence,
            claimants: Vec::new(),
            is_one_pod: false,
            receiver: None,
        });
        let is_one_pod = remaining.is_one_pod;
        let traffic_goes_to = remaining.traffic_goes_to();
        self.replace(remaining, leave_reason, limits);
        let conflict = Arc::make_mut(&mut self.conflict);
        if is_one_pod {
            // It is shown at the first of its interfaces.
            let mut is_first = true;
            conflict
                .claimants
                .retain(|c| c.left.is_some() || std::mem::take(&mut is_first));
        }
        conflict.traffic_goes_to = traffic_goes_to;
        conflict.updated_at = step.now;
        conflict.decided_at = step.at;
        conflict.resolved_at = Some(step.now);
        self.conflict
    }

    /// Replaces the present claimants; those that left follow with their reasons. `true` if a
    /// claimant joined or left, its device was renamed, or its interface got another hardware address.
    fn replace(
        &mut self,
        decision: Decision,
        leave_reason: &impl Fn(&Claimant) -> LeaveReason,
        limits: (&Bounds, usize),
    ) -> bool {
        let ids = ids(&decision.claimants);
        let conflict = Arc::make_mut(&mut self.conflict);
        let before = std::mem::take(&mut conflict.claimants);
        let (mut claimants, omitted) = listed(decision, limits);
        let mut differs = false;
        for known in before.iter().filter(|c| c.left.is_none()) {
            let is_same = |c: &&mut Claimant| (c.id, c.ifindex) == (known.id, known.ifindex);
            let Some(claimant) = claimants.iter_mut().find(is_same) else {
                continue;
            };
            claimant.keep_records(known);
            differs |= claimant.device != known.device
                || claimant.has_other_mac(known)
                || claimant.rightful != known.rightful
                || claimant.allocated != known.allocated;
        }
        let left = departed(before, &ids, leave_reason, list_limit(limits));
        claimants.extend(left);
        conflict.claimants = claimants;
        conflict.claimants_omitted = omitted;
        let changed = differs || ids != self.ids;
        self.ids = ids;
        changed
    }
}

/// Who these are.
pub(crate) fn ids<'c>(claimants: impl IntoIterator<Item = &'c Claimant>) -> ClaimantIds {
    let mut ids: Box<[_]> = claimants.into_iter().map(|c| c.id).collect();
    ids.sort_unstable();
    ids
}

/// The claimants that are not present any more, each with its reason; bounded, the newest are kept.
fn departed(
    before: Vec<Claimant>,
    present: &[ClaimantId],
    leave_reason: &impl Fn(&Claimant) -> LeaveReason,
    limit: usize,
) -> Vec<Claimant> {
    let mut left: Vec<_> = before
        .into_iter()
        .filter(|c| present.binary_search(&c.id).is_err())
        .collect();
    left.sort_by_key(|c| c.left.is_none());
    for claimant in left.iter_mut().filter(|c| c.left.is_none()) {
        claimant.left = Some(leave_reason(claimant));
        claimant.is_newest = false;
    }
    let surplus = left.len().saturating_sub(limit);
    left.drain(..surplus);
    left
}

/// The claimants within the bound, the oldest first, and how many are beyond it. The receiver of the
/// traffic is always among the listed ones: it takes the last place if it is younger.
pub(crate) fn listed(decision: Decision, limits: (&Bounds, usize)) -> (Vec<Claimant>, usize) {
    let Decision {
        mut claimants,
        receiver,
        ..
    } = decision;
    let bound = list_limit(limits);
    let omitted = claimants.len().saturating_sub(bound);
    let position = claimants.iter().position(|c| Some(c.id) == receiver);
    if let (Some(position), Some(last)) = (position, bound.checked_sub(1))
        && position > last
    {
        claimants.swap(last, position);
    }
    claimants.truncate(bound);
    // They stay as long as the conflict: without the room for those that are not listed, and for more evidence.
    claimants.shrink_to_fit();
    for claimant in &mut claimants {
        claimant.evidence.shrink_to_fit();
    }
    (claimants, omitted)
}

/// How many claimants a conflict lists, where all others leave room for `room`.
fn list_limit((bounds, room): (&Bounds, usize)) -> usize {
    // Half of the room for those that left.
    let limit = bounds.claimants_per_conflict;
    (room / 2).clamp(limit.min(2), limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Beginning, Confidence, Evidence, EvidenceKind, Seen};

    #[test]
    fn claimants_beyond_the_bound_need_no_memory() {
        let claimants = (1..=100).map(|ifindex| {
            let id = ClaimantId::Device(ifindex, 1);
            let mut evidence = Vec::with_capacity(16);
            evidence.push(Evidence {
                kind: EvidenceKind::Arp,
                seen: Seen::once(Timestamp(1), Beginning::seen()),
                mac: None,
                detail: None,
            });
            Claimant {
                evidence,
                ..Claimant::new(id, format!("veth{ifindex}"), ifindex, Timestamp(1))
            }
        });
        let decision = Decision {
            network: Network::Node,
            kind: Some(ConflictKind::Duplicate),
            confidence: Confidence::Observed,
            claimants: claimants.collect(),
            is_one_pod: false,
            receiver: None,
        };
        let bounds = Bounds::default();
        let (kept, omitted) = listed(decision, (&bounds, bounds.listed_claimants));
        assert_eq!((kept.len(), omitted), (16, 84));
        assert_eq!(kept.capacity(), 16);
        assert!(kept.iter().all(|c| c.evidence.capacity() == 1));
    }
}
