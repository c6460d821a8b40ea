//! How the agent observes the node: live updates and snapshots.

use super::*;

impl Harness {
    /// Changes the world and delivers the resulting observation, if there is one.
    pub(super) fn apply(
        &mut self,
        change: impl FnOnce(&mut World) -> Option<Observation>,
    ) -> TestCaseResult {
        match change(&mut self.world) {
            Some(observation) => self.deliver(observation),
            None => self.check(Vec::new()),
        }
    }

    pub(super) fn deliver(&mut self, observation: Observation) -> TestCaseResult {
        self.deliver_at(self.world.now, observation)
    }

    pub(super) fn deliver_at(&mut self, at: Timestamp, observation: Observation) -> TestCaseResult {
        if self.stage == SyncStage::Losing {
            return Ok(());
        }
        let mut effects = Vec::new();
        self.engine.step(
            self.world.now,
            TimedObservation { at, observation },
            &mut effects,
        );
        self.check(effects)
    }

    /// Takes the pending route lookups, and answers them as the kernel would now.
    pub(super) fn answer_lookups(&mut self) -> RouteAnswers {
        let queries = self.engine.take_route_lookups(2).into_iter();
        let answer = |query: RouteQuery| (query, self.world.look_up_route(query.address));
        RouteAnswers {
            found: queries.map(answer).collect(),
            failed: Vec::new(),
        }
    }

    pub(super) fn step_answers(&mut self, answers: RouteAnswers, effects: &mut Vec<Effect>) {
        let observation = TimedObservation {
            at: self.world.now,
            observation: Observation::RoutesLookedUp(answers),
        };
        self.engine.step(self.world.now, observation, effects);
    }

    pub(super) fn finish_lookups(&mut self) -> TestCaseResult {
        let mut effects = Vec::new();
        if let Some(answers) = self.lookups.take() {
            self.step_answers(answers, &mut effects);
        }
        self.check(effects)
    }

    pub(super) fn start_snapshot(
        &mut self,
        scope: SnapshotScope,
    ) -> Result<SnapshotToken, TestCaseError> {
        self.start_read(scope, false)
    }

    /// A self-check of a device that the agent has read before. It is not started while
    /// observations are lost: differences are expected then.
    pub(super) fn start_self_check(&mut self, ifindex: IfIndex) -> TestCaseResult {
        let device = self.world.links.get(&ifindex);
        let is_known = device.is_some_and(|d| d.read || d.peer.is_none());
        if !is_known || self.stage != SyncStage::Synced {
            return Ok(());
        }
        self.start_read(SnapshotScope::Device(ifindex), true)
            .map(drop)
    }

    pub(super) fn fail_self_checks(&mut self) -> TestCaseResult {
        while let Some(which) = self.pending.iter().position(|p| p.is_self_check) {
            let failed = self.pending.remove(which);
            self.deliver(Observation::SnapshotFailed(failed.token))?;
        }
        Ok(())
    }

    fn start_read(
        &mut self,
        scope: SnapshotScope,
        is_self_check: bool,
    ) -> Result<SnapshotToken, TestCaseError> {
        self.world.snapshots += 1;
        let token = SnapshotToken(self.world.snapshots);
        self.pending.push(Pending {
            token,
            scope,
            started: self.world.snapshots,
            is_self_check,
            dump: None,
            is_discarded: false,
        });
        // The agent starts snapshots itself, so this is never lost.
        let mut effects = Vec::new();
        let started = TimedObservation {
            at: self.world.now,
            observation: if is_self_check {
                Observation::SelfCheckStarted(token)
            } else {
                Observation::SnapshotStarted(token)
            },
        };
        self.engine.step(self.world.now, started, &mut effects);
        self.check(effects)?;
        Ok(token)
    }

    pub(super) fn finish_snapshot(&mut self, which: usize) -> TestCaseResult {
        let pending = self.pending.remove(which);
        let dump = pending.dump.expect("dumped");
        if pending.started > self.newest && !pending.is_discarded {
            if pending.scope == SnapshotScope::Node {
                self.newest = pending.started;
            }
            self.world.merge_dump(&dump, pending.started);
        }
        let snapshot = Observation::Snapshot(
            pending.token,
            pending.scope,
            Box::new(dump.snapshot.clone()),
        );
        let mut effects = Vec::new();
        let read = TimedObservation {
            at: self.world.now,
            observation: snapshot,
        };
        self.engine.step(self.world.now, read, &mut effects);
        self.check(effects)
    }

    /// A snapshot that nothing else happens during.
    pub(super) fn take_snapshot(&mut self, scope: SnapshotScope) -> TestCaseResult {
        self.world.now.0 += MS;
        self.start_snapshot(scope)?;
        let last = self.pending.len() - 1;
        self.pending[last].dump = Some(self.world.dump(scope));
        self.finish_snapshot(last)
    }
}
