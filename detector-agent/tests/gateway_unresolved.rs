//! A pod that asks for its gateway and gets no answer is told; whoever is answered, or asks for many, is not.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::{
    net::{Ipv4Addr, UdpSocket},
    time::Duration,
};

use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Frame, FrameSender, Node, Pod, PodSpec, ReceivedEvent,
    event::{ANOMALY_RAISED, ANOMALY_RESOLVED},
    scenario::CalicoGatewayUnresolved,
};

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
const KIND: &str = "gateway_unresolved";
/// Without a further request the anomaly is over after this long.
const QUIET: Duration = Duration::from_secs(60);

fn tells(received: &ReceivedEvent, event: &str) -> bool {
    received.event.kind == event && received.event.anomaly().is_some_and(|a| a.kind == KIND)
}

/// The pod sends one packet to a far away address: its kernel asks for the gateway, three times where nothing answers.
fn send_one_packet(pod: &Pod) {
    pod.netns()
        .run_in(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            // It is queued until the gateway is known.
            let _ = socket.send_to(b"x", "203.0.113.7:9");
            Ok(())
        })
        .unwrap();
}

fn ask(pod: &Pod, target: Ipv4Addr, times: usize) {
    let sender = FrameSender::open(pod).unwrap();
    let frame = Frame::request(pod.mac(), pod.ipv4().unwrap(), target);
    for _ in 0..times {
        sender.send(&frame).unwrap();
    }
}

#[test]
fn calico_gateway_is_raised_after_three_requests_and_ends_when_quiet() {
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
            events.iter().any(|r| tells(r, ANOMALY_RAISED))
        })
        .unwrap();
    let raised: Vec<_> = raised.iter().filter(|r| tells(r, ANOMALY_RAISED)).collect();
    let anomaly = raised[0].event.anomaly().unwrap();
    assert_eq!(anomaly.address, gateway.to_string());
    assert_eq!(anomaly.device.as_deref(), Some(device.as_str()));
    // What mends it: the host answers for the gateway again.
    node.ip(&format!("address add {gateway}/32 dev {device}"))
        .unwrap();
    // Its kernel may still wait for an answer to its last request; the next packet is to make a new one.
    pod.netns().ip("neigh flush dev eth0").unwrap();
    send_one_packet(&pod);
    let events = agent
        .wait_until(QUIET + DEADLINE, |events| {
            events.iter().any(|r| tells(r, ANOMALY_RESOLVED))
        })
        .unwrap();
    let resolved = events.iter().find(|r| tells(r, ANOMALY_RESOLVED)).unwrap();
    let over = resolved.event.anomaly().unwrap();
    assert_eq!(over.anomaly_id, anomaly.anomaly_id);
    assert_eq!(over.resolved_because.as_deref(), Some("quiet"));
}

#[test]
fn requests_alone_are_enough_and_the_device_that_goes_ends_it() {
    let node = Node::new("gwframes").unwrap();
    let pods = node
        .add_pods(&[
            PodSpec::new("cali4").address("10.65.0.2/32").ipv6(),
            PodSpec::new("cali6").address("fd00:65::2/128"),
        ])
        .unwrap();
    let [four, six]: [Pod; 2] = pods.try_into().unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    ask(&four, Ipv4Addr::new(169, 254, 1, 1), 3);
    let sender = FrameSender::open(&six).unwrap();
    let gateway = "fe80::ecee:eeff:feee:eeee".parse().unwrap();
    let frame = Frame::solicitation(six.mac(), "fd00:65::2".parse().unwrap(), gateway);
    for _ in 0..3 {
        sender.send(&frame).unwrap();
    }
    let told = |events: &[ReceivedEvent], event: &str| -> Vec<String> {
        let told = events.iter().filter(|r| tells(r, event));
        let mut devices: Vec<_> = told.filter_map(|r| r.event.anomaly()?.device).collect();
        devices.sort();
        devices
    };
    agent
        .wait_until(DEADLINE, |events| {
            told(events, ANOMALY_RAISED) == ["cali4", "cali6"]
        })
        .unwrap();
    node.delete_pods(vec![four, six]).unwrap();
    let events = agent
        .wait_until(DEADLINE, |events| {
            told(events, ANOMALY_RESOLVED) == ["cali4", "cali6"]
        })
        .unwrap();
    let mut over = events.iter().filter(|r| tells(r, ANOMALY_RESOLVED));
    assert!(
        over.all(|r| r.event.anomaly().unwrap().resolved_because.as_deref() == Some("device_gone"))
    );
}

#[test]
fn answered_busy_and_peer_seeking_pods_raise_nothing() {
    let node = Node::new("gwquiet").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let pods = node
        .add_pods(&[
            PodSpec::new("caliansw")
                .address("10.65.0.2/32")
                .default_route(),
            PodSpec::new("calibusy").address("10.65.0.3/32"),
            PodSpec::new("vethpeer").address("10.66.0.4/24"),
            PodSpec::new("calitwice").address("10.65.0.5/32"),
        ])
        .unwrap();
    let gateway = Ipv4Addr::new(169, 254, 1, 1);
    node.ip(&format!("address add {gateway}/32 dev caliansw"))
        .unwrap();
    for route in [
        format!("route add {gateway} dev eth0 scope link"),
        format!("route replace default via {gateway} dev eth0"),
    ] {
        pods[0].netns().ip(&route).unwrap();
    }
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    // The gateway answers each of these requests, so each is made once.
    for _ in 0..2 {
        send_one_packet(&pods[0]);
        pods[0].netns().ip("neigh flush dev eth0").unwrap();
    }
    for last in 1..=200 {
        ask(&pods[1], Ipv4Addr::new(10, 99, 0, last), 1);
    }
    // A peer on its own subnet that is down.
    ask(&pods[2], Ipv4Addr::new(10, 66, 0, 77), 5);
    ask(&pods[3], gateway, 2);
    for _ in 0..2 {
        let said = barrier.pass(&node, &agent).unwrap();
        assert!(said.is_empty(), "{said:#?}");
    }
}
