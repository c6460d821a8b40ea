//! Who receives the traffic for an address in conflict, in layouts where routes alone do not show it. Each step compares
//! the agent's events and `check` with the kernel's own answer (`ip route get`, and for a bridge its forwarding entry).
//!
//! There is no test with a VRF: not every kernel that these tests run on has the driver.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Event, LOOK_ARGS, Node, Pod, PodSpec, http::TestClient, until,
    wait_reachable,
};

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");

const IPV4: &str = "10.244.2.10";
const IPV6: &str = "2001:db8::10";

/// A node with two pods, behind `vetha` and `vethb`, that have the same address.
struct Layout {
    node: Node,
    pods: Vec<Pod>,
    agent: Agent,
    address: &'static str,
}

impl Layout {
    /// Two routed pods.
    fn routed(prefix: &str, address: &'static str) -> Self {
        Self::prepared(prefix, address, |_| {})
    }

    /// As [`Self::routed`], with something done before the agent starts.
    fn prepared(prefix: &str, address: &'static str, prepare: impl Fn(&Node)) -> Self {
        let node = Node::new(prefix).unwrap();
        let length = if address.contains(':') { 128 } else { 32 };
        let pod = |device| PodSpec::new(device).address(format!("{address}/{length}"));
        let pods = node.add_pods(&["vetha", "vethb"].map(pod)).unwrap();
        prepare(&node);
        Self::start(node, pods, address)
    }

    /// Two pods behind a bridge, each with an address of its own too: 10.244.1.10 and 10.244.1.11.
    fn bridged(prefix: &str) -> Self {
        let node = Node::new(prefix).unwrap();
        node.add_bridge("cni0", &["10.244.1.1/24"]).unwrap();
        let pod = |(device, last)| {
            let spec = PodSpec::new(device).master("cni0");
            spec.address(format!("10.244.1.{last}/24"))
                .address(format!("{IPV4}/32"))
        };
        let pods = node
            .add_pods(&[("vetha", 10), ("vethb", 11)].map(pod))
            .unwrap();
        for last in [10, 11] {
            let own = [10, 244, 1, last].into();
            wait_reachable(&node, own, DEADLINE).unwrap();
        }
        for pod in &pods {
            let mac = pod.mac().to_string();
            let entry = ["fdb", "replace", &mac, "dev", pod.device()];
            let entry = [&["bridge"][..], &entry, &["master", "static"]].concat();
            node.exec(&entry).unwrap();
        }
        Self::start(node, pods, IPV4)
    }

    fn start(node: Node, pods: Vec<Pod>, address: &'static str) -> Self {
        let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
        agent.wait_raised(address).unwrap();
        Self {
            node,
            pods,
            agent,
            address,
        }
    }

    fn ip(&self, line: &str) {
        let line = line.replace("ADDRESS", self.address);
        self.node.ip(&line).unwrap();
    }

    /// The device that the kernel names for the node's packets to an address; `None` if it delivers them to itself or nowhere.
    fn kernel_device(&self) -> Option<String> {
        // It fails if the address cannot be reached.
        let answer = self
            .node
            .ip(&format!("route get {}", self.address))
            .unwrap_or_default();
        let first = answer.split_whitespace().next();
        if matches!(
            first,
            Some("local" | "blackhole" | "unreachable" | "prohibit")
        ) {
            return None;
        }
        let mut words = answer.split_whitespace();
        words.find(|word| *word == "dev")?;
        words.next().map(str::to_owned)
    }

    /// Waits until the agent names this receiver, and requires the same of `check`.
    fn expect(&self, receiver: Option<&str>) {
        self.agent
            .wait_until(DEADLINE, |events| {
                let of_address = events.iter().rev();
                let mut conflicts = of_address.filter_map(|received| received.event.conflict());
                let last = conflicts.find(|conflict| conflict.address == self.address);
                last.is_some_and(|conflict| conflict.traffic_goes_to.as_deref() == receiver)
            })
            .unwrap_or_else(|error| panic!("no event with the receiver {receiver:?}: {error:#}"));
        let check = AgentCommand::new(AGENT, LOOK_ARGS).args(["--format", "json"]);
        let outcome = check.run_to_end(&self.node, DEADLINE).unwrap();
        let document: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        let conflicts = document["conflicts"].as_array().unwrap();
        let conflict = conflicts.iter().find(|c| c["address"] == self.address);
        assert_eq!(
            conflict.unwrap()["traffic_goes_to"].as_str(),
            receiver,
            "{document:#}"
        );
    }

    /// The kernel names this device, and so do the agent and `check`.
    fn expect_routed(&self, device: Option<&str>) {
        assert_eq!(self.kernel_device().as_deref(), device);
        self.expect(device);
    }

    /// The kernel names the bridge; the agent and `check` name this port.
    fn expect_port(&self, port: Option<&str>) {
        assert_eq!(self.kernel_device().as_deref(), Some("cni0"));
        self.expect(port);
    }
}

