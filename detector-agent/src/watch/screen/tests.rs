//! Tests of the screen as it is drawn.
#![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

use detector_event::{AnomalyData, ConflictData, samples};
use ratatui::{Terminal, backend::TestBackend};
use serde_json::json;

use super::*;

fn claimant(device: &str, pod: &str) -> serde_json::Value {
    json!({
        "device": device, "ifindex": 7, "mac": "02:00:00:00:00:01", "master": null,
        "since": "2026-01-02T03:04:05.000000Z",
        "pod": {"namespace": "default", "name": pod, "uid": null, "container_id": null, "via": "cri"},
        "pod_unknown_because": null,
        "evidence": [{"kind": "address", "first_seen": "2026-01-02T03:04:05.000000Z",
            "last_seen": "2026-01-02T03:04:05.000000Z", "mac": null, "detail": null}],
    })
}

fn conflict_of(id: &str, address: &str, state: &str, pods: &[(&str, &str)]) -> ConflictData {
    let claimants: Vec<_> = pods
        .iter()
        .map(|(device, pod)| claimant(device, pod))
        .collect();
    serde_json::from_value(json!({
        "conflict_id": id, "node": "worker-1", "address": address, "vlan": null, "kind": "duplicate",
        "confidence": "certain", "state": state, "raised_at": "2026-01-02T03:04:05.000000Z",
        "updated_at": "2026-01-02T03:04:05.000000Z",
        "resolved_at": (state == "resolved").then_some("2026-01-02T03:05:15.000000Z"),
        "latency_us": 37, "traffic_goes_to": "a", "claimants": claimants,
    }))
    .unwrap()
}

fn conflict(id: &str, address: &str, state: &str) -> ConflictData {
    conflict_of(id, address, state, &[("a", "web-a"), ("b", "web-b")])
}

/// A name as a Deployment gives it.
const LONG: [(&str, &str); 3] = [
    ("b", "checkout-5c6b8d7f9-mz8tn"),
    ("c", "checkout-5c6b8d7f9-x2k4q"),
    ("a", "frontend-7d9fc8b6f4-q7w5e"),
];

fn overview(conflicts: Vec<ConflictData>, anomalies: Vec<AnomalyData>) -> Overview {
    Overview {
        node: "worker-1".to_owned(),
        ready: true,
        conflicts,
        resolved: Vec::new(),
        anomalies,
    }
}

fn view(overview: Overview) -> View {
    View::new(ViewModel::new(overview))
}

fn drawn_at(view: &mut View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let now = "2026-01-02T03:04:35Z".parse().unwrap();
    terminal.draw(|frame| view.draw(frame, now)).unwrap();
    terminal.backend().to_string()
}

fn drawn(view: &mut View) -> String {
    drawn_at(view, 100, 14)
}

fn press(view: &mut View, code: KeyCode) -> KeyOutcome {
    view.press(code, KeyModifiers::NONE)
}

fn type_text(view: &mut View, text: &str) {
    for c in text.chars() {
        press(view, KeyCode::Char(c));
    }
}

#[track_caller]
fn assert_shows(screen: &str, parts: &[&str]) {
    for part in parts {
        assert!(screen.contains(part), "{part:?} is not on\n{screen}");
    }
}

#[test]
fn table_shows_conflicts_and_enter_shows_details() {
    let mut view = view(Overview {
        resolved: vec![conflict("2", "10.0.0.2", "resolved")],
        ..overview(vec![conflict("1", "10.0.0.1", "active")], Vec::new())
    });
    let table = drawn(&mut view);
    assert_shows(
        &table,
        &[
            "1 address in conflict",
            "10.0.0.1",
            "30 s",
            "→default/web-a  default/web-b",
        ],
    );
    assert_shows(&table, &["10.0.0.2", "lasted 1 min 10 s", "1–2 of 2"]);
    assert_eq!(press(&mut view, KeyCode::Enter), KeyOutcome::Continue);
    let detail = drawn(&mut view);
    assert_shows(
        &detail,
        &["→ default/web-a  receives the traffic", "02:00:00:00:00:01"],
    );
    press(&mut view, KeyCode::Esc);
    assert_shows(&drawn(&mut view), &["CLAIMANTS"]);
    assert_eq!(press(&mut view, KeyCode::Char('q')), KeyOutcome::Quit);
}

