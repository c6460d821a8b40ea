//! Frames that no stack sends but that every Linux victim accepts: the pod that sends them is a claimant.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, ExtensionHeader, Frame, FrameSender, MacAddress, Node,
    Pod, PodSpec, until,
};

use crate::{AGENT, metrics::metric};

const OWNER: &str = "10.244.1.10";
const OWNER6: &str = "fd00::10";
const VICTIM6: &str = "fd00::30";

/// Three pods behind a bridge, `vetha` with the addresses of the owner, and a running agent.
fn bridged_pods(prefix: &str) -> (Node, [Pod; 3], Agent) {
    let (node, pods) = bridged_pods_alone(prefix);
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    (node, pods, agent)
}

fn bridged_pods_alone(prefix: &str) -> (Node, [Pod; 3]) {
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
    node.wait_running(&pods).unwrap();
    (node, pods)
}

/// A frame behind so many priority tags.
fn tagged(frame: Frame, count: usize) -> Frame {
    (0..count).fold(frame, |frame, _| frame.vlan(0))
}

/// `vethb` claims an address of `vetha` with `frame`: `vethc` takes `mac` for it, and the agent raises a conflict.
fn assert_hijack_is_raised(
    agent: &Agent,
    pods: &[Pod; 3],
    frame: &Frame,
    address: &str,
    mac: MacAddress,
) {
    hijack(pods, frame, address, mac);
    assert_hijacker_is_named(agent, address, mac);
}

/// `vethb` claims an address of `vetha` with `frame`: `vethc` takes `mac` for it.
fn hijack(pods: &[Pod; 3], frame: &Frame, address: &str, mac: MacAddress) {
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
}

fn assert_hijacker_is_named(agent: &Agent, address: &str, mac: MacAddress) {
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
        let reply = tagged(Frame::gratuitous_reply(mac, OWNER.parse().unwrap()), count);
        assert_hijack_is_raised(&agent, &pods, &reply, OWNER, mac);
        let asking = (pods[2].mac(), VICTIM6.parse().unwrap());
        let advertisement =
            Frame::solicited_advertisement(mac, OWNER6.parse().unwrap(), Some(mac), asking);
        assert_hijack_is_raised(&agent, &pods, &tagged(advertisement, count), OWNER6, mac);
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
    let claim = tagged(claim, 20);
    FrameSender::open(&pods[1]).unwrap().send(&claim).unwrap();
    let conflict = agent.wait_raised(OWNER).unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
}

/// An unconfirmed entry of the node's table is not evidence, so the next frame counts here as well.
#[test]
fn hijack_behind_tags_before_the_start_raises_on_a_routed_device() {
    let node = Node::new("earlytags").unwrap();
    let spec = |device| PodSpec::new(device).ipv6();
    let pods = node.add_pods(&["vetha", "vethb"].map(spec)).unwrap();
    for (address, of_node) in [(OWNER, "10.244.1.1/24"), (OWNER6, "fd00::1/64 nodad")] {
        pods[0].add_address(address).unwrap();
        let added = format!("address add {of_node} dev vethb");
        node.ip(&added).unwrap();
    }
    node.wait_running(&pods).unwrap();
    node.netns().wait_local("fd00::1".parse().unwrap()).unwrap();
    let (mac, sender) = (pods[1].mac(), FrameSender::open(&pods[1]).unwrap());
    let asked = Ipv4Addr::new(10, 244, 1, 1);
    let request = Frame::request(mac, OWNER.parse().unwrap(), asked);
    let asked = "fd00::1".parse().unwrap();
    let solicitation = Frame::solicitation(mac, OWNER6.parse().unwrap(), asked);
    let frames = [(request, OWNER), (solicitation, OWNER6)];
    let frames = frames.map(|(frame, address)| (tagged(frame, 20), address));
    for (frame, address) in &frames {
        sender.send(frame).unwrap();
        until(DEADLINE, "the node to accept the frame", || {
            let entry = node.ip(&format!("neigh show {address} dev vethb"))?;
            ensure!(entry.contains(&mac.to_string()), "{entry}");
            Ok(())
        })
        .unwrap();
    }
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    for (frame, address) in &frames {
        sender.send(frame).unwrap();
        assert_hijacker_is_named(&agent, address, mac);
    }
}

#[test]
fn hijack_behind_tags_before_the_start_raises_on_a_bridge() {
    let (node, pods) = bridged_pods_alone("earlyhijack");
    let mac = pods[1].mac();
    let reply = Frame::gratuitous_reply(mac, OWNER.parse().unwrap());
    let advertisement = Frame::solicited_advertisement(
        mac,
        OWNER6.parse().unwrap(),
        Some(mac),
        (pods[2].mac(), VICTIM6.parse().unwrap()),
    );
    let frames = [(reply, OWNER), (advertisement, OWNER6)];
    let frames = frames.map(|(frame, address)| (tagged(frame, 20), address));
    for (frame, address) in &frames {
        hijack(&pods, frame, address, mac);
    }
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let sender = FrameSender::open(&pods[1]).unwrap();
    for (frame, address) in &frames {
        sender.send(frame).unwrap();
        assert_hijacker_is_named(&agent, address, mac);
    }
}

#[test]
fn hijack_behind_tags_goes_on_over_a_restart() {
    let (node, pods) = bridged_pods_alone("tagsrestart");
    let mac = pods[1].mac();
    let state = tempfile::tempdir().unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--state-dir")
        .arg(state.path());
    let barrier = Barrier::prepare(&node).unwrap();
    let mut first = Agent::start_ready(&node, &command).unwrap();
    let reply = tagged(Frame::gratuitous_reply(mac, OWNER.parse().unwrap()), 20);
    assert_hijack_is_raised(&first, &pods, &reply, OWNER, mac);
    let before = first.wait_raised(OWNER).unwrap();
    first.terminate(DEADLINE).unwrap();

    // One that began meanwhile, and one that continues.
    let asking = (pods[2].mac(), VICTIM6.parse().unwrap());
    let advertisement =
        Frame::solicited_advertisement(mac, OWNER6.parse().unwrap(), Some(mac), asking);
    let advertisement = tagged(advertisement, 20);
    hijack(&pods, &advertisement, OWNER6, mac);
    let second = Agent::start_ready(&node, &command).unwrap();
    assert_hijack_is_raised(&second, &pods, &advertisement, OWNER6, mac);
    hijack(&pods, &reply, OWNER, mac);
    let events = barrier.pass(&node, &second).unwrap();
    let mut events = events.iter().map(|received| &received.event);
    assert!(events.all(|event| !event.raises(OWNER) && !event.resolves(OWNER)));
    node.ip("link delete vethb").unwrap();
    let ended = second.wait_resolved(OWNER).unwrap();
    let ended = ended.event.conflict().unwrap();
    assert_eq!(ended.conflict_id, before.conflict_id);
}

/// More tags than are followed.
#[test]
fn claims_behind_too_many_tags_are_counted() {
    let (node, pods, _agent) = bridged_pods("toomanytags");
    let claim = Frame::gratuitous_reply(pods[1].mac(), OWNER.parse().unwrap());
    let claim = tagged(claim, 100);
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
