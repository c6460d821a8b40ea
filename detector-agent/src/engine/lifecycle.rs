//! The lifecycle of conflicts: raised at once, updated as they change, resolved when they end.
//!
//! Invariants: a conflict is raised once and resolved once and keeps its id in between; an update
//! is emitted only if the claimants, the hardware address of one of their interfaces, the kind, the
//! confidence, the receiver of the traffic, the sweep or what records have about a claim changed. A hardware address that becomes
//! known afterwards is no change: a new conflict is one event.

use std::{collections::BTreeSet, net::IpAddr};

use super::{
    anomaly::AnomalyId,
    conflict::{
        Claimant, ClaimantId, Confidence, Conflict, ConflictId, ConflictKind, ConflictScope,
        LeaveReason, Reported,
    },
    conflict_room::{ConflictRoom, RetryTarget},
    counts::KindCounts,
    hash::HashMap,
    ids::mix,
    network::Network,
    observation::Timestamp,
    scope::Scope,
    settings::Bounds,
    step::Effect,
};

/// The state of an address in one scope, as the rules decide it.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) network: Network,
    /// The kind of conflict; `None` if there is none.
    pub(super) kind: Option<ConflictKind>,
    pub(super) confidence: Confidence,
    pub(super) claimants: Vec<Claimant>,
    /// Whether all of them are interfaces of one pod.
    pub(super) is_one_pod: bool,
    /// The one of `claimants` that receives the node's traffic.
    pub(super) receiver: Option<ClaimantId>,
}

impl Decision {
    /// The device name of the receiver.
    fn traffic_goes_to(&self) -> Option<String> {
        let receiver = self.claimants.iter().find(|c| Some(c.id) == self.receiver);
        receiver.map(|c| c.device.clone())
    }
}

/// When a decision is made, and the timestamp of the observation that caused it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecisionTime {
    pub(super) now: Timestamp,
    pub(super) decided_at: Timestamp,
}

#[derive(Debug)]
struct TrackedConflict {
    conflict: Conflict,
    /// All present claimants, including those beyond the bound on listed ones.
    ids: BTreeSet<ClaimantId>,
}

#[derive(Debug)]
pub(super) struct Lifecycle {
    open: HashMap<IpAddr, Vec<(Scope, TrackedConflict)>>,
    counts: KindCounts<ConflictKind>,
    seed: u64,
    serial: u64,
    room: ConflictRoom,
}

