//! When events are written, and when they are delivered.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::{
    fs,
    net::IpAddr,
    path::Path,
    sync::{Mutex, PoisonError},
};

use detector_event::samples::{self, conflict};

use super::*;

/// The subjects of what it got, in order.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    fn record(&self, entry: String) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push(entry);
    }

    fn entries(&self) -> Vec<String> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.clone()
    }
}

impl EventSink for Recorder {
    fn on_event(&mut self, event: &AnyEvent) {
        self.record(format!("{} event", address(event)));
    }

    fn on_unchanged_update(&mut self, state: &AnyEvent) {
        self.record(format!("{} unchanged", address(state)));
    }

    fn on_current_state(&mut self, state: &AnyEvent) {
        self.record(format!("{} state", address(state)));
    }
}

fn address(event: &AnyEvent) -> IpAddr {
    match event {
        AnyEvent::Conflict(event) => event.subject,
        AnyEvent::Anomaly(event) => event.subject,
    }
}

/// A reporter that writes its lines to this file, and what its sink gets.
fn reporter(lines: &Path) -> (Reporter, Recorder) {
    let (requests, _) = tokio::sync::mpsc::channel(1);
    let mut reporter = Reporter::new(
        EventMaker::new("n", 1),
        PodLookups::new(Arc::default(), requests),
        Some(Lines::file(lines).unwrap()),
        Arc::default(),
    );
    let recorder = Recorder::default();
    reporter.add_sink(Box::new(recorder.clone()));
    (reporter, recorder)
}

#[test]
fn lines_of_a_round_are_written_before_a_sink_gets_any_of_its_events() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lines");
    let (mut reporter, recorder) = reporter(&path);
    for address in ["10.0.0.1", "10.0.0.2"] {
        reporter.report_conflict(Change::Raised, &conflict(address), None);
    }
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
    assert_eq!(recorder.entries(), [""; 0]);
    reporter.deliver();
    let events = ["10.0.0.1 event", "10.0.0.2 event"];
    assert_eq!(recorder.entries(), events);
    reporter.deliver();
    assert_eq!(recorder.entries(), events, "each once");
}

#[test]
fn a_sink_gets_an_event_before_the_state_that_follows_it() {
    let directory = tempfile::tempdir().unwrap();
    let (mut reporter, recorder) = reporter(&directory.path().join("lines"));
    reporter.report_conflict(Change::Raised, &conflict("10.0.0.1"), None);
    reporter.report_state(&conflict("10.0.0.2"));
    assert_eq!(recorder.entries(), ["10.0.0.1 event", "10.0.0.2 state"]);
}

#[test]
fn update_without_a_change_is_no_event() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lines");
    let (mut reporter, recorder) = reporter(&path);
    let conflict = conflict("10.0.0.1");
    let raised = reporter.report_conflict(Change::Raised, &conflict, None);
    let again = reporter.report_conflict(Change::Updated, &conflict, raised.as_ref());
    assert_eq!(again, None);
    reporter.deliver();
    assert_eq!(recorder.entries(), ["10.0.0.1 event", "10.0.0.1 unchanged"]);
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
}

#[test]
fn log_fields_list_the_claimants_that_have_not_left() {
    let mut data = samples::raised("10.0.0.1").data;
    data.claimants = vec![
        samples::claimant("veth1", Some("web-1")),
        samples::claimant("veth2", None),
        samples::claimant("veth3", Some("web-3")),
    ];
    let namespace = |n: usize| {
        let pod = data.claimants[n].pod.as_ref();
        pod.map(|pod| pod.namespace.clone()).unwrap_or_default()
    };
    let expected = format!("{}/web-1, {}/web-3", namespace(0), namespace(2));
    let (pods, devices) = pods_and_devices(&data);
    assert_eq!((pods, devices.as_str()), (expected, "veth1, veth2, veth3"));
}
