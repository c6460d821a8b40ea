//! What a node does if another node holds the `IPClaim` of its address: it asks, waits for the confirmation, and reports.

use detector_engine::{ConflictId, Timestamp};

use super::{
    LocalClaim, Mode, Version,
    cause::{OwnCause, explained},
    conflict::{MAX_CLAIMANTS, claimant, completed, is_first, new},
    context::Context,
    nodes::NodeView,
    objects::{ConflictClaimant, ConflictSpec, Party},
};

/// How many times longer the agent of a ready node may be silent: it may be restarted or upgraded, and an address that it has not
/// released yet may rightly have been given away.
const PATIENCE_WITH_READY_NODE: u32 = 12;

/// A contest of this node's claim.
#[derive(Clone, Debug, Default)]
pub(super) struct Contest {
    /// When it was first noticed.
    pub(super) began: Option<Timestamp>,
    /// The two claims that the contest is about.
    pair: Option<Box<ClaimPair>>,
    pub(super) ask: Option<Box<Ask>>,
    pub(super) proof: Option<Box<Proof>>,
    /// Why this node's claim is in conflict, once this agent knows it.
    pub(super) cause: Option<Box<OwnCause>>,
}

/// Two claims of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimPair {
    /// When this node's claim began.
    pub(super) ours: Timestamp,
    pub(super) theirs: ClaimIdentity,
}

/// What identifies another node's claim among those of that node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClaimIdentity {
    node: String,
    device: String,
    pod_uid: String,
    container_id: String,
}

impl ClaimIdentity {
    pub(super) fn of(party: &Party) -> Self {
        Self {
            node: party.node.clone(),
            device: party.device.clone(),
            pod_uid: party.pod_uid.clone(),
            container_id: party.container_id.clone(),
        }
    }
}

/// A question whose write was acknowledged to this run of the agent.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    /// The uid of the `IPConflict`.
    pub(super) uid: String,
    pub(super) number: u32,
    /// When the claim began for which it was asked.
    pub(super) claim_began: Timestamp,
    pub(super) sent: Timestamp,
    pub(super) answered: Timestamp,
}

/// The overlap is proven, or the holder has been silent for too long.
#[derive(Clone, Debug)]
pub(super) struct Proof {
    pub(super) conflict: ConflictId,
    /// The claims for which it was proven; unknown if an earlier run proved it.
    pub(super) pair: Option<Box<ClaimPair>>,
    /// Why there is no confirmation.
    pub(super) unconfirmed_because: Option<String>,
}

/// The next step of a contest.
#[derive(Debug)]
pub(super) enum ContestStep {
    Ask,
    Wait(Timestamp),
    /// The holder's Node has to be read.
    ReadNode,
    /// The holder's Node is gone or has restarted: its claim is void.
    Void,
    Proven(Option<String>),
    /// Nothing to do: there is no room in the conflict.
    Full,
}

/// The node that holds the `IPClaim`, as a contender knows it.
pub(super) struct OtherHolder<'a> {
    pub(super) party: &'a Party,
    pub(super) version: &'a Version,
    pub(super) known: u64,
    pub(super) since: Timestamp,
}

impl Contest {
    /// This node is no longer a contender. What was proven may still be reported, even by the holder.
    pub(super) fn end(&mut self) {
        (self.began, self.pair, self.ask) = (None, None, None);
    }

