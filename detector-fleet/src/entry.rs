//! One subject: this node's claim, what is believed about the subject's objects, and the next request that follows from both.

use detector_engine::Timestamp;

use super::{
    CallId, LocalClaim, Memory, Mode, Request, Subject, Version,
    claim::{ClaimBelief, Holder},
    conflict::{ConflictBelief, is_first},
    contest::{self, Contest, ContestStep, Proof},
    context::Context,
    holder::{self, ConflictWrite},
    objects::{ConflictSpec, Party},
    pace::Pace,
    queue::Priority,
    report::LastReport,
};

/// A subject that this node has, has had, or that a conflict connects with it. What only a contested one needs is boxed.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) local: Option<LocalClaim>,
    pub(super) claim: ClaimBelief,
    pub(super) conflict: ConflictBelief,
    pub(super) contest: Contest,
    pub(super) reported: Option<Box<LastReport>>,
    /// What the journal has.
    pub(super) memory: Option<Memory>,
    /// Whether a request was sent that may have registered it.
    pub(super) may_be_registered: bool,
    pub(super) pace: Pace,
    pub(super) in_flight: Option<CallId>,
}

/// What is next for a subject.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) request: Option<(Priority, Request)>,
    /// When to look again.
    pub(super) wake: Option<Timestamp>,
    /// The number of the question that the request asks.
    pub(super) ask: Option<u32>,
    /// Whether the request removes the claimant that reported, and leaves none that could report the end.
    pub(super) drops_reporter: bool,
}

/// This node's part in a conflict about the subject.
enum ContestRole<'a> {
    /// Not known yet, or dependent on a request that has to be sent first.
    Undetermined,
    /// It holds the `IPClaim` and has the address.
    Holder(&'a LocalClaim),
    /// It has the address, and another node the `IPClaim`.
    Contender(&'a LocalClaim, contest::OtherHolder<'a>),
    /// No claim of it counts.
    None,
}

impl Entry {
    pub(super) fn new(claim: ClaimBelief) -> Self {
        Self {
            local: None,
            claim,
            conflict: ConflictBelief::default(),
            contest: Contest::default(),
            reported: None,
            memory: None,
            may_be_registered: false,
            pace: Pace::default(),
            in_flight: None,
        }
    }

    /// The claimants whose Nodes are polled while the conflict is open: the holder by contenders, and contenders by the holder.
    pub(super) fn polled<'a>(&'a self, me: &'a str) -> impl Iterator<Item = &'a Party> {
        let spec = self.conflict.spec();
        let is_contender = self.local.is_some() && matches!(self.claim.holder, Holder::Other(..));
        let holder = match &self.claim.holder {
            Holder::Other(_, party) if self.local.is_some() => Some(&**party),
            _ => None,
        };
        let names_us_first = spec
            .and_then(|spec| spec.claimants.first())
            .is_some_and(|c| c.party.node == me);
        let contenders = spec
            .filter(|_| !is_contender && names_us_first)
            .into_iter()
            .flat_map(|spec| &spec.claimants)
            .filter(move |c| c.party.node != me && c.left.is_none())
            .map(|c| &c.party);
        holder
            .filter(|_| spec.is_some())
            .into_iter()
            .chain(contenders)
    }

    /// Whether the outcome of reading `node` matters here.
    pub(super) fn concerns(&self, node: &str) -> bool {
        let is_holder = matches!(&self.claim.holder, Holder::Other(_, party) if party.node == node);
        let is_listed = self
            .conflict
            .spec()
            .is_some_and(|spec| spec.claimants.iter().any(|c| c.party.node == node));
        is_holder || is_listed
    }

    /// Whether nothing is left to do or to remember.
    pub(super) fn is_finished(&self, me: &str) -> bool {
        self.local.is_none()
            && self.in_flight.is_none()
            && self.reported.is_none()
            && self.claim.is_released()
            && !self.conflict.is_stale
            && !self.names(me)
    }

    fn names(&self, node: &str) -> bool {
        let spec = self.conflict.spec();
        spec.is_some_and(|spec| spec.claimants.iter().any(|c| c.party.node == node))
    }

