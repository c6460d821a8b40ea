//! Restarts, and the recovery from a loss or a restart.

use super::*;

impl Harness {
    pub(super) fn restart(&mut self, down: Duration) -> TestCaseResult {
        self.starts += 1;
        self.restarted = true;
        self.attach.clear();
        self.resync_requested = false;
        self.pending.clear();
        self.newest = 0;
        self.namespaces.clear();
        self.lookups = None;
        let records = self.engine.view().open_records(self.world.now);
        prop_assert_eq!(records.len(), self.open.len());
        let waiting = records.iter().filter(|r| r.has_unreported_change);
        self.restored_waiting = waiting.map(|r| r.conflict.id).collect();
        let conflicts = self.engine.view().conflicts(self.world.now);
        let quiet = conflicts.iter().filter(|c| c.quiet_since.is_some());
        let quiet = quiet.map(expected_form).collect();
        self.world.restart_agent(&addresses(), quiet);
        let anomalies = self.engine.view().anomalies();
        self.engine = Engine::new(settings(self.starts));
        self.engine.restore(Vec::new(), anomalies);
        self.sweeps.restart();
        // The records as they return from disk.
        let text = serde_json::to_vec(&records).expect("plain data");
        let parsed: Vec<OpenConflict> = serde_json::from_slice(&text).expect("the same data");
        prop_assert_eq!(&records, &parsed);
        self.engine.restore(parsed, Vec::new());
        self.world.now = self.world.now + down;
        self.stage = SyncStage::Resumed;
        let token = self.start_snapshot(SnapshotScope::Node)?;
        self.stage = SyncStage::SnapshotStarted(token);
        Ok(())
    }

    pub(super) fn recover(&mut self) -> TestCaseResult {
        match self.stage {
            SyncStage::Synced => Ok(()),
            SyncStage::Losing => {
                self.stage = SyncStage::Resumed;
                for pending in &mut self.pending {
                    pending.is_discarded = true;
                }
                self.deliver(Observation::NotificationsLost)
            }
            SyncStage::Resumed => {
                let token = self.start_snapshot(SnapshotScope::Node)?;
                self.stage = SyncStage::SnapshotStarted(token);
                Ok(())
            }
            SyncStage::SnapshotStarted(token) => {
                self.drop_loss_dependent_entries()?;
                if let Some(pending) = self.pending.iter_mut().find(|p| p.token == token) {
                    pending.dump = Some(self.world.dump(SnapshotScope::Node));
                    self.stage = SyncStage::SnapshotDumped(token);
                } else {
                    // It failed or finished early: start again.
                    self.stage = SyncStage::Resumed;
                }
                Ok(())
            }
            SyncStage::SnapshotDumped(token) => {
                let Some(which) = self.pending.iter().position(|p| p.token == token) else {
                    self.stage = SyncStage::Resumed;
                    return Ok(());
                };
                self.finish_snapshot(which)?;
                while self.resync_requested || !self.attach.is_empty() {
                    if std::mem::take(&mut self.resync_requested) {
                        self.take_snapshot(SnapshotScope::Node)?;
                    }
                    if let Some(ifindex) = self.attach.pop_first() {
                        self.take_snapshot(SnapshotScope::Device(ifindex))?;
                    }
                }
                let recovered = self.world.now;
                // After the window, no former lladdr counts any more, and no move of a hardware address.
                self.wait(Duration::from_secs(181))?;
                self.adopt_macs(recovered);
                self.adopt_evidence();
                self.stage = SyncStage::Synced;
                self.check(Vec::new())
            }
        }
    }

    /// What the agent saw, and dropped, while it was out of sync depends on what it believed then.
    fn adopt_evidence(&mut self) {
        let facts = self.engine.facts();
        self.world.frames.retain(|frame| {
            let c = &frame.claim;
            let known = facts.get(c.address).into_iter().flat_map(|f| &f.frames);
            let mut same =
                known.filter(|f| (f.ifindex, f.vlan, f.kind) == (c.ifindex, c.vlan, c.kind));
            same.next().is_some()
        });
        for ((ifindex, address), entry) in &mut self.world.neighbours {
            let known = facts.get(*address).into_iter().flat_map(|f| &f.neighbours);
            let mut same = known.filter(|n| n.ifindex == *ifindex);
            entry.confirmed = same.next().is_some_and(|n| n.confirmed);
        }
    }

    /// Removes, live, every neighbour entry whose evaluation depends on whether the agent saw an
    /// update that was lost.
    fn drop_loss_dependent_entries(&mut self) -> TestCaseResult {
        let world = &self.world;
        let restarted = self.restarted;
        let doubtful = world.neighbours.iter().filter(|((ifindex, address), e)| {
            if restarted {
                return e.refuted;
            }
            let holder = world.links.get(ifindex);
            let held = holder.is_some_and(|d| d.addresses.contains_key(address));
            world.is_bridge(*ifindex) || (e.state != NudState::Permanent && !held)
        });
        for (ifindex, address) in doubtful.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.apply(|w| w.neighbour_gone(ifindex, address))?;
        }
        Ok(())
    }
}
