//! What this agent reports about a conflict, derived from the stored object.

use std::collections::BTreeSet;

use detector_engine::{LeaveReason, Timestamp};

use super::{
    Effect, Memory, Report,
    conflict::{claimant, reporter},
    contest::{ClaimIdentity, may_be_handover},
    context::Context,
    entry::Entry,
    objects::{ConflictClaimant, ConflictSpec, ConflictState},
};

/// What was last reported as open.
#[derive(Clone, Debug)]
pub(super) struct LastReport {
    pub(super) conflict: ConflictSpec,
    pub(super) is_reporter: bool,
    pub(super) began: Timestamp,
    /// Whether it was reported before a restart: the rest of the agent does not know it yet.
    pub(super) is_restored: bool,
    /// The claims in it that were not a handover. They remain in conflict while their pods are being deleted.
    opponents: BTreeSet<ClaimIdentity>,
}

impl LastReport {
    /// Restores the last report of the previous run of this agent, on node `me`.
    pub(super) fn restored(conflict: ConflictSpec, me: &str) -> Self {
        let opponents = others(&conflict, me).map(|c| ClaimIdentity::of(&c.party));
        Self {
            opponents: opponents.collect(),
            conflict,
            is_reporter: true,
            began: Timestamp::default(),
            is_restored: true,
        }
    }
}

impl Report {
    /// The last report of the previous run of this agent, if the conflict was open.
    #[must_use]
    pub fn restored(memory: &Memory) -> Option<Self> {
        let conflict = memory.reported.as_deref()?;
        Some(Self {
            conflict: conflict.clone(),
            is_resolved: false,
            is_reporter: true,
            is_update: true,
            began: Timestamp::default(),
        })
    }
}

impl Entry {
    /// Reports what changed. Returns whether this agent began or ceased to be the reporter.
    pub(super) fn report(&mut self, cx: &Context<'_>, effects: &mut Vec<Effect>) -> bool {
        let is_reporter = |entry: &Self| entry.reported.as_ref().is_some_and(|r| r.is_reporter);
        let was_reporter = is_reporter(self);
        self.report_changes(cx, effects);
        was_reporter != is_reporter(self)
    }

    fn report_changes(&mut self, cx: &Context<'_>, effects: &mut Vec<Effect>) {
        let is_known = if self.local.is_some() {
            // A stale belief decides nothing. The end of the own claim does, even while the server is away.
            cx.is_listed && !self.conflict.is_stale
        } else {
            cx.is_complete
        };
        if !is_known && self.reported.is_some() {
            return;
        }
        let opponents = self.opponents(cx);
        let open = self.open(&opponents, cx);
        let before = self.reported.take();
        let is_same = matches!((&before, &open), (Some(before), Some((spec, is_reporter)))
            if before.is_reporter == *is_reporter && before.conflict.conflict_id == spec.conflict_id);
        if let Some(before) = before.as_ref().filter(|_| !is_same) {
            effects.push(Effect::Report(Box::new(Report {
                conflict: self.ended(&before.conflict, cx),
                is_resolved: true,
                is_reporter: before.is_reporter,
                is_update: true,
                began: before.began,
            })));
        }
        let Some((conflict, is_reporter)) = open else {
            return;
        };
        let began = self.local.as_ref().map(|l| l.began).unwrap_or_default();
        let is_news = !is_same
            || before
                .as_ref()
                .is_some_and(|before| before.is_restored || before.conflict != conflict);
        if is_news {
            effects.push(Effect::Report(Box::new(Report {
                conflict: conflict.clone(),
                is_resolved: false,
                is_reporter,
                is_update: is_same,
                began,
            })));
        }
        self.reported = Some(Box::new(LastReport {
            conflict,
            is_reporter,
            began,
            is_restored: false,
            opponents,
        }));
    }

    /// The conflict as reported, and whether this agent is the reporter. `None` if it is not active, or over for this node.
    fn open(
        &self,
        opponents: &BTreeSet<ClaimIdentity>,
        cx: &Context<'_>,
    ) -> Option<(ConflictSpec, bool)> {
        self.local.as_ref()?;
        let spec = self.conflict.spec()?;
        claimant(spec, &cx.me.node)?;
        let claimants = spec.claimants.iter().filter(|c| c.left.is_none()).count();
        if spec.state != ConflictState::Active || claimants < 2 {
            return None;
        }
        let is_reporter = reporter(spec)?.party.node == cx.me.node;
        let proof = self.contest.proof.as_ref();
        let is_proven = proof.is_some_and(|proof| proof.conflict == spec.conflict_id);
        // Otherwise an earlier run wrote it, perhaps for another claim: the holder is asked again.
        if is_reporter && !is_proven {
            return None;
        }
        // What is left may be a handover: it is reported again if it lasts.
        if is_reporter && opponents.is_empty() {
            return None;
        }
        let mut spec = spec.clone();
        // What this agent has found itself is known with more than this.
        spec.cause.take_if(|cause| cause.node == cx.me.node);
        for c in &mut spec.claimants {
            // Questions and answers are not part of what is reported.
            (c.asked, c.confirmed) = (0, 0);
        }
        Some((spec, is_reporter))
    }

    /// The claims that are in conflict with this node's and not a handover.
    fn opponents(&self, cx: &Context<'_>) -> BTreeSet<ClaimIdentity> {
        let (Some(local), Some(spec)) = (&self.local, self.conflict.spec()) else {
            return BTreeSet::new();
        };
        let reported = self
            .reported
            .as_ref()
            .filter(|reported| reported.is_restored || reported.began == local.began);
        let proven = self.contest.proof.as_ref().and_then(|p| p.pair.as_deref());
        let proven = proven.filter(|pair| pair.ours == local.began);
        let mut opponents = BTreeSet::new();
        for c in others(spec, &cx.me.node) {
            let theirs = ClaimIdentity::of(&c.party);
            if !may_be_handover(local, c)
                || reported.is_some_and(|reported| reported.opponents.contains(&theirs))
                || proven.is_some_and(|pair| pair.theirs == theirs)
            {
                opponents.insert(theirs);
            }
        }
        opponents
    }

    /// A reported conflict at its end, with the reasons of those that left.
    fn ended(&self, reported: &ConflictSpec, cx: &Context<'_>) -> ConflictSpec {
        let mut spec = reported.clone();
        let now = self
            .conflict
            .spec()
            .filter(|now| now.conflict_id == spec.conflict_id);
        for c in &mut spec.claimants {
            let node = &c.party.node;
            let listed = now.and_then(|now| now.claimants.iter().find(|c| c.party.node == *node));
            c.left = if *node == cx.me.node {
                let is_gone = self.local.is_none();
                is_gone.then_some(LeaveReason::AddressRemoved)
            } else if cx.nodes.is_void(&c.party, 0) {
                Some(LeaveReason::Expired)
            } else {
                match listed {
                    Some(listed) => listed.left,
                    None => Some(LeaveReason::AddressRemoved),
                }
            };
        }
        spec
    }
}

/// The claimants other than `me` that have not left.
fn others<'a>(spec: &'a ConflictSpec, me: &'a str) -> impl Iterator<Item = &'a ConflictClaimant> {
    let is_other = move |c: &&ConflictClaimant| c.left.is_none() && c.party.node != me;
    spec.claimants.iter().filter(is_other)
}
