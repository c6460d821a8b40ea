//! Conflicts across nodes that this node takes part in, as the fleet reports them.

use std::{collections::BTreeMap, net::IpAddr};

use detector_engine::{
    Anomaly, AnomalyId, Conflict, ConflictId, ConflictKind, ConflictScope, Timestamp,
};
use detector_event::{Change, SubjectId};
use detector_fleet::{Report, Subject};
use ipnet::IpNet;

use super::Core;
use crate::{
    event_loop::Reporter,
    fleet::{self, FleetMessage},
    metrics::{KindAndScope, Metrics, gauge_value},
    process::clock,
};

/// What is open. Bounded by the fleet, which reports only addresses and ranges of this node.
#[derive(Debug, Default)]
pub(super) struct FleetConflicts {
    conflicts: BTreeMap<ConflictId, OpenFinding<Conflict>>,
    overlaps: BTreeMap<AnomalyId, OpenFinding<Anomaly>>,
    /// What the previous run had reported is not known yet.
    awaits_restored: bool,
}

#[derive(Debug)]
struct OpenFinding<T> {
    item: T,
    /// The events about it come from this agent.
    is_reported: bool,
    /// The previous run reported it, and this one does not know yet whether it is over.
    is_restored: bool,
}

impl<T> OpenFinding<T> {
    fn new(item: T, report: &Report, is_restored: bool) -> Self {
        Self {
            item,
            is_reported: report.is_reporter,
            is_restored,
        }
    }
}

impl OpenFinding<Conflict> {
    fn report_diagnosis(&mut self, now: Timestamp, reporter: &mut Reporter) {
        let latency = self.item.latency();
        let diagnosed = Conflict {
            updated_at: now,
            decided_at: Timestamp(now.0.saturating_sub(latency)),
            ..self.item.clone()
        };
        if !self.is_reported {
            reporter.report_remote(Change::Updated, &diagnosed);
        } else if self.is_restored {
            reporter.report_state(&diagnosed);
        } else {
            let last = self.item.reported.as_ref();
            let reported = reporter.report_conflict(Change::Updated, &diagnosed, last);
            self.item.reported = reported.or(self.item.reported.take());
        }
    }
}

impl OpenFinding<Anomaly> {
    fn report_diagnosis(&mut self, now: Timestamp, reporter: &mut Reporter) {
        let latency = self.item.reported_latency_us.unwrap_or_default() * 1_000;
        let diagnosed = Anomaly {
            decided_at: Timestamp(now.0.saturating_sub(latency)),
            ..self.item.clone()
        };
        let diagnosis = reporter.diagnosis_of(self.item.id.into());
        if !self.is_reported {
            reporter.report_remote(Change::Updated, &diagnosed);
        } else if self.is_restored {
            reporter.report_state(&diagnosed);
        } else if self.item.reported_diagnosis != diagnosis {
            reporter.report_anomaly(Change::Updated, &diagnosed);
        }
        self.item.reported_diagnosis = diagnosis;
    }
}

impl FleetConflicts {
    /// Until [`Core::restore_fleet`], what is open does not include what the previous run reported.
    pub(super) fn await_restored(&mut self) {
        self.awaits_restored = true;
    }

    /// Whether what is not open is over.
    pub(super) fn is_restored(&self) -> bool {
        !self.awaits_restored
    }

    /// What follows is of this run.
    fn finish_restore(&mut self) {
        self.awaits_restored = false;
    }

    /// Reports the change of a conflict about `address`.
    fn apply_conflict(
        &mut self,
        report: &Report,
        address: IpAddr,
        reporter: &mut Reporter,
        metrics: &Metrics,
    ) {
        let mut conflict = fleet::conflict(report, address, reporter.node(), &clock::moment());
        let previous = self.conflicts.remove(&conflict.id);
        let step = step(report, previous.as_ref());
        if let Some(previous) = previous {
            conflict.raised_at = previous.item.raised_at;
            conflict.reported = previous.item.reported;
        }
        if !report.is_resolved {
            let open = OpenFinding::new(conflict.clone(), report, self.awaits_restored);
            self.conflicts.insert(conflict.id, open);
            reporter.set_found_elsewhere(conflict.id.into(), report.conflict.found_elsewhere());
        }
        // First: a reader of an event finds it counted.
        let labels = KindAndScope::new(ConflictKind::Duplicate, ConflictScope::Fleet);
        let gauge = metrics.active.get_or_create(&labels);
        gauge.set(gauge_value(count_reported(&self.conflicts)));
        let last = conflict.reported.as_ref();
        let reported = match step {
            Step::Report(change) => reporter.report_conflict(change, &conflict, last),
            Step::ReportRemote(change) => {
                reporter.report_remote(change, &conflict);
                None
            }
            Step::ReportState => {
                let state = reporter.report_state(&conflict);
                // The last event was of the previous run: its content is what was restored.
                state.filter(|_| last.is_none())
            }
        };
        if let (Some(reported), Some(open)) = (reported, self.conflicts.get_mut(&conflict.id)) {
            open.item.reported = Some(reported);
        }
    }

