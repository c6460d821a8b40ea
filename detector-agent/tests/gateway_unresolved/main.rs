//! A pod whose gateway requests stay unanswered is reported as `gateway_unresolved`; a pod that gets
//! answers, or that requests many different addresses, is not.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod cause;

use std::{
    net::{Ipv4Addr, UdpSocket},
    time::Duration,
};

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Frame, FrameSender, Node, Pod, PodSpec, ReceivedEvent,
    event::{ANOMALY_RAISED, ANOMALY_RESOLVED},
    http::TestClient,
    scenario::CalicoGatewayUnresolved,
    until,
};

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
const KIND: &str = "gateway_unresolved";
/// The anomaly resolves this long after the last request.
const QUIET: Duration = Duration::from_secs(60);

fn is_gateway_event(received: &ReceivedEvent, event: &str) -> bool {
    received.event.kind == event && received.event.anomaly().is_some_and(|a| a.kind == KIND)
}

/// The pod sends one packet to an address outside its subnet, so that its kernel requests the
/// gateway (three times if nothing answers).
fn send_one_packet(pod: &Pod) {
    pod.netns()
        .run_in(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            // The kernel queues it until the gateway is resolved.
            let _ = socket.send_to(b"x", "203.0.113.7:9");
            Ok(())
        })
        .unwrap();
}

fn send_requests(pod: &Pod, target: Ipv4Addr, times: usize) {
    let sender = FrameSender::open(pod).unwrap();
    let frame = Frame::request(pod.mac(), pod.ipv4().unwrap(), target);
    for _ in 0..times {
        sender.send(&frame).unwrap();
    }
}

