//! VLAN tags are part of the network that a claim belongs to.

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

    fn events(&self) -> Vec<ReceivedEvent> {
        self.barrier.pass(&self.node, &self.agent).unwrap()
    }

    fn raised(&self, address: &str) -> ReceivedEvent {
        self.agent
            .wait_event(DEADLINE, |event| event.raises(address))
            .unwrap()
    }
}

#[test]
fn same_address_in_different_vlans_raises_nothing() {
    let site = Site::new("apart");
    site.announce(0, &[100]);
    site.announce(1, &[200]);
    // Untagged frames are a network of their own.
    site.announce(1, &[]);
    let events = site.events();
    assert!(events.is_empty(), "{events:#?}");
}

#[test]
fn same_address_in_one_vlan_raises_with_the_vlan() {
    let site = Site::new("same");
    site.announce(0, &[100]);
    site.announce(1, &[100]);
    let raised = site.raised("10.244.2.10");
    assert_eq!(raised.event.data.get("vlan"), Some(&100.into()));
    assert_eq!(raised.event.data.get("inner_vlan"), None);
    let conflict = raised.event.conflict().unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    // The node routes untagged, so it sends to neither.
    assert_eq!(conflict.traffic_goes_to, None);
}

#[test]
fn duplicates_in_two_vlans_are_two_conflicts() {
    let site = Site::new("two");
    for tag in [100, 200] {
        site.announce(0, &[tag]);
        site.announce(1, &[tag]);
    }
    let events = site.events();
    let mut tags: Vec<_> = events
        .iter()
        .map(|received| received.event.data.get("vlan").and_then(|v| v.as_u64()))
        .collect();
    tags.sort_unstable();
    assert_eq!(tags, [Some(100), Some(200)], "{events:#?}");
}

#[test]
fn priority_tag_counts_as_untagged() {
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
fn inner_tag_is_reported_and_separates_conflicts() {
    let site = Site::new("qinq");
    site.announce(0, &[100, 7]);
    site.announce(1, &[100, 8]);
    site.announce(1, &[100]);
    site.announce(1, &[7]);
    let events = site.events();
    assert!(events.is_empty(), "{events:#?}");
    site.announce(1, &[100, 7]);
    let raised = site.raised("10.244.2.10");
    assert_eq!(raised.event.data.get("vlan"), Some(&100.into()));
    assert_eq!(raised.event.data.get("inner_vlan"), Some(&7.into()));
    let conflict = raised.event.conflict().unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
}

#[test]
fn neighbour_discovery_is_separated_by_tags_too() {
    let site = Site::new("ndp");
    let advertise = |pod: usize, tag: u16| {
        let pod = &site.pods[pod];
        let address = "fd00::10".parse().unwrap();
        let frame = Frame::advertisement(pod.mac(), address, None, NaFlags::OVERRIDE).vlan(tag);
        FrameSender::open(pod).unwrap().send(&frame).unwrap();
    };
    advertise(0, 100);
    advertise(1, 200);
    let events = site.events();
    assert!(events.is_empty(), "{events:#?}");
    advertise(1, 100);
    let raised = site.raised("fd00::10");
    assert_eq!(raised.event.data.get("vlan"), Some(&100.into()));
}

/// An address assigned inside the pod is untagged; a tagged frame belongs to another network.
#[test]
fn tagged_claim_does_not_conflict_with_an_assigned_address() {
    let site = Site::new("inside");
    site.pods[0].add_address("10.244.2.10/32").unwrap();
    site.announce(1, &[100]);
    let events = site.events();
    assert!(events.is_empty(), "{events:#?}");
}
