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

    pub(super) fn start_snapshot(
        &mut self,
        scope: SnapshotScope,
    ) -> Result<SnapshotToken, TestCaseError> {
        self.world.snapshots += 1;
        let token = SnapshotToken(self.world.snapshots);
        self.pending.push(Pending {
            token,
            scope,
            started: self.world.snapshots,
            dump: None,
        });
        // The agent starts snapshots itself, so this is never lost.
        let mut effects = Vec::new();
        let started = TimedObservation {
            at: self.world.now,
            observation: Observation::SnapshotStarted(token),
        };
        self.engine.step(self.world.now, started, &mut effects);
        self.check(effects)?;
        Ok(token)
    }

    pub(super) fn finish_snapshot(&mut self, which: usize) -> TestCaseResult {
        let pending = self.pending.remove(which);
        let dump = pending.dump.expect("dumped");
        if pending.started > self.newest {
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