    /// The next step for `local`, given the conflict as it is stored.
    pub(super) fn next_step(
        &self,
        conflict: Option<(&Version, &ConflictSpec)>,
        holder: &OtherHolder<'_>,
        local: &LocalClaim,
        cx: &Context<'_>,
    ) -> ContestStep {
        if cx.nodes.is_void(holder.party, holder.known) {
            return ContestStep::Void;
        }
        let Some((version, spec)) = conflict else {
            return ContestStep::Ask;
        };
        if let Some(proof) = &self.proof {
            return ContestStep::Proven(proof.unconfirmed_because.clone());
        }
        let me = claimant(spec, &cx.me.node);
        if me.is_none() && spec.claimants.len() >= MAX_CLAIMANTS {
            return ContestStep::Full;
        }
        let is_current = |ask: &&Ask| {
            ask.uid == version.uid
                && ask.claim_began == local.began
                && me.is_some_and(|me| me.asked == ask.number)
        };
        let Some(ask) = self.ask.as_deref().filter(is_current) else {
            return ContestStep::Ask;
        };
        let is_confirmed = me.is_some_and(|me| me.confirmed == ask.number);
        // The conflict has the holder's present pod, which it writes together with the confirmation; the claim may have an earlier one.
        let first = spec.claimants.first();
        let may_be_handover = holder.party.is_same_pod_name(&local.party)
            || first.map_or(local.terminating, |c| may_be_handover(local, c));
        let handed_over = self.began.unwrap_or(cx.now) + cx.settings.handover;
        if is_confirmed {
            if !may_be_handover || ask.sent >= handed_over {
                return ContestStep::Proven(None);
            }
            return if cx.now < handed_over {
                ContestStep::Wait(handed_over)
            } else {
                ContestStep::Ask
            };
        }
        let silence = ask.answered.max(holder.since);
        self.silent(silence, may_be_handover.then_some(handed_over), holder, cx)
    }

    /// Nothing was confirmed since `asked`.
    fn silent(
        &self,
        asked: Timestamp,
        handed_over: Option<Timestamp>,
        holder: &OtherHolder<'_>,
        cx: &Context<'_>,
    ) -> ContestStep {
        let confirmation = cx.settings.confirmation;
        let overdue = asked + confirmation;
        if cx.now < overdue {
            return ContestStep::Wait(overdue);
        }
        let node = &holder.party.node;
        let Some(view) = cx.nodes.view_since(node, overdue) else {
            return ContestStep::ReadNode;
        };
        let (patience, state) = match view {
            NodeView::There(state) if !state.is_ready => (0, "; the node is not ready"),
            NodeView::There(_) => (PATIENCE_WITH_READY_NODE, ""),
            NodeView::Unreadable => (PATIENCE_WITH_READY_NODE, "; the node cannot be read"),
            NodeView::Gone => (0, "; the node does not exist"),
        };
        let until =
            (asked + confirmation.saturating_mul(patience)).max(handed_over.unwrap_or_default());
        if cx.now < until {
            return ContestStep::Wait(until);
        }
        ContestStep::Proven(Some(format!(
            "the agent of node {node} does not answer{state}"
        )))
    }

    /// Updates what is remembered of the contest. `holder` is `None` while this node holds the claim or nothing is known.
    pub(super) fn progress(
        &mut self,
        conflict: Option<(&Version, &ConflictSpec)>,
        holder: Option<&OtherHolder<'_>>,
        local: &LocalClaim,
        is_reported: bool,
        cx: &Context<'_>,
    ) {
        let Some(holder) = holder else {
            return;
        };
        let listed = conflict
            .and_then(|(_, spec)| spec.claimants.first())
            .map(|c| &c.party);
        let theirs = listed
            .filter(|party| party.node == holder.party.node)
            .unwrap_or(holder.party);
        let pair = Box::new(ClaimPair {
            ours: local.began,
            theirs: ClaimIdentity::of(theirs),
        });
        // With another claim, the time for a handover starts again.
        if self.pair.as_ref() != Some(&pair) {
            self.pair = Some(pair);
            self.began = Some(cx.now);
        }
        let Some((_, spec)) = conflict else {
            return;
        };
        // A reported conflict continues with another claim or holder; one that is not reported has to be proven for these.
        let is_of_other = self.proof.as_ref().is_some_and(|proof| {
            let is_outdated = proof.pair != self.pair || !is_first(spec, &holder.party.node);
            proof.conflict != spec.conflict_id || !is_reported && is_outdated
        });
        if is_of_other {
            self.proof = None;
        }
        if self.proof.is_none()
            && is_first(spec, &holder.party.node)
            && let ContestStep::Proven(unconfirmed_because) =
                self.next_step(conflict, holder, local, cx)
        {
            self.proof = Some(Box::new(Proof {
                conflict: spec.conflict_id,
                pair: self.pair.clone(),
                unconfirmed_because,
            }));
        }
    }
}