impl Lifecycle {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            open: HashMap::default(),
            counts: KindCounts::default(),
            seed,
            serial: 0,
            room: ConflictRoom::default(),
        }
    }

    /// The next rejected address to decide again, if there is room.
    pub(super) fn next_retry(&mut self, bounds: &Bounds) -> Option<RetryTarget> {
        self.room.next_retry(bounds)
    }

    pub(super) fn open(&self) -> impl Iterator<Item = (Scope, &Conflict)> {
        self.open
            .values()
            .flatten()
            .map(|(scope, open)| (*scope, &open.conflict))
    }

    pub(super) fn open_of(&self, address: IpAddr) -> impl Iterator<Item = (Scope, &Conflict)> {
        let open = self.open.get(&address).into_iter().flatten();
        open.map(|(scope, open)| (*scope, &open.conflict))
    }

    /// How many conflicts of `kind` are open.
    pub(super) fn count(&self, kind: ConflictKind) -> usize {
        self.counts.of(&kind)
    }

    pub(super) fn has_open(&self, address: IpAddr) -> bool {
        self.open.contains_key(&address)
    }

    /// Opens a conflict of the previous run again.
    pub(super) fn restore(&mut self, scope: Scope, conflict: Conflict) {
        let ids = conflict.present().map(|c| c.id).collect();
        self.room.open(&ids);
        self.counts.add(conflict.kind);
        let open = self.open.entry(conflict.address).or_default();
        open.push((scope, TrackedConflict { conflict, ids }));
    }

    /// Applies the decisions about one address; scopes without a decision have no claimants any
    /// more. Returns how many conflicts were rejected at the bound.
    pub(super) fn apply(
        &mut self,
        address: IpAddr,
        mut decisions: Vec<(Scope, Decision)>,
        leave_reason: impl Fn(&Claimant) -> LeaveReason,
        at: DecisionTime,
        bounds: &Bounds,
        effects: &mut Vec<Effect>,
    ) -> u64 {
        let mut refused = 0;
        let open = self.open.remove(&address).unwrap_or_default();
        let mut still_open = Vec::with_capacity(open.len());
        for (scope, mut known) in open {
            self.room.close(&known.ids);
            let position = decisions.iter().position(|(other, _)| *other == scope);
            let decision = position.map(|position| decisions.swap_remove(position).1);
            match decision {
                Some(
                    decision @ Decision {
                        kind: Some(kind), ..
                    },
                ) => {
                    self.counts.subtract(&known.conflict.kind);
                    self.counts.add(kind);
                    if known.change(kind, decision, &leave_reason, at, bounds) {
                        effects.push(Effect::Updated(known.conflict.clone()));
                    }
                    self.room.open(&known.ids);
                    still_open.push((scope, known));
                }
                outcome => {
                    self.counts.subtract(&known.conflict.kind);
                    effects.push(Effect::Resolved(known.resolve(
                        outcome,
                        &leave_reason,
                        at,
                        bounds,
                    )));
                }
            }
        }
        for (scope, decision) in decisions {
            let Some(kind) = decision.kind else { continue };
            let ids = decision.claimants.iter().map(|c| c.id);
            let rejected = self.room.reject(address, ids, decision.confidence, bounds);
            if let Some(is_new) = rejected {
                refused += u64::from(is_new);
                continue;
            }
            self.counts.add(kind);
            let opened =
                TrackedConflict::raise(self.next_id(), address, scope, kind, decision, at, bounds);
            effects.push(Effect::Raised(opened.conflict.clone()));
            self.room.open(&opened.ids);
            still_open.push((scope, opened));
        }
        if !still_open.is_empty() {
            self.open.insert(address, still_open);
        }
        refused
    }

    /// Replaces an open conflict with `conflict`, which is the same one with newer evidence, and
    /// reports it as updated. Its detection latency stays: nothing was detected.
    pub(super) fn refresh(
        &mut self,
        conflict: Conflict,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let Some(tracked) = self.tracked_mut(conflict.address, conflict.id) else {
            return;
        };
        let latency = conflict.updated_at.0.saturating_sub(conflict.decided_at.0);
        tracked.conflict = Conflict {
            updated_at: now,
            decided_at: Timestamp(now.0.saturating_sub(latency)),
            ..conflict
        };
        effects.push(Effect::Updated(tracked.conflict.clone()));
    }

    fn tracked_mut(&mut self, address: IpAddr, id: ConflictId) -> Option<&mut TrackedConflict> {
        let mut open = self.open.get_mut(&address)?.iter_mut();
        let (_, tracked) = open.find(|(_, tracked)| tracked.conflict.id == id)?;
        Some(tracked)
    }

    /// Stores what the last event about an open conflict contained.
    pub(super) fn set_reported(&mut self, address: IpAddr, id: ConflictId, reported: Reported) {
        if let Some(tracked) = self.tracked_mut(address, id) {
            tracked.conflict.reported = Some(reported);
        }
    }

    /// Marks an open conflict as part of this sweep, or of none, and returns it.
    pub(super) fn set_sweep(
        &mut self,
        address: IpAddr,
        id: ConflictId,
        sweep: Option<AnomalyId>,
        at: DecisionTime,
    ) -> Option<Conflict> {
        let conflict = &mut self.tracked_mut(address, id)?.conflict;
        conflict.sweep = sweep;
        conflict.updated_at = at.now;
        conflict.decided_at = at.decided_at;
        Some(conflict.clone())
    }

    /// Distinct across restarts by the seed, and within one run by the serial number.
    fn next_id(&mut self) -> ConflictId {
        self.serial += 1;
        let high = mix(self.seed ^ mix(self.serial));
        let low = mix(self.seed.rotate_left(32).wrapping_add(self.serial));
        ConflictId((u128::from(high) << 64) | u128::from(low))
    }
}

