//! The HTTP endpoints of a running agent: content, authentication, TLS, and startup with and without
//! them.

use std::{fs, io::Read as _, io::Write as _, net::TcpStream};

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Node, Pod, PodSpec, event::Conflict, http::TestClient, tls,
    until,
};
use serde_json::Value;

use crate::AGENT;

const ORIGIN: &str = "http://127.0.0.1:9842";
const TOKEN: &str = "an-unguessable-test-token";

fn duplicate(node: &Node, address: &str) -> Vec<Pod> {
    let specs = ["vetha", "vethb"].map(|device| PodSpec::new(device).address(address).host_route());
    // A second host route to the same address would be refused, so only one pod gets the traffic.
    let mut pods = vec![node.add_pod(&specs[0]).unwrap()];
    pods.push(
        node.add_pod(&PodSpec::new("vethb").address(address))
            .unwrap(),
    );
    pods
}

#[test]
fn conflicts_and_claims_match_the_events() {
    let node = Node::new("api").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let client = TestClient::new(&node, ORIGIN);
    let empty = client.get("/api/v1/conflicts").unwrap();
    assert_eq!(empty.header("content-type"), Some("application/json"));
    assert_eq!(empty.json().unwrap()["conflicts"], Value::Array(Vec::new()));

    let mut pods = duplicate(&node, "10.244.2.10/32");
    agent.wait_raised("10.244.2.10").unwrap();
    let answer = client.get("/api/v1/conflicts").unwrap().json().unwrap();
    assert_eq!(answer["node"], "testkit");
    let conflict: Conflict = serde_json::from_value(answer["conflicts"][0].clone()).unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    assert_eq!(conflict.traffic_goes_to.as_deref(), Some("vetha"));
    assert_eq!(answer["conflicts"].as_array().unwrap().len(), 1);

    let claims = client.get("/api/v1/claims").unwrap().json().unwrap();
    let devices: Vec<_> = claims["claims"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["device"].as_str().unwrap())
        .collect();
    assert_eq!(devices, ["vetha", "vethb"], "{claims}");
    let one = client
        .get("/api/v1/claims?address=10.244.2.10")
        .unwrap()
        .json()
        .unwrap();
    assert_eq!(one["claims"].as_array().unwrap().len(), 2);
    let none = client
        .get("/api/v1/claims?address=fd00%3A%3A1")
        .unwrap()
        .json()
        .unwrap();
    assert_eq!(none["claims"], Value::Array(Vec::new()));

    pods.pop().unwrap().delete().unwrap();
    agent
        .wait_event(DEADLINE, |event| event.resolves("10.244.2.10"))
        .unwrap();
    let answer = client.get("/api/v1/conflicts").unwrap().json().unwrap();
    assert_eq!(answer["conflicts"], Value::Array(Vec::new()));
    assert_eq!(answer["resolved"][0]["address"], "10.244.2.10");
    assert_eq!(
        answer["resolved"][0]["conflict_id"],
        conflict.conflict_id.as_str()
    );
}

/// The value of one series in a scrape.
fn metric(client: &TestClient<'_>, series: &str) -> f64 {
    let metrics = client.get("/metrics").unwrap();
    let mut values = metrics
        .body
        .lines()
        .filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    values.next().unwrap().parse().unwrap()
}

#[test]
fn active_conflicts_change_before_their_event() {
    let node = Node::new("gauges").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let client = TestClient::new(&node, ORIGIN);
    let active = || {
        metric(
            &client,
            r#"ipconflict_conflicts_active{kind="duplicate",scope="node"}"#,
        )
    };
    let first = node
        .add_pod(&PodSpec::new("vetha").address("10.244.2.10/32"))
        .unwrap();
    let second = node.add_pod(&PodSpec::new("vethb")).unwrap();
    for _ in 0..5 {
        let seen = agent.event_count();
        second.add_address("10.244.2.10/32").unwrap();
        agent
            .wait_event_after(seen, DEADLINE, |event| event.raises("10.244.2.10"))
            .unwrap();
        assert_eq!(active(), 1.0);
        second.remove_address("10.244.2.10/32").unwrap();
        agent
            .wait_event_after(seen, DEADLINE, |event| event.resolves("10.244.2.10"))
            .unwrap();
        assert_eq!(active(), 0.0);
    }
    first.delete().unwrap();
}

