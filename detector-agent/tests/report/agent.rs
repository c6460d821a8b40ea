//! Webhooks and Alertmanagers in a running agent: their state in the endpoints, a full disk, and
//! restarts.

use std::{fs, io::Write as _, path::Path};

use detector_testkit::{
    Agent, AgentCommand, Behaviour, DEADLINE, Node, Pod, PodSpec, PrivateMounts, ReceivedRequest,
    Receiver, http::TestClient, until,
};

use crate::AGENT;

const ADDRESS: &str = "10.244.2.10";
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// Empty and private, in the test's own mount namespace.
const STATE: &str = "/var/lib/ipconflict";

fn two_pods(node: &Node) -> Vec<Pod> {
    let specs = ["vetha", "vethb"].map(PodSpec::new);
    node.add_pods(&specs).unwrap()
}

fn command(config: &Path) -> AgentCommand {
    AgentCommand::run(AGENT)
        .arg("--no-ebpf")
        .arg("--config")
        .arg(config)
}

/// Waits until `/readyz` shows this component in this state; returns its detail.
fn wait_component(client: &TestClient<'_>, name: &str, state: &str) -> String {
    until(DEADLINE, format_args!("part {name} to be {state}"), || {
        let json = client.get("/readyz")?.json()?;
        let parts = json["parts"].as_array().cloned().unwrap_or_default();
        let part = parts.iter().find(|p| p["name"] == name);
        let part = part.ok_or_else(|| anyhow::anyhow!("no part {name}: {json}"))?;
        anyhow::ensure!(part["state"] == state && part["role"] == "sink", "{part}");
        Ok(part["detail"].as_str().unwrap().to_owned())
    })
    .unwrap()
}

/// Waits until two open conflicts are in the state directory.
fn wait_two_stored(client: &TestClient<'_>) {
    until(DEADLINE, "two open conflicts to be stored", || {
        let stored = wait_component(client, "state", "works");
        anyhow::ensure!(stored == "2 open conflicts stored", "{stored}");
        Ok(())
    })
    .unwrap();
}

/// Waits until `/metrics` has this line.
fn wait_metric(client: &TestClient<'_>, line: &str) -> String {
    until(DEADLINE, format_args!("the metric {line}"), || {
        let metrics = client.get("/metrics")?.body;
        anyhow::ensure!(metrics.lines().any(|l| l == line), "{line}: {metrics}");
        Ok(metrics)
    })
    .unwrap()
}

fn has_accepted(posted: &[ReceivedRequest], kind: &str, address: &str) -> bool {
    let kind = format!("io.ipconflict.conflict.{kind}");
    posted
        .iter()
        .filter(|p| p.is_accepted())
        .filter_map(|p| p.json().ok())
        .any(|e| e["type"] == kind && e["subject"] == address)
}

