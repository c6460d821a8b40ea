//! A pod that makes an innocent one look like a claimant: the hardware addresses in its frames are
//! those of others, and the neighbour table believes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, ArpOperation, Barrier, DEADLINE, Frame, FrameSender, MacAddress, Node,
    Pod, PodSpec, announce, until,
};

use crate::{AGENT, metrics::claiming_devices};

const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 10);
const VICTIM6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x10);
const NODE: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 1);

/// A bridge that the node routes, with the victim, an innocent pod, and the attacker. The bridge
/// knows the port of each.
struct World {
    node: Node,
    victim: Pod,
    innocent: Pod,
    attacker: Pod,
}

impl World {
    fn new(prefix: &str) -> Self {
        let node = Node::new(prefix).unwrap();
        node.add_bridge("cni0", &["10.244.1.1/24", "fd00::1/64"])
            .unwrap();
        let pod = |device, last| {
            let spec = PodSpec::new(device).master("cni0");
            let spec = spec
                .address(format!("10.244.1.{last}/24"))
                .address(format!("fd00::{last}/64"));
            let pod = node.add_pod(&spec).unwrap();
            announce(&pod, Ipv4Addr::new(10, 244, 1, last)).unwrap();
            pod
        };
        Self {
            victim: pod("vethvictim", 10),
            innocent: pod("vethinnocent", 20),
            attacker: pod("vethattacker", 30),
            node,
        }
    }

    fn start(&self) -> Agent {
        Agent::start_ready(&self.node, &AgentCommand::run(AGENT)).unwrap()
    }

    /// Has the node's entry for `address` hold the MAC of the victim, of the innocent pod, and of
    /// the victim again, by the attacker's frames.
    fn flip(&self, address: IpAddr) {
        self.flip_with(address, |mac| self.claim(address, mac));
    }

    /// The same with other frames.
    fn flip_with(&self, address: IpAddr, frame: impl Fn(MacAddress) -> Frame) {
        let sender = FrameSender::open(&self.attacker).unwrap();
        let known = [&self.victim, &self.innocent, &self.victim].map(Pod::mac);
        for mac in known {
            let frame = frame(mac);
            until(DEADLINE, "the node to accept the frame", || {
                sender.send(&frame)?;
                let entry = self.node.ip(&format!("neigh show {address} dev cni0"))?;
                ensure!(entry.contains(&mac.to_string()), "{entry}");
                Ok(())
            })
            .unwrap();
        }
    }

    /// A unicast reply to the node, which makes its entry `REACHABLE`.
    fn claim(&self, address: IpAddr, mac: MacAddress) -> Frame {
        let link = self.node.ip("-br link show dev cni0").unwrap();
        let bridge: MacAddress = link.split_whitespace().nth(2).unwrap().parse().unwrap();
        let attacker = self.attacker.mac();
        match address {
            IpAddr::V4(address) => {
                let reply = ArpOperation::Reply;
                Frame::arp(reply, bridge, (mac, address), (bridge, NODE)).ether_source(attacker)
            }
            IpAddr::V6(address) => {
                let node = (bridge, "fd00::1".parse().unwrap());
                Frame::solicited_advertisement(attacker, address, Some(mac), node)
            }
        }
    }

    fn learn(&self, address: IpAddr) {
        let mac = self.victim.mac();
        self.node
            .set_neighbour(address, "cni0", mac, "stale")
            .unwrap();
    }
}

fn assert_only_the_attacker_is_named(node: &Node, agent: &Agent, address: IpAddr) {
    let conflict = agent.wait_raised(&address.to_string()).unwrap();
    assert_eq!(conflict.devices(), ["vethattacker", "vethvictim"]);
    // An update about another claimant may still be waiting for its turn.
    let claiming = claiming_devices(node, &address.to_string()).unwrap();
    assert_eq!(claiming, ["vethattacker", "vethvictim"]);
    for received in agent.events() {
        if let Some(conflict) = received.event.conflict() {
            assert!(
                conflict.claimant("vethinnocent").is_none(),
                "the innocent pod is named: {conflict:#?}"
            );
        }
    }
}

#[test]
fn macs_of_others_in_arp_name_only_the_sender() {
    let world = World::new("framearp");
    let barrier = Barrier::prepare(&world.node).unwrap();
    let agent = world.start();
    world.learn(VICTIM.into());
    world.flip(VICTIM.into());
    barrier.pass(&world.node, &agent).unwrap();
    assert_only_the_attacker_is_named(&world.node, &agent, VICTIM.into());
}

#[test]
fn macs_of_others_in_ndp_name_only_the_sender() {
    let world = World::new("framendp");
    let barrier = Barrier::prepare(&world.node).unwrap();
    let agent = world.start();
    world.learn(VICTIM6.into());
    world.flip(VICTIM6.into());
    barrier.pass(&world.node, &agent).unwrap();
    assert_only_the_attacker_is_named(&world.node, &agent, VICTIM6.into());
}

