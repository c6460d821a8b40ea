//! Since when claims are known, which claimant is the newest, and that both survive a restart.

use anyhow::{Context as _, ensure};
use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Node, PodSpec, event::Conflict, http::TestClient, until,
};
use serde_json::Value;

use crate::{
    AGENT,
    restart::{ADDRESS, command_with_state, raised, wait_stored},
};

fn spec(device: &str) -> PodSpec {
    PodSpec::new(device).address(format!("{ADDRESS}/32"))
}

fn answer(node: &Node, path: &str) -> anyhow::Result<Value> {
    TestClient::new(node, "http://127.0.0.1:9842")
        .get(path)?
        .json()
}

/// Waits until the agent knows that this device claims the address.
fn wait_claim(node: &Node, device: &str) {
    let path = format!("/api/v1/claims?address={ADDRESS}");
    until(DEADLINE, format_args!("a claim of {device}"), || {
        let answer = answer(node, &path)?;
        let claims = answer["claims"].as_array().context("no claims")?;
        ensure!(
            claims.iter().any(|claim| claim["device"] == device),
            "{answer}"
        );
        Ok(())
    })
    .unwrap();
}

/// The one conflict that the API shows, once it shows one.
fn conflict_in_api(node: &Node) -> Value {
    until(DEADLINE, "the conflict in the API", || {
        let answer = answer(node, "/api/v1/conflicts")?;
        let conflict = answer["conflicts"].get(0);
        conflict.cloned().context("no conflict")
    })
    .unwrap()
}

fn newest(conflict: &Conflict) -> Vec<(&str, Option<&str>)> {
    let newest = conflict.claimants.iter().filter(|c| c.newest);
    newest
        .map(|c| (c.device.as_str(), c.newest_by.as_deref()))
        .collect()
}

#[test]
fn since_newest_and_latency_survive_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::new("since").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let mut first = Agent::start_ready(&node, &command_with_state(directory.path())).unwrap();
    let older = node.add_pod(&spec("vetha")).unwrap();
    wait_claim(&node, "vetha");
    let newer = node.add_pod(&spec("vethb")).unwrap();
    let before = raised(&first, ADDRESS);
    assert_eq!(newest(&before), [("vethb", Some("first_sight"))]);
    let since = |device| before.claimant(device).unwrap().since.clone().unwrap();
    assert!(since("vetha") < since("vethb"), "{before:?}");
    let api_before = conflict_in_api(&node);
    assert_eq!(api_before["latency_us"].as_f64(), before.latency_us);
    wait_stored(&first, 1);
    first.kill().unwrap();

    let second = Agent::start_ready(&node, &command_with_state(directory.path())).unwrap();
    let api_after = conflict_in_api(&node);
    for field in ["conflict_id", "raised_at", "latency_us"] {
        assert_eq!(api_after[field], api_before[field], "{field}");
    }
    for claimant in 0..2 {
        for field in ["device", "since", "newest", "newest_by"] {
            let pointer = format!("/claimants/{claimant}/{field}");
            let (after, before) = (api_after.pointer(&pointer), api_before.pointer(&pointer));
            assert_eq!(after, before, "{pointer}");
        }
        let evidence = format!("/claimants/{claimant}/evidence/0/first_seen");
        assert!(
            api_after.pointer(&evidence).is_some_and(Value::is_string),
            "{api_after}"
        );
        assert_eq!(api_after.pointer(&evidence), api_before.pointer(&evidence));
    }
    let events = barrier.pass(&node, &second).unwrap();
    assert!(events.is_empty(), "nothing changed: {events:#?}");

    let joined = node.add_pod(&spec("vethc")).unwrap();
    let update = second
        .wait_event(DEADLINE, |event| {
            let conflict = event.conflict();
            conflict.is_some_and(|c| c.devices().contains(&"vethc"))
        })
        .unwrap();
    let update = update.event.conflict().unwrap();
    let mut changed = update.changed.clone();
    changed.retain(|field| field != "evidence");
    assert_eq!(changed, ["claimants", "newest"]);
    assert_eq!(newest(&update), [("vethc", Some("first_sight"))]);
    assert_eq!(
        update.claimant("vetha").unwrap().since,
        Some(since("vetha"))
    );

    node.delete_pods(vec![older, newer, joined]).unwrap();
    let resolved = second.wait_event(DEADLINE, |event| event.resolves(ADDRESS));
    let resolved = resolved.unwrap().event.conflict().unwrap();
    assert!(
        resolved
            .duration_seconds
            .is_some_and(|seconds| seconds > 0.0)
    );
    assert_eq!(newest(&resolved), []);
}

#[test]
fn claims_from_before_the_agent_have_no_since() {
    let node = Node::new("nosince").unwrap();
    let _older = node.add_pod(&spec("vetha")).unwrap();
    let _newer = node.add_pod(&spec("vethb")).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let conflict = raised(&agent, ADDRESS);
    for claimant in &conflict.claimants {
        assert_eq!(claimant.since, None);
        let because = claimant.since_unknown_because.as_deref().unwrap();
        assert!(because.contains("before the agent started"), "{because}");
        assert!(claimant.evidence.iter().all(|e| e.first_seen.is_none()));
    }
    assert_eq!(newest(&conflict), []);

    // Which one came after them is known nevertheless.
    let _joined = node.add_pod(&spec("vethc")).unwrap();
    let update = agent
        .wait_event(DEADLINE, |event| {
            let conflict = event.conflict();
            conflict.is_some_and(|c| c.devices().contains(&"vethc"))
        })
        .unwrap();
    let update = update.event.conflict().unwrap();
    assert_eq!(newest(&update), [("vethc", Some("first_sight"))]);
    assert!(update.claimant("vethc").unwrap().since.is_some());
}
