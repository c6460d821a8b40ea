//! Reading the output of a running agent, with a shell script in its place.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::{path::Path, time::Duration};

use detector_testkit::{Agent, AgentCommand, DEADLINE, Netns};

const READY: &str = r#"echo '{"fields":{"message":"ready"}}' >&2"#;

fn event(number: u32) -> String {
    let time = "2026-03-21T09:10:11.123456Z";
    let claimant = |device| {
        format!(
            r#"{{"node":"n","device":"{device}","ifindex":2,"mac":null,"master":null,"since":"{time}","pod":null,"pod_unknown_because":"none","evidence":[{{"kind":"arp","first_seen":"{time}","last_seen":"{time}","mac":"aa:bb:cc:dd:ee:ff","detail":null}}]}}"#
        )
    };
    format!(
        r#"{{"specversion":"1.0","id":"{number}","source":"ip-conflict-detector/n","type":"io.ipconflict.conflict.raised","subject":"10.0.0.{number}","time":"{time}","datacontenttype":"application/json","data":{{"conflict_id":"{number:032x}","node":"n","cluster":null,"address":"10.0.0.{number}","network":"node","vlan":null,"kind":"duplicate","severity":"critical","scope":"node","confidence":"observed","state":"active","raised_at":"{time}","updated_at":"{time}","resolved_at":null,"latency_us":37,"traffic_goes_to":null,"guidance":{{"next_step":"Look.","runbook_url":"https://x"}},"claimants":[{},{}],"diagnosis":null,"timeline":[]}}}}"#,
        claimant("vetha"),
        claimant("vethb")
    )
}

fn script(netns: &Netns, lines: &[&str]) -> Agent {
    Agent::start(
        netns,
        &AgentCommand::new("sh", ["-c".to_owned(), lines.join("\n")]),
    )
    .unwrap()
}

fn is_running(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn events_come_in_order_and_are_typed() {
    let netns = Netns::new("events").unwrap();
    let lines = [
        READY.to_owned(),
        format!("echo '{}'", event(1)),
        format!("echo '{}'", event(2)),
        "exec sleep 60".to_owned(),
    ];
    let agent = script(&netns, &lines.each_ref().map(String::as_str));
    agent.wait_ready(DEADLINE).unwrap();
    let second = agent
        .wait_event(DEADLINE, |event| event.raises("10.0.0.2"))
        .unwrap();
    assert_eq!(
        second.event.conflict().unwrap().devices(),
        ["vetha", "vethb"]
    );
    let ids: Vec<_> = agent
        .events()
        .into_iter()
        .map(|received| received.event.id)
        .collect();
    assert_eq!(ids, ["1", "2"]);
}

#[test]
fn timed_out_wait_reports_the_log() {
    let netns = Netns::new("timeout").unwrap();
    let agent = script(&netns, &["echo it-went-wrong >&2", "sleep 60"]);
    agent.wait_log(DEADLINE, "it-went-wrong").unwrap();
    let error = agent.wait_ready(Duration::from_millis(10)).unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("timed out") && error.contains("it-went-wrong"),
        "{error}"
    );
}

#[test]
fn early_exit_ends_the_wait() {
    let netns = Netns::new("early").unwrap();
    let agent = script(&netns, &["echo no-privileges >&2", "sleep 0.1", "exit 2"]);
    let error = agent
        .wait_event(DEADLINE, |_| true)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("exited") && error.contains("no-privileges"),
        "{error}"
    );
}

#[test]
fn contract_violation_fails_every_wait() {
    let netns = Netns::new("violation").unwrap();
    let violation = event(1).replace("observed", "guessed");
    let agent = script(&netns, &[&format!("echo '{violation}'"), "sleep 60"]);
    let error = agent
        .wait_event(DEADLINE, |_| true)
        .unwrap_err()
        .to_string();
    assert!(error.contains("/data/confidence"), "{error}");
}

#[test]
fn agent_runs_in_the_namespace_and_is_killed_on_drop() {
    let netns = Netns::new("drop").unwrap();
    let agent = script(&netns, &["ip -o link >&2", READY, "exec sleep 60"]);
    agent.wait_ready(DEADLINE).unwrap();
    assert_eq!(agent.log().matches("link/").count(), 1, "{}", agent.log());
    let pid = agent.pid();
    assert!(is_running(pid));
    drop(agent);
    assert!(!is_running(pid));
}

#[test]
fn exit_returns_status_and_last_events() {
    let netns = Netns::new("end").unwrap();
    let last = event(9);
    let trap = format!("trap \"echo '{}'; exit 7\" TERM", last.replace('"', "\\\""));
    let mut agent = script(&netns, &[&trap, READY, "while :; do sleep 0.01; done"]);
    agent.wait_ready(DEADLINE).unwrap();
    let (status, events) = agent.terminate(DEADLINE).unwrap();
    assert_eq!(status.code(), Some(7));
    assert!(
        events
            .iter()
            .any(|received| received.event.raises("10.0.0.9"))
    );
}

#[test]
fn run_to_end_returns_exit_code_and_output() {
    let netns = Netns::new("toend").unwrap();
    let outcome = AgentCommand::new("sh", ["-c", "echo out; echo err >&2; exit 3"])
        .run_to_end(&netns, DEADLINE)
        .unwrap();
    assert_eq!(
        (
            outcome.code().unwrap(),
            outcome.stdout.as_str(),
            outcome.stderr.as_str()
        ),
        (3, "out\n", "err\n")
    );
    let error = AgentCommand::new("sleep", ["60"])
        .run_to_end(&netns, Duration::from_millis(50))
        .unwrap_err();
    assert!(format!("{error:#}").contains("timed out"), "{error:#}");
}