#[test]
fn narrow_table_keeps_address_arrow_and_pods() {
    let mut view = view(overview(
        vec![
            conflict_of("1", "10.244.200.100", "active", &LONG),
            conflict_of("2", "10.244.200.101", "active", &LONG[..2]),
        ],
        Vec::new(),
    ));
    let wide = drawn_at(&mut view, 160, 10);
    assert_shows(&wide, &["KIND", "CONFIDENCE", "DURATION", "duplicate"]);
    let narrow = drawn_at(&mut view, 60, 10);
    assert_shows(
        &narrow,
        &[
            "10.244.200.100",
            "→defaul…",
            // The end of a name distinguishes the pods of a controller.
            "mz8tn",
            "x2k4q",
            "q7w5e",
            "all: certain, duplicate",
            "1–2 of 2",
        ],
    );
    for dropped in ["KIND", "CONFIDENCE", "DURATION"] {
        assert!(!narrow.contains(dropped), "{narrow}");
    }
}

#[test]
fn receiver_is_shown_however_many_claimants_there_are() {
    let mut pods: Vec<_> = (0..40)
        .map(|n| (format!("v{n}"), format!("web-{n}")))
        .collect();
    pods.push(("a".to_owned(), "receiver".to_owned()));
    let pods: Vec<_> = pods.iter().map(|(d, p)| (d.as_str(), p.as_str())).collect();
    let conflict = conflict_of(
        "1",
        "fd00:1111:2222:3333:4444:5555:6666:7777",
        "active",
        &pods,
    );
    let mut view = view(overview(vec![conflict], Vec::new()));
    for width in [60, 80, 100] {
        let table = drawn_at(&mut view, width, 8);
        assert_shows(
            &table,
            &["fd00:1111:2222:3333:4444:5555:6666:7777", "→", "eiver", "+"],
        );
    }
}

#[test]
fn column_that_differs_outlives_a_constant_one() {
    let mut host = conflict_of("2", "10.0.0.2", "active", &LONG[..1]);
    host.kind = detector_engine::ConflictKind::Host;
    let conflicts = vec![conflict_of("1", "10.0.0.1", "active", &LONG[..1]), host];
    let mut view = view(overview(conflicts, Vec::new()));
    let table = drawn_at(&mut view, 60, 8);
    assert_shows(&table, &["KIND", "host", "all: certain", "mz8tn"]);
    assert!(!table.contains("CONFIDENCE"), "{table}");
}

#[test]
fn anomalies_are_rows_with_details() {
    let anomaly = samples::drift("10.0.0.9").data;
    let detail = anomaly.detail.clone();
    let mut view = view(overview(
        vec![conflict("1", "10.0.0.1", "active")],
        vec![anomaly],
    ));
    let table = drawn_at(&mut view, 140, 10);
    assert_shows(
        &table,
        &[
            "1 address in conflict, 1 anomaly",
            "10.0.0.9",
            "ipam_drift",
            "anomaly",
        ],
    );
    press(&mut view, KeyCode::Down);
    press(&mut view, KeyCode::Enter);
    assert_shows(
        &drawn_at(&mut view, 140, 20),
        &[
            "anomaly: ipam_drift",
            &detail,
            "Next: Keep new pods off the node",
            "docs/runbooks/IPAMDrift.md",
        ],
    );
    press(&mut view, KeyCode::Esc);

    let mut event = samples::drift("10.0.0.9");
    event.data.state = detector_event::SubjectState::Resolved;
    view.apply(Update::Anomaly(Box::new(event)));
    assert!(!drawn(&mut view).contains("10.0.0.9"));
}

