//! Devices and routes that are left of a pod, with a real containerd and the real `ptp`.

use std::fs;

use detector_testkit::{
    Agent, Containerd, DEADLINE, Node, ReceivedEvent, containerd::Sandbox, wait_reachable,
};
use serde_json::Value;

use super::diagnosis::{SUBNET, agent, begin, explained, run, wait_nothing_open};

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
    let left = device(&containerd, &old);
    let agent = Agent::start_ready(&node, &agent(&containerd)).unwrap();
    fail_to_delete(&mut containerd, &old);
    let network = containerd.ipam_dir().join("testkit");
    let last = fs::read_to_string(network.join("last_reserved_ip.0")).unwrap();
    fs::remove_file(network.join(&last)).unwrap();
    fs::remove_file(network.join("last_reserved_ip.0")).unwrap();
    let new = run(&mut containerd, &["new-1", "new-2"]);
    let conflict = explained(&agent, 1).remove(0);
    assert_eq!(conflict.address, last);
    let diagnosis = conflict.diagnosis.unwrap();
    assert_eq!(diagnosis["cause"], "sandbox_gone", "{diagnosis:#}");
    // The runtime still lists it, and may yet delete it.
    assert_eq!(diagnosis["confidence"], "likely", "{diagnosis:#}");
    let summary = diagnosis["summary"].as_str().unwrap();
    assert!(summary.contains("default/old"), "{summary}");
    let repair = diagnosis["repair"].as_str().unwrap();
    let steps = [
        format!("remove what is left of it (ip link delete {left})"),
        "The route to 10.244.2.3 goes with it: recreate the pod that stays".to_owned(),
    ];
    assert!(steps.iter().all(|s| repair.contains(s)), "{repair}");
    node.ip(&format!("link delete {left}")).unwrap();
    containerd.remove_pod(&new[1]).unwrap();
    run(&mut containerd, &["new-2-again"]);
    wait_nothing_open(&node);
    wait_reachable(&node, "10.244.2.4".parse().unwrap(), DEADLINE).unwrap();
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

/// The cause of a route that leads elsewhere, once it is known.
fn stray_route(agent: &Agent) -> Value {
    let explained = |events: &[ReceivedEvent]| {
        let mut anomalies = events.iter().filter_map(|e| e.event.anomaly());
        anomalies.find_map(|a| (a.kind == "route_astray").then_some(a.diagnosis)?)
    };
    let events = agent
        .wait_until(DEADLINE, |events| explained(events).is_some())
        .unwrap();
    explained(&events).unwrap()
}

#[test]
fn route_to_the_device_of_another_pod_is_explained_by_it() {
    let node = Node::new("astray").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    let pods = run(&mut containerd, &["web-1", "web-2"]);
    let agent = Agent::start_ready(&node, &agent(&containerd)).unwrap();
    let [own, other] = [&pods[0], &pods[1]].map(|pod| device(&containerd, pod));
    let route = format!("route replace 10.244.2.2/32 dev {other} protocol 99");
    node.ip(&route).unwrap();
    let diagnosis = stray_route(&agent);
    assert_eq!(diagnosis["cause"], "route_of_other_pod", "{diagnosis:#}");
    let evidence = diagnosis["evidence"].to_string();
    for fact in [other.as_str(), "protocol 99", "default/web-2"] {
        assert!(evidence.contains(fact), "{evidence}");
    }
    // `ptp` sets no route after that of a new pod.
    let repair = diagnosis["repair"].as_str().unwrap();
    let step = format!("ip route replace 10.244.2.2 dev {own}");
    assert!(repair.contains(&step), "{repair}");
    node.ip(step.trim_start_matches("ip ")).unwrap();
    wait_nothing_open(&node);
    wait_reachable(&node, "10.244.2.2".parse().unwrap(), DEADLINE).unwrap();
}

#[test]
fn route_to_what_is_left_of_a_deleted_pod_goes_with_it() {
    let node = Node::new("astrayleft").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    let pods = run(&mut containerd, &["web-1", "old"]);
    let agent = Agent::start_ready(&node, &agent(&containerd)).unwrap();
    let left = device(&containerd, &pods[1]);
    fail_to_delete(&mut containerd, &pods[1]);
    node.ip(&format!("route replace 10.244.2.2/32 dev {left}"))
        .unwrap();
    let diagnosis = stray_route(&agent);
    assert_eq!(diagnosis["cause"], "route_of_deleted_pod", "{diagnosis:#}");
    let repair = diagnosis["repair"].as_str().unwrap();
    let step = format!("ip link delete {left}");
    assert!(repair.contains(&step), "{repair}");
    node.ip(step.trim_start_matches("ip ")).unwrap();
    containerd.remove_pod(&pods[0]).unwrap();
    run(&mut containerd, &["web-1-again"]);
    wait_nothing_open(&node);
    wait_reachable(&node, "10.244.2.4".parse().unwrap(), DEADLINE).unwrap();
}