    pub(super) fn conflict_ids(&self) -> impl Iterator<Item = (Timestamp, IpAddr, ConflictId)> {
        let conflicts = self.conflicts.values();
        conflicts.map(|open| (open.item.raised_at, open.item.address, open.item.id))
    }

    pub(super) fn conflicts_of(&self, addresses: &[IpAddr]) -> impl Iterator<Item = Conflict> {
        let conflicts = self.conflicts.values().map(|open| &open.item);
        conflicts
            .filter(|conflict| addresses.contains(&conflict.address))
            .cloned()
    }

    pub(super) fn overlap_ids(&self) -> impl Iterator<Item = (Timestamp, IpAddr, AnomalyId)> {
        let overlaps = self.overlaps.values();
        overlaps.map(|open| (open.item.raised_at, open.item.address, open.item.id))
    }

    pub(super) fn overlaps_of(&self, ids: &[AnomalyId]) -> impl Iterator<Item = Anomaly> {
        let overlaps = ids.iter().filter_map(|id| self.overlaps.get(id));
        overlaps.map(|open| open.item.clone())
    }

    /// What this agent has reported and is active.
    pub(super) fn reported(&self) -> (Vec<Conflict>, Vec<Anomaly>) {
        let conflicts = self.conflicts.values().filter(|open| open.is_reported);
        let overlaps = self.overlaps.values().filter(|open| open.is_reported);
        (
            conflicts.map(|open| open.item.clone()).collect(),
            overlaps.map(|open| open.item.clone()).collect(),
        )
    }

    /// The number of ranges that several nodes have, as far as this agent reports them.
    pub(super) fn count_overlaps(&self) -> usize {
        count_reported(&self.overlaps)
    }
}

fn count_reported<K, T>(open: &BTreeMap<K, OpenFinding<T>>) -> usize {
    open.values().filter(|open| open.is_reported).count()
}

/// What a report leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// An event of this agent.
    Report(Change),
    /// An event of another agent, for people who look at this node.
    ReportRemote(Change),
    /// It was reported before a restart: its state is passed on without an event.
    ReportState,
}

fn step<T>(report: &Report, previous: Option<&OpenFinding<T>>) -> Step {
    // Since this agent started.
    let was_known = previous.is_some_and(|open| !open.is_restored);
    let change = match (report.is_resolved, report.is_update) {
        (true, _) => Change::Resolved,
        (false, true) => Change::Updated,
        (false, false) => Change::Raised,
    };
    match (report.is_reporter, change) {
        (true, Change::Updated) if !was_known => Step::ReportState,
        (true, change) => Step::Report(change),
        (false, change) => Step::ReportRemote(change),
    }
}

impl Core {
    pub(super) fn apply_fleet_message(&mut self, message: FleetMessage) {
        match message {
            FleetMessage::Restored(reports) => self.restore_fleet(&reports),
            FleetMessage::Report(report) => self.apply_fleet_report(&report),
        }
    }

    /// Reports the state of what the previous run had reported, without events.
    fn restore_fleet(&mut self, reports: &[Report]) {
        for report in reports {
            self.apply_fleet_report(report);
        }
        self.fleet.finish_restore();
    }

    fn apply_fleet_report(&mut self, report: &Report) {
        match report.conflict.address {
            Subject::Address(address) => {
                let outputs = &mut self.outputs;
                if !report.is_resolved {
                    for request in self.engine.view().pool_requests(address) {
                        // Fails only while the agent stops.
                        let _ = outputs.pool_reads.send(request);
                    }
                }
                self.fleet
                    .apply_conflict(report, address, &mut outputs.reporter, &outputs.metrics);
            }
            Subject::Range(range) => self.apply_overlap(report, range),
        }
    }

    /// Reports, if that is news, why a conflict between nodes came about, or several have a range. Whether it is open.
    pub(super) fn report_fleet_diagnosis(&mut self, id: SubjectId, is_news: bool) -> bool {
        let now = clock::now();
        let reporter = &mut self.outputs.reporter;
        let mut conflicts = self.fleet.conflicts.values_mut();
        let mut overlaps = self.fleet.overlaps.values_mut();
        let (subject, conflict) =
            if let Some(open) = conflicts.find(|open| SubjectId::from(open.item.id) == id) {
                if is_news {
                    open.report_diagnosis(now, reporter);
                }
                (Some(Subject::Address(open.item.address)), open.item.id)
            } else if let Some(open) = overlaps.find(|open| SubjectId::from(open.item.id) == id) {
                if is_news {
                    open.report_diagnosis(now, reporter);
                }
                let overlap = open.item.overlap.as_ref();
                let range = overlap.map(|overlap| Subject::Range(overlap.range));
                (range, ConflictId(open.item.id.0))
            } else {
                return false;
            };
        // Even if it is as before: it may be about another claim of this node.
        if let (Some(fleet), Some(subject)) = (&self.outputs.fleet, subject)
            && let Some(cause) = reporter.cause_of(id)
        {
            fleet.publish_cause(subject, conflict, cause);
        }
        true
    }

