//! The lifecycle of conflicts: raised at once, updated as they change, resolved when they end.
//!
//! Invariants: a conflict is raised and resolved in turn and keeps its id, even if it [begins again](crate::track::repeats) within a
//! minute; between two updates is at least [`Settings::update_interval`](crate::Settings), and the last change is reported at
//! its end; an update is emitted only if the claimants, the hardware address of one of their interfaces, the kind, the
//! confidence, the receiver of the traffic, the sweep or what records have about a claim changed. A hardware address that becomes
//! known afterwards is no change: a new conflict is one event.

use std::{net::IpAddr, sync::Arc};

use crate::{
    hash::{HashMap, with_room},
    limits::expiry::ExpiryQueue,
    model::{
        AnomalyId, Claimant, ClaimantId, Confidence, Conflict, ConflictId, ConflictKind, Effect,
        IdSequence, LeaveReason, Network, Reported, Scope, Settings, Timestamp,
    },
    track::{
        Step,
        conflict_limit::{ConflictLimit, RetryTarget},
        repeats::{EndedConflicts, Recurrence},
        tracked_conflict::{TrackedConflict, ids},
    },
};

/// The state of an address in one scope, as the rules decide it.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) network: Network,
    /// The kind of conflict; `None` if there is none.
    pub(crate) kind: Option<ConflictKind>,
    pub(crate) confidence: Confidence,
    pub(crate) claimants: Vec<Claimant>,
    /// Whether all of them are interfaces of one pod.
    pub(crate) is_one_pod: bool,
    /// The one of `claimants` that receives the node's traffic.
    pub(crate) receiver: Option<ClaimantId>,
}

impl Decision {
    /// The device name of the receiver.
    pub(crate) fn traffic_goes_to(&self) -> Option<String> {
        let receiver = self.claimants.iter().find(|c| Some(c.id) == self.receiver);
        receiver.map(|c| c.device.clone())
    }
}

#[derive(Debug)]
pub(crate) struct Lifecycle {
    settings: Arc<Settings>,
    open: HashMap<IpAddr, Vec<(Scope, TrackedConflict)>>,
    /// How many are open, in the order of [`ConflictKind::ALL`].
    counts: [usize; ConflictKind::ALL.len()],
    ids: IdSequence,
    limit: ConflictLimit,
    /// How many claimants all open conflicts list.
    listed: usize,
    ended: EndedConflicts,
    /// When to decide an address again because of an update or an end that waits.
    waiting: ExpiryQueue,
}

impl Lifecycle {
    pub(crate) fn new(settings: &Arc<Settings>) -> Self {
        Self {
            settings: Arc::clone(settings),
            open: with_room(),
            counts: Default::default(),
            ids: IdSequence::new(settings.id_seed),
            limit: ConflictLimit::default(),
            listed: 0,
            ended: EndedConflicts::default(),
            waiting: ExpiryQueue::default(),
        }
    }

    /// The next rejected address to decide again, if there is room.
    pub(crate) fn next_retry(&mut self) -> Option<RetryTarget> {
        self.limit.next_retry(&self.settings.bounds)
    }