#[test]
fn filter_keeps_matching_rows_and_the_position_counts_them() {
    let conflicts: Vec<_> = (0..202)
        .map(|n| {
            let pod = format!("web-{n}");
            conflict_of(
                &format!("{n:x}"),
                &format!("10.0.1.{n}"),
                "active",
                &[("a", &pod), ("b", "x")],
            )
        })
        .collect();
    let mut view = view(overview(conflicts, Vec::new()));
    // They have the same claimants.
    assert_shows(
        &drawn_at(&mut view, 80, 34),
        &["10.0.1.201 +201", "1–1 of 1 (all: 202)"],
    );
    press(&mut view, KeyCode::Char('g'));
    assert_shows(&drawn_at(&mut view, 80, 34), &["KIND", "1–30 of 202"]);
    press(&mut view, KeyCode::End);
    assert_shows(&drawn_at(&mut view, 80, 34), &["173–202 of 202"]);
    press(&mut view, KeyCode::Char('/'));
    type_text(&mut view, "WEB-77 q");
    // Keys of the table are text in the filter.
    assert_shows(
        &drawn_at(&mut view, 80, 34),
        &["/WEB-77 q", "Nothing matches the filter."],
    );
    press(&mut view, KeyCode::Backspace);
    press(&mut view, KeyCode::Enter);
    let filtered = drawn_at(&mut view, 80, 34);
    assert_shows(
        &filtered,
        &["10.0.1.77", "filter: WEB-77", "1–1 of 1 (all: 202)"],
    );
    press(&mut view, KeyCode::Enter);
    assert_shows(&drawn(&mut view), &["default/web-77"]);
    press(&mut view, KeyCode::Esc);
    assert_eq!(press(&mut view, KeyCode::Esc), KeyOutcome::Continue);
    // The selection stayed on its row.
    let all = drawn_at(&mut view, 80, 34);
    assert_shows(&all, &["10.0.1.77", "of 202"]);
    assert_eq!(press(&mut view, KeyCode::Esc), KeyOutcome::Quit);
}

#[test]
fn sweep_is_the_first_row_and_opens_to_its_victims() {
    let sweep = samples::sweep("10.0.0.1").data;
    let victim = |n: u8| ConflictData {
        sweep: Some(sweep.anomaly_id),
        ..conflict(&format!("{n:x}"), &format!("10.0.0.{n}"), "active")
    };
    let mut conflicts: Vec<_> = (1..=40).map(victim).collect();
    let other = [("c", "web-c"), ("d", "web-d")];
    conflicts.push(conflict_of("99", "10.0.9.9", "active", &other));
    let mut view = view(overview(conflicts, vec![sweep.clone()]));
    let folded = drawn_at(&mut view, 80, 10);
    assert_shows(
        &folded,
        &[
            "address_sweep",
            "+40",
            "default/a: the pod",
            "1–2 of 2 (all: 42)",
        ],
    );
    assert!(folded.find("+40") < folded.find("10.0.9.9"), "{folded}");
    press(&mut view, KeyCode::Enter);
    assert_shows(&drawn_at(&mut view, 80, 60), &["  10.0.0.40", "of 42"]);
    // A row that stands for one item opens to its details.
    press(&mut view, KeyCode::Enter);
    let effect = "Effect: The node's traffic for these addresses still goes to the victims.";
    assert_shows(&drawn_at(&mut view, 100, 20), &[effect]);
    press(&mut view, KeyCode::Esc);
    assert_eq!(press(&mut view, KeyCode::Esc), KeyOutcome::Continue);
    assert_shows(&drawn_at(&mut view, 80, 10), &["1–2 of 2"]);
}