    fn apply_overlap(&mut self, report: &Report, range: IpNet) {
        let mut overlap = fleet::overlap(report, range, &clock::moment());
        let previous = self.fleet.overlaps.remove(&overlap.id);
        let step = step(report, previous.as_ref());
        let mut is_same = false;
        if let Some(previous) = previous {
            overlap.raised_at = previous.item.raised_at;
            overlap.reported_latency_us = previous.item.reported_latency_us;
            overlap.reported_diagnosis = previous.item.reported_diagnosis;
            is_same = previous.item.overlap == overlap.overlap;
        }
        if !report.is_resolved {
            let open = OpenFinding::new(overlap.clone(), report, self.fleet.awaits_restored);
            self.fleet.overlaps.insert(overlap.id, open);
        }
        self.set_anomalies_active();
        let reporter = &mut self.outputs.reporter;
        match step {
            // Nothing changed that an event about it contains.
            Step::Report(Change::Updated) | Step::ReportRemote(Change::Updated) if is_same => {}
            Step::Report(change) => {
                let (latency_us, diagnosis) = reporter.report_anomaly(change, &overlap);
                if let Some(open) = self.fleet.overlaps.get_mut(&overlap.id) {
                    open.item.reported_latency_us = Some(latency_us);
                    open.item.reported_diagnosis = diagnosis;
                }
            }
            Step::ReportRemote(change) => reporter.report_remote(change, &overlap),
            Step::ReportState => {
                reporter.report_state(&overlap);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::{Arc, Mutex};

    use detector_engine::diagnosis::Cause;
    use detector_event::{AnyEvent, ChangedField, EventMaker, Explanation, Explanations};
    use detector_fleet::{objects::ConflictCause, samples};

    use super::*;
    use crate::{pods::PodLookups, sinks::EventSink};

    fn open(report: &Report) -> OpenFinding<()> {
        OpenFinding::new((), report, false)
    }

    #[test]
    fn only_the_reporters_agent_sends_events() {
        let mut report = samples::report("10.0.0.1");
        assert_eq!(step::<()>(&report, None), Step::Report(Change::Raised));
        report.is_reporter = false;
        assert_eq!(
            step::<()>(&report, None),
            Step::ReportRemote(Change::Raised)
        );
        report.is_resolved = true;
        let known = open(&report);
        assert_eq!(
            step(&report, Some(&known)),
            Step::ReportRemote(Change::Resolved)
        );
    }

    #[test]
    fn restart_repeats_no_event() {
        let mut report = samples::report("10.0.0.1");
        report.is_update = true;
        let known = open(&report);
        let restored = OpenFinding {
            is_restored: true,
            ..open(&report)
        };
        for before in [None, Some(&restored)] {
            assert_eq!(step(&report, before), Step::ReportState);
        }
        assert_eq!(step(&report, Some(&known)), Step::Report(Change::Updated));
        report.is_resolved = true;
        for before in [None, Some(&restored)] {
            assert_eq!(step(&report, before), Step::Report(Change::Resolved));
        }
    }

    #[test]
    fn what_is_open_is_known_once_it_is_restored() {
        let mut fleet = FleetConflicts::default();
        assert!(fleet.is_restored(), "nothing is awaited");
        fleet.await_restored();
        assert!(!fleet.is_restored());
        let mut report = samples::report("10.0.0.1");
        report.is_update = true;
        let address = IpAddr::from([10, 0, 0, 1]);
        let conflict = fleet::conflict(&report, address, "node-b", &clock::moment());
        let open = OpenFinding::new(conflict.clone(), &report, fleet.awaits_restored);
        fleet.conflicts.insert(conflict.id, open);
        fleet.finish_restore();
        assert!(fleet.is_restored());
        let (conflicts, _) = fleet.reported();
        assert_eq!(conflicts.len(), 1, "for the sinks it is active");
        let open = fleet.conflicts.get(&conflict.id);
        assert_eq!(step(&report, open), Step::ReportState, "without an event");
    }

    /// Keeps what changed according to each event.
    #[derive(Clone, Debug, Default)]
    struct Changes(Arc<Mutex<Vec<Vec<ChangedField>>>>);

    impl EventSink for Changes {
        fn on_event(&mut self, event: &AnyEvent) {
            if let AnyEvent::Conflict(event) = event {
                let mut changes = self.0.lock().unwrap();
                changes.push(event.data.changed.clone());
            }
        }
    }

    /// What the event loop has for conflicts between nodes, with a sink that keeps what changed.
    struct World {
        fleet: FleetConflicts,
        reporter: Reporter,
        metrics: Arc<Metrics>,
        explanations: Arc<Explanations>,
        changes: Changes,
    }

    impl World {
        fn new() -> Self {
            let metrics = Arc::new(Metrics::new());
            let (requests, _requested) = tokio::sync::mpsc::channel(1);
            let pods = PodLookups::new(Arc::default(), requests);
            let explanations = Arc::new(Explanations::default());
            let maker = EventMaker::new("node-b", 1).explained_by(Arc::clone(&explanations));
            let mut reporter = Reporter::new(maker, pods, None, Arc::clone(&metrics));
            let changes = Changes::default();
            reporter.add_sink(Box::new(changes.clone()));
            Self {
                fleet: FleetConflicts::default(),
                reporter,
                metrics,
                explanations,
                changes,
            }
        }

        fn apply(&mut self, report: &Report) {
            let address = IpAddr::from([10, 0, 0, 1]);
            self.fleet
                .apply_conflict(report, address, &mut self.reporter, &self.metrics);
        }

        /// What changed according to each event since the last call.
        fn changes(&mut self) -> Vec<Vec<ChangedField>> {
            self.reporter.deliver();
            std::mem::take(&mut *self.changes.0.lock().unwrap())
        }

        /// As [`Self::changes`], without events in which nothing changed.
        fn updates(&mut self) -> Vec<Vec<ChangedField>> {
            let mut changes = self.changes();
            changes.retain(|changed| !changed.is_empty());
            changes
        }
    }

    fn explanation(cause: Cause) -> Explanation {
        Explanation {
            diagnosis: Arc::new(detector_event::samples::diagnosis(cause, 1)),
            timeline: Arc::default(),
        }
    }

    #[test]
    fn diagnosis_of_a_conflict_between_nodes_is_an_update() {
        let mut world = World::new();
        let report = samples::report("10.0.0.1");
        world.apply(&report);
        let id = report.conflict.conflict_id;
        let explanation = explanation(Cause::PodCidrTwice);
        assert!(world.explanations.set(id.into(), explanation));
        // Once: the second time it is as it was.
        for _ in 0..2 {
            let open = world.fleet.conflicts.get_mut(&id).unwrap();
            open.report_diagnosis(clock::now(), &mut world.reporter);
        }
        assert_eq!(world.updates(), [[ChangedField::Diagnosis]]);
    }

    #[test]
    fn cause_that_another_node_found_is_an_update_and_not_a_finding_of_this_one() {
        let mut world = World::new();
        let mut report = samples::report("10.0.0.1");
        world.apply(&report);
        let id = report.conflict.conflict_id.into();
        let explanations = Arc::clone(&world.explanations);
        assert!(!explanations.set(id, explanation(Cause::Unknown)));
        report.is_update = true;
        report.conflict.cause = Some(Box::new(ConflictCause {
            node: "node-a".to_owned(),
            ..samples::cause()
        }));
        // Once: the second time it is as it was.
        for _ in 0..2 {
            world.apply(&report);
        }
        assert_eq!(world.updates(), [[ChangedField::Diagnosis]]);
        let shown = explanations.of(id).unwrap().diagnosis;
        assert_eq!(shown.cause, Cause::PodCidrTwice);
        assert!(shown.summary.starts_with("On node node-a: "), "{shown:?}");
        assert_eq!(world.reporter.cause_of(id), None);
        // What this agent finds itself counts as soon as it is as certain.
        assert!(explanations.set(id, explanation(Cause::ReleasedInUse)));
        assert_eq!(
            explanations.of(id).unwrap().diagnosis.cause,
            Cause::ReleasedInUse
        );
    }

    #[test]
    fn first_update_after_a_restart_names_what_changed() {
        let mut world = World::new();
        world.fleet.await_restored();
        let mut report = samples::report("10.0.0.1");
        report.is_update = true;
        world.apply(&report);
        assert!(world.changes().is_empty());
        world.fleet.finish_restore();
        world.apply(&report);
        assert!(world.changes().is_empty(), "as it was");
        report.conflict.claimants[0].party.pod = "c".to_owned();
        world.apply(&report);
        let changed = world.changes();
        assert!(
            matches!(&changed[..], [changed] if !changed.is_empty()),
            "{changed:?}"
        );
    }
}
