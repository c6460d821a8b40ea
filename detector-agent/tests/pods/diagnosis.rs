//! Why pods have one address, explained with a real containerd and the real `ptp` and `host-local`.

use std::{fs, path::PathBuf, process::Command, time::SystemTime};

use anyhow::{Context as _, ensure};
use detector_testkit::{
    Agent, AgentCommand, Containerd, DEADLINE, KubeApi, Node, RUN_ARGS, ReceivedEvent,
    browser::Browser, containerd::Sandbox, event::Conflict, http::TestClient, kube_api, until,
    wait_reachable,
};
use serde_json::{Value, json};

use crate::AGENT;

pub(super) const SUBNET: &str = "10.244.2.0/24";
const CACHE: &str = "/var/lib/cni/results";

pub(super) fn agent(containerd: &Containerd) -> AgentCommand {
    agent_with(containerd, containerd.socket().to_str().unwrap())
}

/// With this container runtime.
pub(super) fn agent_with(containerd: &Containerd, cri: &str) -> AgentCommand {
    agent_on("testkit", containerd, cri)
}

/// On a node of this name.
pub(super) fn agent_on(node: &str, containerd: &Containerd, cri: &str) -> AgentCommand {
    let args = RUN_ARGS.map(|arg| if arg == "testkit" { node } else { arg });
    containerd
        .agent_command(AGENT, args)
        .arg("--ipam")
        .arg("auto")
        .arg("--cni-cache-dir")
        .arg(CACHE)
        .arg("--cri-endpoint")
        .arg(cri)
        .arg("--cni-conf-dir")
        .arg(containerd.directory().join("net.d"))
}

pub(super) fn run(containerd: &mut Containerd, names: &[&str]) -> Vec<Sandbox> {
    containerd.run_pods(names.iter().copied()).unwrap()
}

/// The first pod of a node makes the plugins create their directories, which are therefore younger than it is.
pub(super) fn begin(containerd: &mut Containerd) {
    let first = run(containerd, &["first"]).remove(0);
    containerd.remove_pod(&first).unwrap();
}

/// Waits until this many conflicts have a known cause; returns their newest states.
pub(super) fn explained(agent: &Agent, count: usize) -> Vec<Conflict> {
    let events = agent
        .wait_until(DEADLINE, |events| {
            let conflicts = newest(events.iter().filter_map(|e| e.event.conflict()));
            let known = |c: &&Conflict| {
                c.diagnosis
                    .as_ref()
                    .is_some_and(|d| d["cause"] != "unknown")
            };
            conflicts.iter().filter(known).count() == count
        })
        .unwrap();
    newest(events.iter().filter_map(|e| e.event.conflict()))
}

fn newest(conflicts: impl Iterator<Item = Conflict>) -> Vec<Conflict> {
    let mut newest = std::collections::BTreeMap::new();
    for conflict in conflicts {
        newest.insert(conflict.address.clone(), conflict);
    }
    newest.into_values().collect()
}

pub(super) fn seconds_since_epoch() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_secs_f64()
}

pub(super) fn time(value: &Value) -> f64 {
    let time: jiff::Timestamp = value.as_str().unwrap().parse().unwrap();
    time.as_millisecond() as f64 / 1e3
}

