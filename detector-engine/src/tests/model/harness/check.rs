//! What must hold after every observation.

use super::*;

/// How long a conflict that has begun again must be over to be resolved (`docs/detection-rules.md`, section 1).
const QUIET: Duration = Duration::from_secs(10);

/// Timers run only while time passes, and each operation takes a millisecond.
const SLACK: Duration = Duration::from_secs(1);

impl Harness {
    /// Checks the order of effects and, if in sync, that the open conflicts are the expected ones.
    /// The route lookups that they lead to are answered first, unless a batch is in flight.
    pub(super) fn check(&mut self, mut effects: Vec<Effect>) -> TestCaseResult {
        while self.lookups.is_none() && self.engine.view().has_route_lookups() {
            let answers = self.answer_lookups();
            self.step_answers(answers, &mut effects);
        }
        for effect in effects {
            match effect {
                Effect::Raised(conflict) => {
                    let is_again = self.closed.remove(&conflict.id);
                    prop_assert_eq!(is_again, conflict.repeats > 0, "raised again");
                    prop_assert!(conflict.resolved_at.is_none());
                    let key = |c: &Conflict| (c.address, c.network.clone(), c.vlan);
                    prop_assert!(
                        self.open.values().all(|c| key(c) != key(&conflict)),
                        "raised although it is open"
                    );
                    let before = self.open.insert(conflict.id, conflict);
                    prop_assert!(before.is_none(), "raised twice");
                }
                Effect::Updated(conflict) => {
                    let before = self.open.insert(conflict.id, Arc::clone(&conflict));
                    prop_assert!(before.is_some(), "updated before it was raised");
                    let before = before.expect("is some");
                    // Of the node's own claim, the expected form lacks the link; of all, the interface's hardware address.
                    let shown = |c: &Conflict| {
                        let devices = c.present().map(|c| {
                            let assigned = |e: &&Evidence| e.kind == EvidenceKind::Address;
                            let macs = c.evidence.iter().filter(assigned).map(|e| e.mac);
                            (c.device.clone(), macs.collect::<Vec<_>>())
                        });
                        (expected_form(c), devices.collect::<Vec<_>>(), c.sweep)
                    };
                    // What changes while an update waits may change back.
                    let waits =
                        self.starts % 2 == 1 || self.restored_waiting.contains(&conflict.id);
                    prop_assert!(
                        waits || shown(&before) != shown(&conflict),
                        "nothing changed"
                    );
                    prop_assert_eq!(before.raised_at, conflict.raised_at);
                }
                Effect::Resolved(conflict) => {
                    prop_assert!(
                        self.open.remove(&conflict.id).is_some(),
                        "resolved unraised"
                    );
                    prop_assert!(self.closed.insert(conflict.id), "resolved twice");
                    prop_assert!(conflict.resolved_at.is_some());
                }
                Effect::Attach(device) | Effect::ReadDevice(device) => {
                    if self.stage != SyncStage::Synced {
                        self.attach.insert(device.ifindex);
                    }
                }
                Effect::Corrected(found) => {
                    prop_assert!(false, "a self-check found {found:?}");
                }
                // The model reports every PVID, with or without filtering.
                Effect::ReadNode(RereadReason::VlanFiltering) => {}
                Effect::Anomaly(effect) => {
                    self.sweeps.report(&effect, self.world.now)?;
                    self.check_raised_mac(&effect)?;
                }
                Effect::Renamed(_) | Effect::Detach { .. } => {}
                Effect::ReadNode(RereadReason::Room) | Effect::BoundReached(_) => {
                    prop_assert!(false, "the bounds are far away: {:?}", effect);
                }
                Effect::Resync | Effect::ReadNode(RereadReason::LateBridge) => {
                    self.resync_requested = true;
                }
            }
        }
        self.check_counts()?;
        prop_assert_eq!(self.engine.outdated_claimed(), Vec::<IpAddr>::new());
        self.note_namespaces();
        if self.engine.view().is_restoring() {
            return Ok(());
        }
        let conflicts = self.engine.view().conflicts(self.world.now);
        let (waiting, settled): (Vec<_>, Vec<_>) = conflicts
            .iter()
            .partition(|c| self.has_unreported_change(c));
        for conflict in &waiting {
            let since = self.world.now.since(conflict.updated_at);
            prop_assert!(since < UPDATE_INTERVAL + SLACK, "a change is not reported");
        }
        let is_waiting = |c: &&Conflict| waiting.iter().any(|waits| waits.id == c.id);
        let reported = self
            .open
            .values()
            .map(Arc::as_ref)
            .filter(|c| !is_waiting(c));
        let mut reported: Vec<_> = reported.map(expected_form).collect();
        reported.sort();
        for conflict in &settled {
            let reported = self.open.get(&conflict.id).map(|c| c.sweep);
            prop_assert_eq!(reported, Some(conflict.sweep), "the reported sweep");
        }
        self.sweeps
            .check(&self.engine, self.is_node_read(), self.world.now)?;
        let now = self.world.now;
        for since in conflicts.iter().filter_map(|c| c.quiet_since) {
            prop_assert!(now.since(since) < QUIET + SLACK, "an end is not reported");
        }
        let mut open: Vec<_> = settled.iter().map(|c| expected_form(c)).collect();
        open.sort();
        prop_assert_eq!(
            &reported,
            &open,
            "reported conflicts differ from the open ones"
        );
        if self.stage == SyncStage::Synced {
            self.check_macs()?;
            self.check_beginnings(&conflicts)?;
            // One that has begun again is open for a while after its end.
            let active = conflicts.iter().filter(|c| c.quiet_since.is_none());
            let mut open: Vec<_> = active.map(expected_form).collect();
            open.sort();
            let mut expected = self.world.expected(&addresses());
            if self.lookups.is_some() {
                for conflict in open.iter_mut().chain(&mut expected) {
                    conflict.traffic_goes_to = None;
                }
                open.sort();
                expected.sort();
            }
            prop_assert_eq!(open, expected);
        }
        Ok(())
    }
}

