//! Why a gateway does not answer, on routes and sysctls of a real kernel.

use anyhow::Context as _;
use detector_testkit::{KubeApi, MacAddress, event::Anomaly, kube_api};
use serde_json::{Value, json};

use super::*;

/// What the agent reports about a pod's silent gateway.
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

fn calico_pod(node: &Node, spec: PodSpec) -> Pod {
    calico_pod_at(node, spec, Ipv4Addr::new(10, 65, 0, 2))
}

/// A pod as Calico connects it: the gateway is on no device of the node, which answers for it by proxy ARP.
fn calico_pod_at(node: &Node, spec: PodSpec, address: Ipv4Addr) -> Pod {
    let spec = spec.address(format!("{address}/32"));
    let pod = node.add_pod(&spec).unwrap();
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
    // The evidence makes the difference.
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

/// If the node answers and the pod asks again, the cause is not on the node. A strict filter drops nothing if the route leads to the
/// pod, and a loose one nothing on a device with an address.
#[test]
fn gateway_that_answers_has_no_cause() {
    for (prefix, rp_filter, has_other) in [("gwstrict", 1, false), ("gwloose", 2, true)] {
        let node = forwarding_node(prefix);
        let spec = |device: &str| PodSpec::new(device).proxy_arp().rp_filter(rp_filter);
        let (pod, _other) = if has_other {
            let pod = calico_pod(&node, spec("califine"));
            node.ip("address add 10.65.255.1/32 dev califine").unwrap();
            (pod, Some(calico_pod(&node, spec("caliother").host_route())))
        } else {
            (calico_pod(&node, spec("califine").host_route()), None)
        };
        let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
        wait_answered(&pod);
        send_requests(&pod, Ipv4Addr::new(169, 254, 1, 1), 4);
        // That nothing is known is no news.
        let diagnosis = open_diagnosis(&node, "califine");
        assert_eq!(diagnosis["cause"], "unknown", "{diagnosis:#}");
        let ruled_out = json!(["reverse_path_filter", "no_route", "no_proxy_arp"]);
        assert_eq!(diagnosis["ruled_out"], ruled_out, "{diagnosis:#}");
    }
}

#[test]
fn loose_filter_drops_what_a_device_without_an_address_takes_in() {
    let node = forwarding_node("gwloosedrop");
    let loose = |device: &str| PodSpec::new(device).proxy_arp().rp_filter(2);
    let pod = calico_pod(&node, loose("calivictim"));
    let _other = calico_pod(&node, loose("caliother").host_route());
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    send_one_packet(&pod);
    let diagnosis = diagnosis_of(&agent, "calivictim");
    assert_eq!(diagnosis["cause"], "reverse_path_filter", "{diagnosis:#}");
    let evidence = diagnosis["evidence"].to_string();
    assert!(evidence.contains("has no IPv4 address"), "{evidence}");
    is_gateway_answered(&pod).unwrap_err();
    node.ip("route replace 10.65.0.2/32 dev calivictim")
        .unwrap();
    wait_answered(&pod);
}

/// The diagnosis of a pod's silent gateway as the API has it, even if it is no news.
fn open_diagnosis(node: &Node, device: &str) -> Value {
    let client = TestClient::of_agent(node);
    until(DEADLINE, "the diagnosis in the API", || {
        let open = client.get("/api/v1/anomalies")?.json()?;
        let anomalies = open["anomalies"].as_array().into_iter().flatten();
        let mut ours = anomalies.filter(|a| a["kind"] == KIND && a["device"] == device);
        let diagnosis = ours.next().map(|anomaly| anomaly["diagnosis"].clone());
        diagnosis
            .filter(Value::is_object)
            .with_context(|| format!("{open:#}"))
    })
    .unwrap()
}

/// `calico-gateway-unresolved.json`, before, in and after a restart of the agent: Calico's block has the address of the silent pod
/// for another one, to which the route leads.
#[test]
fn incident_is_explained_and_over_once_the_duplicate_is() {
    const OTHER: &str = "cali0d7763386da";
    let facts = CalicoGatewayUnresolved::load().unwrap();
    let (device, address) = (facts.device.as_str(), facts.pod_address);
    let node = forwarding_node("gwincident");
    let api = KubeApi::start(node.netns()).unwrap();
    api.apply_ip_pool("192.168.0.0/16", 26);
    let first = u32::from(address) & !0x3f;
    let mut allocations = vec![Value::Null; 64];
    allocations[usize::try_from(u32::from(address) - first).unwrap()] = 0.into();
    api.apply_ipam_block(&json!({"cidr": format!("{}/26", Ipv4Addr::from(first)), "affinity": "host:testkit",
        "allocations": allocations, "attributes": [{"handle_id": "default.web-0", "secondary": {"node": "testkit"}}]}));
    api.apply(kube_api::pod(
        "testkit",
        "default",
        "web-0",
        &[&address.to_string()],
    ));
    let (directory, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let network = json!({"cniVersion": "0.3.1", "name": "k8s-pod-network", "plugins": [
        {"type": "calico", "ipam": {"type": "calico-ipam"}}]});
    std::fs::write(
        directory.path().join("10-calico.conflist"),
        network.to_string(),
    )
    .unwrap();
    let command = AgentCommand::run(AGENT)
        .args(["--ipam=auto", "--kube=on", "--cni-conf-dir"])
        .arg(directory.path())
        .arg("--state-dir")
        .arg(state.path())
        .env("KUBECONFIG", api.kubeconfig());

    let strict = |device: &str| {
        let spec = PodSpec::new(device).host_mac(MacAddress([0xee; 6]));
        spec.proxy_arp().rp_filter(1)
    };
    let spec = strict(device).mac(facts.pod_mac.parse().unwrap());
    let pod = calico_pod_at(&node, spec, address);
    let other = calico_pod_at(&node, strict(OTHER).host_route(), address);
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    send_one_packet(&pod);
    let assert_explained = |diagnosis: &Value| {
        assert_eq!(diagnosis["cause"], "reverse_path_filter", "{diagnosis:#}");
        assert_eq!(diagnosis["confidence"], "proven", "{diagnosis:#}");
        let fact = format!("{address} leads to {OTHER}");
        let evidence = diagnosis["evidence"].to_string();
        assert!(evidence.contains(&fact), "{evidence}");
        let repair = diagnosis["repair"].as_str().unwrap();
        assert!(repair.contains("another pod has the address"), "{repair}");
    };
    assert_explained(&diagnosis_of(&agent, device));
    agent.kill().unwrap();
    let agent = Agent::start_ready(&node, &command).unwrap();
    assert_explained(&open_diagnosis(&node, device));
    // The address is the other pod's: the silent one is created again, and gets another one.
    let client = TestClient::of_agent(&node);
    until(DEADLINE, "the duplicate with its owner", || {
        let open = client.get("/api/v1/conflicts")?.json()?;
        let claimants = open["conflicts"][0]["claimants"].as_array();
        let rightful = claimants
            .into_iter()
            .flatten()
            .filter(|c| c["rightful"] == true);
        let devices: Vec<_> = rightful.map(|claimant| &claimant["device"]).collect();
        ensure!(devices == [OTHER], "{open:#}");
        Ok(())
    })
    .unwrap();
    pod.delete().unwrap();
    let spec = strict("calinew").host_route();
    let new = calico_pod_at(&node, spec, Ipv4Addr::from(u32::from(address) + 1));
    wait_answered(&new);
    wait_answered(&other);
    let is_over = |events: &[ReceivedEvent]| {
        let resolved = |r: &ReceivedEvent| is_gateway_event(r, ANOMALY_RESOLVED);
        events.iter().any(resolved)
    };
    agent.wait_until(DEADLINE, is_over).unwrap();
    agent.wait_resolved(&address.to_string()).unwrap();
}
