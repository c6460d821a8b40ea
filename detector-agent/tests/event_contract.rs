//! The values of the event lines, field by field. The testkit checks every line of every test for the
//! contract's shape; these tests check the values.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::time::{SystemTime, UNIX_EPOCH};

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Frame, FrameSender, Node, PodSpec, announce, event::Event,
};

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");

fn field<'a>(event: &'a Event, pointer: &str) -> &'a str {
    event
        .data
        .pointer(pointer)
        .and_then(|value| value.as_str())
        .unwrap_or_else(|| panic!("{pointer} in {}", event.data))
}

#[test]
fn values_match_the_kernel_state() {
    let node = Node::new("values").unwrap();
    node.add_bridge("cni0", &["10.244.9.1/24"]).unwrap();
    let pods = node
        .add_pods(&[
            PodSpec::new("vetha").address("10.244.2.10/32").host_route(),
            PodSpec::new("vethb").master("cni0"),
        ])
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let begun = SystemTime::now();
    announce(&pods[1], [10, 244, 2, 10].into()).unwrap();
    let event = agent
        .wait_event(DEADLINE, |event| event.raises("10.244.2.10"))
        .unwrap()
        .event;
    let ended = SystemTime::now();

    assert_eq!(event.source, "ip-conflict-detector/testkit");
    assert_eq!(field(&event, "/node"), "testkit");
    let conflict = event.conflict().unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    assert_eq!(conflict.traffic_goes_to.as_deref(), Some("vetha"));
    for pod in &pods {
        let claimant = conflict.claimant(pod.device()).unwrap();
        assert_eq!(claimant.ifindex, node.ifindex(pod.device()).unwrap());
        assert_eq!(
            claimant.mac.as_deref(),
            Some(pod.mac().to_string().as_str())
        );
        assert!(claimant.pod.is_none() && claimant.pod_unknown_because.is_some());
    }
    assert_eq!(conflict.claimant("vetha").unwrap().master, None);
    assert_eq!(
        conflict.claimant("vethb").unwrap().master.as_deref(),
        Some("cni0")
    );
    assert_eq!(
        conflict.claimant("vetha").unwrap().evidence_kinds(),
        ["address"]
    );
    assert_eq!(
        conflict.claimant("vethb").unwrap().evidence_kinds(),
        ["arp"]
    );

    // Times sort as text, because all have the same length and zone.
    let raised_at = field(&event, "/raised_at");
    assert!(
        raised_at <= event.time.as_str(),
        "{raised_at} {}",
        event.time
    );
    // The address of the first one is older than the agent.
    for unknown in ["/claimants/0/since", "/claimants/0/evidence/0/first_seen"] {
        let value = event.data.pointer(unknown).unwrap();
        assert!(value.is_null(), "{unknown}: {value}");
    }
    let because = field(&event, "/claimants/0/since_unknown_because");
    assert_eq!(because, "it was there before the agent started");
    let since = field(&event, "/claimants/1/since");
    assert!(since <= raised_at, "{since} {raised_at}");
    let first = field(&event, "/claimants/1/evidence/0/first_seen");
    for claimant in 0..2 {
        let pointer = format!("/claimants/{claimant}/evidence/0/last_seen");
        let last = field(&event, &pointer);
        assert!(last <= event.time.as_str(), "{last} {}", event.time);
        assert!(claimant == 0 || first <= last, "{first} {last}");
    }
    let written = seconds(&event.time);
    let since_epoch = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    // The wall clock may be stepped, so allow a second on both sides.
    assert!(
        written > since_epoch(begun) - 1.0 && written < since_epoch(ended) + 1.0,
        "{}",
        event.time
    );
}

#[test]
fn event_ids_are_unique_and_conflict_ids_stable() {
    let node = Node::new("ids").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let specs: Vec<_> = (0..3)
        .map(|number| PodSpec::new(format!("veth{number}")).address("10.244.2.10/32"))
        .collect();
    let pods = node.add_pods(&specs).unwrap();
    agent
        .wait_event(DEADLINE, |event| {
            event
                .conflict()
                .is_some_and(|conflict| conflict.claimants.len() == 3)
        })
        .unwrap();
    node.delete_pods(pods).unwrap();
    agent.wait_resolved("10.244.2.10").unwrap();
    let events = agent.events();
    let mut ids: Vec<_> = events
        .iter()
        .map(|received| received.event.id.as_str())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), events.len());
    let first = events[0].event.conflict().unwrap();
    for received in &events {
        let conflict = received.event.conflict().unwrap();
        assert_eq!(conflict.conflict_id, first.conflict_id);
        assert_eq!(
            field(&received.event, "/raised_at"),
            field(&events[0].event, "/raised_at")
        );
    }
}