impl TrackedConflict {
    fn raise(
        id: ConflictId,
        address: IpAddr,
        scope: Scope,
        kind: ConflictKind,
        decision: Decision,
        at: DecisionTime,
        bounds: &Bounds,
    ) -> Self {
        let ids = decision.claimants.iter().map(|c| c.id).collect();
        let traffic_goes_to = decision.traffic_goes_to();
        let confidence = decision.confidence;
        let network = decision.network.clone();
        let (claimants, claimants_omitted) = listed(decision, bounds);
        let conflict = Conflict {
            scope: ConflictScope::Node,
            id,
            address,
            network,
            vlan: scope.vlan,
            kind,
            confidence,
            raised_at: at.now,
            updated_at: at.now,
            resolved_at: None,
            decided_at: at.decided_at,
            traffic_goes_to,
            claimants,
            claimants_omitted,
            sweep: None,
            reported: None,
        };
        Self { conflict, ids }
    }

    /// Updates the conflict; `true` if that is worth a notification.
    fn change(
        &mut self,
        kind: ConflictKind,
        decision: Decision,
        leave_reason: &impl Fn(&Claimant) -> LeaveReason,
        at: DecisionTime,
        bounds: &Bounds,
    ) -> bool {
        let conflict = &mut self.conflict;
        let before = (
            conflict.kind,
            conflict.confidence,
            std::mem::take(&mut conflict.traffic_goes_to),
        );
        conflict.kind = kind;
        conflict.confidence = decision.confidence;
        conflict.traffic_goes_to = decision.traffic_goes_to();
        let joined_or_left = self.replace(decision, leave_reason, bounds);
        let conflict = &mut self.conflict;
        let changed = joined_or_left
            || before
                != (
                    conflict.kind,
                    conflict.confidence,
                    conflict.traffic_goes_to.clone(),
                );
        if changed {
            conflict.updated_at = at.now;
            conflict.decided_at = at.decided_at;
        }
        changed
    }

    fn resolve(
        mut self,
        outcome: Option<Decision>,
        leave_reason: &impl Fn(&Claimant) -> LeaveReason,
        at: DecisionTime,
        bounds: &Bounds,
    ) -> Conflict {
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
        self.replace(remaining, leave_reason, bounds);
        let mut conflict = self.conflict;
        if is_one_pod {
            // It is shown at the first of its interfaces.
            let mut is_first = true;
            conflict
                .claimants
                .retain(|c| c.left.is_some() || std::mem::take(&mut is_first));
        }
        conflict.traffic_goes_to = traffic_goes_to;
        conflict.updated_at = at.now;
        conflict.decided_at = at.decided_at;
        conflict.resolved_at = Some(at.now);
        conflict
    }

    /// Replaces the present claimants; those that left follow with their reasons. `true` if a
    /// claimant joined or left, its device was renamed, or its interface got another hardware address.
    fn replace(
        &mut self,
        decision: Decision,
        leave_reason: &impl Fn(&Claimant) -> LeaveReason,
        bounds: &Bounds,
    ) -> bool {
        let ids: BTreeSet<_> = decision.claimants.iter().map(|c| c.id).collect();
        let before = std::mem::take(&mut self.conflict.claimants);
        let (mut claimants, omitted) = listed(decision, bounds);
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
        let left = departed(before, &ids, leave_reason, bounds);
        claimants.extend(left);
        self.conflict.claimants = claimants;
        self.conflict.claimants_omitted = omitted;
        let changed = differs || ids != self.ids;
        self.ids = ids;
        changed
    }
}

/// The claimants that are not present any more, each with its reason; bounded, the newest are kept.
fn departed(
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
fn listed(decision: Decision, bounds: &Bounds) -> (Vec<Claimant>, usize) {
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
