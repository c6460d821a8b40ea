//! What a pod writes proves nothing against another pod (`docs/detection-rules.md`, section 3):
//! hardware addresses in frames and neighbour entries are values that the sender chose.

use super::*;

const VICTIM: &str = "10.0.0.1";

/// Ports 1 (the victim, which has the address), 2 (an innocent pod) and 3 (the attacker) of a
/// bridge, whose forwarding table has each port's hardware address.
fn node_with_victim() -> Node {
    let mut node = Node::with_bridge(3);
    for (port, address) in [(1, VICTIM), (2, "10.0.0.2"), (3, "10.0.0.3")] {
        node.read_pod_addresses(port, &[address]);
    }
    node
}

/// Pods whose stacks are programs: their namespaces show no address.
fn node_with_programs() -> Node {
    let mut node = Node::with_bridge(3);
    node.read_pod_addresses(1, &[VICTIM]);
    node.read_pod_addresses(2, &[]);
    node.read_pod_addresses(3, &[]);
    node
}

/// The attacker's frame, with the hardware address of another pod.
fn forge(node: &mut Node, address: &str, mac: Mac) {
    node.observe(Observation::Frame(FrameClaim {
        mac,
        ..frame(3, address)
    }));
}

fn flap(node: &mut Node, address: &str, bridge: IfIndex) {
    for port in [1, 2, 1] {
        node.neighbour(bridge, address, mac(port), NudState::Stale);
    }
}

#[test]
fn entries_that_a_frame_flips_name_nobody() {
    for address in [VICTIM, "2001:db8::1"] {
        let mut node = node_with_victim();
        node.address(1, address);
        node.address(2, "2001:db8::2");
        flap(&mut node, address, 9);
        node.neighbour(9, address, mac(2), NudState::Reachable);
        assert!(node.conflict_events().is_empty(), "{address}");
    }
}

#[test]
fn sender_is_the_claimant_and_not_the_hardware_address() {
    for mut node in [node_with_victim(), node_with_programs()] {
        for port in [1, 2, 1, 2] {
            forge(&mut node, VICTIM, mac(port));
            node.neighbour(9, VICTIM, mac(port), NudState::Stale);
        }
        node.neighbour(9, VICTIM, mac(2), NudState::Reachable);
        node.expect_open(["10.0.0.1 duplicate observed: veth1 veth3"]);
        // Nor is it once the attacker sends with its own.
        forge(&mut node, VICTIM, mac(3));
        node.expect_open(["10.0.0.1 duplicate observed: veth1 veth3"]);
    }
}

#[test]
fn address_of_the_node_is_not_claimed_by_an_innocent_pod() {
    let mut node = node_with_victim();
    node.host(9, "10.0.0.254");
    flap(&mut node, "10.0.0.254", 9);
    assert!(node.conflict_events().is_empty());
    forge(&mut node, "10.0.0.254", mac(2));
    node.expect_open(["10.0.0.254 host observed: node/br9 veth3 -> br9"]);
}

#[test]
fn sweep_names_the_sender_alone() {
    let mut node = Node::new();
    node.resync(bridge_dump());
    for n in 1..=5 {
        let address = format!("10.0.1.{n}");
        node.address(1, &address);
        for port in [1, 2, 1] {
            forge(&mut node, &address, mac(port));
            node.neighbour(9, &address, mac(port), NudState::Stale);
        }
    }
    let sweeps: Vec<_> = node
        .engine
        .view()
        .anomalies()
        .into_iter()
        .filter_map(|anomaly| anomaly.holder)
        .map(|holder| holder.device)
        .collect();
    assert_eq!(sweeps, ["veth3"]);
}

#[test]
fn entry_from_before_the_start_names_no_port() {
    for program in [false, true] {
        let mut dump = bridge_dump();
        if program {
            dump.pods[1].addresses = Some(Vec::new());
        }
        dump.neighbours = vec![neighbour(9, VICTIM, mac(2), NudState::Reachable)];
        let mut node = Node::new();
        node.resync(dump);
        let expected: &[&str] = if program {
            &["10.0.0.1 duplicate observed: veth1 br9/02:00:00:00:00:02"]
        } else {
            &[]
        };
        assert_eq!(node.open_conflicts(), expected, "{program}");
        forge(&mut node, VICTIM, mac(2));
        let conflicts = node.engine.view().conflicts(node.now);
        let present: Vec<_> = conflicts[0].present().map(|c| &*c.device).collect();
        assert_eq!(present, ["veth1", "veth3"]);
    }
}

#[test]
fn entry_of_a_silent_program_counts_for_it_once_it_speaks() {
    let mut node = node_with_programs();
    node.neighbour(9, VICTIM, mac(2), NudState::Reachable);
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 br9/02:00:00:00:00:02"]);
    node.frame(2, VICTIM);
    node.expect([
        "updated 10.0.0.1 duplicate observed: veth1 veth2 left br9/02:00:00:00:00:02(expired)",
    ]);
}

/// A frame with the victim's hardware address as its source moves the forwarding entry.
#[test]
fn permanent_entry_stays_with_the_interface_that_has_its_mac() {
    let mut node = node_with_victim();
    node.neighbour(9, VICTIM, mac(1), NudState::Permanent);
    node.fdb(9, 3, mac(1));
    assert!(node.conflict_events().is_empty());
    // One that names another pod is a claim of that pod, wherever its hardware address was seen.
    node.neighbour(9, VICTIM, mac(2), NudState::Permanent);
    node.fdb(9, 3, mac(2));
    assert_eq!(
        node.conflict_events().last().unwrap(),
        "updated 10.0.0.1 duplicate certain: veth1 br9/02:00:00:00:00:02 left veth2(expired)"
    );
}

/// Two ports with one hardware address: the entry of each address follows the last sender.
#[test]
fn shared_mac_is_no_address_conflict() {
    let mut node = Node::with_bridge(2);
    for (port, address) in [(1, VICTIM), (2, "10.0.0.2")] {
        let token = node.begin_snapshot();
        node.finish_device_snapshot(token, port, pod_with_mac(port, mac(1), address));
    }
    for state in [NudState::Reachable, NudState::Permanent] {
        for address in [VICTIM, "10.0.0.2"] {
            node.neighbour(9, address, mac(1), state);
            for port in [1, 2, 1, 2] {
                node.fdb(9, port, mac(1));
            }
        }
    }
    assert!(node.conflict_events().is_empty());
}

#[test]
fn entries_written_by_others_take_no_place_of_a_port() {
    let mut node = node_with_programs();
    node.neighbour(9, "10.0.0.7", mac(2), NudState::Reachable);
    let holders = |update| match update {
        Some(ClaimedUpdate::Changed(entries)) => entries,
        Some(ClaimedUpdate::All(entries)) => {
            let entries = entries.into_iter();
            entries
                .map(|(address, holder)| (address, Some(holder)))
                .collect()
        }
        None => Vec::new(),
    };
    let entries = holders(node.engine.take_claimed_update());
    assert!(entries.contains(&(ip("10.0.0.7"), Some(AddressHolder::Device(9)))));
    node.frame(2, "10.0.0.7");
    let entries = holders(node.engine.take_claimed_update());
    assert!(entries.contains(&(ip("10.0.0.7"), Some(AddressHolder::Device(2)))));
}