/// The conflict as a contender wants it; with `asks`, asking the holder once more.
///
/// A new one proves nothing yet, and one of others is joined before anything else in it is changed: the admission policy refuses
/// everything else, because a node could invent it.
pub(super) fn write_as_contender(
    current: Option<&ConflictSpec>,
    holder: &OtherHolder<'_>,
    local: &LocalClaim,
    contest: &Contest,
    asks: bool,
    cx: &Context<'_>,
) -> ConflictSpec {
    let mut spec = current
        .cloned()
        .unwrap_or_else(|| new(cx.subject, cx.fresh_id));
    let takes_part = spec.claimants.iter().any(|c| c.party.node == cx.me.node);
    if current.is_some() && !takes_part {
        spec.claimants.push(ConflictClaimant {
            party: local.party.clone(),
            asked: u32::from(asks),
            terminating: local.terminating,
            rightful: local.rightful,
            ..ConflictClaimant::default()
        });
        return completed(spec, cx.wall);
    }
    let proof = contest.proof.as_ref().filter(|_| takes_part);
    let listed = std::mem::take(&mut spec.claimants);
    let (mut first, mut rest) = (None, Vec::new());
    for (i, c) in listed.into_iter().enumerate() {
        if c.left.is_some() {
            continue;
        }
        if c.party.node != holder.party.node {
            rest.push(c);
        } else if i == 0 {
            first = Some(c);
        }
    }
    let mut first = first.unwrap_or_else(|| {
        // What the previous holder confirmed proves nothing about this one.
        rest.iter_mut().for_each(|c| c.confirmed = 0);
        ConflictClaimant {
            party: holder.party.clone(),
            ..ConflictClaimant::default()
        }
    });
    let found = rest.iter().position(|c| c.party.node == cx.me.node);
    let position = found.unwrap_or_else(|| {
        rest.push(ConflictClaimant::default());
        rest.len() - 1
    });
    let me = &mut rest[position];
    me.party = local.party.clone();
    me.terminating = local.terminating;
    me.rightful = local.rightful;
    me.unconfirmed_because = None;
    me.active = proof.is_some();
    if asks {
        me.asked = next_question(me);
    }
    let because = proof
        .filter(|_| me.asked != me.confirmed)
        .and_then(|proof| proof.unconfirmed_because.as_ref());
    // It may have been about a claim that has ended since.
    if !rest.iter().any(|c| c.active && c.asked != c.confirmed) {
        first.unconfirmed_because = None;
    }
    if let Some(because) = because {
        first
            .unconfirmed_because
            .get_or_insert_with(|| because.clone());
    }
    spec.claimants = std::iter::once(first).chain(rest).collect();
    explained(completed(spec, cx.wall), current, contest.cause.as_deref())
}

/// Whether the pod of one of these claims may be about to leave the address to the other.
pub(super) fn may_be_handover(ours: &LocalClaim, theirs: &ConflictClaimant) -> bool {
    ours.terminating || theirs.terminating || theirs.party.is_same_pod_name(&ours.party)
}

/// A number other than zero and those in use, whatever others have written.
fn next_question(me: &ConflictClaimant) -> u32 {
    let next = me.asked.max(me.confirmed).wrapping_add(1);
    if next == 0 {
        1 + u32::from(me.confirmed == 1)
    } else {
        next
    }
}

/// Whether a void claim may be taken over: only by what may be registered.
pub(super) fn may_take_over(local: &LocalClaim) -> bool {
    local.mode == Mode::Register
}
