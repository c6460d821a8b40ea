//! Ports of switches other than bridges.

use super::*;

fn open_vswitch(ifindex: u32) -> Link {
    Link {
        name: "ovs-system".to_owned(),
        kind: LinkKind::Switch,
        ..uplink(ifindex)
    }
}

#[test]
fn ports_of_another_switch_share_a_network() {
    let mut node = Node::with_pods(1);
    node.link(open_vswitch(9));
    for device in 2..=3 {
        node.link(enslaved(pod(device), 9));
    }
    node.addresses([1, 2], "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    node.address(3, "10.0.0.1");
    assert_eq!(node.conflict_networks(), ["bridge:ovs-system"]);
}

const WAIT: Duration = Duration::from_secs(2);

/// Three ports of Open vSwitch with one address, which wait for the names of their networks.
fn ports_that_wait() -> Node {
    let mut node = Node::with_settings(Settings {
        cni_network_wait: WAIT,
        ..Settings::default()
    });
    node.link(open_vswitch(9));
    for device in 1..=3 {
        node.link(enslaved(pod(device), 9));
        node.address(device, "10.0.0.1");
    }
    node
}

impl Node {
    fn name_network(&mut self, ifindex: IfIndex, name: &str) {
        let generation = self.engine.view().device(ifindex).unwrap().generation;
        let named = [(ifindex, generation, name.into())];
        self.observe(Observation::NetworksKnown(named.to_vec()));
    }
}

#[test]
fn ports_of_a_switch_wait_for_the_names_of_their_networks() {
    let mut node = ports_that_wait();
    node.name_network(1, "red");
    node.name_network(2, "blue");
    assert!(node.conflict_events().is_empty());
    node.name_network(3, "blue");
    node.expect(["raised 10.0.0.1 duplicate certain: veth2 veth3"]);
    assert_eq!(node.conflict_networks(), ["cni:blue"]);
}

#[test]
fn ports_without_a_name_in_time_are_in_the_network_of_their_switch() {
    let mut node = ports_that_wait();
    node.name_network(1, "red");
    node.wait_secs(3);
    assert_eq!(node.conflict_networks(), ["bridge:ovs-system"]);
    node.conflict_events();
    node.name_network(2, "red");
    node.expect([
        "resolved 10.0.0.1 duplicate certain: veth3 left veth2(address_removed)",
        "raised 10.0.0.1 duplicate certain: veth1 veth2",
    ]);
}

#[test]
fn conflict_in_a_cni_network_continues_after_a_restart() {
    let mut node = ports_that_wait();
    for port in 1..=2 {
        node.name_network(port, "red");
    }
    let id = node.engine.view().conflicts(node.now)[0].id;
    let mut next = Node::with_settings(Settings {
        cni_network_wait: WAIT,
        ..Settings::default()
    });
    next.engine
        .restore(node.engine.view().open_records(node.now), Vec::new());
    let mut dump = snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
    for link in &mut dump.links {
        link.master = Some(9);
    }
    dump.links.push(open_vswitch(9));
    next.resync(dump);
    assert!(next.conflict_events().is_empty());
    assert_eq!(next.engine.view().conflicts(next.now)[0].id, id);
}