#[test]
fn vlan_is_reported_and_separates_conflicts() {
    let node = Node::new("vlan").unwrap();
    let pods = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let senders: Vec<_> = pods
        .iter()
        .map(|pod| FrameSender::open(pod).unwrap())
        .collect();
    let frame = |index: usize| Frame::announcement(pods[index].mac(), [10, 244, 2, 10].into());
    senders[0].send(&frame(0).vlan(100)).unwrap();
    senders[1].send(&frame(1).vlan(200)).unwrap();
    senders[1].send(&frame(1).vlan(100)).unwrap();
    let raised = agent
        .wait_event(DEADLINE, |event| event.raises("10.244.2.10"))
        .unwrap();
    assert_eq!(raised.event.data.get("vlan"), Some(&100.into()));
    assert_eq!(agent.event_count(), 1);
}

#[test]
fn node_name_comes_from_the_environment() {
    let node = Node::new("nodename").unwrap();
    let command = AgentCommand::new(AGENT, ["run", "--events", "-", "--log-format", "json"])
        .env("NODE_NAME", "worker-7");
    let agent = Agent::start_ready(&node, &command).unwrap();
    let specs = ["vetha", "vethb"].map(|device| PodSpec::new(device).address("10.244.2.10/32"));
    let _pods = node.add_pods(&specs).unwrap();
    let raised = agent
        .wait_event(DEADLINE, |event| event.raises("10.244.2.10"))
        .unwrap();
    assert_eq!(raised.event.conflict().unwrap().node, "worker-7");
}

/// Seconds since the epoch of a time like `2026-03-21T09:10:11.123456Z` (days by Howard Hinnant's algorithm).
fn seconds(time: &str) -> f64 {
    let number = |range: std::ops::Range<usize>| time[range].parse::<i64>().unwrap();
    let (month, day) = (number(5..7), number(8..10));
    let year = number(0..4) - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year - era * 400;
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100
        + day_of_year
        - 719_468;
    let whole = days * 86_400 + number(11..13) * 3600 + number(14..16) * 60 + number(17..19);
    whole as f64 + number(20..26) as f64 / 1e6
}

#[test]
fn seconds_parses_timestamps() {
    assert_eq!(seconds("1970-01-01T00:00:00.500000Z"), 0.5);
    assert_eq!(seconds("2026-03-21T09:10:11.000000Z"), 1_774_084_211.0);
}

#[test]
fn certain_conflict_is_logged_as_a_warning_with_its_fields() {
    let node = Node::new("logged").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let specs = ["vetha", "vethb"].map(|device| PodSpec::new(device).address("10.244.2.10/32"));
    let mut pods = node.add_pods(&specs).unwrap();
    let line = |text: &str| -> serde_json::Value {
        let line = agent.wait_log(DEADLINE, text).unwrap();
        serde_json::from_str(&line).unwrap()
    };
    let raised = line("IP conflict on 10.244.2.10: vetha and vethb");
    for (field, value) in [
        ("level", "WARN"),
        ("event", "io.ipconflict.conflict.raised"),
        ("address", "10.244.2.10"),
        ("network", "node"),
        ("devices", "vetha, vethb"),
        ("pods", ""),
        ("confidence", "certain"),
    ] {
        assert_eq!(raised[field], value, "{raised}");
    }
    pods.pop().unwrap().delete().unwrap();
    let resolved = line("IP conflict on 10.244.2.10 resolved");
    assert_eq!(resolved["level"], "INFO", "{resolved}");
    // Nothing is served before the start is logged.
    let log = agent.log();
    let position = |text: &str| log.find(text).unwrap_or_else(|| panic!("{text}: {log}"));
    assert!(position("\"starting\"") < position("\"serving "), "{log}");
}