#[test]
fn sinks_are_shown_with_their_outcomes_without_secrets() {
    let node = Node::new("sinks").unwrap();
    let receiver = node.run_in(Receiver::start).unwrap();
    let gone = node.run_in(Receiver::start).unwrap();
    gone.set_behaviour(Behaviour::status(410));
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("secret"), SECRET).unwrap();
    fs::write(path("token"), "Bearer s3cr3t").unwrap();
    let text = format!(
        "state-dir: {}\nwebhooks:\n\
         - {{name: hook, url: '{}', secret-files: [{}], header-files: {{Authorization: {}}}}}\n\
         - {{name: gone, url: '{}'}}\n\
         - {{name: down, url: 'http://127.0.0.1:1', retry: {{first: 10ms, longest: 20ms}}}}\n\
         alertmanagers:\n- {{name: am, url: 'http://127.0.0.1:1'}}\n",
        path("state").display(),
        receiver.url(),
        path("secret").display(),
        path("token").display(),
        gone.url(),
    );
    fs::write(path("config.yaml"), text).unwrap();
    let mut agent = Agent::start_ready(&node, &command(&path("config.yaml"))).unwrap();
    let client = TestClient::of_agent(&node);
    wait_component(&client, "outbox", "works");
    let pods = two_pods(&node);
    for pod in &pods {
        pod.add_address("10.244.2.10/32").unwrap();
    }
    receiver
        .wait_until(DEADLINE, |posted| has_accepted(posted, "raised", ADDRESS))
        .unwrap();
    wait_component(&client, "hook", "works");
    let detail = wait_component(&client, "gone", "failed");
    assert!(detail.contains("410"), "{detail}");
    wait_component(&client, "down", "failed");
    wait_component(&client, "am", "failed");
    let delivered = r#"ipconflict_deliveries_total{sink="hook",outcome="delivered"} 1"#;
    wait_metric(&client, delivered);
    wait_metric(&client, r#"ipconflict_outbox_pending{sink="hook"} 0"#);
    wait_metric(&client, r#"ipconflict_outbox_pending{sink="down"} 1"#);
    let disabled = r#"ipconflict_deliveries_total{sink="gone",outcome="disabled"} 1"#;
    let metrics = wait_metric(&client, disabled);
    agent.wait_log(DEADLINE, "410 Gone").unwrap();
    let shown = [
        metrics,
        client.get("/readyz").unwrap().body,
        client.get("/").unwrap().body,
        fs::read_to_string(format!("/proc/{}/cmdline", agent.pid())).unwrap(),
        fs::read_to_string(format!("/proc/{}/environ", agent.pid())).unwrap(),
    ];
    agent.terminate(DEADLINE).unwrap();
    for text in shown.iter().chain([&agent.log()]) {
        assert!(
            !text.contains("s3cr3t") && !text.contains(&SECRET[6..]),
            "{text}"
        );
    }
}

#[test]
fn webhooks_use_the_proxy_of_the_environment() {
    let node = Node::new("proxy").unwrap();
    let [proxy, direct] = [(); 2].map(|()| node.run_in(Receiver::start).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.yaml");
    let text = format!(
        "webhooks:\n- {{name: far, url: 'http://alerts.example.org/hook'}}\n- {{name: near, url: '{}'}}\n",
        direct.url()
    );
    fs::write(&config, text).unwrap();
    let command = command(&config)
        .env("HTTP_PROXY", format!("http://{}", proxy.address()))
        .env("NO_PROXY", "127.0.0.1");
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    let pods = two_pods(&node);
    for pod in &pods {
        pod.add_address("10.244.2.10/32").unwrap();
    }
    for (receiver, target) in [
        (&proxy, "http://alerts.example.org/hook"),
        (&direct, "/hook"),
    ] {
        let posted = receiver
            .wait_until(DEADLINE, |posted| has_accepted(posted, "raised", ADDRESS))
            .unwrap();
        assert!(posted.iter().all(|p| p.path == target), "{posted:?}");
    }
    agent.terminate(DEADLINE).unwrap();
}

/// Fills `/var/lib` completely.
fn fill(mounts: &PrivateMounts) {
    mounts
        .run_in(None, || {
            let mut file = fs::File::create("/var/lib/fill")?;
            while file.write_all(&[0; 4096]).is_ok() {}
            Ok(())
        })
        .unwrap();
}

fn make_room(mounts: &PrivateMounts) {
    mounts
        .run_in(None, || Ok(fs::remove_file("/var/lib/fill")?))
        .unwrap();
}

#[test]
fn full_disk_keeps_detecting_and_queues_events_over_a_restart() {
    let node = Node::new("diskful").unwrap();
    let mounts = PrivateMounts::new().unwrap();
    let receiver = node.run_in(Receiver::start).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.yaml");
    let text = format!(
        "state-dir: {STATE}\nwebhooks:\n- {{name: hook, url: '{}'}}\n",
        receiver.url()
    );
    fs::write(&config, text).unwrap();
    let start = || {
        mounts
            .run_in(None, || Agent::start_ready(&node, &command(&config)))
            .unwrap()
    };
    let client = TestClient::of_agent(&node);
    let pods = two_pods(&node);
    let address = |n: u32| format!("10.244.{}.{}", n / 250, n % 250 + 1);
    let conflict = |numbers: std::ops::Range<u32>| {
        for pod in &pods {
            let lines = numbers.clone();
            let lines = lines.map(|n| format!("address add {}/32 dev eth0", address(n)));
            pod.netns().ip_batch(lines).unwrap();
        }
    };

    let mut agent = start();
    conflict(0..1);
    receiver
        .wait_until(DEADLINE, |posted| {
            has_accepted(posted, "raised", &address(0))
        })
        .unwrap();
    fill(&mounts);
    // Enough to outgrow the free space in the file.
    conflict(1..900);
    agent.wait_raised(&address(899)).unwrap();
    let detail = wait_component(&client, "outbox", "failed");
    assert!(detail.contains("cannot store events"), "{detail}");
    let metrics = client.get("/metrics").unwrap().body;
    let failures = r#"ipconflict_deliveries_total{sink="outbox",outcome="store_failed"} "#;
    let failures = metrics.lines().find_map(|l| l.strip_prefix(failures));
    assert!(failures.is_some_and(|n| n != "0"), "{metrics}");
    // An agent killed in this state still starts, and still raises conflicts.
    agent.kill().unwrap();
    let mut agent = start();
    conflict(900..901);
    agent.wait_raised(&address(900)).unwrap();
    make_room(&mounts);
    wait_component(&client, "outbox", "works");
    receiver
        .wait_until(DEADLINE, |posted| {
            [1, 899, 900]
                .iter()
                .all(|n| has_accepted(posted, "raised", &address(*n)))
        })
        .unwrap();
    wait_metric(&client, r#"ipconflict_outbox_pending{sink="hook"} 0"#);
    agent.terminate(DEADLINE).unwrap();
}

#[test]
fn webhook_gets_one_raised_and_resolved_over_a_kill() {
    let node = Node::new("story").unwrap();
    let receiver = node.run_in(Receiver::start).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.yaml");
    let text = format!(
        "state-dir: {}\nwebhooks:\n- {{name: hook, url: '{}'}}\n",
        directory.path().join("state").display(),
        receiver.url()
    );
    fs::write(&config, text).unwrap();
    let client = TestClient::of_agent(&node);
    let pods = two_pods(&node);
    let conflict = |address: &str| {
        for pod in &pods {
            pod.add_address(&format!("{address}/32")).unwrap();
        }
    };
    let wait_accepted = |kind: &str, address: &str| {
        receiver
            .wait_until(DEADLINE, |posted| has_accepted(posted, kind, address))
            .unwrap();
    };
    let (stays, ends, comes) = ("10.0.0.1", "10.0.0.2", "10.0.0.3");

    let mut agent = Agent::start_ready(&node, &command(&config)).unwrap();
    for address in [stays, ends] {
        conflict(address);
        wait_accepted("raised", address);
    }
    // Stored as open, and delivered from the outbox.
    wait_metric(&client, r#"ipconflict_outbox_pending{sink="hook"} 0"#);
    wait_two_stored(&client);
    agent.kill().unwrap();
    pods[1].remove_address(&format!("{ends}/32")).unwrap();
    let mut agent = Agent::start_ready(&node, &command(&config)).unwrap();
    wait_accepted("resolved", ends);
    conflict(comes);
    wait_accepted("raised", comes);
    pods[1].remove_address(&format!("{stays}/32")).unwrap();
    wait_accepted("resolved", stays);
    agent.terminate(DEADLINE).unwrap();

    for address in [stays, ends] {
        let mut delivered: Vec<(String, String)> = receiver
            .requests()
            .iter()
            .filter_map(|p| p.json().ok())
            .filter(|e| e["subject"] == address)
            .map(|e| {
                let text = |v: &serde_json::Value| v.as_str().unwrap().to_owned();
                (text(&e["data"]["conflict_id"]), text(&e["type"]))
            })
            .collect();
        delivered.dedup();
        let kinds: Vec<_> = delivered.iter().map(|(_, kind)| kind.as_str()).collect();
        assert_eq!(
            kinds,
            [
                "io.ipconflict.conflict.raised",
                "io.ipconflict.conflict.resolved"
            ],
            "{address}: {delivered:?}"
        );
        assert_eq!(
            delivered[0].0, delivered[1].0,
            "{address}: the conflict id changed"
        );
    }
}

#[test]
fn missing_secret_disables_its_sink_and_detection_runs() {
    let node = Node::new("nosecret").unwrap();
    let receiver = node.run_in(Receiver::start).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let text = format!(
        "webhooks:\n- {{name: hook, url: '{}', secret-files: [{}]}}\n",
        receiver.url(),
        path("secret").display(),
    );
    fs::write(path("config.yaml"), text).unwrap();
    let agent = Agent::start_ready(&node, &command(&path("config.yaml"))).unwrap();
    agent.wait_log(DEADLINE, "sink disabled").unwrap();
    let client = TestClient::of_agent(&node);
    let detail = wait_component(&client, "hook", "failed");
    assert!(detail.contains("/secret"), "{detail}");
    let pods = two_pods(&node);
    for pod in &pods {
        pod.add_address("10.244.2.10/32").unwrap();
    }
    agent.wait_raised(ADDRESS).unwrap();
    let unusable = r#"ipconflict_deliveries_total{sink="hook",outcome="unusable"} "#;
    until(DEADLINE, "the counter of the unusable sink", || {
        let metrics = client.get("/metrics")?.body;
        anyhow::ensure!(metrics.contains(unusable), "{metrics}");
        Ok(())
    })
    .unwrap();
    assert!(receiver.requests().is_empty());
    // Once the secret is there, the event that waited is delivered.
    fs::write(path("secret"), SECRET).unwrap();
    receiver
        .wait_until(DEADLINE, |posted| has_accepted(posted, "raised", ADDRESS))
        .unwrap();
    wait_component(&client, "hook", "works");
}

/// What PagerDuty got: action and key of each incident event, without repetitions.
fn pages(requests: &[ReceivedRequest]) -> Vec<(String, String)> {
    let events = requests.iter().map(|request| request.json().unwrap());
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let events = events.map(|event| (text(&event["event_action"]), text(&event["dedup_key"])));
    let mut pages: Vec<_> = events.collect();
    pages.dedup();
    pages
}

#[test]
fn incident_is_resolved_with_its_last_conflict_over_a_kill() {
    let node = Node::new("incident").unwrap();
    let receiver = node.run_in(Receiver::start).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("key"), "R0UT1NG").unwrap();
    let text = format!(
        "state-dir: {}\nwebhooks:\n- {{name: pager, format: pagerduty, routing-key-file: {}, url: '{}'}}\n",
        path("state").display(),
        path("key").display(),
        receiver.url()
    );
    fs::write(path("config.yaml"), text).unwrap();
    let command = command(&path("config.yaml"));
    let client = TestClient::of_agent(&node);
    let pods = two_pods(&node);
    let (first, last) = ("10.0.0.1/32", "10.0.0.2/32");
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    for pod in &pods {
        pod.add_address(first).unwrap();
        pod.add_address(last).unwrap();
    }
    receiver
        .wait_until(DEADLINE, |posted| !posted.is_empty())
        .unwrap();
    let idle = r#"ipconflict_outbox_pending{sink="pager"} 0"#;
    wait_metric(&client, idle);
    wait_two_stored(&client);
    agent.kill().unwrap();
    pods[1].remove_address(first).unwrap();
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    // The first end is stored, and then dropped without a message.
    let superseded = r#"ipconflict_deliveries_total{sink="pager",outcome="superseded"}"#;
    until(DEADLINE, "the first end to be over", || {
        let metrics = client.get("/metrics")?.body;
        let is_idle = metrics.lines().any(|line| line == idle);
        anyhow::ensure!(is_idle && metrics.contains(superseded), "{metrics}");
        Ok(())
    })
    .unwrap();
    agent.kill().unwrap();
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    assert_eq!(pages(&receiver.requests()).len(), 1);
    pods[1].remove_address(last).unwrap();
    receiver
        .wait_until(DEADLINE, |posted| pages(posted).len() > 1)
        .unwrap();
    agent.terminate(DEADLINE).unwrap();
    let pages = pages(&receiver.requests());
    let [(opens, opened), (ends, ended)] = &pages[..] else {
        panic!("{pages:?}");
    };
    assert_eq!((opens.as_str(), ends.as_str()), ("trigger", "resolve"));
    assert_eq!(opened, ended);
}
