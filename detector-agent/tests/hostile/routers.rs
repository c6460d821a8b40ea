//! A pod that advertises itself as a router: the finding names it, and no other pod is accused of anything.

use std::{fs, net::Ipv6Addr};

use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Frame, FrameSender, Node, Pod, PodSpec, ReceivedEvent,
    event::{ANOMALY_RAISED, ANOMALY_RESOLVED, Anomaly},
};

use crate::{AGENT, budget::flood_around, metrics::wait_claims};

const KIND: &str = "rogue_router";
const PREFIX: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0);

fn router(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last)
}

/// Three pods behind a bridge.
fn bridged(prefix: &str) -> (Node, Vec<Pod>) {
    let node = Node::new(prefix).unwrap();
    node.add_bridge("cni0", &[]).unwrap();
    let spec = |(device, last)| {
        PodSpec::new(device)
            .master("cni0")
            .address(format!("fd00::{last}/64"))
    };
    let pods = [("vetha", 10), ("vethbad", 20), ("vethc", 30)].map(spec);
    let pods = node.add_pods(&pods).unwrap();
    (node, pods)
}

/// The anomalies of routers in events of this type.
fn routers(events: &[ReceivedEvent], event: &str) -> Vec<Anomaly> {
    let events = events.iter().filter(|r| r.event.kind == event);
    let anomalies = events.filter_map(|received| received.event.anomaly());
    anomalies.filter(|anomaly| anomaly.kind == KIND).collect()
}

fn wait(agent: &Agent, event: &str) -> Anomaly {
    let events = agent
        .wait_until(DEADLINE, |events| !routers(events, event).is_empty())
        .unwrap();
    routers(&events, event).remove(0)
}

fn advertise(pod: &Pod, frame: Frame) {
    FrameSender::open(pod).unwrap().send(&frame).unwrap();
}

fn advertisement(pod: &Pod, last: u16) -> Frame {
    Frame::router_advertisement(pod.mac(), router(last), PREFIX)
}

#[test]
fn router_behind_a_bridge_is_one_finding_that_names_it() {
    let (node, pods) = bridged("roguebridge");
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    // Further addresses and tags are not further findings.
    for last in 1..=5 {
        advertise(&pods[1], advertisement(&pods[1], last));
        advertise(&pods[1], advertisement(&pods[1], last).vlan(7));
    }
    let found = wait(&agent, ANOMALY_RAISED);
    assert_eq!(found.device.as_deref(), Some("vethbad"));
    assert_eq!(found.address, "fe80::1");
    assert_eq!(found.cause, "router_advertisement");
    barrier.pass(&node, &agent).unwrap();
    assert_eq!(routers(&agent.events(), ANOMALY_RAISED).len(), 1);
    node.delete_pods(pods).unwrap();
    let ended = wait(&agent, ANOMALY_RESOLVED);
    assert_eq!(ended.resolved_because.as_deref(), Some("device_gone"));
}

#[test]
fn router_on_a_routed_device_behind_tags_is_found() {
    let node = Node::new("roguerouted").unwrap();
    let pod = node.add_pod(&PodSpec::new("vethbad").ipv6()).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let frame = (0..6).fold(advertisement(&pod, 1), |frame, _| frame.vlan(0));
    advertise(&pod, frame);
    let found = wait(&agent, ANOMALY_RAISED);
    assert_eq!(found.device.as_deref(), Some("vethbad"));
}

/// The pod's budget is used up before its only advertisement.
#[test]
fn router_inside_a_flood_is_found() {
    let (node, pods) = bridged("rogueflood");
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    flood_around(&pods[1], 100, Some(advertisement(&pods[1], 1)));
    let found = wait(&agent, ANOMALY_RAISED);
    assert_eq!(found.device.as_deref(), Some("vethbad"));
}

