//! Floods in which each frame changes an entry of the node's neighbour table. On a bridge the entries are the bridge's, but
//! what is lost is the port's, is named with it, and has the node read now and then, not every second.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    time::Instant,
};

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Frame, FrameSender, MacAddress, Node, Pod, PodSpec, until,
};

use crate::{AGENT, metrics::metric};

const NODE: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 1);
const NODE6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
/// So few entries because all namespaces of the machine share the room in the table.
const ENTRIES: u8 = 50;
/// More than the budget, in each second.
const FRAMES: usize = 3_000;
const SECONDS: usize = 6;
const LOST: &str = r#"ipconflict_observations_dropped_total{reason="neighbour_budget"}"#;
const RESYNCS: &str = r#"ipconflict_resyncs_total{reason="neighbour_budget"}"#;

/// The attacker on a bridge that the node routes, or on a device of its own.
fn attacked_node(prefix: &str, bridge: Option<&str>) -> (Node, Pod, Agent) {
    let node = Node::new(prefix).unwrap();
    let spec = PodSpec::new("vethbad").ipv6();
    let addresses = ["10.244.1.1/24", "fd00::1/64"];
    let pod = if let Some(bridge) = bridge {
        node.add_bridge(bridge, &addresses).unwrap();
        node.add_pod(&spec.master(bridge)).unwrap()
    } else {
        let pod = node.add_pod(&spec).unwrap();
        for address in addresses {
            let added = format!("address add {address} dev vethbad nodad");
            node.ip(&added).unwrap();
        }
        pod
    };
    let device = bridge.unwrap_or("vethbad");
    // Only routers listen to router solicitations.
    let forwarding = format!("net.ipv6.conf.{device}.forwarding");
    node.netns().sysctl(&forwarding, "1").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    (node, pod, agent)
}

/// Second after second, sends frames that each change one of some entries: `frame` has the MAC address and the number of the
/// entry. `macs`: how many MAC addresses each entry alternates between.
fn assert_flood_is_the_pods(
    (node, pod, agent): &(Node, Pod, Agent),
    macs: u16,
    frame: impl Fn(MacAddress, u8) -> Frame,
) {
    let sender = FrameSender::open(pod).unwrap();
    let frames: Vec<_> = (0..FRAMES)
        .map(|n| {
            let entry = (n % usize::from(ENTRIES)) as u8;
            let [high, low] = ((n / usize::from(ENTRIES)) as u16 % macs).to_be_bytes();
            let mac = MacAddress([2, 0, 0, 9, high, low]);
            // One source: the bridge's table stays as it is.
            let frame = frame(mac, 100 + entry).ether_source(pod.mac());
            frame.to_bytes()
        })
        .collect();
    let started = Instant::now();
    for _ in 0..SECONDS {
        let before = metric(node, LOST).unwrap();
        until(DEADLINE, "entries to be lost", || {
            sender.send_all(&frames)?;
            let lost = metric(node, LOST)?;
            ensure!(lost > before, "{lost}");
            Ok(())
        })
        .unwrap();
    }
    until(DEADLINE, "the pod to be named", || {
        let log = agent.log();
        let named: Vec<_> = log
            .lines()
            .filter(|line| line.contains("exceeded its budget"))
            .collect();
        // Its budget alone was exceeded.
        let is_pods = |line: &&str| line.contains(r#""device":"vethbad""#);
        ensure!(!named.is_empty() && named.iter().all(is_pods), "{log}");
        Ok(())
    })
    .unwrap();
    let resyncs = metric(node, RESYNCS).unwrap();
    let most = 1 + started.elapsed().as_secs() / 10;
    assert!(
        resyncs <= most,
        "{resyncs} resyncs, expected {most} at most"
    );
}

fn arp_request(mac: MacAddress, entry: u8) -> Frame {
    Frame::request(mac, Ipv4Addr::new(10, 244, 1, entry), NODE)
}

fn source(entry: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, u16::from(entry))
}

fn router_solicitation(mac: MacAddress, entry: u8) -> Frame {
    Frame::router_solicitation(mac, source(entry))
}

fn solicitation(mac: MacAddress, entry: u8) -> Frame {
    Frame::solicitation(mac, source(entry), NODE6)
}

#[test]
fn arp_flood_on_a_bridge_is_charged_to_the_pod() {
    let world = attacked_node("arpflood", Some("cni0"));
    assert_flood_is_the_pods(&world, 100, arp_request);
}

#[test]
fn router_solicitations_on_a_bridge_are_charged_to_the_pod() {
    let world = attacked_node("rsflood", Some("cni0"));
    assert_flood_is_the_pods(&world, 100, router_solicitation);
}

#[test]
fn neighbour_solicitations_on_a_bridge_are_charged_to_the_pod() {
    let world = attacked_node("nsflood", Some("cni0"));
    assert_flood_is_the_pods(&world, 100, solicitation);
}

/// All claims are known after the first round; the entries still change with each.
#[test]
fn entries_that_alternate_on_a_bridge_are_charged_to_the_pod() {
    let world = attacked_node("altarp", Some("cni0"));
    assert_flood_is_the_pods(&world, 2, arp_request);
}

#[test]
fn router_solicitations_on_a_routed_device_cause_few_resyncs() {
    let world = attacked_node("rsrouted", None);
    assert_flood_is_the_pods(&world, 100, router_solicitation);
}