#[test]
fn first_of_equal_routes_receives() {
    for (prefix, address) in [("equal4", IPV4), ("equal6", IPV6)] {
        let layout = Layout::routed(prefix, address);
        layout.ip("route add ADDRESS dev vetha metric 10");
        layout.expect_routed(Some("vetha"));
        layout.ip("route append ADDRESS dev vethb metric 10");
        layout.expect_routed(Some("vetha"));
        layout.ip("route delete ADDRESS dev vetha metric 10");
        layout.expect_routed(Some("vethb"));
    }
    let layout = Layout::routed("prepend", IPV4);
    layout.ip("route add ADDRESS dev vetha");
    layout.expect_routed(Some("vetha"));
    layout.ip("route prepend ADDRESS dev vethb");
    layout.expect_routed(Some("vethb"));
    layout.ip("route delete ADDRESS dev vethb");
    layout.expect_routed(Some("vetha"));
}

/// Equal routes that exist before the agent starts.
#[test]
fn first_of_equal_routes_in_a_snapshot_receives() {
    let layout = Layout::prepared("snapshot", IPV4, |node| {
        node.ip("route add 10.244.2.10 dev vethb").unwrap();
        node.ip("route append 10.244.2.10 dev vetha").unwrap();
    });
    layout.expect_routed(Some("vethb"));
}

#[test]
fn rejected_and_discarded_packets_reach_nobody() {
    for (prefix, address) in [("reject4", IPV4), ("reject6", IPV6)] {
        let layout = Layout::routed(prefix, address);
        layout.ip("route add ADDRESS dev vethb metric 100");
        for kind in ["blackhole", "unreachable", "prohibit"] {
            layout.expect_routed(Some("vethb"));
            layout.ip(&format!("route add {kind} ADDRESS metric 50"));
            layout.expect_routed(None);
            layout.ip(&format!("route delete {kind} ADDRESS metric 50"));
        }
        layout.expect_routed(Some("vethb"));
    }
}

/// The kernel sends no deletion of the route that was replaced.
#[test]
fn discarding_route_that_replaces_one_to_a_pod_reaches_nobody() {
    for (prefix, address) in [("replace4", IPV4), ("replace6", IPV6)] {
        let layout = Layout::routed(prefix, address);
        for kind in ["blackhole", "unreachable", "prohibit"] {
            layout.ip("route replace ADDRESS dev vethb");
            layout.expect_routed(Some("vethb"));
            layout.ip(&format!("route replace {kind} ADDRESS"));
            layout.expect_routed(None);
        }
    }
}

#[test]
fn replaced_host_route_of_a_pod_is_astray() {
    for (prefix, address, length) in [("astray4", IPV4, 32), ("astray6", IPV6, 128)] {
        let node = Node::new(prefix).unwrap();
        let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
        let spec = PodSpec::new("vetha").address(format!("{address}/{length}"));
        let _pod = node.add_pod(&spec.host_route()).unwrap();
        let claims = TestClient::of_agent(&node);
        until(DEADLINE, "the claim", || {
            let answer = claims.get("/api/v1/claims")?.json()?;
            let is_known = |claim: &serde_json::Value| claim["address"] == address;
            let known = answer["claims"]
                .as_array()
                .is_some_and(|c| c.iter().any(is_known));
            anyhow::ensure!(known, "{answer}");
            Ok(())
        })
        .unwrap();
        node.ip(&format!("route replace unreachable {address}"))
            .unwrap();
        let raised = |event: &Event| {
            let data = &event.data;
            data["kind"] == "route_astray" && data["address"] == address
        };
        agent.wait_event(DEADLINE, raised).unwrap();
    }
}

/// Without a carrier, the kernel uses the other route; only the link's running state says when it does not any more.
#[test]
fn receiver_follows_the_carrier() {
    let layout = Layout::prepared("carrier", IPV4, |node| {
        node.run_in(|| {
            std::fs::write(
                "/proc/sys/net/ipv4/conf/all/ignore_routes_with_linkdown",
                "1",
            )?;
            Ok(())
        })
        .unwrap();
    });
    layout.ip("route add ADDRESS dev vetha metric 10");
    layout.ip("route add ADDRESS dev vethb metric 20");
    layout.expect_routed(Some("vetha"));
    for _ in 0..2 {
        layout.pods[0].netns().ip("link set eth0 down").unwrap();
        layout.expect(Some("vethb"));
        layout.pods[0].netns().ip("link set eth0 up").unwrap();
        layout.expect(Some("vetha"));
    }
}

#[test]
fn local_route_leads_to_no_claimant() {
    let layout = Layout::routed("local", IPV4);
    layout.ip("route add ADDRESS dev vethb");
    layout.expect_routed(Some("vethb"));
    layout.ip("route add local ADDRESS dev lo");
    layout.expect_routed(None);
    layout.ip("route delete local ADDRESS dev lo");
    layout.expect_routed(Some("vethb"));
}

#[test]
fn route_for_a_type_of_service_does_not_count() {
    let layout = Layout::routed("tos", IPV4);
    layout.ip("route add ADDRESS dev vetha");
    layout.expect_routed(Some("vetha"));
    layout.ip("route add ADDRESS tos 0x10 dev vethb");
    layout.expect_routed(Some("vetha"));
    layout.ip("route delete ADDRESS dev vetha");
    layout.expect_routed(None);
}

