//! A pod whose gateway requests stay unanswered is reported as `gateway_unresolved`; a pod that gets
//! answers, or that requests many different addresses, is not.
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

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Frame, FrameSender, Node, Pod, PodSpec, ReceivedEvent,
    event::{ANOMALY_RAISED, ANOMALY_RESOLVED, Anomaly},
    http::TestClient,
    scenario::CalicoGatewayUnresolved,
    until,
};
use serde_json::{Value, json};

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
    let series = format!(
        r#"ipconflict_anomaly_info{{address="{gateway}",vlan="",kind="{KIND}",device="{device}",namespace="","#
    );
    let client = TestClient::new(&node, "http://127.0.0.1:9842");
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

/// What the agent says about a pod's silent gateway.
fn diagnosis_of(agent: &Agent, device: &str) -> Value {
    let explained = |events: &[ReceivedEvent]| {
        let anomalies = events.iter().filter_map(|r| r.event.anomaly());
        let of_device = |a: &Anomaly| a.kind == KIND && a.device.as_deref() == Some(device);
        let mut explained = anomalies.filter(of_device).filter_map(|a| a.diagnosis);
        explained.next_back()
    };
    let events = agent
        .wait_until(DEADLINE, |events| explained(events).is_some())
        .unwrap();
    explained(&events).unwrap()
}

/// A pod as Calico connects it: the gateway is on no device of the node, which answers for it by proxy ARP.
fn calico_pod(node: &Node, spec: PodSpec) -> Pod {
    let pod = node.add_pod(&spec.address("10.65.0.2/32")).unwrap();
    // The kernel would wait up to 0.8 s before it answers for others (`proxy_delay`).
    let key = format!("net.ipv4.neigh.{}.proxy_delay", pod.device());
    node.sysctl(&key, "0").unwrap();
    for route in [
        "route add 169.254.1.1 dev eth0 scope link",
        "route add default via 169.254.1.1 dev eth0",
    ] {
        pod.netns().ip(route).unwrap();
    }
    pod
}

/// A node with IP forwarding and a default route, which proxy ARP needs.
fn forwarding_node(prefix: &str) -> Node {
    let node = Node::new(prefix).unwrap();
    node.sysctl("net.ipv4.ip_forward", "1").unwrap();
    node.add_bridge("uplink", &["192.0.2.10/24"]).unwrap();
    node.ip("route add default via 192.0.2.1").unwrap();
    node
}

fn is_gateway_answered(pod: &Pod) -> anyhow::Result<()> {
    send_one_packet(pod);
    let entry = pod.netns().ip("neigh show 169.254.1.1")?;
    ensure!(entry.contains("lladdr"), "{entry}");
    Ok(())
}

fn wait_answered(pod: &Pod) {
    until(DEADLINE, "the gateway's answer", || {
        is_gateway_answered(pod)
    })
    .unwrap();
}

/// The first sign of a duplicate in scenarios/calico-gateway-unresolved.json.
#[test]
fn strict_filter_and_a_route_to_the_other_claimant_explain_the_silence() {
    let node = forwarding_node("rpfilter");
    let strict = |device: &str| PodSpec::new(device).proxy_arp().rp_filter(1);
    let pod = calico_pod(&node, strict("calivictim"));
    let other = calico_pod(&node, strict("caliother").host_route());
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    send_one_packet(&pod);
    let diagnosis = diagnosis_of(&agent, "calivictim");
    assert_eq!(diagnosis["cause"], "reverse_path_filter", "{diagnosis:#}");
    assert_eq!(diagnosis["confidence"], "proven", "{diagnosis:#}");
    let evidence = diagnosis["evidence"].to_string();
    for fact in ["10.65.0.2 leads to caliother", "rp_filter is 1"] {
        assert!(evidence.contains(fact), "{evidence}");
    }
    // What the evidence says is what makes the difference.
    wait_answered(&other);
    is_gateway_answered(&pod).unwrap_err();
    node.ip("route replace 10.65.0.2/32 dev calivictim")
        .unwrap();
    wait_answered(&pod);
}

#[test]
fn node_that_has_no_way_to_answer_is_the_cause() {
    for (prefix, has_proxy_arp, has_default, expected) in [
        ("noproxy", false, true, "no_proxy_arp"),
        ("noroute", true, false, "no_route"),
    ] {
        let node = forwarding_node(prefix);
        if !has_default {
            node.ip("route delete default").unwrap();
        }
        let spec = PodSpec::new("calivictim").rp_filter(1).host_route();
        let spec = if has_proxy_arp {
            spec.proxy_arp()
        } else {
            spec
        };
        let pod = calico_pod(&node, spec);
        let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
        send_one_packet(&pod);
        let diagnosis = diagnosis_of(&agent, "calivictim");
        assert_eq!(diagnosis["cause"], expected, "{diagnosis:#}");
        is_gateway_answered(&pod).unwrap_err();
        match has_default {
            true => node.sysctl("net.ipv4.conf.calivictim.proxy_arp", "1"),
            false => node.ip("route add default via 192.0.2.1").map(drop),
        }
        .unwrap();
        wait_answered(&pod);
    }
}

/// If the node answers and the pod asks again, the cause is not on the node.
#[test]
fn gateway_that_answers_has_no_cause() {
    let node = forwarding_node("gwanswers");
    let pod = calico_pod(&node, PodSpec::new("califine").proxy_arp().host_route());
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    wait_answered(&pod);
    send_requests(&pod, Ipv4Addr::new(169, 254, 1, 1), 4);
    // That nothing is known is no news.
    let client = TestClient::new(&node, "http://127.0.0.1:9842");
    let diagnosis = until(DEADLINE, "the diagnosis in the API", || {
        let open = client.get("/api/v1/anomalies")?.json()?;
        let diagnosis = &open["anomalies"][0]["diagnosis"];
        ensure!(diagnosis.is_object(), "{open:#}");
        Ok(diagnosis.clone())
    })
    .unwrap();
    assert_eq!(diagnosis["cause"], "unknown", "{diagnosis:#}");
    let ruled_out = json!(["reverse_path_filter", "no_route", "no_proxy_arp"]);
    assert_eq!(diagnosis["ruled_out"], ruled_out, "{diagnosis:#}");
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
