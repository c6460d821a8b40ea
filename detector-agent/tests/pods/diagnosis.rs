//! Why pods have one address, explained with a real containerd and the real `ptp` and `host-local`.

use std::{fs, path::PathBuf, time::SystemTime};

use anyhow::{Context as _, ensure};
use detector_testkit::{
    Agent, AgentCommand, Containerd, DEADLINE, Node, RUN_ARGS, ReceivedEvent, browser::Browser,
    containerd::Sandbox, event::Conflict, http::TestClient, until,
};
use serde_json::{Value, json};

use crate::AGENT;

pub(super) const SUBNET: &str = "10.244.2.0/24";
const CACHE: &str = "/var/lib/cni/results";

pub(super) fn agent(containerd: &Containerd) -> AgentCommand {
    containerd
        .agent_command(AGENT, RUN_ARGS)
        .arg("--ipam")
        .arg("auto")
        .arg("--cni-cache-dir")
        .arg(CACHE)
        .arg("--cri-endpoint")
        .arg(containerd.socket())
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

fn seconds_since_epoch() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_secs_f64()
}

fn time(value: &Value) -> f64 {
    let time: jiff::Timestamp = value.as_str().unwrap().parse().unwrap();
    time.as_millisecond() as f64 / 1e3
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
        .wait("document.querySelectorAll('#anomalies details li').length >= 2")
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
    run(&mut containerd, &["web-1", "web-2"]);
    let agent = Agent::start_ready(&node, &agent(&containerd)).unwrap();
    let network = containerd.ipam_dir().join("testkit");
    fs::remove_file(network.join("10.244.2.3")).unwrap();
    // `host-local` continues from the last address.
    fs::write(network.join("last_reserved_ip.0"), "10.244.2.2").unwrap();
    run(&mut containerd, &["cart-1"]);
    let conflict = explained(&agent, 1).remove(0);
    let diagnosis = conflict.diagnosis.unwrap();
    assert_eq!(diagnosis["cause"], "released_in_use", "{diagnosis:#}");
    assert_eq!(
        diagnosis["affected"],
        json!({"addresses": 1, "pods": 2}),
        "{diagnosis:#}"
    );
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

    // The next run explains it to those who ask, which is no news.
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    let client = TestClient::new(&node, "http://127.0.0.1:9842");
    until(DEADLINE, "the diagnoses of the next run", || {
        let open = client.get("/api/v1/anomalies")?.json()?;
        let open = open["anomalies"].as_array().context("no list")?;
        let known = open
            .iter()
            .filter(|a| a["diagnosis"]["cause"] == "ipam_state_wiped");
        ensure!(known.count() == 3, "{open:#?}");
        Ok(())
    })
    .unwrap();
    agent.terminate(DEADLINE).unwrap();
    assert!(drifts(&agent.events()).is_empty(), "{:#?}", agent.events());
}

#[test]
fn address_that_a_pod_assigned_to_itself_is_not_from_ipam() {
    let node = Node::new("selfassigned").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    let pods = run(&mut containerd, &["web-1", "squatter"]);
    let agent = Agent::start_ready(&node, &agent(&containerd)).unwrap();
    let info = containerd.info(&pods[1]).unwrap();
    let namespaces = info["runtimeSpec"]["linux"]["namespaces"]
        .as_array()
        .unwrap();
    let network = namespaces.iter().find(|n| n["type"] == "network").unwrap();
    let netns = network["path"].as_str().unwrap().to_owned();
    containerd
        .run_in(|| {
            let net = format!("--net={netns}");
            let add = ["ip", "address", "add", "10.244.2.2/32", "dev", "eth0"];
            let status = std::process::Command::new("nsenter")
                .arg(net)
                .args(add)
                .status()?;
            ensure!(status.success(), "{status}");
            Ok(())
        })
        .unwrap();
    let conflict = explained(&agent, 1).remove(0);
    let diagnosis = conflict.diagnosis.unwrap();
    assert_eq!(diagnosis["cause"], "not_from_ipam", "{diagnosis:#}");
    assert_eq!(diagnosis["confidence"], "proven", "{diagnosis:#}");
    let summary = diagnosis["summary"].as_str().unwrap();
    assert!(summary.contains("default/squatter"), "{summary}");
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
            let status = std::process::Command::new(program).args(args).status()?;
            ensure!(status.success(), "{program}: {status}");
            Ok(())
        };
        let path = state.to_str().unwrap();
        containerd.run_in(|| run("mount", &["-t", "tmpfs", "tmpfs", path]))
    };
    mount(&containerd).unwrap();
    begin(&mut containerd);
    run(&mut containerd, &["old-1", "old-2", "old-3"]);
    containerd.stop_daemon().unwrap();
    // Hides what the other one holds.
    mount(&containerd).unwrap();
    let restarted = seconds_since_epoch();
    containerd.start_daemon().unwrap();
    run(&mut containerd, &["new-1", "new-2"]);
    let agent = Agent::start_ready(&node, &agent(&containerd)).unwrap();
    let diagnosis = explained(&agent, 1).remove(0).diagnosis.unwrap();
    let cause = &diagnosis["cause"];
    assert_eq!(cause, "ipam_state_not_persistent", "{diagnosis:#}");
    let since = time(&diagnosis["since"]);
    assert!((since - restarted).abs() < 2.0, "{diagnosis:#}");
}