impl Harness {
    /// Whether the agent has read the whole node since its start.
    pub(super) fn is_node_read(&self) -> bool {
        self.newest > 0
    }

    fn has_unreported_change(&self, conflict: &Conflict) -> bool {
        let record = self.engine.view().open_record(conflict);
        record.is_some_and(|record| record.has_unreported_change)
    }

    /// Remembers in which namespace the agent knows each device.
    fn note_namespaces(&mut self) {
        let devices: HashMap<_, _> = self
            .engine
            .view()
            .devices()
            .into_iter()
            .map(|device| ((device.ifindex, device.generation), device.peer))
            .collect();
        self.namespaces
            .retain(|device, _| devices.contains_key(device));
        let known = devices
            .iter()
            .filter_map(|(device, peer)| Some((*device, (*peer)?.nsid)));
        self.namespaces.extend(known);
        let links = &self.world.links;
        let former = self
            .namespaces
            .iter()
            .map(|((ifindex, _), nsid)| (*ifindex, *nsid));
        self.world.former_namespaces = former
            .filter(|(ifindex, _)| links.get(ifindex).is_some_and(|d| d.link.peer.is_none()))
            .collect();
    }

    /// What the engine keeps counted equals what it lists.
    fn check_counts(&self) -> TestCaseResult {
        let view = self.engine.view();
        prop_assert_eq!(view.device_count(), view.devices().len(), "pod devices");
        let now = self.world.now;
        let addresses = view.addresses().into_iter();
        let claims = addresses.map(|a| view.claims_of(a, now).len());
        prop_assert_eq!(view.claim_count(), claims.sum::<usize>(), "claims");
        let conflicts = view.conflicts(now);
        for kind in ConflictKind::ALL {
            let listed = conflicts.iter().filter(|c| c.kind == kind).count();
            prop_assert_eq!(view.open_conflicts(kind), listed, "{:?}", kind);
        }
        let anomalies = view.anomalies();
        for kind in AnomalyKind::ALL {
            let listed = anomalies.iter().filter(|a| a.kind == kind).count();
            prop_assert_eq!(view.open_anomalies(kind), listed, "{:?}", kind);
        }
        Ok(())
    }

    /// An address that is reported once its duplicate address detection has failed was there before.
    fn check_beginnings(&self, conflicts: &[Conflict]) -> TestCaseResult {
        for conflict in conflicts {
            let failed = conflict.present().filter(|claimant| {
                let is_pod = matches!(claimant.id, ClaimantId::Device(..));
                let device = self.world.links.get(&claimant.ifindex);
                is_pod && device.is_some_and(|device| device.failed.contains(&conflict.address))
            });
            let mut assigned: Vec<_> = failed.flat_map(|claimant| &claimant.evidence).collect();
            assigned.retain(|e| e.kind == EvidenceKind::Address && !e.is_on_internal_interface());
            for evidence in assigned {
                prop_assert!(!evidence.seen.beginning.is_known(), "{:?}", evidence);
            }
        }
        Ok(())
    }
}

pub(super) fn expected_form(conflict: &Conflict) -> Expected {
    Expected {
        address: conflict.address,
        // While it is open, its network keeps the name of a link that is renamed.
        network: match conflict.network.to_string() {
            name if name.starts_with("link:") => "link".to_owned(),
            name => name,
        },
        vlan: (conflict.vlan.outer, conflict.vlan.inner),
        kind: conflict.kind,
        confidence: conflict.confidence,
        claimants: conflict
            .present()
            .map(|c| match c.id {
                ClaimantId::Host => "node".to_owned(),
                ClaimantId::BehindBridge(_, mac) => format!("{}/{mac}", c.device),
                ClaimantId::Device(..) | ClaimantId::Registered(_) => c.device.clone(),
            })
            .collect(),
        traffic_goes_to: conflict.traffic_goes_to.clone(),
    }
}
