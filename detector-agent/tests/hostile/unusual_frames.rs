//! Frames that no stack sends but that every Linux victim accepts: the pod that sends them is a claimant.

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, ExtensionHeader, Frame, FrameSender, MacAddress, Node, Pod,
    PodSpec, until,
};

use crate::AGENT;

const OWNER: &str = "10.244.1.10";
const OWNER6: &str = "fd00::10";
const VICTIM6: &str = "fd00::30";

/// Three pods behind a bridge, `vetha` with the addresses of the owner, and a running agent.
fn bridged_pods(prefix: &str) -> (Node, [Pod; 3], Agent) {
    let node = Node::new(prefix).unwrap();
    node.add_bridge("cni0", &[]).unwrap();
    let pod = |device, last| {
        let spec = PodSpec::new(device).master("cni0");
        let spec = spec
            .address(format!("10.244.1.{last}/24"))
            .address(format!("fd00::{last}/64"));
        node.add_pod(&spec).unwrap()
    };
    let pods = [pod("vetha", 10), pod("vethb", 20), pod("vethc", 30)];
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    (node, pods, agent)
}

/// `vethb` claims an address of `vetha` with `frame`: `vethc` takes `mac` for it, and the agent raises a conflict.
fn assert_hijack_is_raised(
    agent: &Agent,
    pods: &[Pod; 3],
    frame: &Frame,
    address: &str,
    mac: MacAddress,
) {
    let [owner, hijacker, victim] = pods;
    let neighbour = format!("{address} dev eth0");
    let known = format!("neigh replace {neighbour} lladdr {} nud stale", owner.mac());
    victim.netns().ip(&known).unwrap();
    FrameSender::open(hijacker).unwrap().send(frame).unwrap();
    until(DEADLINE, "the victim to accept the frame", || {
        let entry = victim.netns().ip(&format!("neigh show {neighbour}"))?;
        ensure!(entry.contains(&mac.to_string()), "{entry}");
        Ok(())
    })
    .unwrap();
    let conflict = agent.wait_raised(address).unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    let claimant = conflict.claimant("vethb").unwrap();
    assert_eq!(claimant.mac.as_deref(), Some(mac.to_string().as_str()));
}

#[test]
fn advertisement_behind_hop_by_hop_options_raises() {
    let (_node, pods, agent) = bridged_pods("hopopts");
    let mac = pods[1].mac();
    let asking = (pods[2].mac(), VICTIM6.parse().unwrap());
    let frame = Frame::solicited_advertisement(mac, OWNER6.parse().unwrap(), Some(mac), asking)
        .extension_headers(&[ExtensionHeader::HopByHop]);
    assert_hijack_is_raised(&agent, &pods, &frame, OWNER6, mac);
}

#[test]
fn arp_reply_with_a_group_mac_raises() {
    let (_node, pods, agent) = bridged_pods("groupmac");
    let group = MacAddress([0x03, 0, 0, 0, 0, 0x0a]);
    let frame = Frame::gratuitous_reply(group, OWNER.parse().unwrap()).ether_source(pods[1].mac());
    assert_hijack_is_raised(&agent, &pods, &frame, OWNER, group);
}