    /// When [`Lifecycle::pop_due`] has to be called next.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.waiting.next_due()
    }

    /// The next address that is to be decided again by `now`.
    pub(crate) fn pop_due(&mut self, now: Timestamp) -> Option<IpAddr> {
        self.waiting.pop_due(now)
    }

    pub(crate) fn open(&self) -> impl Iterator<Item = (Scope, &Conflict)> {
        self.open
            .values()
            .flatten()
            .map(|(scope, open)| (*scope, &*open.conflict))
    }

    pub(crate) fn open_of(
        &self,
        address: IpAddr,
    ) -> impl Iterator<Item = (Scope, &Conflict)> + Clone {
        let open = self.open.get(&address).into_iter().flatten();
        open.map(|(scope, open)| (*scope, &*open.conflict))
    }

    /// How many conflicts of `kind` are open.
    pub(crate) fn count(&self, kind: ConflictKind) -> usize {
        self.counts[kind as usize]
    }

    pub(crate) fn has_open(&self, address: IpAddr) -> bool {
        self.open.contains_key(&address)
    }

    /// Opens a conflict of the previous run again.
    pub(crate) fn restore(&mut self, scope: Scope, conflict: Conflict, is_unreported: bool) {
        let ids = ids(conflict.present());
        self.counts[conflict.kind as usize] += 1;
        let mut tracked = TrackedConflict::new(conflict, ids);
        tracked.has_unreported_change = is_unreported;
        self.count_open(&tracked);
        let open = self.open.entry(tracked.conflict.address).or_default();
        open.push((scope, tracked));
    }

    fn count_open(&mut self, tracked: &TrackedConflict) {
        self.limit.open(&tracked.ids);
        self.listed += tracked.conflict.claimants.len();
    }

    /// Applies the decisions about one address; scopes without a decision have no claimants any
    /// more. Returns how many conflicts were rejected at the bound.
    pub(crate) fn apply(
        &mut self,
        address: IpAddr,
        mut decisions: Vec<(Scope, Decision)>,
        leave_reason: impl Fn(&Claimant) -> LeaveReason,
        step: &mut Step<'_>,
    ) -> u64 {
        let bounds = self.settings.bounds;
        let mut refused = 0;
        let open = self.open.remove(&address).unwrap_or_default();
        let mut still_open = Vec::with_capacity(open.len());
        for (scope, mut known) in open {
            self.limit.close(&known.ids);
            self.listed -= known.conflict.claimants.len();
            let room = bounds.listed_claimants.saturating_sub(self.listed);
            let position = decisions.iter().position(|(other, _)| *other == scope);
            let decision = position.map(|position| decisions.swap_remove(position).1);
            match decision {
                Some(
                    decision @ Decision {
                        kind: Some(kind), ..
                    },
                ) => {
                    self.counts[known.conflict.kind as usize] -= 1;
                    self.counts[kind as usize] += 1;
                    known.begins_again();
                    known.has_unreported_change |=
                        known.change(kind, decision, &leave_reason, step, (&bounds, room));
                    if let Some(due) = known.report_change(self.settings.update_interval, step) {
                        self.waiting.schedule(address, due);
                    }
                    self.count_open(&known);
                    still_open.push((scope, known));
                }
                _ if known.may_begin_again(&leave_reason)
                    && known.is_quiet_until(step.now) > step.now =>
                {
                    self.waiting
                        .schedule(address, known.is_quiet_until(step.now));
                    self.count_open(&known);
                    still_open.push((scope, known));
                }
                outcome => {
                    self.counts[known.conflict.kind as usize] -= 1;
                    let what = Recurrence::new(address, scope, known.conflict.kind, &known.ids);
                    let resolved = known.resolve(outcome, &leave_reason, step, (&bounds, room));
                    self.ended
                        .add(what, &resolved, step.now, bounds.open_conflicts);
                    step.effects.push(Effect::Resolved(resolved));
                }
            }
        }
        for (scope, decision) in decisions {
            let Some(kind) = decision.kind else { continue };
            let ids = decision.claimants.iter().map(|c| c.id);
            let rejected = self
                .limit
                .reject(address, ids, decision.confidence, &bounds);
            if let Some(is_new) = rejected {
                refused += u64::from(is_new);
                continue;
            }
            self.counts[kind as usize] += 1;
            let room = bounds.listed_claimants.saturating_sub(self.listed);
            let mut opened =
                TrackedConflict::raise(address, scope, kind, decision, step, (&bounds, room));
            let what = || Recurrence::new(address, scope, kind, &opened.ids);
            let again = self.ended.take(what, step.now);
            let (id, repeats) = again.unwrap_or_else(|| (ConflictId(self.ids.next()), 0));
            let conflict = Arc::make_mut(&mut opened.conflict);
            (conflict.id, conflict.repeats) = (id, repeats);
            step.effects
                .push(Effect::Raised(Arc::clone(&opened.conflict)));
            self.count_open(&opened);
            still_open.push((scope, opened));
        }
        if !still_open.is_empty() {
            self.open.insert(address, still_open);
        }
        refused
    }

    /// Replaces an open conflict with `conflict`, which is the same one with newer evidence, and
    /// reports it as updated. Its detection latency stays: nothing was detected.
    pub(crate) fn refresh(&mut self, conflict: Conflict, step: &mut Step<'_>) {
        let address = conflict.address;
        let latency = conflict.latency();
        let newer = Conflict {
            updated_at: step.now,
            decided_at: Timestamp(step.now.0.saturating_sub(latency)),
            ..conflict
        };
        self.amend(address, newer.id, false, step, |known| *known = newer);
    }

    /// Changes an open conflict, which is reported as updated unless an effect contains the change (`is_reported`).
    fn amend(
        &mut self,
        address: IpAddr,
        id: ConflictId,
        is_reported: bool,
        step: &mut Step<'_>,
        change: impl FnOnce(&mut Conflict),
    ) {
        let interval = self.settings.update_interval;
        let Some(tracked) = self.tracked_mut(address, id) else {
            return;
        };
        change(Arc::make_mut(&mut tracked.conflict));
        if is_reported {
            return;
        }
        tracked.has_unreported_change = true;
        if let Some(due) = tracked.report_change(interval, step) {
            self.waiting.schedule(address, due);
        }
    }

    fn tracked_mut(&mut self, address: IpAddr, id: ConflictId) -> Option<&mut TrackedConflict> {
        let mut open = self.open.get_mut(&address)?.iter_mut();
        let (_, tracked) = open.find(|(_, tracked)| tracked.conflict.id == id)?;
        Some(tracked)
    }

    /// Whether a change of an open conflict waits to be reported.
    pub(crate) fn has_unreported_change(&self, address: IpAddr, id: ConflictId) -> bool {
        let mut open = self.open.get(&address).into_iter().flatten();
        open.any(|(_, tracked)| tracked.conflict.id == id && tracked.has_unreported_change)
    }

    /// Stores what the last event about an open conflict contained.
    pub(crate) fn set_reported(&mut self, address: IpAddr, id: ConflictId, reported: Reported) {
        if let Some(tracked) = self.tracked_mut(address, id) {
            Arc::make_mut(&mut tracked.conflict).reported = Some(reported);
        }
    }

    /// Marks an open conflict as part of this sweep, or of none. `is_reported`: an effect contains it.
    pub(crate) fn set_sweep(
        &mut self,
        address: IpAddr,
        id: ConflictId,
        sweep: Option<AnomalyId>,
        is_reported: bool,
        step: &mut Step<'_>,
    ) {
        let (now, at) = (step.now, step.at);
        self.amend(address, id, is_reported, step, |conflict| {
            (conflict.sweep, conflict.updated_at, conflict.decided_at) = (sweep, now, at);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NODE_WIDE;

    /// Applies the decision for these claimants of `address`.
    fn apply_decision(lifecycle: &mut Lifecycle, address: IpAddr, claimants: Vec<Claimant>) {
        let kind = (claimants.len() > 1).then_some(ConflictKind::Duplicate);
        let decision = Decision {
            network: Network::Node,
            kind,
            confidence: Confidence::Certain,
            claimants,
            is_one_pod: false,
            receiver: None,
        };
        let step = &mut Step {
            now: Timestamp(2),
            at: Timestamp(1),
            effects: &mut Vec::new(),
        };
        let leave_reason = |_: &Claimant| LeaveReason::Expired;
        let decisions = vec![(NODE_WIDE, decision)];
        let refused = lifecycle.apply(address, decisions, leave_reason, step);
        assert_eq!(refused, 0);
    }

    #[test]
    fn resolved_address_leaves_no_state() {
        let mut lifecycle = Lifecycle::new(&Arc::default());
        let address = IpAddr::from([10, 0, 0, 1]);
        let claimants = [1, 2].map(|device| {
            let id = ClaimantId::Device(device, 1);
            Claimant::new(id, format!("veth{device}"), device, Timestamp(1))
        });
        apply_decision(&mut lifecycle, address, claimants.to_vec());
        assert!(lifecycle.has_open(address));
        apply_decision(&mut lifecycle, address, claimants[..1].to_vec());
        assert!(!lifecycle.has_open(address));
    }
}
