//! `check`: what the agent on the node knows, or one look at the kernel's state, for a person, a script or
//! node-problem-detector.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::{
    fs,
    net::Ipv4Addr,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use detector_testkit::{
    Agent, AgentCommand, Cni, DEADLINE, Node, Outcome, Pod, PodSpec, announce,
    event::ANOMALY_RAISED,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

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

fn assert_first_line(outcome: &Outcome, expected: &str) {
    assert_eq!(outcome.stdout.lines().next(), Some(expected), "{outcome:?}");
    assert!(expected.len() <= 80, "{expected}");
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
fn node_without_pods_is_inconclusive_unless_that_is_allowed() {
    let node = Node::new("checkempty").unwrap();
    let agent = |node| Agent::start_ready(node, &AgentCommand::run(AGENT)).unwrap();
    for has_agent in [false, true] {
        let _agent = has_agent.then(|| agent(&node));
        let text = check(&node, "text");
        assert_eq!(text.code().unwrap(), 2, "{text:?}");
        assert_first_line(&text, "inconclusive: there is no pod device");
        let json = check(&node, "json");
        assert_eq!(json.code().unwrap(), 2, "{json:?}");
        assert_eq!(document(&json)["devices"], 0);
        assert!(document(&json)["incomplete"].is_string(), "{json:?}");
        let command = AgentCommand::new(AGENT, ["check", "--allow-no-devices", "--format=json"]);
        assert_no_conflict(&command.run_to_end(&node, DEADLINE).unwrap());
    }
}

/// Two pods; one claims the other's address in a frame.
fn spoofed(node: &Node) -> (Vec<Pod>, Agent) {
    let specs = [
        PodSpec::new("vetha").address("10.244.2.10/32").host_route(),
        PodSpec::new("vethb"),
    ];
    let pods = node.add_pods(&specs).unwrap();
    let agent = Agent::start_ready(node, &AgentCommand::run(AGENT)).unwrap();
    announce(&pods[1], Ipv4Addr::new(10, 244, 2, 10)).unwrap();
    (pods, agent)
}

#[test]
fn conflict_that_only_the_agent_has_seen_is_shown_with_its_id() {
    let node = Node::new("checkagent").unwrap();
    let (_pods, mut agent) = spoofed(&node);
    let raised = agent.wait_raised("10.244.2.10").unwrap();
    let json = check(&node, "json");
    assert_eq!(json.code().unwrap(), 1, "{json:?}");
    let document = document(&json);
    assert_eq!(document["source"], "agent");
    let url = document["agent"]["url"].as_str().unwrap();
    assert!(
        url.starts_with("unix:/run/ip-conflict-detector/netns-"),
        "{url}"
    );
    assert_eq!(document["devices"], 2);
    let conflict = &document["conflicts"][0];
    assert_eq!(conflict["conflict_id"], raised.conflict_id.as_str());
    assert_eq!(conflict["confidence"], "observed");
    assert!(conflict["raised_at"].is_string(), "{document:#}");
    let text = check(&node, "text");
    assert_eq!(text.code().unwrap(), 1, "{text:?}");
    assert_first_line(&text, "1 IP address conflict: 10.244.2.10");
    assert!(text.stdout.contains("source: the agent on testkit"));

    // Without the agent it is not found, and the result does not look like one that has seen frames.
    agent.terminate(DEADLINE).unwrap();
    let text = check(&node, "text");
    assert_eq!(text.code().unwrap(), 0, "{text:?}");
    assert_first_line(
        &text,
        "no IP address conflict in one look at 2 pod devices (frames not seen)",
    );
    for part in [
        "no agent answers at /run/ip-conflict-detector/netns-",
        "not seen: claims made only in ARP or NDP frames",
        "not seen: anomalies that show over time",
    ] {
        assert!(text.stdout.contains(part), "{part}: {}", text.stdout);
    }
}

#[test]
fn anomaly_of_the_agent_is_shown_without_a_conflict() {
    let node = Node::new("checkanom").unwrap();
    let specs = [
        PodSpec::new("vetha").address("10.244.2.10/32").host_route(),
        PodSpec::new("vethb").address("10.244.2.11/32").host_route(),
    ];
    let _pods = node.add_pods(&specs).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    node.ip("route replace 10.244.2.10/32 dev vethb scope link")
        .unwrap();
    agent
        .wait_event(DEADLINE, |event| event.kind == ANOMALY_RAISED)
        .unwrap();
    let text = check(&node, "text");
    assert_eq!(text.code().unwrap(), 0, "{text:?}");
    assert_first_line(
        &text,
        "no IP address conflict, but 1 anomaly: pods may lose traffic",
    );
    for part in [
        "\nroute_astray ",
        "\n  next: Delete ",
        "\n  runbook: https://",
    ] {
        assert!(text.stdout.contains(part), "{part}: {}", text.stdout);
    }
    let document = document(&check(&node, "json"));
    assert_eq!(document["anomalies"][0]["kind"], "route_astray");
    assert!(document["anomalies"][0]["anomaly_id"].is_string());
}

#[test]
fn one_address_can_be_asked_for_and_all_be_listed() {
    let node = Node::new("checkone").unwrap();
    let mut specs = Vec::new();
    for number in 10..14 {
        for side in ["a", "b"] {
            let spec = PodSpec::new(format!("veth{number}{side}"));
            specs.push(spec.address(format!("10.244.2.{number}/24")));
        }
    }
    specs.push(PodSpec::new("vethalone").address("10.244.2.99/24"));
    let _pods = node.add_pods(&specs).unwrap();
    let ask = |arguments: &[&str]| {
        let arguments = ["check"].into_iter().chain(arguments.iter().copied());
        let command = AgentCommand::new(AGENT, arguments);
        let outcome = command.run_to_end(&node, DEADLINE).unwrap();
        (outcome.code().unwrap(), outcome.stdout)
    };
    let (code, text) = ask(&["10.244.2.99"]);
    assert_eq!(
        (code, text.lines().next()),
        (0, Some("10.244.2.99: no conflict (frames not seen)"))
    );

    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let (code, text) = ask(&["10.244.2.12"]);
    assert_eq!(code, 1, "{text}");
    assert!(
        text.starts_with("1 IP address conflict: 10.244.2.12\n"),
        "{text}"
    );
    assert!(
        text.contains("10.244.2.12  duplicate, certain, critical\n"),
        "{text}"
    );
    assert!(text.contains("\n  since: 20"), "{text}");
    assert!(!text.contains("10.244.2.11"), "{text}");
    let (code, text) = ask(&["10.244.2.99"]);
    assert_eq!(
        (code, text.lines().next()),
        (0, Some("10.244.2.99: no conflict"))
    );
    // Four are a line each, unless all are wanted.
    for (arguments, blocks) in [(&[][..], 0), (&["--all"], 4), (&["-o", "wide"], 0)] {
        let (code, text) = ask(arguments);
        assert_eq!(code, 1, "{text}");
        assert_eq!(
            text.matches("duplicate, certain, critical").count(),
            blocks,
            "{text}"
        );
        assert!(text.contains("10.244.2.13"), "{text}");
    }
}

#[test]
fn reader_that_goes_away_is_no_error() {
    let node = Node::new("checkpipe").unwrap();
    let _pods = duplicate(&node);
    let output = node.run_in(|| {
        let mut command = Command::new(AGENT);
        command
            .arg("check")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        drop(child.stdout.take());
        Ok(child.wait_with_output()?)
    });
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn agent_that_cannot_be_asked_makes_the_result_inconclusive() {
    let node = Node::new("checkmute").unwrap();
    let token = tempfile::NamedTempFile::new().unwrap();
    fs::write(token.path(), "an-unguessable-test-token").unwrap();
    let _pod = node
        .add_pod(&PodSpec::new("vetha").address("10.244.2.10/24"))
        .unwrap();
    let command = AgentCommand::run(AGENT).arg("--http-token-file");
    let agent = Agent::start_ready(&node, &command.arg(token.path())).unwrap();
    let at_port = || AgentCommand::new(AGENT, ["check", "--url", "http://127.0.0.1:9842"]);
    let with_token = || {
        let command = at_port().arg("--token-file").arg(token.path());
        command.run_to_end(&node, DEADLINE).unwrap()
    };
    // The socket needs none.
    for text in [with_token(), check(&node, "text")] {
        assert_eq!(text.code().unwrap(), 0, "{text:?}");
        assert_first_line(&text, "no IP address conflict on 1 pod device");
    }
    let first = "inconclusive: no conflict in one look, but the agent could not be asked";
    let text = at_port().run_to_end(&node, DEADLINE).unwrap();
    assert_eq!(text.code().unwrap(), 2, "{text:?}");
    assert_first_line(&text, first);
    assert!(text.stdout.contains("--token-file"), "{text:?}");

    agent.signal(Signal::SIGSTOP).unwrap();
    let text = with_token();
    assert_eq!(text.code().unwrap(), 2, "{text:?}");
    assert_first_line(&text, first);
    assert!(text.stdout.contains("does not respond"), "{text:?}");
    agent.signal(Signal::SIGCONT).unwrap();
    // What the look finds by itself is reported.
    let _other = node
        .add_pod(&PodSpec::new("vethb").address("10.244.2.10/24"))
        .unwrap();
    let text = check(&node, "text");
    assert_eq!(text.code().unwrap(), 1, "{text:?}");
    assert_first_line(&text, "1 IP address conflict: 10.244.2.10");
}

/// What `helm test` runs; the agent's conflicts do not matter to it.
#[test]
fn readiness_is_that_of_the_agent() {
    let node = Node::new("checkready").unwrap();
    let ask = |format: &str| {
        let command = AgentCommand::new(AGENT, ["check", "--readiness", "--format", format]);
        let outcome = command.run_to_end(&node, DEADLINE).unwrap();
        (outcome.code().unwrap(), outcome.stdout)
    };
    let (code, text) = ask("text");
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("no agent answers at"), "{text}");
    let _pods = duplicate(&node);
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let (code, text) = ask("text");
    assert_eq!(code, 0, "{text}");
    assert!(
        text.starts_with("the agent at unix:") && text.ends_with(" is ready\n"),
        "{text}"
    );
    let (code, json) = ask("json");
    assert_eq!(code, 0, "{json}");
    let answer: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(answer["ready"], true);
}

#[test]
fn invalid_url_is_an_error() {
    let node = Node::new("checkurl").unwrap();
    let command = AgentCommand::new(AGENT, ["check", "--url", "nonsense"]);
    let outcome = command.run_to_end(&node, DEADLINE).unwrap();
    assert_eq!(outcome.code().unwrap(), 2, "{outcome:?}");
    assert!(outcome.stderr.contains("--url"), "{outcome:?}");
}

#[test]
fn single_look_invents_no_ids_and_times() {
    let node = Node::new("checknull").unwrap();
    let _pods = duplicate(&node);
    let document = document(&check(&node, "json"));
    assert_eq!(document["source"], "kernel");
    assert!(document["no_agent_because"].is_string(), "{document:#}");
    let conflict = &document["conflicts"][0];
    for key in ["conflict_id", "raised_at", "updated_at", "latency_us"] {
        assert_eq!(conflict.get(key), Some(&Value::Null), "{key}: {conflict:#}");
    }
    let claimant = &conflict["claimants"][0];
    assert_eq!(claimant.get("since"), Some(&Value::Null));
    for key in ["first_seen", "last_seen"] {
        assert_eq!(claimant["evidence"][0].get(key), Some(&Value::Null));
    }
}

/// The owner has given its address up, so that there is no conflict whose pods would be looked up.
#[test]
fn single_look_finds_an_address_that_is_allocated_to_another_pod() {
    let node = Node::new("checkowner").unwrap();
    let cni = Cni::ptp("kindnet", "10.244.2.0/24").unwrap();
    let (conf, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    cni.write_config(conf.path()).unwrap();
    let check = || {
        let command = AgentCommand::new(AGENT, ["check", "--cri-endpoint=off", "--format=json"])
            .arg("--ipam=auto")
            .arg("--cni-conf-dir")
            .arg(conf.path())
            .arg("--cni-cache-dir")
            .arg(cache.path());
        command.run_to_end(&node, DEADLINE).unwrap()
    };
    let squatter = cni.add_pod(&node, "squatter").unwrap();
    let legit = cni.add_pod(&node, "legit").unwrap();
    let address = legit.address().unwrap();
    let give_up = format!("address del {address}/24 dev eth0");
    legit.netns().ip(&give_up).unwrap();
    let assign = format!("address add {address}/32 dev eth0");
    squatter.netns().ip(&assign).unwrap();

    // A new pod is not known yet.
    cni.cache_result(cache.path(), &legit).unwrap();
    assert_eq!(document(&check())["anomalies"], json!([]));

    cni.cache_result(cache.path(), &squatter).unwrap();
    let outcome = check();
    assert_eq!(outcome.code().unwrap(), 0, "{outcome:?}");
    let found = document(&outcome);
    assert_eq!(found["conflicts"], json!([]));
    let drift = &found["anomalies"][0];
    for (field, expected) in [
        ("kind", "ipam_drift"),
        ("cause", "owned_by_another"),
        ("address", &address.to_string()),
        ("device", squatter.device().unwrap()),
        ("owner", legit.container_id()),
    ] {
        assert_eq!(drift[field], expected, "{found:#}");
    }
    assert_eq!(drift["pod"]["name"], "squatter");
    let detail = drift["detail"].as_str().unwrap();
    assert!(detail.ends_with("another pod: default/legit"), "{detail}");

    // As if it were being deleted.
    let drift_that_ends = thread::scope(|scope| {
        let outcome = scope.spawn(check);
        thread::sleep(Duration::from_secs(1));
        let remove = format!("address del {address}/32 dev eth0");
        squatter.netns().ip(&remove).unwrap();
        outcome.join().unwrap()
    });
    assert_eq!(document(&drift_that_ends)["anomalies"], json!([]));
}

/// Network plugins change the address, the device and the route one after the other.
#[test]
fn single_look_gives_a_stray_route_the_time_that_the_agent_gives() {
    let node = Node::new("checkroute").unwrap();
    let specs = [
        PodSpec::new("vetha").address("10.244.2.10/32").host_route(),
        PodSpec::new("vethb").address("10.244.2.11/32").host_route(),
    ];
    let _pods = node.add_pods(&specs).unwrap();
    let lead_to = |device| {
        let replace = format!("route replace 10.244.2.10/32 dev {device} scope link");
        node.ip(&replace).unwrap();
    };
    lead_to("vethb");
    let found = document(&check(&node, "json"));
    assert_eq!(found["anomalies"][0]["kind"], "route_astray", "{found:#}");
    let astray_for_three_seconds = thread::scope(|scope| {
        let outcome = scope.spawn(|| check(&node, "json"));
        thread::sleep(Duration::from_secs(3));
        lead_to("vetha");
        outcome.join().unwrap()
    });
    assert_eq!(document(&astray_for_three_seconds)["anomalies"], json!([]));
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
    let _pod = node.add_pod(&PodSpec::new("vetha")).unwrap();
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
    thread::scope(|scope| {
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