/// Waits until the agent reports nothing.
pub(super) fn wait_nothing_open(node: &Node) {
    let client = TestClient::of_agent(node);
    until(DEADLINE, "nothing to be reported", || {
        for list in ["conflicts", "anomalies"] {
            let open = client.get(&format!("/api/v1/{list}"))?.json()?;
            ensure!(open[list] == json!([]), "{open:#}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn wiped_state_is_one_cause_for_all_pods() {
    let node = Node::new("wiped").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    begin(&mut containerd);
    run(&mut containerd, &["old-1", "old-2", "old-3", "old-4"]);
    let agent = Agent::start_ready(&node, &agent(&containerd)).unwrap();
    let wiped = seconds_since_epoch();
    containerd.wipe_ipam().unwrap();
    run(&mut containerd, &["new-1", "new-2", "new-3"]);
    for conflict in explained(&agent, 2) {
        let diagnosis = conflict.diagnosis.unwrap();
        assert_eq!(diagnosis["cause"], "ipam_state_wiped", "{diagnosis:#}");
        assert_eq!(diagnosis["confidence"], "proven", "{diagnosis:#}");
        assert!(
            (time(&diagnosis["since"]) - wiped).abs() < 2.0,
            "{diagnosis:#}"
        );
        assert_eq!(diagnosis["affected"]["pods"], 4, "{diagnosis:#}");
        let timeline = conflict.timeline.iter();
        assert!(timeline.into_iter().any(|entry| entry["source"] == "cri"));
    }
    let explain = containerd.agent_command(AGENT, ["explain"]);
    let text = explain.run_to_end(&node, DEADLINE).unwrap().stdout;
    assert!(text.lines().count() < 24, "{text}");
    assert!(text.contains("\n  evidence:\n"), "{text}");
    let explain = containerd.agent_command(AGENT, ["explain", "10.244.2.3"]);
    let text = explain.run_to_end(&node, DEADLINE).unwrap().stdout;
    assert!(text.contains("\n  timeline:\n"), "{text}");
    let browser = Browser::start(&node, 9842).unwrap();
    browser.emulate_screen(1280, 900, false).unwrap();
    browser.open("http://127.0.0.1:9842/").unwrap();
    browser
        .wait("document.querySelectorAll('#anomalies .card').length === 1")
        .unwrap();
    browser
        .wait("document.querySelector('#anomalies h3').innerText === '4 addresses'")
        .unwrap();
    browser
        .eval("document.querySelector('#anomalies details').open = true")
        .unwrap();
    browser
        .wait("[...document.querySelectorAll('#anomalies li a')].map(a => a.innerText).join() === '10.244.2.3,10.244.2.4,10.244.2.5,10.244.2.6'")
        .unwrap();
    // The two conflicts are of different pods.
    browser
        .wait("document.querySelector('#conflicts .next').innerText.startsWith('Next: Begin with the first one: ')")
        .unwrap();
    let screenshot = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("status-page/wiped.png");
    browser.screenshot(&screenshot).unwrap();
    assert_eq!(browser.console_errors().unwrap(), Vec::<String>::new());
}

#[test]
fn single_reservation_removed_under_a_pod_is_a_release() {
    let node = Node::new("released").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    begin(&mut containerd);
    let pods = run(&mut containerd, &["web-1", "web-2"]);
    let agent = Agent::start_ready(&node, &agent(&containerd)).unwrap();
    let network = containerd.ipam_dir().join("testkit");
    fs::remove_file(network.join("10.244.2.3")).unwrap();
    // `host-local` continues from the last address.
    fs::write(network.join("last_reserved_ip.0"), "10.244.2.2").unwrap();
    let later = run(&mut containerd, &["cart-1"]).remove(0);
    let conflict = explained(&agent, 1).remove(0);
    let diagnosis = conflict.diagnosis.unwrap();
    assert_eq!(diagnosis["cause"], "released_in_use", "{diagnosis:#}");
    assert_eq!(
        diagnosis["affected"],
        json!({"addresses": 1, "pods": 2}),
        "{diagnosis:#}"
    );
    let repair = diagnosis["repair"].as_str().unwrap();
    let steps = "Delete default/cart-1, then recreate default/web-1, or write its reservation to";
    assert!(repair.contains(steps), "{repair}");
    containerd.remove_pod(&later).unwrap();
    let reservation = format!("{}\r\neth0", pods[0].id);
    fs::write(network.join("10.244.2.3"), reservation).unwrap();
    wait_nothing_open(&node);
    wait_reachable(&node, "10.244.2.3".parse().unwrap(), DEADLINE).unwrap();
}

#[test]
fn drift_after_a_wipe_is_explained_once_before_any_conflict() {
    let node = Node::new("wipeddrift").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    begin(&mut containerd);
    run(&mut containerd, &["old-1", "old-2", "old-3"]);
    let state = tempfile::tempdir().unwrap();
    let command = agent(&containerd).arg("--state-dir").arg(state.path());
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    let wiped = seconds_since_epoch();
    containerd.wipe_ipam().unwrap();
    let drifts = |events: &[ReceivedEvent]| -> Vec<Value> {
        let anomalies = events.iter().filter_map(|e| e.event.anomaly());
        anomalies.filter_map(|a| a.diagnosis).collect()
    };
    let events = agent
        .wait_until(DEADLINE, |events| drifts(events).len() >= 3)
        .unwrap();
    for diagnosis in drifts(&events) {
        assert_eq!(diagnosis["cause"], "ipam_state_wiped", "{diagnosis:#}");
        assert!(
            (time(&diagnosis["since"]) - wiped).abs() < 2.0,
            "{diagnosis:#}"
        );
        assert_eq!(diagnosis["affected"], json!({"addresses": 3, "pods": 3}));
    }
    agent.terminate(DEADLINE).unwrap();

    // The next run explains it to those who ask, which is no news. It knows when that was from the one that saw it.
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    let client = TestClient::of_agent(&node);
    until(DEADLINE, "the diagnoses of the next run", || {
        let open = client.get("/api/v1/anomalies")?.json()?;
        let open = open["anomalies"].as_array().context("no list")?;
        let is_explained = |anomaly: &&Value| {
            let diagnosis = &anomaly["diagnosis"];
            diagnosis["cause"] == "ipam_state_wiped"
                && diagnosis["since"].is_string()
                && (time(&diagnosis["since"]) - wiped).abs() < 2.0
        };
        let known = open.iter().filter(is_explained);
        ensure!(known.count() == 3, "{open:#?}");
        Ok(())
    })
    .unwrap();
    agent.terminate(DEADLINE).unwrap();
    assert!(drifts(&agent.events()).is_empty(), "{:#?}", agent.events());
}

/// Runs `ip` in the namespace of a pod.
fn ip_in_pod(containerd: &Containerd, pod: &Sandbox, line: &str) {
    let info = containerd.info(pod).unwrap();
    let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array();
    let mut namespaces = namespaces.into_iter().flatten();
    let network = namespaces.find(|n| n["type"] == "network").unwrap();
    let enter = format!("--net={}", network["path"].as_str().unwrap());
    let arguments = [enter.as_str(), "ip"].into_iter().chain(line.split(' '));
    containerd
        .run_in(|| {
            let status = Command::new("nsenter").args(arguments).status()?;
            ensure!(status.success(), "{status}");
            Ok(())
        })
        .unwrap();
}

#[test]
fn address_that_a_pod_assigned_to_itself_is_not_from_ipam() {
    let node = Node::new("selfassigned").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    let pods = run(&mut containerd, &["web-1", "squatter"]);
    let agent = Agent::start_ready(&node, &agent(&containerd)).unwrap();
    let in_squatter = |change: &str| {
        let line = format!("address {change} 10.244.2.2/32 dev eth0");
        ip_in_pod(&containerd, &pods[1], &line);
    };
    in_squatter("add");
    let conflict = explained(&agent, 1).remove(0);
    let diagnosis = conflict.diagnosis.unwrap();
    assert_eq!(diagnosis["cause"], "not_from_ipam", "{diagnosis:#}");
    assert_eq!(diagnosis["confidence"], "proven", "{diagnosis:#}");
    let summary = diagnosis["summary"].as_str().unwrap();
    assert!(summary.contains("default/squatter"), "{summary}");
    let repair = diagnosis["repair"].as_str().unwrap();
    let step = "Change what assigns 10.244.2.2 in default/squatter";
    assert!(repair.contains(step), "{repair}");
    in_squatter("del");
    wait_nothing_open(&node);
    wait_reachable(&node, "10.244.2.2".parse().unwrap(), DEADLINE).unwrap();
}

/// An election that is not stable moves a virtual IP, which is allowed; then it is stable.
#[test]
fn address_that_flaps_between_its_holders_is_shared_on_purpose() {
    let node = Node::new("vipcause").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    let names = ["keepalived-a", "keepalived-b"];
    let pods = run(&mut containerd, &names);
    let api = KubeApi::start(node.netns()).unwrap();
    for (name, address) in names.into_iter().zip(["10.244.2.2", "10.244.2.3"]) {
        api.apply(kube_api::pod("testkit", "default", name, &[address]));
    }
    let command = agent(&containerd)
        .args(["--kube=on", "--pod-labels=app", "--flap-window=15s"])
        .args(["--allow", "10.244.2.100/32"])
        .env("KUBECONFIG", api.kubeconfig());
    let agent = Agent::start_ready(&node, &command).unwrap();
    for (holder, other) in [(0, 1), (1, 0)].into_iter().cycle().take(7) {
        ip_in_pod(
            &containerd,
            &pods[holder],
            "address add 10.244.2.100/32 dev eth0",
        );
        ip_in_pod(
            &containerd,
            &pods[other],
            "address flush to 10.244.2.100/32 dev eth0",
        );
    }
    let diagnosis = explained(&agent, 1).remove(0).diagnosis.unwrap();
    assert_eq!(diagnosis["cause"], "shared_on_purpose", "{diagnosis:#}");
    assert_eq!(diagnosis["confidence"], "likely", "{diagnosis:#}");
    let repair = diagnosis["repair"].as_str().unwrap();
    assert!(repair.contains("Check the election"), "{repair}");
    wait_nothing_open(&node);
}

/// As when a node is restarted whose reservations are on a tmpfs: the pods' namespaces still exist.
#[test]
fn state_on_a_tmpfs_does_not_survive_a_restart_of_the_runtime() {
    let node = Node::new("tmpfsstate").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    let state = containerd.ipam_dir();
    fs::create_dir_all(&state).unwrap();
    let mount = |containerd: &Containerd| {
        let run = |program: &str, args: &[&str]| {
            let status = Command::new(program).args(args).status()?;
            ensure!(status.success(), "{program}: {status}");
            Ok(())
        };
        let path = state.to_str().unwrap();
        containerd.run_in(|| run("mount", &["-t", "tmpfs", "tmpfs", path]))
    };
    mount(&containerd).unwrap();
    begin(&mut containerd);
    let mut pods = run(&mut containerd, &["old-1", "old-2", "old-3"]);
    containerd.stop_daemon().unwrap();
    // Hides what the other one holds.
    mount(&containerd).unwrap();
    let restarted = seconds_since_epoch();
    containerd.start_daemon().unwrap();
    pods.extend(run(&mut containerd, &["new-1", "new-2"]));
    let agent = Agent::start_ready(&node, &agent(&containerd)).unwrap();
    let diagnosis = explained(&agent, 1).remove(0).diagnosis.unwrap();
    let cause = &diagnosis["cause"];
    assert_eq!(cause, "ipam_state_not_persistent", "{diagnosis:#}");
    let since = time(&diagnosis["since"]);
    assert!((since - restarted).abs() < 2.0, "{diagnosis:#}");
    let repair = diagnosis["repair"].as_str().unwrap();
    let last_step = "Then drain the node, and move the state to a directory that survives a restart (ipam.dataDir)";
    assert!(repair.contains(last_step), "{repair}");
    // New pods are kept off: those that are deleted come back on another node, or once the state has moved.
    for pod in &pods {
        containerd.remove_pod(pod).unwrap();
    }
    containerd.stop_daemon().unwrap();
    let configuration = containerd.directory().join("net.d/10-testkit.conflist");
    let text = fs::read_to_string(&configuration).unwrap();
    let durable = state.with_file_name("durable");
    let text = text.replace(state.to_str().unwrap(), durable.to_str().unwrap());
    fs::write(&configuration, text).unwrap();
    containerd.start_daemon().unwrap();
    run(&mut containerd, &["old-1-again", "old-2-again"]);
    containerd.stop_daemon().unwrap();
    mount(&containerd).unwrap();
    containerd.start_daemon().unwrap();
    run(&mut containerd, &["new-1-again"]);
    wait_nothing_open(&node);
}