    fn role<'a>(&'a self, cx: &Context<'_>) -> ContestRole<'a> {
        match (&self.claim.holder, &self.local) {
            (Holder::Us(..), Some(local)) if local.mode == Mode::Register => {
                ContestRole::Holder(local)
            }
            (Holder::Other(version, party), Some(local)) => {
                let holder = contest::OtherHolder {
                    party,
                    version,
                    known: self.claim.known,
                    since: self.claim.since,
                };
                let is_void = cx.nodes.is_void(party, holder.known);
                if is_void && !contest::may_take_over(local) {
                    ContestRole::None
                } else {
                    ContestRole::Contender(local, holder)
                }
            }
            (Holder::Absent | Holder::Other(..) | Holder::Unusable, None) => ContestRole::None,
            (Holder::Absent, Some(local)) if local.mode == Mode::Lookup => ContestRole::None,
            _ => ContestRole::Undetermined,
        }
    }

    /// Draws the conclusions that are kept. To be called before [`Self::plan`].
    pub(super) fn progress(&mut self, cx: &Context<'_>) {
        let Some(local) = self.local.clone() else {
            if cx.is_complete {
                self.contest = Contest::default();
            }
            return;
        };
        // What was proven and not reported yet has to be proven again in another role.
        let is_reported = self.reported.as_ref().is_some_and(|r| r.is_reporter);
        let mut contest = std::mem::take(&mut self.contest);
        contest.cause.take_if(|cause| cause.began != local.began);
        match self.role(cx) {
            ContestRole::Contender(_, holder) => {
                contest.progress(self.stored(), Some(&holder), &local, is_reported, cx);
            }
            ContestRole::Holder(_) | ContestRole::None => {
                contest.end();
                let id = self.conflict.spec().map(|spec| spec.conflict_id);
                let is_known = cx.is_listed && !self.conflict.is_stale;
                contest.proof = contest
                    .proof
                    .filter(|proof| is_reported && (!is_known || Some(proof.conflict) == id));
            }
            ContestRole::Undetermined => {
                let proof = contest.proof;
                let is_of_local = |proof: &Proof| {
                    let pair = proof.pair.as_ref();
                    pair.is_some_and(|pair| pair.ours == local.began)
                };
                contest.proof = proof.filter(|proof| is_reported || is_of_local(proof));
            }
        }
        self.contest = contest;
    }

    /// The next request.
    pub(super) fn plan(&self, cx: &Context<'_>) -> Plan {
        let mut plan = Plan::default();
        if self.in_flight.is_some() || self.local.is_none() && !cx.is_complete {
            return plan;
        }
        if self.conflict.is_stale && self.claim.holder != Holder::Absent {
            return Plan::urgent(Request::GetConflict);
        }
        if let Some(request) = self.claim.request(cx.subject, self.local.as_ref(), cx.now) {
            let is_contested = self.conflict.spec().is_some() || self.contest.began.is_some();
            let priority = match request {
                Request::DeleteClaim(_) => Priority::Urgent,
                _ if is_contested => Priority::Urgent,
                _ => Priority::Plain,
            };
            plan.request = Some((priority, request));
            return plan;
        }
        if self.conflict.is_stale {
            return Plan::urgent(Request::GetConflict);
        }
        if self.disagrees(cx) {
            return Plan::urgent(Request::GetClaim);
        }
        plan.wake = self.claim.next_read(self.local.as_ref());
        match self.role(cx) {
            ContestRole::Undetermined => return plan,
            ContestRole::Holder(local) => self.plan_as_holder(local, &mut plan, cx),
            ContestRole::Contender(local, holder) => {
                self.plan_as_contender(local, &holder, &mut plan, cx)
            }
            ContestRole::None => {
                let change = self
                    .conflict
                    .spec()
                    .and_then(|spec| holder::write_as_leaver(spec, self.conflict.known, cx));
                self.plan_change(change, &mut plan, cx);
            }
        }
        if plan.request.is_none() {
            self.plan_poll(&mut plan, cx);
        }
        plan
    }

    /// Whether the conflict names another holder than the claim that was read before it.
    fn disagrees(&self, cx: &Context<'_>) -> bool {
        let holder = match (&self.claim.holder, &self.local) {
            (Holder::Us(..), Some(_)) => &cx.me.node,
            (Holder::Other(_, party), Some(_)) => &party.node,
            _ => return false,
        };
        let spec = self.conflict.spec();
        spec.is_some_and(|spec| !is_first(spec, holder))
            && !self.claim.is_checked_for(self.conflict.version())
    }

