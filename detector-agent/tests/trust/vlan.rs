//! VLAN tags are part of what is claimed.

use std::net::Ipv4Addr;

use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Frame, FrameSender, NaFlags, Node, Pod, PodSpec,
    ReceivedEvent,
};

use crate::AGENT;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 10);

struct Site {
    node: Node,
    pods: Vec<Pod>,
    barrier: Barrier,
    agent: Agent,
}

impl Site {
    fn new(prefix: &str) -> Self {
        let node = Node::new(prefix).unwrap();
        let pods = node
            .add_pods(&["vetha", "vethb"].map(PodSpec::new))
            .unwrap();
        let barrier = Barrier::prepare(&node).unwrap();
        let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
        Self {
            node,
            pods,
            barrier,
            agent,
        }
    }

    /// The pod announces the address with these tags, the outer one first.
    fn announce(&self, pod: usize, tags: &[u16]) {
        let pod = &self.pods[pod];
        let frame = Frame::announcement(pod.mac(), ADDRESS);
        let frame = tags.iter().fold(frame, |frame, tag| frame.vlan(*tag));
        FrameSender::open(pod).unwrap().send(&frame).unwrap();
    }

    fn said(&self) -> Vec<ReceivedEvent> {
        self.barrier.pass(&self.node, &self.agent).unwrap()
    }

    fn raised(&self, address: &str) -> ReceivedEvent {
        self.agent
            .wait_event(DEADLINE, |event| event.raises(address))
            .unwrap()
    }
}

#[test]
fn the_same_address_in_different_vlans_is_no_conflict() {
    let site = Site::new("apart");
    site.announce(0, &[100]);
    site.announce(1, &[200]);
    // Untagged is a VLAN of its own, too.
    site.announce(1, &[]);
    let said = site.said();
    assert!(said.is_empty(), "{said:#?}");
}

#[test]
fn the_same_address_in_one_vlan_is_a_conflict_that_names_it() {
    let site = Site::new("same");
    site.announce(0, &[100]);
    site.announce(1, &[100]);
    let raised = site.raised("10.244.2.10");
    assert_eq!(raised.event.data.get("vlan"), Some(&100.into()));
    assert_eq!(raised.event.data.get("inner_vlan"), None);
    let conflict = raised.event.conflict().unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    // The node routes without a tag: it sends to neither.
    assert_eq!(conflict.traffic_goes_to, None);
}

#[test]
fn conflicts_in_two_vlans_are_two() {
    let site = Site::new("two");
    for tag in [100, 200] {
        site.announce(0, &[tag]);
        site.announce(1, &[tag]);
    }
    let said = site.said();
    let mut tags: Vec<_> = said
        .iter()
        .map(|received| received.event.data.get("vlan").and_then(|v| v.as_u64()))
        .collect();
    tags.sort_unstable();
    assert_eq!(tags, [Some(100), Some(200)], "{said:#?}");
}

#[test]
fn a_tag_of_priority_alone_is_no_vlan() {
    let site = Site::new("priority");
    site.announce(0, &[0]);
    site.announce(1, &[]);
    let raised = site.raised("10.244.2.10");
    assert_eq!(
        raised.event.data.get("vlan"),
        Some(&serde_json::Value::Null)
    );
}

#[test]
fn the_inner_of_two_tags_divides_and_is_told() {
    let site = Site::new("qinq");
    site.announce(0, &[100, 7]);
    site.announce(1, &[100, 8]);
    site.announce(1, &[100]);
    site.announce(1, &[7]);
    let said = site.said();
    assert!(said.is_empty(), "{said:#?}");
    site.announce(1, &[100, 7]);
    let raised = site.raised("10.244.2.10");
    assert_eq!(raised.event.data.get("vlan"), Some(&100.into()));
    assert_eq!(raised.event.data.get("inner_vlan"), Some(&7.into()));
    let conflict = raised.event.conflict().unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
}

#[test]
fn neighbour_discovery_is_told_apart_by_its_tags_too() {
    let site = Site::new("ndp");
    let advertise = |pod: usize, tag: u16| {
        let pod = &site.pods[pod];
        let address = "fd00::10".parse().unwrap();
        let frame = Frame::advertisement(pod.mac(), address, None, NaFlags::OVERRIDE).vlan(tag);
        FrameSender::open(pod).unwrap().send(&frame).unwrap();
    };
    advertise(0, 100);
    advertise(1, 200);
    let said = site.said();
    assert!(said.is_empty(), "{said:#?}");
    advertise(1, 100);
    let raised = site.raised("fd00::10");
    assert_eq!(raised.event.data.get("vlan"), Some(&100.into()));
}

/// An address inside the pod is untagged: a tagged frame is about another network.
#[test]
fn a_tagged_claim_does_not_meet_an_address_inside_a_pod() {
    let site = Site::new("inside");
    site.pods[0].add_address("10.244.2.10/32").unwrap();
    site.announce(1, &[100]);
    let said = site.said();
    assert!(said.is_empty(), "{said:#?}");
}