/// A node that forwards learns the source link-layer address of a router solicitation, whatever it
/// knows already (`ndisc_recv_rs` in net/ipv6/ndisc.c).
#[test]
fn macs_of_others_in_router_solicitations_name_only_the_sender() {
    let world = World::new("framers");
    let netns = world.node.netns();
    netns.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
    let barrier = Barrier::prepare(&world.node).unwrap();
    let agent = world.start();
    let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    let group = MacAddress([0x33, 0x33, 0, 0, 0, 2]);
    world.flip_with(VICTIM6.into(), |mac| {
        // Reserved bytes, and the source link-layer address (RFC 4861, sections 4.1 and 4.6.1).
        let body = [&[0; 4][..], &[1, 1], &mac.0].concat();
        Frame::icmpv6(world.attacker.mac(), group, VICTIM6, routers, 133, &body)
    });
    barrier.pass(&world.node, &agent).unwrap();
    assert_only_the_attacker_is_named(&world.node, &agent, VICTIM6.into());
}

#[test]
fn macs_of_others_behind_priority_tags_name_only_the_sender() {
    let world = World::new("frametags");
    let barrier = Barrier::prepare(&world.node).unwrap();
    let agent = world.start();
    world.learn(VICTIM.into());
    world.flip_with(VICTIM.into(), |mac| {
        (0..6).fold(world.claim(VICTIM.into(), mac), |frame, _| frame.vlan(0))
    });
    barrier.pass(&world.node, &agent).unwrap();
    assert_only_the_attacker_is_named(&world.node, &agent, VICTIM.into());
}

#[test]
fn entries_forged_before_the_start_name_no_pod() {
    let world = World::new("frameearly");
    let barrier = Barrier::prepare(&world.node).unwrap();
    for address in [IpAddr::from(VICTIM), VICTIM6.into()] {
        world.learn(address);
        world.flip(address);
        let forged = world.innocent.mac();
        world
            .node
            .set_neighbour(address, "cni0", forged, "reachable")
            .unwrap();
    }
    let agent = world.start();
    let events = barrier.pass(&world.node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
    world.flip(VICTIM.into());
    assert_only_the_attacker_is_named(&world.node, &agent, VICTIM.into());
}

#[test]
fn framed_pod_is_not_named_after_a_restart() {
    let world = World::new("framerestart");
    let state = tempfile::tempdir().unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--state-dir")
        .arg(state.path());
    let barrier = Barrier::prepare(&world.node).unwrap();
    let mut agent = Agent::start_ready(&world.node, &command).unwrap();
    world.learn(VICTIM.into());
    world.flip(VICTIM.into());
    assert_only_the_attacker_is_named(&world.node, &agent, VICTIM.into());
    agent.terminate(DEADLINE).unwrap();
    let agent = Agent::start_ready(&world.node, &command).unwrap();
    world.flip(VICTIM.into());
    let events = barrier.pass(&world.node, &agent).unwrap();
    let named = events.iter().filter_map(|e| e.event.conflict());
    for conflict in named {
        assert!(conflict.claimant("vethinnocent").is_none(), "{conflict:#?}");
    }
    let claiming = claiming_devices(&world.node, &VICTIM.to_string()).unwrap();
    assert_eq!(claiming, ["vethattacker", "vethvictim"]);
}

/// A routed device: what the node learns there came in on it.
#[test]
fn mac_of_another_pod_on_a_routed_device_names_only_the_sender() {
    let node = Node::new("framerouted").unwrap();
    let pods = node
        .add_pods(
            &[(1, "vethvictim"), (2, "vethinnocent"), (3, "vethattacker")].map(|(last, device)| {
                PodSpec::new(device)
                    .address(format!("10.244.1.{last}/32"))
                    .host_route()
                    .proxy_arp()
            }),
        )
        .unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let sender = FrameSender::open(&pods[2]).unwrap();
    for pod in [&pods[0], &pods[1], &pods[0]] {
        let address = Ipv4Addr::new(10, 244, 1, 1);
        let frame = Frame::announcement(pod.mac(), address).ether_source(pods[2].mac());
        sender.send(&frame).unwrap();
    }
    barrier.pass(&node, &agent).unwrap();
    assert_only_the_attacker_is_named(&node, &agent, Ipv4Addr::new(10, 244, 1, 1).into());
}

/// For the node's own address, an innocent pod would be deleted first.
#[test]
fn claims_of_the_nodes_address_name_only_the_sender() {
    let world = World::new("framenode");
    let barrier = Barrier::prepare(&world.node).unwrap();
    let agent = world.start();
    let sender = FrameSender::open(&world.attacker).unwrap();
    for pod in [&world.victim, &world.innocent, &world.victim] {
        world
            .node
            .set_neighbour(NODE.into(), "cni0", pod.mac(), "stale")
            .unwrap();
        sender
            .send(&Frame::announcement(pod.mac(), NODE).ether_source(world.attacker.mac()))
            .unwrap();
    }
    barrier.pass(&world.node, &agent).unwrap();
    let conflict = agent.wait_raised(&NODE.to_string()).unwrap();
    assert_eq!(conflict.kind, "host");
    assert_eq!(conflict.devices(), ["cni0", "vethattacker"]);
    let claiming = claiming_devices(&world.node, &NODE.to_string()).unwrap();
    assert_eq!(claiming, ["vethattacker"]);
}
