//! A conflict that changes all the time is reported once a second, and lists a bounded number of claimants.

use super::*;

fn paced() -> Node {
    Node::with_settings(Settings {
        update_interval: Duration::from_secs(1),
        ..Settings::default()
    })
}

/// The present and the omitted claimants in each event about a conflict.
fn sizes(node: &mut Node) -> Vec<(&'static str, usize, usize)> {
    let effects = std::mem::take(&mut node.effects).into_iter();
    let event = |effect| match effect {
        Effect::Raised(c) => Some(("raised", c.present().count(), c.claimants_omitted)),
        Effect::Updated(c) => Some(("updated", c.present().count(), c.claimants_omitted)),
        Effect::Resolved(c) => Some(("resolved", c.present().count(), c.claimants_omitted)),
        _ => None,
    };
    effects.filter_map(event).collect()
}

#[test]
fn claimants_that_join_within_a_second_are_one_update() {
    let mut node = paced();
    for ifindex in 1..=20 {
        node.pod(ifindex);
        node.address(ifindex, "10.0.0.1");
    }
    // The first update comes at once.
    assert_eq!(sizes(&mut node), [("raised", 2, 0), ("updated", 3, 0)]);
    node.wait_secs(1);
    assert_eq!(sizes(&mut node), [("updated", 16, 4)]);
    node.wait_secs(600);
    assert_eq!(sizes(&mut node), [], "nothing changed");
    node.address_gone(20, "10.0.0.1");
    assert_eq!(sizes(&mut node), [("updated", 16, 3)]);
    for ifindex in 2..=19 {
        node.address_gone(ifindex, "10.0.0.1");
    }
    assert_eq!(sizes(&mut node), [("resolved", 1, 0)], "not delayed");
    node.wait_secs(600);
    assert_eq!(sizes(&mut node), []);
}

#[test]
fn delayed_update_has_the_latency_of_its_change() {
    let mut node = paced();
    for ifindex in 1..=4 {
        node.pod(ifindex);
        node.address(ifindex, "10.0.0.1");
    }
    node.effects.clear();
    node.wait_secs(2);
    let updated = node.reported_conflicts().remove(0);
    assert_eq!(updated.present().count(), 4);
    let event = updated.raised_at + Duration::from_secs(1);
    assert!(updated.decided_at >= event, "{updated:?}");
}

#[test]
fn change_that_waits_is_reported_by_the_next_run() {
    let mut node = paced();
    for ifindex in 1..=4 {
        node.pod(ifindex);
        node.address(ifindex, "10.0.0.1");
    }
    let records = serde_json::to_string(&node.engine.view().open_records(node.now)).unwrap();
    assert_eq!(sizes(&mut node), [("raised", 2, 0), ("updated", 3, 0)]);
    let mut next = Node::new();
    next.now = node.now;
    next.engine
        .restore(serde_json::from_str(&records).unwrap(), Vec::new());
    let addresses: &[&str] = &["10.0.0.1"];
    let pods: Vec<_> = (1..=4).map(|ifindex| (ifindex, addresses)).collect();
    next.resync(snapshot(&pods));
    assert_eq!(sizes(&mut next), [("updated", 4, 0)]);
}

#[test]
fn conflicts_list_two_claimants_once_all_list_many() {
    let mut node = Node::with_bounds(Bounds {
        listed_claimants: 24,
        ..Bounds::default()
    });
    node.pods(6);
    for n in 1..=6 {
        node.addresses(1..=6, &format!("10.0.0.{n}"));
    }
    let open = node.engine.view().conflicts(node.now);
    let listed: Vec<_> = open.iter().map(|c| c.claimants.len()).collect();
    assert_eq!(listed.len(), 6);
    assert_eq!(listed[0], 6);
    assert_eq!(listed[5], 2);
    assert_eq!(open[5].claimants_omitted, 4);
    assert!(listed.iter().sum::<usize>() <= 28, "{listed:?}");
    // There is room again.
    for n in 1..=5 {
        for ifindex in 2..=6 {
            node.address_gone(ifindex, &format!("10.0.0.{n}"));
        }
    }
    node.address_gone(6, "10.0.0.6");
    let open = node.engine.view().conflicts(node.now);
    assert_eq!(open[0].present().count(), 5);
}

/// The memory of a claimant in an open conflict, with what its last event had of it.
fn bytes(claimant: &Claimant) -> usize {
    let text = |detail: &EvidenceDetail| match detail {
        EvidenceDetail::OnInterface(text) | EvidenceDetail::Text(text) => text.capacity(),
        _ => 0,
    };
    let details = claimant.evidence.iter().filter_map(|e| e.detail.as_ref());
    size_of::<Claimant>()
        + size_of::<ClaimantDigest>()
        + claimant.device.capacity()
        + claimant.master.as_ref().map_or(0, String::capacity)
        + claimant.evidence.capacity() * size_of::<Evidence>()
        + details.map(text).sum::<usize>()
}

/// So the bound on listed claimants is one on bytes.
#[test]
fn claimant_with_all_evidence_that_there_can_be_needs_a_kilobyte() {
    const LONGEST: &str = "longest-device0";
    const ADDRESS: &str = "10.0.0.1";
    let mut node = Node::with_bridge(2);
    node.observe(Observation::Link(renamed(bridge(9), "longest-bridge0")));
    node.observe(Observation::Link(renamed(bridge_port(2, 9), LONGEST)));
    node.address(1, ADDRESS);
    // Each kind of fact once, and the former hardware addresses of the bridge's entry, all behind the device.
    let token = node.begin_snapshot();
    let internal = vec![internal_address(&ip(ADDRESS), LONGEST)];
    let pods = vec![PodAddresses {
        internal,
        ..pod_addresses(2, &[ADDRESS])
    }];
    let snapshot = Snapshot {
        pods,
        ..Snapshot::default()
    };
    node.finish_device_snapshot(token, 2, snapshot);
    node.observe(Observation::Frame(frame(2, ADDRESS)));
    node.neighbour(2, ADDRESS, mac(2), NudState::Permanent);
    let macs = [20, 21, 22, 23, 24];
    for n in macs {
        node.observe(Observation::Fdb(fdb(9, 2, mac(n))));
    }
    for n in macs.into_iter().cycle().take(30) {
        node.neighbour(9, ADDRESS, mac(n), NudState::Reachable);
    }
    let open = node.engine.view().conflicts(node.now);
    let claimant = open[0].present().find(|c| c.device == LONGEST).unwrap();
    assert_eq!(claimant.evidence.len(), 9, "{claimant:#?}");
    assert!(bytes(claimant) <= 1_024, "{}", bytes(claimant));
}