/// The runtime stops a pod, but cannot call its network plugins.
fn fail_to_delete(containerd: &mut Containerd, pod: &Sandbox) {
    let configuration = containerd.directory().join("net.d/10-testkit.conflist");
    let text = fs::read_to_string(&configuration).unwrap();
    containerd.stop_daemon().unwrap();
    fs::remove_file(&configuration).unwrap();
    containerd.start_daemon().unwrap();
    containerd.remove_pod(pod).unwrap_err();
    containerd.stop_daemon().unwrap();
    fs::write(&configuration, text).unwrap();
    containerd.start_daemon().unwrap();
}

#[test]
fn device_of_a_pod_whose_deletion_failed_is_a_leftover() {
    let node = Node::new("leftover").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    begin(&mut containerd);
    let old = run(&mut containerd, &["old"]).remove(0);
    let agent = Agent::start_ready(&node, &agent(&containerd)).unwrap();
    fail_to_delete(&mut containerd, &old);
    let network = containerd.ipam_dir().join("testkit");
    let last = fs::read_to_string(network.join("last_reserved_ip.0")).unwrap();
    fs::remove_file(network.join(&last)).unwrap();
    fs::remove_file(network.join("last_reserved_ip.0")).unwrap();
    run(&mut containerd, &["new-1", "new-2"]);
    let conflict = explained(&agent, 1).remove(0);
    assert_eq!(conflict.address, last);
    let diagnosis = conflict.diagnosis.unwrap();
    assert_eq!(diagnosis["cause"], "sandbox_gone", "{diagnosis:#}");
    // The runtime still lists it, and may yet delete it.
    assert_eq!(diagnosis["confidence"], "likely", "{diagnosis:#}");
    let summary = diagnosis["summary"].as_str().unwrap();
    assert!(summary.contains("default/old"), "{summary}");
}

/// The host end of a pod's veth pair.
fn device(containerd: &Containerd, pod: &Sandbox) -> String {
    let info = containerd.info(pod).unwrap();
    let interfaces = info["cniResult"]["Interfaces"].as_object().unwrap();
    let mut on_host = interfaces
        .iter()
        .filter(|(_, interface)| interface["Sandbox"] == "");
    on_host.next().unwrap().0.clone()
}

#[test]
fn route_to_the_device_of_another_pod_is_explained_by_it() {
    let node = Node::new("astray").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    let pods = run(&mut containerd, &["web-1", "web-2"]);
    let agent = Agent::start_ready(&node, &agent(&containerd)).unwrap();
    let device = device(&containerd, &pods[1]);
    let route = format!("route replace 10.244.2.2/32 dev {device} protocol 99");
    node.ip(&route).unwrap();
    let explained = |events: &[ReceivedEvent]| {
        let mut anomalies = events.iter().filter_map(|e| e.event.anomaly());
        anomalies.find_map(|a| (a.kind == "route_astray").then_some(a.diagnosis)?)
    };
    let events = agent
        .wait_until(DEADLINE, |events| explained(events).is_some())
        .unwrap();
    let diagnosis = explained(&events).unwrap();
    assert_eq!(diagnosis["cause"], "route_of_other_pod", "{diagnosis:#}");
    let evidence = diagnosis["evidence"].to_string();
    for fact in [device.as_str(), "protocol 99", "default/web-2"] {
        assert!(evidence.contains(fact), "{evidence}");
    }
}
