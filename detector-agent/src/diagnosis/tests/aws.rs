//! What ipamd's file and log explain.

use detector_engine::diagnosis::{MAX_TIMELINE, timeline};

use super::*;

/// The address that two pods of the incident have.
const ADDRESS: &str = "10.0.10.136";
/// As the plugin's image installs it.
const CONFIGURATION: &str = r#"{"cniVersion": "0.4.0", "name": "aws-cni", "plugins": [
    {"name": "aws-cni", "type": "aws-cni", "vethPrefix": "eni", "mtu": "9001"},
    {"name": "egress-cni", "type": "egress-cni", "mtu": "9001", "enabled": "false", "ipam": {"type": "host-local",
        "ranges": [[{"subnet": "fd00::ac:00/118"}]], "routes": [{"dst": "::/0"}], "dataDir": "/run/cni/v4pd/egress-v6-ipam"}},
    {"type": "portmap", "capabilities": {"portMappings": true}}]}"#;

/// `aws-ipamd-lost-runtime.json`: the pods by the order of the list, a minute apart. Those that got their address of another one
/// are created after ipamd was started again, at the 40th minute.
fn incident() -> TestNode {
    let mut node = TestNode::new(&serde_json::from_str(CONFIGURATION).unwrap());
    let text =
        include_str!("../../../../detector-testkit/fixtures/scenarios/aws-ipamd-lost-runtime.json");
    let facts: Value = serde_json::from_str(text).unwrap();
    for (n, pod) in (1..).zip(facts["pods_the_kubelet_reported"].as_array().unwrap()) {
        let leak = |text: &Value| -> &'static str { text.as_str().unwrap().to_owned().leak() };
        let address = leak(&pod["address"]);
        let is_second = node.pods.iter().any(|known| known.address == address);
        let created = minute(if is_second { 50 + n } else { n });
        node.add(&TestPod::new(leak(&pod["pod"]), address, created));
    }
    node
}

fn allocation(pod: &TestPod) -> Value {
    json!({"networkName": "aws-cni", "containerID": pod.sandbox(), "ifName": "eth0", "ipv4": pod.address,
        "allocationTimestamp": u64::try_from(pod.created.as_nanosecond()).unwrap(),
        "metadata": {"k8sPodNamespace": "shop", "k8sPodName": pod.name, "interfacesCount": 1}})
}

fn checkpoint(node: &TestNode, allocations: &[Value]) {
    let file = json!({"version": "vpc-cni-ipam/1", "allocations": allocations});
    node.write("ipam.json", &file.to_string());
}

/// ipamd knows only the pods that were created after it was started again.
fn lose_allocations(node: &TestNode) {
    let young = node.pods.iter().filter(|pod| pod.created > minute(40));
    checkpoint(node, &young.map(allocation).collect::<Vec<_>>());
}

fn start(node: &TestNode, at: Timestamp) {
    let line = |at: Timestamp, message: &str| json!({"level": "debug", "ts": at.to_string(), "msg": message});
    let lines = [
        line(minute(-900), "Starting L-IPAMD v1.19.0  ..."),
        line(at, "Starting L-IPAMD v1.19.0  ..."),
        line(
            at,
            "backing store doesn't exists, assuming bootstrap on a new node",
        ),
    ];
    node.write("ipamd.log", &lines.map(|line| format!("{line}\n")).concat());
}

fn cause(node: &mut TestNode) -> Diagnosis {
    let mut collector = node.collector();
    explain(&mut collector, Finding::Conflict(&node.conflict(ADDRESS)))
}

#[test]
fn incident_of_a_daemon_that_lost_its_allocations_is_explained() {
    let mut node = incident();
    lose_allocations(&node);
    let started = minute(40);
    start(&node, started);
    let mut collector = node.collector();
    for address in [ADDRESS, "10.0.10.227", "10.0.10.40", "10.0.10.95"] {
        let conflict = node.conflict(address);
        let facts = collector
            .facts(Finding::Conflict(&conflict), Instant::now())
            .unwrap();
        let diagnosis = diagnose(&facts);
        assert_cause(&diagnosis, Cause::IpamDaemonForgot, CauseConfidence::Proven);
        assert_eq!(diagnosis.since.unwrap().0, started.as_nanosecond() as u64);
        // Four of 17 have an allocation.
        assert_eq!(diagnosis.affected.pods, 13, "{diagnosis:#?}");
        assert!(has_fact(&diagnosis, "backing store doesn't exist"));
        let timeline = timeline(&facts);
        assert!(timeline.len() <= MAX_TIMELINE);
        assert!(
            timeline
                .iter()
                .any(|entry| entry.what == "ipamd was started")
        );
    }
    for address in ["10.0.10.113", "10.0.10.59"] {
        let diagnosis = explain(&mut collector, Finding::Anomaly(&node.drift(address)));
        assert_cause(&diagnosis, Cause::IpamDaemonForgot, CauseConfidence::Proven);
    }
}

#[test]
fn daemon_without_a_known_start_forgot_nothing() {
    let mut node = incident();
    lose_allocations(&node);
    let diagnosis = cause(&mut node);
    assert_unknown(&diagnosis);
    let log = diagnosis
        .not_checked
        .iter()
        .find(|n| n.what == "ipamd's log");
    assert!(
        log.unwrap().because.ends_with("is not mounted"),
        "{diagnosis:#?}"
    );
    // One that was there before the pods released the address.
    start(&node, minute(-30));
    let diagnosis = cause(&mut node);
    assert_cause(&diagnosis, Cause::ReleasedInUse, CauseConfidence::Proven);
}

#[test]
fn address_with_two_allocations_is_allocated_twice() {
    let mut node = incident();
    let all: Vec<_> = node.pods.iter().map(allocation).collect();
    checkpoint(&node, &all);
    start(&node, minute(-30));
    let diagnosis = cause(&mut node);
    assert_cause(&diagnosis, Cause::AllocatedTwice, CauseConfidence::Proven);
    assert!(
        has_fact(&diagnosis, "shop/kiali-7b5b867f8-gr6bf"),
        "{diagnosis:#?}"
    );
}

#[test]
fn file_that_cannot_be_read_explains_nothing() {
    let mut node = incident();
    node.write(
        "ipam.json",
        r#"{"version": "vpc-cni-ipam/2", "allocations": []}"#,
    );
    start(&node, minute(40));
    let diagnosis = cause(&mut node);
    assert_unknown(&diagnosis);
    let is_named =
        |n: &detector_engine::diagnosis::NotChecked| n.because.contains("vpc-cni-ipam/2");
    assert!(diagnosis.not_checked.iter().any(is_named), "{diagnosis:#?}");
}