/// A router repeats its advertisements, so one that was there before the agent is found as well.
#[test]
fn router_from_before_the_start_is_found_and_survives_a_restart() {
    let state = tempfile::tempdir().unwrap();
    let (node, pods) = bridged("roguerestart");
    let barrier = Barrier::prepare(&node).unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--state-dir")
        .arg(state.path());
    advertise(&pods[1], advertisement(&pods[1], 1));
    let mut first = Agent::start_ready(&node, &command).unwrap();
    advertise(&pods[1], advertisement(&pods[1], 1));
    let before = wait(&first, ANOMALY_RAISED);
    first.terminate(DEADLINE).unwrap();

    let second = Agent::start_ready(&node, &command).unwrap();
    advertise(&pods[1], advertisement(&pods[1], 2));
    barrier.pass(&node, &second).unwrap();
    assert!(routers(&second.events(), ANOMALY_RAISED).is_empty());
    node.delete_pods(pods).unwrap();
    let ended = wait(&second, ANOMALY_RESOLVED);
    assert_eq!(ended.anomaly_id, before.anomaly_id);
}

#[test]
fn allowed_router_and_solicitations_raise_nothing() {
    let (node, pods) = bridged("rogueallowed");
    let barrier = Barrier::prepare(&node).unwrap();
    let command = AgentCommand::run(AGENT).arg("--allow=fe80::1/128");
    let agent = Agent::start_ready(&node, &command).unwrap();
    advertise(&pods[1], advertisement(&pods[1], 1));
    let source = "fd00::14".parse().unwrap();
    advertise(&pods[1], Frame::router_solicitation(pods[1].mac(), source));
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
}

/// The address that a host forms from the prefix and its MAC address (RFC 4291 appendix A).
fn autoconfigured(pod: &Pod) -> Ipv6Addr {
    let [a, b, c, d, e, f] = pod.mac().0;
    let pair = |high, low| u16::from_be_bytes([high, low]);
    let id = [pair(a ^ 2, b), pair(c, 0xff), pair(0xfe, d), pair(e, f)];
    Ipv6Addr::new(0xfd00, 0, 0, 0, id[0], id[1], id[2], id[3])
}

/// One advertisement with the pods' prefix gives each pod an address that no IPAM knows.
#[test]
fn autoconfigured_addresses_are_no_drift() {
    let (node, pods) = bridged("rogueslaac");
    let files = tempfile::tempdir().unwrap();
    let allocations = files.path().join("data/pods");
    fs::create_dir_all(&allocations).unwrap();
    fs::write(allocations.join("lock"), "").unwrap();
    for last in [10, 20, 30] {
        fs::write(allocations.join(format!("fd00::{last}")), "id\r\neth0").unwrap();
    }
    let config = serde_json::json!({
        "cniVersion": "0.4.0", "name": "pods", "type": "bridge", "bridge": "cni0",
        "ipam": {
            "type": "host-local", "dataDir": files.path().join("data"),
            "ranges": [[{"subnet": "fd00::/64"}]],
        },
    });
    let directory = files.path().join("net.d");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("10-pods.conf"), config.to_string()).unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--ipam=auto")
        .arg("--cni-conf-dir")
        .arg(&directory);
    let agent = Agent::start_ready(&node, &command).unwrap();
    advertise(&pods[1], advertisement(&pods[1], 1));
    for pod in [&pods[0], &pods[2]] {
        wait_claims(&node, &autoconfigured(pod).to_string(), 1);
    }
    // Drift about an address that a pod assigns to itself later is still reported.
    pods[2].add_address("fd00::99/64").unwrap();
    agent
        .wait_event(DEADLINE, |event| {
            let anomaly = event.anomaly();
            anomaly.is_some_and(|a| a.kind == "ipam_drift" && a.address == "fd00::99")
        })
        .unwrap();
    let events = agent.events();
    let drifts = events
        .iter()
        .filter_map(|received| received.event.anomaly());
    let drifts = drifts.filter(|anomaly| anomaly.kind == "ipam_drift");
    assert_eq!(drifts.count(), 1, "{events:#?}");
}