    fn plan_as_holder(&self, local: &LocalClaim, plan: &mut Plan, cx: &Context<'_>) {
        let Some(spec) = self.conflict.spec() else {
            return;
        };
        let change = holder::write_as_holder(spec, self.conflict.known, local, &self.contest, cx);
        self.plan_change(change, plan, cx);
    }

    fn plan_as_contender(
        &self,
        local: &LocalClaim,
        holder: &contest::OtherHolder<'_>,
        plan: &mut Plan,
        cx: &Context<'_>,
    ) {
        let asks = match self.contest.next_step(self.stored(), holder, local, cx) {
            ContestStep::Void => {
                let claim = super::objects::ClaimSpec {
                    address: cx.subject,
                    party: local.party.clone(),
                };
                let request = Request::ReplaceClaim(holder.version.clone(), claim);
                plan.request = Some((Priority::Urgent, request));
                return;
            }
            ContestStep::Full => return,
            ContestStep::ReadNode => {
                if !cx.nodes.is_in_flight(&holder.party.node) {
                    let request = Request::GetNode(holder.party.node.clone());
                    plan.request = Some((Priority::Urgent, request));
                    return;
                }
                false
            }
            ContestStep::Wait(until) => {
                plan.wake_at(until);
                false
            }
            ContestStep::Ask => true,
            // It was proven against a holder that has left since.
            ContestStep::Proven(_) => self.contest.proof.is_none(),
        };
        self.write(local, holder, asks, plan, cx);
    }

    fn write(
        &self,
        local: &LocalClaim,
        holder: &contest::OtherHolder<'_>,
        asks: bool,
        plan: &mut Plan,
        cx: &Context<'_>,
    ) {
        let current = self.conflict.spec();
        let desired = contest::write_as_contender(current, holder, local, &self.contest, asks, cx);
        if current == Some(&desired) || self.conflict.is_without_effect(&desired) {
            return;
        }
        if let (None, Some(resolved)) = (current, &self.conflict.resolved) {
            let request = Request::DeleteConflict(resolved.clone());
            plan.request = Some((Priority::Urgent, request));
            return;
        }
        let me = desired
            .claimants
            .iter()
            .find(|c| c.party.node == cx.me.node);
        plan.ask = me.filter(|_| asks).map(|me| me.asked);
        let request = match self.conflict.version() {
            None => Request::CreateConflict(desired),
            Some(version) => Request::ReplaceConflict(version.clone(), desired),
        };
        plan.request = Some((Priority::Urgent, request));
    }

    fn plan_change(&self, change: Option<ConflictWrite>, plan: &mut Plan, cx: &Context<'_>) {
        let (Some(stored), Some(change)) = (&self.conflict.stored, change) else {
            return;
        };
        if matches!(&change, ConflictWrite::Replace(spec) if self.conflict.is_without_effect(spec))
        {
            return;
        }
        plan.drops_reporter = holder::drops_reporter(&stored.spec, &change, cx);
        let version = stored.version.clone();
        let request = match change {
            ConflictWrite::Replace(spec) => Request::ReplaceConflict(version, spec),
            ConflictWrite::Delete => Request::DeleteConflict(version),
        };
        plan.request = Some((Priority::Urgent, request));
    }

    fn plan_poll(&self, plan: &mut Plan, cx: &Context<'_>) {
        for party in self.polled(&cx.me.node) {
            match cx.nodes.poll_at(&party.node) {
                Some(at) if at <= cx.now => {
                    let request = Request::GetNode(party.node.clone());
                    plan.request = Some((Priority::Plain, request));
                    return;
                }
                Some(at) => plan.wake_at(at),
                None => {}
            }
        }
    }

    pub(super) fn stored(&self) -> Option<(&Version, &ConflictSpec)> {
        let stored = self.conflict.stored.as_ref()?;
        Some((&stored.version, &stored.spec))
    }

    /// What the journal has to have.
    pub(super) fn wanted_memory(&self, subject: Subject) -> Option<Memory> {
        let reported = self.reported.as_ref().filter(|r| r.is_reporter);
        (self.may_be_registered || reported.is_some()).then(|| Memory {
            subject,
            reported: reported.map(|r| Box::new(r.conflict.clone())),
        })
    }
}

impl Plan {
    fn urgent(request: Request) -> Self {
        Self {
            request: Some((Priority::Urgent, request)),
            ..Self::default()
        }
    }

    fn wake_at(&mut self, time: Timestamp) {
        self.wake = Some(self.wake.map_or(time, |wake| wake.min(time)));
    }
}