/// Neither by address, nor with those of the node, nor with those that no device has any more.
#[test]
fn metrics_count_the_claims_that_the_api_lists() {
    let node = Node::new("claims").unwrap();
    node.add_bridge("br0", &["10.244.9.1/24"]).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let client = TestClient::new(&node, ORIGIN);
    let listed = || {
        let claims = client.get("/api/v1/claims").unwrap().json().unwrap();
        claims["claims"].as_array().unwrap().len()
    };
    let is_counted = |claims: usize| {
        until(DEADLINE, "the claims to be counted", || {
            let counted = metric(&client, "ipconflict_claims");
            anyhow::ensure!(
                (counted, listed()) == (claims as f64, claims),
                "{counted} counted, {} listed, {claims} exist",
                listed()
            );
            Ok(())
        })
        .unwrap();
    };
    is_counted(0);
    let mut pods = duplicate(&node, "10.244.2.10/32");
    agent.wait_raised("10.244.2.10").unwrap();
    pods[0].add_address("10.244.2.11/32").unwrap();
    is_counted(3);
    pods.pop().unwrap().delete().unwrap();
    is_counted(2);
}

/// More than the 16 that a conflict lists.
#[test]
fn receiver_of_the_traffic_is_named_among_many_claimants() {
    const PODS: usize = 66;
    let node = Node::new("crowd").unwrap();
    let last = format!("veth{}", PODS - 1);
    let specs: Vec<_> = (0..PODS)
        .map(|number| {
            let spec = PodSpec::new(format!("veth{number}")).address("10.244.2.10/32");
            if number == PODS - 1 {
                spec.host_route()
            } else {
                spec
            }
        })
        .collect();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let _pods = node.add_pods(&specs).unwrap();
    let client = TestClient::new(&node, ORIGIN);
    until(DEADLINE, "all claimants", || {
        let answer = client.get("/api/v1/conflicts")?.json()?;
        let conflict = &answer["conflicts"][0];
        anyhow::ensure!(conflict["claimants_omitted"] == PODS - 16, "{conflict}");
        anyhow::ensure!(conflict["traffic_goes_to"] == last.as_str(), "{conflict}");
        Ok(())
    })
    .unwrap();
    // The lines are read by another thread, and may be behind the answers.
    let is_listed = |conflict: &Conflict| {
        let receiver = conflict.traffic_goes_to.as_deref() == Some(last.as_str());
        receiver && conflict.claimants.len() == 16 && conflict.claimant(&last).is_some()
    };
    agent
        .wait_event(DEADLINE, |event| {
            event.conflict().as_ref().is_some_and(is_listed)
        })
        .unwrap();
    let omitted = format!("ipconflict_conflict_info_overflow {}\n", PODS - 16);
    let series = format!(
        r#"ipconflict_conflict_info{{address="10.244.2.10",network="node",vlan="",kind="duplicate",device="{last}""#
    );
    // The metrics of an event follow its line.
    until(DEADLINE, "the metrics", || {
        let metrics = client.get("/metrics")?.body;
        let is_current = metrics.contains(&omitted) && metrics.contains(&series);
        anyhow::ensure!(is_current, "{metrics}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn thousands_of_claims_are_one_json_document() {
    let node = Node::new("many").unwrap();
    let specs: Vec<_> = (0..4)
        .map(|pod| {
            (0..250).fold(PodSpec::new(format!("veth{pod}")), |spec, number| {
                spec.address(format!("10.{pod}.0.{number}/32"))
            })
        })
        .collect();
    let _pods = node.add_pods(&specs).unwrap();
    let command = AgentCommand::run(AGENT).arg("--export-claims");
    let _agent = Agent::start_ready(&node, &command).unwrap();
    let client = TestClient::new(&node, ORIGIN);
    let claims = client.get("/api/v1/claims").unwrap().json().unwrap();
    assert_eq!(claims["claims"].as_array().unwrap().len(), 1000);
    let metrics = client.get("/metrics").unwrap();
    let series = metrics
        .body
        .lines()
        .filter(|l| l.starts_with("ipconflict_claim_info{"))
        .count();
    assert_eq!(series, 1000);
    assert!(metrics.body.ends_with("# EOF\n"));
}

#[test]
fn event_stream_is_live_and_resumes_after_the_last_id() {
    let node = Node::new("sse").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let client = TestClient::new(&node, ORIGIN);
    let mut stream = client.events("/api/v1/events").unwrap();
    let hello = stream.next_event().unwrap().unwrap();
    assert_eq!(hello.kind, "hello");
    assert_eq!(hello.data, r#"{"node":"testkit","resumed":false}"#);

    let mut pods = duplicate(&node, "10.244.2.10/32");
    let first = stream.next_message().unwrap();
    let event: Value = serde_json::from_str(&first.data).unwrap();
    assert_eq!(event["type"], "io.ipconflict.conflict.raised");
    assert_eq!(event["id"], first.id.as_str());
    assert_eq!(
        detector_testkit::contract::violations(&event),
        Vec::<String>::new()
    );
    drop(stream);

    pods.pop().unwrap().delete().unwrap();
    agent
        .wait_event(DEADLINE, |event| event.resolves("10.244.2.10"))
        .unwrap();
    let back = TestClient::new(&node, ORIGIN).header("Last-Event-ID", &first.id);
    let mut stream = back.events("/api/v1/events").unwrap();
    let hello = stream.next_event().unwrap().unwrap();
    assert!(hello.data.contains("\"resumed\":true"), "{hello:?}");
    let all: Vec<_> = agent.events().into_iter().map(|r| r.event.id).collect();
    let position = all.iter().position(|id| *id == first.id).unwrap();
    for expected in &all[position + 1..] {
        assert_eq!(stream.next_message().unwrap().id, *expected);
    }
}

#[test]
fn readyz_lists_the_components_and_their_state() {
    let node = Node::new("ready").unwrap();
    let _pods = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let client = TestClient::new(&node, ORIGIN);
    let state = |name: &str, state: &str| {
        until(DEADLINE, "the agent to be ready", || {
            let ready = client.get("/readyz")?;
            anyhow::ensure!(ready.status == 200, "{}", ready.body);
            let json = ready.json()?;
            let parts = json["parts"].as_array().unwrap();
            let part = parts.iter().find(|p| p["name"] == name).unwrap();
            anyhow::ensure!(part["state"] == state, "{part}");
            Ok(part["detail"].as_str().unwrap().to_owned())
        })
        .unwrap()
    };
    assert_eq!(
        state("kernel programs", "works"),
        "attached to all 2 pod devices"
    );
    state("netlink", "works");
    state("lines", "works");
    let alive = client.get("/healthz").unwrap();
    assert_eq!(
        (alive.status, alive.body.as_str()),
        (200, "{\"alive\":true}")
    );
    drop(agent);

    let without = Agent::start_ready(&node, &AgentCommand::run(AGENT).arg("--no-ebpf")).unwrap();
    state("kernel programs", "off");
    assert_eq!(metric(&client, "ipconflict_devices_attached"), 0.0);
    drop(without);
}

#[test]
fn unusable_address_is_one_sentence_and_off_serves_nothing() {
    let node = Node::new("port").unwrap();
    for (listen, address, reason) in [
        (
            "127.0.0.1:9842",
            "127.0.0.1:9842",
            "--listen serves this port already",
        ),
        ("none", "192.0.2.7:9842", "no such address"),
    ] {
        let args = ["run", "--listen", listen, "--metrics-listen", address];
        let outcome = AgentCommand::new(AGENT, args)
            .run_to_end(&node, DEADLINE)
            .unwrap();
        assert_eq!(outcome.code().unwrap(), 2, "{outcome:?}");
        let sentence = outcome.stderr.trim();
        for part in [address, reason, "with --metrics-listen"] {
            assert!(sentence.contains(part), "{sentence}");
        }
    }
    let command = AgentCommand::run(AGENT).arg("--listen").arg("none");
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    node.run_in(|| {
        assert!(TcpStream::connect("127.0.0.1:9842").is_err());
        Ok(())
    })
    .unwrap();
    let (status, _) = agent.terminate(DEADLINE).unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn metrics_without_detail_name_nothing_and_count_everything() {
    let node = Node::new("detail").unwrap();
    node.ip("address add 192.0.2.7/32 dev lo").unwrap();
    let command = AgentCommand::run(AGENT)
        .env("IPCONFLICT_METRICS_DETAIL", "false")
        .env("IPCONFLICT_METRICS_LISTEN", "192.0.2.7:9842")
        .arg("--export-claims");
    let agent = Agent::start_ready(&node, &command).unwrap();
    let _pods = duplicate(&node, "10.244.2.10/32");
    agent.wait_raised("10.244.2.10").unwrap();
    for origin in [ORIGIN, "http://192.0.2.7:9842"] {
        let client = TestClient::new(&node, origin);
        let value = |expected: &str| {
            until(DEADLINE, expected, || {
                let text = client.get("/metrics")?.body;
                anyhow::ensure!(text.lines().any(|line| line == expected), "{text}");
                Ok(text)
            })
            .unwrap()
        };
        value(r#"ipconflict_conflicts_active{kind="duplicate",scope="node"} 1"#);
        let text = value("ipconflict_conflict_info_overflow 2");
        for detail in ["10.244.2.10", "vetha", "vethb", "claim_info"] {
            assert!(!text.contains(detail), "{detail} in\n{text}");
        }
    }
    // The API shows everything.
    let conflicts = TestClient::new(&node, ORIGIN).get("/api/v1/conflicts");
    assert!(conflicts.unwrap().body.contains("vetha"));
}

#[test]
fn open_streams_do_not_delay_the_shutdown() {
    let node = Node::new("end").unwrap();
    let mut agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let client = TestClient::new(&node, ORIGIN);
    let mut stream = client.events("/api/v1/events").unwrap();
    stream.next_event().unwrap();
    let (status, _) = agent.terminate(DEADLINE).unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn requests_without_the_token_are_refused() {
    let node = Node::new("token").unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), format!("{TOKEN}\n")).unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--http-token-file")
        .arg(file.path());
    let agent = Agent::start_ready(&node, &command).unwrap();
    let stranger = TestClient::new(&node, ORIGIN);
    let wrong = TestClient::new(&node, ORIGIN)
        .header("Authorization", "Bearer a-token-that-somebody-guessed");
    let friend = TestClient::new(&node, ORIGIN).header("Authorization", &format!("Bearer {TOKEN}"));
    for path in [
        "/metrics",
        "/api/v1/conflicts",
        "/api/v1/claims",
        "/api/v1/nothing",
    ] {
        for client in [&stranger, &wrong] {
            let answer = client.get(path).unwrap();
            assert_eq!(answer.status, 401, "{path}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
    }
    assert!(stranger.events("/api/v1/events").is_err());
    for path in ["/metrics", "/api/v1/conflicts", "/api/v1/claims"] {
        assert_eq!(friend.get(path).unwrap().status, 200, "{path}");
    }
    // The page prompts for the token itself; probes need none, and get only a status without
    // details.
    assert_eq!(stranger.get("/").unwrap().status, 200);
    assert_eq!(stranger.get("/healthz").unwrap().status, 200);
    assert_eq!(stranger.get("/readyz").unwrap().body, "{\"ready\":true}");
    assert!(friend.get("/readyz").unwrap().body.contains("parts"));
    assert!(!agent.log().contains(TOKEN));
    let pid = agent.pid();
    assert!(
        !fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .unwrap()
            .contains(TOKEN)
    );
}

#[test]
fn unusable_token_or_certificate_is_one_sentence() {
    let node = Node::new("unusable").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("empty"), "").unwrap();
    let (chain, _key) = tls::self_signed(folder.path()).unwrap();
    for (args, named) in [
        (vec!["--http-token-file", "/nowhere"], "/nowhere".to_owned()),
        (vec!["--http-token-file", &path("empty")], path("empty")),
        (vec!["--tls-cert", &chain], "--tls-key".to_owned()),
        (
            vec!["--tls-cert", &chain, "--tls-key", &chain],
            "--tls-key".to_owned(),
        ),
        (
            vec!["--tls-cert", "/nowhere", "--tls-key", &chain],
            "/nowhere".to_owned(),
        ),
    ] {
        let outcome = AgentCommand::new(AGENT, ["run"].into_iter().chain(args.clone()))
            .run_to_end(&node, DEADLINE)
            .unwrap();
        assert_eq!(outcome.code().unwrap(), 2, "{outcome:?}");
        let sentence = outcome.stderr.trim();
        assert!(
            sentence.lines().count() == 1 && sentence.contains(&named),
            "{args:?}: {sentence}"
        );
    }
}

#[test]
fn with_a_certificate_the_endpoints_accept_only_tls() {
    let node = Node::new("tls").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = tls::self_signed(folder.path()).unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--tls-cert")
        .arg(&chain)
        .arg("--tls-key")
        .arg(&key);
    let _agent = Agent::start_ready(&node, &command).unwrap();
    // A server that closes without `close_notify` is an error here.
    let answer = tls::get_health(&node, ([127, 0, 0, 1], 9842).into(), &chain).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");

    let mut plain = node
        .run_in(|| Ok(TcpStream::connect("127.0.0.1:9842")?))
        .unwrap();
    plain
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    // An alert or a reset, but no HTTP answer.
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}