#[test]
fn calico_gateway_raises_after_three_requests_until_quiet() {
    let facts = CalicoGatewayUnresolved::load().unwrap();
    let (device, gateway) = (&facts.device, facts.gateway);
    let node = Node::new("gateway").unwrap();
    let spec = PodSpec::new(device)
        .mac(facts.pod_mac.parse().unwrap())
        .address(format!("{}/32", facts.pod_address))
        .host_route();
    let pod = node.add_pod(&spec).unwrap();
    for route in [
        format!("route add {gateway} dev eth0 scope link"),
        format!("route add default via {gateway} dev eth0"),
    ] {
        pod.netns().ip(&route).unwrap();
    }
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    send_one_packet(&pod);
    let raised = agent
        .wait_until(DEADLINE, |events| {
            events.iter().any(|r| is_gateway_event(r, ANOMALY_RAISED))
        })
        .unwrap();
    let raised: Vec<_> = raised
        .iter()
        .filter(|r| is_gateway_event(r, ANOMALY_RAISED))
        .collect();
    let anomaly = raised[0].event.anomaly().unwrap();
    assert_eq!(anomaly.address, gateway.to_string());
    assert_eq!(anomaly.device.as_deref(), Some(device.as_str()));
    let pod_address = facts.pod_address.to_string();
    let explain = AgentCommand::new(AGENT, ["explain", pod_address.as_str()]);
    let explained = explain.run_to_end(&node, DEADLINE).unwrap();
    assert!(explained.stdout.starts_with("1 anomaly\n"), "{explained:?}");
    let series = format!(
        r#"ipconflict_anomaly_info{{address="{gateway}",vlan="",kind="{KIND}",device="{device}",namespace="","#
    );
    let client = TestClient::of_agent(&node);
    until(DEADLINE, "the anomaly in the metrics", || {
        let metrics = client.get("/metrics")?.body;
        ensure!(metrics.contains(&series), "{metrics}");
        Ok(())
    })
    .unwrap();
    // The repair: the host answers for the gateway again.
    node.ip(&format!("address add {gateway}/32 dev {device}"))
        .unwrap();
    // The pod's kernel may still be waiting for an answer to its last request; after a flush the
    // next packet triggers a new one.
    pod.netns().ip("neigh flush dev eth0").unwrap();
    send_one_packet(&pod);
    let events = agent
        .wait_until(QUIET + DEADLINE, |events| {
            events.iter().any(|r| is_gateway_event(r, ANOMALY_RESOLVED))
        })
        .unwrap();
    let resolved = events
        .iter()
        .find(|r| is_gateway_event(r, ANOMALY_RESOLVED))
        .unwrap();
    let resolved = resolved.event.anomaly().unwrap();
    assert_eq!(resolved.anomaly_id, anomaly.anomaly_id);
    assert_eq!(resolved.resolved_because.as_deref(), Some("quiet"));
    until(DEADLINE, "no anomaly in the metrics", || {
        let metrics = client.get("/metrics")?.body;
        ensure!(!metrics.contains(&series), "{metrics}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn requests_alone_raise_and_device_removal_resolves() {
    let node = Node::new("gwframes").unwrap();
    let pods = node
        .add_pods(&[
            PodSpec::new("cali4").address("10.65.0.2/32").ipv6(),
            PodSpec::new("cali6").address("fd00:65::2/128"),
        ])
        .unwrap();
    let [four, six]: [Pod; 2] = pods.try_into().unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    send_requests(&four, Ipv4Addr::new(169, 254, 1, 1), 3);
    let sender = FrameSender::open(&six).unwrap();
    let gateway = "fe80::ecee:eeff:feee:eeee".parse().unwrap();
    let frame = Frame::solicitation(six.mac(), "fd00:65::2".parse().unwrap(), gateway);
    for _ in 0..3 {
        sender.send(&frame).unwrap();
    }
    let devices_of = |events: &[ReceivedEvent], event: &str| -> Vec<String> {
        let matching = events.iter().filter(|r| is_gateway_event(r, event));
        let mut devices: Vec<_> = matching.filter_map(|r| r.event.anomaly()?.device).collect();
        devices.sort();
        devices
    };
    agent
        .wait_until(DEADLINE, |events| {
            devices_of(events, ANOMALY_RAISED) == ["cali4", "cali6"]
        })
        .unwrap();
    node.delete_pods(vec![four, six]).unwrap();
    let events = agent
        .wait_until(DEADLINE, |events| {
            devices_of(events, ANOMALY_RESOLVED) == ["cali4", "cali6"]
        })
        .unwrap();
    let mut resolved = events
        .iter()
        .filter(|r| is_gateway_event(r, ANOMALY_RESOLVED));
    assert!(
        resolved
            .all(|r| r.event.anomaly().unwrap().resolved_because.as_deref() == Some("device_gone"))
    );
}

/// A pod whose gateway answers for `gateway`.
fn answered_pod(node: &Node, device: &str, gateway: Ipv4Addr) -> Pod {
    let spec = PodSpec::new(device).address("10.65.0.2/32").default_route();
    let pod = node.add_pod(&spec).unwrap();
    node.ip(&format!("address add {gateway}/32 dev {device}"))
        .unwrap();
    for route in [
        format!("route add {gateway} dev eth0 scope link"),
        format!("route replace default via {gateway} dev eth0"),
    ] {
        pod.netns().ip(&route).unwrap();
    }
    pod
}

/// `arping` in a pod that has a network: the frames look like those of one that has none.
#[test]
fn answered_broadcast_requests_do_not_claim_silence() {
    let node = Node::new("gwarping").unwrap();
    let gateway = Ipv4Addr::new(169, 254, 1, 1);
    let pod = answered_pod(&node, "caliarping", gateway);
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    send_requests(&pod, gateway, 4);
    let events = agent
        .wait_until(DEADLINE, |events| {
            events.iter().any(|r| is_gateway_event(r, ANOMALY_RAISED))
        })
        .unwrap();
    let raised = events
        .iter()
        .find(|r| is_gateway_event(r, ANOMALY_RAISED))
        .unwrap();
    let data = raised.event.data.to_string();
    for wrong in ["no answer", "has no network"] {
        assert!(!data.contains(wrong), "{data}");
    }
    assert!(data.contains("Check whether the gateway answers"), "{data}");
}

#[test]
fn answered_scanning_peer_and_service_requests_raise_nothing() {
    let node = Node::new("gwquiet").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let gateway = Ipv4Addr::new(169, 254, 1, 1);
    let answered = answered_pod(&node, "caliansw", gateway);
    let pods = node
        .add_pods(&[
            PodSpec::new("calibusy").address("10.65.0.3/32"),
            PodSpec::new("vethpeer").address("10.66.0.4/24"),
            PodSpec::new("calitwice").address("10.65.0.5/32"),
        ])
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    // The gateway answers each of these requests, so none is repeated.
    for _ in 0..2 {
        send_one_packet(&answered);
        answered.netns().ip("neigh flush dev eth0").unwrap();
    }
    for last in 1..=200 {
        send_requests(&pods[0], Ipv4Addr::new(10, 99, 0, last), 1);
    }
    // A peer on the pod's own subnet that is down.
    send_requests(&pods[1], Ipv4Addr::new(10, 66, 0, 77), 5);
    send_requests(&pods[2], gateway, 2);
    // The metadata service, by a route to the link.
    send_requests(&answered, Ipv4Addr::new(169, 254, 169, 254), 5);
    for _ in 0..2 {
        let events = barrier.pass(&node, &agent).unwrap();
        assert!(events.is_empty(), "{events:#?}");
    }
}