#[test]
fn ended_conflicts_are_set_apart_and_can_be_hidden() {
    let ended = ["2", "3"].map(|id| conflict(id, &format!("10.0.0.{id}"), "resolved"));
    let mut view = view(Overview {
        resolved: ended.into(),
        ..overview(vec![conflict("1", "10.0.0.1", "active")], Vec::new())
    });
    assert_shows(&drawn(&mut view), &["ENDED", "10.0.0.3", "1–3 of 3"]);
    press(&mut view, KeyCode::Char('h'));
    let hidden = drawn(&mut view);
    assert_shows(&hidden, &["ended ones hidden", "1–1 of 1"]);
    assert!(!hidden.contains("10.0.0.3"), "{hidden}");
}

#[test]
fn rows_are_sorted_by_severity_newest_or_address() {
    let drift = AnomalyData {
        raised_at: "2026-01-02T03:04:06Z".parse().unwrap(),
        ..samples::drift("10.0.0.1").data
    };
    let mut view = view(overview(
        vec![conflict("1", "10.0.0.2", "active")],
        vec![drift],
    ));
    let is_conflict_first = |view: &mut View| {
        let screen = drawn(view);
        screen.find("10.0.0.2") < screen.find("10.0.0.1")
    };
    for (name, expected) in [("severity", true), ("newest", false), ("address", false)] {
        assert_shows(&drawn(&mut view), &[&format!("by {name}")]);
        assert_eq!(is_conflict_first(&mut view), expected, "{name}");
        press(&mut view, KeyCode::Char('s'));
    }
}

#[test]
fn help_is_shown_and_closed() {
    let mut view = view(overview(Vec::new(), Vec::new()));
    press(&mut view, KeyCode::Char('?'));
    assert_shows(
        &drawn_at(&mut view, 60, 20),
        &["Help", "filter by address", "observed"],
    );
    press(&mut view, KeyCode::Char('?'));
    assert_shows(&drawn(&mut view), &["No IP address conflict."]);
}

#[test]
fn selection_stays_on_its_conflict_and_disconnect_is_shown() {
    let other = [("c", "web-c"), ("d", "web-d")];
    let mut view = view(overview(
        vec![conflict_of("1", "10.0.0.1", "active", &other)],
        Vec::new(),
    ));
    let event = json!({
        "specversion": "1.0", "id": "x", "source": "s", "type": "io.ipconflict.conflict.raised",
        "subject": "10.0.0.9", "time": "2026-01-02T03:04:05.000000Z", "datacontenttype": "application/json",
        "data": conflict("9", "10.0.0.9", "active"),
    });
    view.apply(Update::Conflict(Box::new(
        serde_json::from_value(event).unwrap(),
    )));
    assert_eq!(view.table.selected(), Some(1));
    view.apply(Update::Disconnected(
        "the agent closed the stream".to_owned(),
    ));
    assert_shows(&drawn_at(&mut view, 60, 10), &["DISCONNECTED"]);
}

#[test]
fn empty_table_shows_a_message_and_ignores_keys() {
    let mut view = view(overview(Vec::new(), Vec::new()));
    for key in [
        KeyCode::Down,
        KeyCode::Enter,
        KeyCode::End,
        KeyCode::PageDown,
    ] {
        assert_eq!(press(&mut view, key), KeyOutcome::Continue);
    }
    assert_shows(&drawn(&mut view), &["No IP address conflict."]);
}

#[test]
fn many_unrelated_conflicts_are_one_row() {
    let conflicts = (1..=200).map(|n: u32| {
        let (device, pod) = (format!("v{n}"), format!("web-{n}"));
        let pods = [(&*device, &*pod), ("b", "cart")];
        conflict_of(&n.to_string(), &format!("10.0.0.{n}"), "active", &pods)
    });
    let mut view = view(overview(conflicts.collect(), Vec::new()));
    let screen = drawn(&mut view);
    assert_shows(
        &screen,
        &["10.0.0.200 +199", "different pods", "1–1 of 1 (all: 200)"],
    );
    press(&mut view, KeyCode::Enter);
    assert_shows(&drawn(&mut view), &["1–10 of 200", "default/web-200"]);
}
