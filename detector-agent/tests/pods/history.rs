//! What ended is kept with its cause, also over a SIGKILL.

use std::{fs, path::Path};

use anyhow::{Context as _, ensure};
use detector_testkit::{
    Agent, AgentCommand, Containerd, DEADLINE, Node, browser::Browser, containerd::Sandbox,
    event::Conflict, http::TestClient, until,
};
use serde_json::Value;

use super::diagnosis::{SUBNET, agent, begin, explained, run};
use crate::AGENT;

const ORIGIN: &str = "http://127.0.0.1:9842";
const ADDRESS: &str = "10.244.2.3";

/// A conflict because a reservation was removed, and the pod that got the address.
fn conflict(containerd: &mut Containerd, command: &AgentCommand, node: &Node) -> (Agent, Sandbox) {
    begin(containerd);
    run(containerd, &["web-1", "web-2"]);
    let agent = Agent::start_ready(node, command).unwrap();
    let network = containerd.ipam_dir().join("testkit");
    fs::remove_file(network.join(ADDRESS)).unwrap();
    // `host-local` continues from the last address.
    fs::write(network.join("last_reserved_ip.0"), "10.244.2.2").unwrap();
    let later = run(containerd, &["cart-1"]).remove(0);
    explained(&agent, 1);
    (agent, later)
}

fn with_state(containerd: &Containerd, state: &Path) -> AgentCommand {
    agent(containerd).arg("--state-dir").arg(state)
}

/// Waits for the entry about the address, and checks that it has the cause and the pods.
fn entry(client: &TestClient<'_>) -> Value {
    let path = format!("/api/v1/history?kind=duplicate&cause=released_in_use&address={ADDRESS}");
    let mut found = Value::Null;
    until(DEADLINE, "the conflict in the history", || {
        let list = client.get(&path)?.json()?;
        let entries = list["history"].as_array().context("no list")?;
        let all = || client.get("/api/v1/history").map(|all| all.body);
        ensure!(entries.len() == 1, "{list:#} of {:?}", all());
        found = entries[0].clone();
        Ok(())
    })
    .unwrap();
    assert_eq!(found["state"], "resolved");
    assert!(found["duration_seconds"].as_f64().unwrap() > 0.0);
    assert!(found.get("timeline").is_none(), "{found:#}");
    let pods = found["claimants"].as_array().unwrap().iter();
    let pods: Vec<_> = pods.map(|c| c["pod"]["name"].as_str().unwrap()).collect();
    assert_eq!(pods, ["web-1", "cart-1"], "{found:#}");
    found
}

#[test]
fn ended_conflict_is_shown_with_its_cause_after_a_kill() {
    let node = Node::new("history").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    let state = tempfile::tempdir().unwrap();
    let command = with_state(&containerd, state.path());
    let (mut first, later) = conflict(&mut containerd, &command, &node);
    containerd.remove_pod(&later).unwrap();
    let end = first
        .wait_event(DEADLINE, |event| event.resolves(ADDRESS))
        .unwrap();
    // At once: its end may be on the disk or not.
    first.kill().unwrap();
    let end: Conflict = end.event.conflict().unwrap();

    let _second = Agent::start_ready(&node, &command).unwrap();
    let client = TestClient::new(&node, ORIGIN);
    let found = entry(&client);
    assert_eq!(found["conflict_id"], end.conflict_id.as_str());
    let one = format!("/api/v1/conflicts/{}", end.conflict_id);
    let one = client.get(&one).unwrap().json().unwrap();
    let timeline = one["conflict"]["timeline"].as_array().unwrap();
    assert!(!timeline.is_empty(), "{one:#}");
    let tomorrow = "/api/v1/history?since=2100-01-01T00:00:00Z";
    let none = client.get(tomorrow).unwrap().json().unwrap();
    assert_eq!(none["history"], Value::Array(Vec::new()));

    let browser = Browser::start(&node, 9842).unwrap();
    browser.emulate_screen(1280, 900, false).unwrap();
    browser.open(ORIGIN).unwrap();
    browser
        .wait("document.querySelector('#ended > details summary')?.innerText.includes('released in use, proven')")
        .unwrap();
    let line = browser
        .eval("document.querySelector('#ended > details summary').innerText")
        .unwrap();
    let line = line.as_str().unwrap();
    for text in [ADDRESS, "default/web-1", "default/cart-1", "lasted "] {
        assert!(line.contains(text), "{line}");
    }
    let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("status-page/8-history.png");
    browser.screenshot(&picture).unwrap();
    assert_eq!(browser.console_errors().unwrap(), Vec::<String>::new());

    let text = check(&node, &containerd, "text");
    let first = text.lines().next().unwrap();
    assert!(first.starts_with("1 ended conflict, "), "{text}");
    assert!(text.contains("released_in_use"), "{text}");
    let json: Value = serde_json::from_str(&check(&node, &containerd, "json")).unwrap();
    assert_eq!(json["history"][0]["conflict_id"], found["conflict_id"]);
}

/// The output of `check --history`, which ends with 0.
fn check(node: &Node, containerd: &Containerd, format: &str) -> String {
    let args = ["check", "--history", "--format", format];
    let outcome = containerd
        .agent_command(AGENT, args)
        .run_to_end(node, DEADLINE)
        .unwrap();
    assert_eq!(outcome.code().unwrap(), 0, "{outcome:?}");
    outcome.stdout
}

#[test]
fn conflict_that_ends_while_the_agent_is_down_is_in_the_history() {
    let node = Node::new("endeddown").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    let state = tempfile::tempdir().unwrap();
    let command = with_state(&containerd, state.path());
    let (mut first, later) = conflict(&mut containerd, &command, &node);
    let client = TestClient::new(&node, ORIGIN);
    // The event loop answers between two rounds, and passes on at the end of one what it wrote as a line.
    for _ in 0..2 {
        client.get("/api/v1/conflicts").unwrap();
    }
    until(DEADLINE, "the cause to be stored", || {
        let pending = client.get("/metrics")?.body;
        let stored = "ipconflict_outbox_pending{sink=\"state\"} 0";
        ensure!(pending.contains(stored), "{pending}");
        Ok(())
    })
    .unwrap();
    first.kill().unwrap();
    containerd.remove_pod(&later).unwrap();
    let _second = Agent::start_ready(&node, &command).unwrap();
    entry(&client);
}
