//! `check`: one snapshot of the kernel's state, for a script or node-problem-detector.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, Ordering},
};

use detector_testkit::{AgentCommand, DEADLINE, Node, Outcome, Pod, PodSpec};
use serde_json::Value;

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");

fn duplicate(node: &Node) -> Vec<Pod> {
    let specs = ["vetha", "vethb"].map(|device| PodSpec::new(device).address("10.244.2.10/24"));
    node.add_pods(&specs).unwrap()
}

fn check(node: &Node, format: &str) -> Outcome {
    AgentCommand::new(AGENT, ["check", "--format", format])
        .run_to_end(node, DEADLINE)
        .unwrap()
}

fn document(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.stdout)
        .unwrap_or_else(|error| panic!("{error} in {}", outcome.stdout))
}

fn assert_no_conflict(outcome: &Outcome) {
    assert_eq!(outcome.code().unwrap(), 0, "{outcome:?}");
    assert_eq!(
        document(outcome).get("conflicts"),
        Some(&Value::Array(Vec::new()))
    );
}

#[test]
fn conflict_exits_1_with_a_first_line_of_at_most_80_bytes() {
    let node = Node::new("checktext").unwrap();
    let _pods = duplicate(&node);
    let outcome = check(&node, "text");
    assert_eq!(outcome.code().unwrap(), 1, "{outcome:?}");
    let first = outcome.stdout.lines().next().unwrap();
    assert!(
        !first.is_empty() && first.len() <= 80,
        "{} bytes: {first}",
        first.len()
    );
    assert!(first.contains("10.244.2.10"), "{first}");
    assert!(
        outcome.stdout.contains("vetha") && outcome.stdout.contains("vethb"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn many_long_addresses_fit_a_first_line_of_80_bytes() {
    let node = Node::new("checklong").unwrap();
    let specs: Vec<_> = (0..20)
        .flat_map(|number| {
            ["a", "b"].map(|side| {
                PodSpec::new(format!("vethlongname{number:02}{side}")).address(format!(
                    "fd00:aaaa:bbbb:cccc:dddd:eeee:ffff:1{number:03}/64"
                ))
            })
        })
        .collect();
    let _pods = node.add_pods(&specs).unwrap();
    let outcome = check(&node, "text");
    assert_eq!(outcome.code().unwrap(), 1, "{outcome:?}");
    let first = outcome.stdout.lines().next().unwrap();
    assert!(
        !first.is_empty() && first.len() <= 80,
        "{} bytes: {first}",
        first.len()
    );
}

#[test]
fn json_is_one_document_with_the_conflict_as_in_events() {
    let node = Node::new("checkjson").unwrap();
    let _pods = duplicate(&node);
    let outcome = check(&node, "json");
    assert_eq!(outcome.code().unwrap(), 1, "{outcome:?}");
    let document = document(&outcome);
    let conflicts = document.get("conflicts").and_then(Value::as_array).unwrap();
    assert_eq!(conflicts.len(), 1, "{document}");
    let conflict: detector_testkit::event::Conflict =
        serde_json::from_value(conflicts[0].clone()).unwrap();
    assert_eq!(conflict.address, "10.244.2.10");
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    assert_eq!(conflict.confidence, "certain");
}

#[test]
fn no_conflict_exits_0() {
    let node = Node::new("checkclean").unwrap();
    let specs = [
        PodSpec::new("vetha").address("10.244.2.10/24"),
        PodSpec::new("vethb").address("10.244.2.11/24"),
    ];
    let _pods = node.add_pods(&specs).unwrap();
    let text = check(&node, "text");
    assert_eq!(text.code().unwrap(), 0, "{text:?}");
    let first = text.stdout.lines().next().unwrap();
    assert!(!first.is_empty() && first.len() <= 80, "{first}");
    let json = check(&node, "json");
    assert_no_conflict(&json);
}

#[test]
fn node_without_pods_has_no_conflict() {
    let node = Node::new("checkempty").unwrap();
    let outcome = check(&node, "json");
    assert_no_conflict(&outcome);
}

#[test]
fn missing_capability_exits_2_with_valid_json() {
    let node = Node::new("checkunpriv").unwrap();
    let _pods = duplicate(&node);
    let command = [
        "--bounding-set",
        "-all",
        "--inh-caps",
        "-all",
        AGENT,
        "check",
        "--format",
        "json",
    ];
    let outcome = AgentCommand::new("setpriv", command)
        .run_to_end(&node, DEADLINE)
        .unwrap();
    assert_eq!(outcome.code().unwrap(), 2, "{outcome:?}");
    assert!(
        outcome.stderr.contains("CAP_NET_ADMIN"),
        "{}",
        outcome.stderr
    );
    assert!(document(&outcome).is_object());
}

/// More routes than a snapshot contains.
fn add_routes_beyond_the_bound(node: &Node) {
    let routes = (0..66_000_u32).map(|n| Ipv4Addr::from(0x0a63_0000 + n));
    let lines = routes.map(|route| format!("route add {route}/32 dev lo"));
    node.ip_batch(lines).unwrap();
}

#[test]
fn incomplete_snapshot_without_conflict_exits_2() {
    let node = Node::new("checkpart").unwrap();
    add_routes_beyond_the_bound(&node);
    let text = check(&node, "text");
    assert_eq!(text.code().unwrap(), 2, "{text:?}");
    let first = text.stdout.lines().next().unwrap();
    assert!(
        first.len() <= 80 && first.contains("inconclusive"),
        "{first}"
    );
    assert!(text.stdout.contains("beyond a bound"), "{}", text.stdout);
    let json = check(&node, "json");
    assert_eq!(json.code().unwrap(), 2, "{json:?}");
    let document = document(&json);
    assert!(
        document["incomplete"].as_str().unwrap().contains("bound"),
        "{document}"
    );
    assert_eq!(document["conflicts"], Value::Array(Vec::new()));
}

#[test]
fn incomplete_snapshot_with_conflict_exits_1() {
    let node = Node::new("checkpartly").unwrap();
    add_routes_beyond_the_bound(&node);
    let _pods = duplicate(&node);
    let outcome = check(&node, "json");
    assert_eq!(outcome.code().unwrap(), 1, "{outcome:?}");
    assert!(document(&outcome)["incomplete"].is_string(), "{outcome:?}");
}

#[test]
fn pod_churn_during_the_check_does_not_make_it_inconclusive() {
    let node = Node::new("checkchurn").unwrap();
    let _stays = node
        .add_pod(&PodSpec::new("vethstays").address("10.244.2.1/24"))
        .unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let churn = scope.spawn(|| {
            let mut rounds = 0_u32;
            while !done.load(Ordering::Relaxed) {
                let (high, low) = (rounds / 250 % 250, rounds % 250);
                let spec = |n| {
                    PodSpec::new(format!("vethgo{rounds}n{n}"))
                        .address(format!("10.{}.{low}.{n}/32", high + 1))
                };
                let specs: Vec<_> = (1..=5).map(spec).collect();
                // Dropping them deletes their namespaces; the kernel removes the devices asynchronously.
                drop(node.add_pods(&specs).unwrap());
                rounds += 1;
            }
            rounds
        });
        let outcomes: Vec<_> = (0..30).map(|_| check(&node, "text")).collect();
        done.store(true, Ordering::Relaxed);
        assert!(churn.join().unwrap() > 0);
        for outcome in outcomes {
            assert_eq!(outcome.code().unwrap(), 0, "{outcome:?}");
        }
    });
}