/// The kernel chooses by a hash of the addresses, within the weights.
#[test]
fn kernel_chooses_among_several_next_hops() {
    let layout = Layout::routed("multipath", IPV4);
    for weights in [(1, 200), (200, 1), (1, 1)] {
        layout.ip(&format!(
            "route replace ADDRESS nexthop dev vetha weight {} nexthop dev vethb weight {}",
            weights.0, weights.1
        ));
        let chosen = layout.kernel_device();
        assert!(chosen.is_some());
        layout.expect_routed(chosen.as_deref());
    }
    // No notification says that the next hop is gone.
    let chosen = layout.kernel_device().unwrap();
    let other = if chosen == "vetha" { "vethb" } else { "vetha" };
    layout.ip(&format!("link set {chosen} down"));
    layout.expect_routed(Some(other));
}

#[test]
fn next_hop_object_decides_and_takes_its_routes_with_it() {
    let layout = Layout::routed("nexthop", IPV4);
    layout.ip("nexthop add id 5 dev vetha");
    layout.ip("route add ADDRESS nhid 5");
    layout.expect_routed(Some("vetha"));
    layout.ip("nexthop replace id 5 dev vethb");
    layout.expect_routed(Some("vethb"));
    layout.ip("nexthop delete id 5");
    layout.expect_routed(None);
}

#[test]
fn table_that_no_rule_leads_to_does_not_count() {
    let layout = Layout::prepared("table", IPV4, |node| {
        node.ip("route add 10.244.2.10 dev vetha table 77").unwrap();
    });
    layout.expect_routed(None);
    layout.ip("route add ADDRESS dev vethb");
    layout.expect_routed(Some("vethb"));
}

#[test]
fn policy_rule_decides() {
    for (prefix, address, family) in [("rule4", IPV4, "-4"), ("rule6", IPV6, "-6")] {
        let layout = Layout::routed(prefix, address);
        layout.ip("route add ADDRESS dev vetha");
        layout.ip("route add ADDRESS dev vethb table 88");
        layout.expect_routed(Some("vetha"));
        let rule = "to ADDRESS lookup 88 priority 100";
        layout.ip(&format!("{family} rule add {rule}"));
        layout.expect_routed(Some("vethb"));
        layout.ip("route delete ADDRESS dev vethb table 88");
        layout.expect_routed(Some("vetha"));
        layout.ip("route add ADDRESS dev vethb table 88");
        layout.expect_routed(Some("vethb"));
        layout.ip(&format!("{family} rule delete {rule}"));
        layout.expect_routed(Some("vetha"));
    }
}

/// The node's own entry for the address leads to the other port, but packets go to the gateway.
#[test]
fn gateway_behind_a_bridge_decides() {
    let layout = Layout::bridged("gateway");
    let other = &layout.pods[1];
    let address = IPV4.parse().unwrap();
    layout
        .node
        .set_neighbour(address, "cni0", other.mac(), "permanent")
        .unwrap();
    layout.ip("route add ADDRESS dev cni0");
    layout.expect_port(Some("vethb"));
    layout.ip("route replace ADDRESS via 10.244.1.10");
    layout.expect_port(Some("vetha"));
    // The gateway's address moves to the other pod.
    let gateway = "10.244.1.10".parse().unwrap();
    layout
        .node
        .set_neighbour(gateway, "cni0", other.mac(), "permanent")
        .unwrap();
    layout.expect_port(Some("vethb"));
}

#[test]
fn port_that_is_down_receives_nothing() {
    let layout = Layout::bridged("port");
    let address = IPV4.parse().unwrap();
    let pod = &layout.pods[0];
    layout
        .node
        .set_neighbour(address, "cni0", pod.mac(), "permanent")
        .unwrap();
    layout.ip("route add ADDRESS dev cni0");
    layout.expect_port(Some("vetha"));
    layout.ip("link set vetha down");
    layout.expect_port(None);
    layout.ip("link set vetha up");
    layout.expect_port(Some("vetha"));
    pod.netns().ip("link set eth0 down").unwrap();
    layout.expect_port(None);
    pod.netns().ip("link set eth0 up").unwrap();
    layout.expect_port(Some("vetha"));
}

#[test]
fn moved_forwarding_entry_moves_the_receiver() {
    let layout = Layout::bridged("moved");
    let address = IPV4.parse().unwrap();
    let mac = layout.pods[0].mac();
    layout
        .node
        .set_neighbour(address, "cni0", mac, "permanent")
        .unwrap();
    layout.ip("route add ADDRESS dev cni0");
    layout.expect_port(Some("vetha"));
    let mac = mac.to_string();
    let entry = ["bridge", "fdb", "replace", &mac, "dev", "vethb"];
    // Without `sticky`, the next frame of the first pod moves it back.
    let entry = [&entry[..], &["master", "static", "sticky"]].concat();
    layout.node.exec(&entry).unwrap();
    layout.expect_port(Some("vethb"));
}
