//! The hardware addresses of the pods' ends: from notifications, from reads, and in events.

use super::*;

/// A conflict's type of event, and the hardware addresses of its claimants.
fn reported_macs(node: &mut Node) -> Vec<(&'static str, Vec<Option<Mac>>)> {
    let effects = std::mem::take(&mut node.effects);
    let macs = |conflict: Arc<Conflict>| conflict.claimants.iter().map(|c| c.mac).collect();
    let reported = effects.into_iter().filter_map(|effect| match effect {
        Effect::Raised(conflict) => Some(("raised", macs(conflict))),
        Effect::Updated(conflict) => Some(("updated", macs(conflict))),
        Effect::Resolved(conflict) => Some(("resolved", macs(conflict))),
        _ => None,
    });
    reported.collect()
}

#[test]
fn mac_of_a_notification_is_in_the_raising_event() {
    let mut node = Node::with_pods(2);
    for device in [1, 2] {
        node.pod_link(device, mac(device.try_into().unwrap()));
        node.address(device, "10.0.0.1");
    }
    let macs = [1, 2].map(|n| Some(mac(n))).to_vec();
    assert_eq!(reported_macs(&mut node), [("raised", macs)]);
}

/// The hardware addresses of the claimants of the only conflict.
fn shown_macs(node: &Node) -> Vec<Option<Mac>> {
    let conflicts = node.engine.view().conflicts(node.now);
    conflicts[0].claimants.iter().map(|c| c.mac).collect()
}

#[test]
fn mac_of_the_first_read_is_in_the_raising_event() {
    let mut node = Node::with_pods(2);
    for device in [1, 2] {
        node.read_pod_addresses(device, &[]);
        node.address(device, "10.0.0.1");
    }
    let macs = [1, 2].map(|n| Some(mac(n))).to_vec();
    assert_eq!(reported_macs(&mut node), [("raised", macs)]);
}

/// The address was reported before the first read was complete.
#[test]
fn mac_that_becomes_known_afterwards_is_no_second_event() {
    let mut node = Node::with_duplicate();
    assert_eq!(reported_macs(&mut node), [("raised", vec![None, None])]);
    node.pod_link(2, mac(2));
    assert_eq!(shown_macs(&node), [None, Some(mac(2))]);
    let token = node.begin_snapshot();
    node.finish_device_snapshot(token, 1, pod_with_mac(1, mac(1), "10.0.0.1"));
    assert_eq!(shown_macs(&node), [Some(mac(1)), Some(mac(2))]);
    assert_eq!(reported_macs(&mut node), []);
}

#[test]
fn changed_mac_is_read_and_reported() {
    let mut node = Node::with_duplicate();
    for device in [1, 2] {
        node.pod_link(device, mac(device.try_into().unwrap()));
    }
    node.effects.clear();
    node.pod_link(2, mac(7));
    assert_eq!(node.device_effects(), ["read veth2#2"]);
    let token = node.begin_snapshot();
    node.finish_device_snapshot(token, 2, pod_with_mac(2, mac(7), "10.0.0.1"));
    let macs = vec![Some(mac(1)), Some(mac(7))];
    assert_eq!(reported_macs(&mut node), [("updated", macs)]);
    node.pod_link(2, mac(7));
    assert_eq!(reported_macs(&mut node), []);
}

#[test]
fn pod_that_changes_its_mac_all_the_time_is_read_at_a_bounded_rate() {
    let mut node = Node::with_duplicate();
    node.pod_link(2, mac(2));
    node.effects.clear();
    for n in 0..60_000_u32 {
        node.pod_link(2, mac(3 + u8::try_from(n % 100).unwrap()));
        node.wait(Duration::ZERO);
    }
    // Eight at once, and one every ten seconds.
    assert_eq!(node.device_effects().len(), 8 + 5);
    assert_eq!(reported_macs(&mut node), []);
    // The last change is not missed.
    node.wait_secs(10);
    assert_eq!(node.device_effects(), ["read veth2#2"]);
}

#[test]
fn older_read_does_not_undo_the_mac_of_a_notification() {
    let mut node = Node::with_duplicate();
    let token = node.begin_snapshot();
    node.pod_link(1, mac(7));
    node.effects.clear();
    node.finish_device_snapshot(token, 1, pod_with_mac(1, mac(1), "10.0.0.1"));
    assert_eq!(reported_macs(&mut node), []);
    assert_eq!(shown_macs(&node)[0], Some(mac(7)));
}

#[test]
fn mac_of_a_pod_is_not_that_of_its_successor() {
    let mut node = Node::with_pods(2);
    for device in [1, 2] {
        node.pod_link(device, mac(device.try_into().unwrap()));
    }
    node.address(1, "10.0.0.1");
    node.observe(Observation::NamespaceIdFreed(peer(2).nsid));
    node.remove_link(2);
    node.pod(2);
    node.address(2, "10.0.0.1");
    assert_eq!(
        reported_macs(&mut node),
        [("raised", vec![Some(mac(1)), None])]
    );
}

#[test]
fn mac_is_not_taken_from_notifications_of_an_uncertain_peer() {
    let mut node = Node::with_duplicate();
    node.effects.clear();
    node.observe(Observation::NotificationsLost);
    node.pod_link(1, mac(1));
    assert_eq!(reported_macs(&mut node), []);
}

#[test]
fn macs_that_change_in_frames_are_no_updates() {
    let mut node = Node::with_observed_duplicate();
    node.effects.clear();
    for n in 10..20 {
        node.observe(Observation::Frame(FrameClaim {
            mac: mac(n),
            ..frame(1, "10.0.0.1")
        }));
    }
    assert_eq!(node.conflict_events(), [""; 0]);
}
