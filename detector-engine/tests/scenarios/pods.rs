//! Updates of open conflicts when the pods behind their devices become known.

use super::*;

/// The device of an index as the event loop names it.
fn device(node: &Node, ifindex: IfIndex) -> (IfIndex, u64) {
    (
        ifindex,
        node.engine.view().device(ifindex).unwrap().generation,
    )
}

impl Node {
    fn pods_known(&mut self, devices: &[(IfIndex, u64)]) {
        self.observe(Observation::PodsKnown(PodsKnown {
            devices: devices.to_vec(),
            ..PodsKnown::default()
        }));
    }
}

#[test]
fn late_pod_updates_the_open_conflicts_of_its_device() {
    let mut node = Node::with_pods(4);
    for (ifindex, address) in [
        (1, "10.0.0.1"),
        (2, "10.0.0.1"),
        (3, "10.0.0.2"),
        (4, "10.0.0.2"),
    ] {
        node.address(ifindex, address);
    }
    let raised = node.engine.view().conflicts_of(ip("10.0.0.1"), node.now);
    let latency = raised[0].updated_at.since(raised[0].decided_at);
    node.effects.clear();
    let known = device(&node, 2);
    node.pods_known(&[known]);
    let [Effect::Updated(conflict)] = node.effects.as_slice() else {
        panic!("{:?}", node.effects)
    };
    assert_eq!(conflict.address, ip("10.0.0.1"));
    assert_eq!(conflict.updated_at, node.now);
    assert_eq!(
        conflict.updated_at.since(conflict.decided_at),
        latency,
        "the detection latency stays"
    );
    // What is listed and persisted is what was reported.
    let open = node.engine.view().conflicts_of(conflict.address, node.now);
    assert_eq!(open.as_slice(), std::slice::from_ref(&**conflict));
    assert!(node.engine.view().open_record(conflict).is_some());
}

#[test]
fn late_pod_updates_no_resolved_conflict() {
    let mut node = Node::with_duplicate();
    let known = device(&node, 1);
    node.address_gone(1, "10.0.0.1");
    node.effects.clear();
    node.pods_known(&[known]);
    assert!(node.effects.is_empty(), "{:?}", node.effects);
}

#[test]
fn late_pod_of_an_earlier_device_updates_nothing() {
    let mut node = Node::with_duplicate();
    node.effects.clear();
    let (ifindex, generation) = device(&node, 1);
    node.pods_known(&[(ifindex, generation + 1), (99, generation)]);
    assert!(node.effects.is_empty(), "{:?}", node.effects);
}
