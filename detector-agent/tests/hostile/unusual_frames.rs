//! Frames that no stack sends but that every Linux victim accepts: the pod that sends them is a claimant.

use std::net::Ipv6Addr;

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, ExtensionHeader, Frame, FrameSender, MacAddress, Node, Pod,
    PodSpec, until,
};

use crate::{AGENT, metrics::metric};

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

/// Linux strips any number of priority tags.
#[test]
fn claims_behind_many_priority_tags_raise() {
    for (prefix, count) in [("fourtags", 4), ("fortytags", 40)] {
        let (_node, pods, agent) = bridged_pods(prefix);
        let mac = pods[1].mac();
        let tagged = |frame: Frame| (0..count).fold(frame, |frame, _| frame.vlan(0));
        let reply = tagged(Frame::gratuitous_reply(mac, OWNER.parse().unwrap()));
        assert_hijack_is_raised(&agent, &pods, &reply, OWNER, mac);
        let asking = (pods[2].mac(), VICTIM6.parse().unwrap());
        let advertisement =
            Frame::solicited_advertisement(mac, OWNER6.parse().unwrap(), Some(mac), asking);
        assert_hijack_is_raised(&agent, &pods, &tagged(advertisement), OWNER6, mac);
    }
}

#[test]
fn claim_behind_priority_tags_to_the_node_raises() {
    let node = Node::new("routedtags").unwrap();
    let spec = |device| PodSpec::new(device).ipv6();
    let pods = node.add_pods(&["vetha", "vethb"].map(spec)).unwrap();
    pods[0].add_address(&format!("{OWNER}/32")).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let claim = Frame::announcement(pods[1].mac(), OWNER.parse().unwrap());
    let claim = (0..20).fold(claim, |frame, _| frame.vlan(0));
    FrameSender::open(&pods[1]).unwrap().send(&claim).unwrap();
    let conflict = agent.wait_raised(OWNER).unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
}

/// More tags than are followed.
#[test]
fn claims_behind_too_many_tags_are_counted() {
    let (node, pods, _agent) = bridged_pods("toomanytags");
    let claim = Frame::gratuitous_reply(pods[1].mac(), OWNER.parse().unwrap());
    let claim = (0..100).fold(claim, |frame, _| frame.vlan(0));
    FrameSender::open(&pods[1]).unwrap().send(&claim).unwrap();
    until(DEADLINE, "the frame to be counted", || {
        let series = r#"ipconflict_frames_rejected_total{reason="tag_count"}"#;
        let rejected = metric(&node, series)?;
        ensure!(rejected == 1, "{rejected}");
        Ok(())
    })
    .unwrap();
}

/// Messages of and about routers change neighbour entries as advertisements of neighbours do.
#[test]
fn claims_in_messages_of_routers_raise() {
    let (_node, pods, agent) = bridged_pods("routerframes");
    let (mac, owner6) = (pods[1].mac(), OWNER6.parse().unwrap());
    let router = "fe80::bad".parse().unwrap();
    let sender = FrameSender::open(&pods[1]).unwrap();
    let raised = |address: &str| {
        let conflict = agent.wait_raised(address).unwrap();
        assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    };
    sender
        .send(&Frame::router_solicitation(mac, owner6))
        .unwrap();
    raised(OWNER6);
    // Redirects to the owner's other address, and an advertisement in the owner's name.
    let other: Ipv6Addr = "fd00::11".parse().unwrap();
    pods[0].add_address("fd00::11/64").unwrap();
    let victim = (pods[2].mac(), VICTIM6.parse().unwrap());
    sender
        .send(&Frame::redirect(mac, router, other, victim))
        .unwrap();
    raised("fd00::11");
    pods[0].add_address("fe80::11/64").unwrap();
    let advertised = "fe80::11".parse().unwrap();
    let prefix = "2001:db8::".parse().unwrap();
    sender
        .send(&Frame::router_advertisement(mac, advertised, prefix))
        .unwrap();
    raised("fe80::11");
}

#[test]
fn arp_reply_with_a_group_mac_raises() {
    let (_node, pods, agent) = bridged_pods("groupmac");
    let group = MacAddress([0x03, 0, 0, 0, 0, 0x0a]);
    let frame = Frame::gratuitous_reply(group, OWNER.parse().unwrap()).ether_source(pods[1].mac());
    assert_hijack_is_raised(&agent, &pods, &frame, OWNER, group);
}
