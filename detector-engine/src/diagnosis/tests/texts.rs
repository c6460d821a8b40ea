//! Timelines, repairs and names.

use super::*;

#[test]
fn timeline_is_in_order_and_bounded() {
    let mut facts = node_reset();
    let lines: Vec<_> = timeline(&facts);
    assert!(lines.is_sorted_by_key(|entry| entry.at));
    let what: Vec<_> = lines.iter().map(|entry| entry.what.as_str()).collect();
    let position = |wanted| what.iter().position(|w| *w == wanted).unwrap();
    assert!(position("/etc/cni was created") < position("the directory was created"));
    facts.node.plugin_starts = known((1_000..1_100).map(plugin_start).collect());
    let bounded = timeline(&facts);
    assert_eq!(bounded.len(), MAX_TIMELINE);
    assert_eq!(bounded.last().unwrap().at, minute(1_099));
}

#[test]
fn timeline_leaves_out_reservations_of_other_addresses() {
    let mut facts = ipam_state_wiped();
    if let PoolState::HostLocal { removals, .. } = &mut pool_of(&mut facts).state {
        let removal = |n| Removal {
            item: RemovedItem::Reservation(format!("10.244.2.{n}").parse().unwrap()),
            at: minute(390),
        };
        *removals = known((1..=200).map(removal).collect());
    }
    let lines = timeline(&facts);
    let removals = lines.iter().filter(|entry| entry.at == minute(390));
    assert_eq!(removals.count(), 1);
}

#[test]
fn repair_keeps_new_pods_away_and_deletes_the_newest_first() {
    let repair = diagnose(&released_in_use()).repair;
    let expected = "Keep new pods off the node (kubectl cordon node-1). Delete shop/web-2, then recreate shop/web-1: the allocation and the route go with the newest.";
    assert!(repair.starts_with(expected), "{repair}");
    // A reservation is enough if the route stays.
    let mut bridged = released_in_use();
    if let Known::Value(route, _) = &mut bridged.route {
        route.device = "cni0".to_owned();
    }
    let repair = diagnose(&bridged).repair;
    assert!(repair.contains("or write its reservation"), "{repair}");
    let repair = diagnose(&ipam_state_wiped()).repair;
    assert!(repair.contains("before all 10 pods without"), "{repair}");
    let mut unordered = released_in_use();
    unordered.newest = not_checked();
    let repair = diagnose(&unordered).repair;
    assert!(repair.contains("Find out which pod came last"), "{repair}");
}

#[test]
fn repair_of_a_self_assigned_address_does_not_recreate_the_pod() {
    let repair = diagnose(&not_from_ipam()).repair;
    assert!(repair.contains("in shop/web-2"), "{repair}");
    assert!(
        repair.contains("Recreating the pod repeats it."),
        "{repair}"
    );
    assert!(!repair.contains("shop/web-1"), "{repair}");
}

#[test]
fn pod_with_an_address_of_the_node_is_deleted_first() {
    let mut facts = not_from_ipam();
    facts.finding = FindingKind::Conflict(ConflictKind::Host);
    facts.claimants.remove(0);
    facts.newest = absent();
    let diagnosis = diagnose(&facts);
    assert_eq!(diagnosis.cause, Cause::NotFromIpam);
    let repair = diagnosis.repair;
    assert!(repair.starts_with("Delete shop/web-2 first: "), "{repair}");
    assert!(
        repair.contains("Recreating the pod repeats it."),
        "{repair}"
    );
}

#[test]
fn address_that_flaps_is_allowed_already() {
    let mut facts = shared_on_purpose();
    facts.finding = FindingKind::Conflict(ConflictKind::Flapping);
    let repair = diagnose(&facts).repair;
    assert!(
        repair.contains("election") && !repair.contains("--allow"),
        "{repair}"
    );
}

#[test]
fn names_of_many_pods_are_counted() {
    let mut facts = shared_on_purpose();
    let claimant = facts.claimants[0].clone();
    facts.claimants = vec![claimant; 11];
    let summary = diagnose(&facts).summary;
    assert!(summary.contains("shop/web-1 and 7 more"), "{summary}");
}

#[test]
fn pod_that_is_not_known_is_named_by_its_device() {
    let mut facts = released_in_use();
    facts.claimants[0].pod = not_checked();
    let summary = diagnose(&facts).summary;
    assert!(summary.contains("the pod of veth-web-1"), "{summary}");
}

#[test]
fn times_are_rfc_3339() {
    assert_eq!(UnixTime(0).to_string(), "1970-01-01 00:00:00Z");
    let time = UnixTime(1_764_043_450_123_456_789);
    assert_eq!(time.to_string(), "2025-11-25 04:04:10Z");
}

#[test]
fn sources_have_the_form_of_the_contract() {
    let file = Source::File("/run/cni-ipam-state/kindnet".to_owned());
    assert_eq!(file.to_string(), "file:/run/cni-ipam-state/kindnet");
    assert_eq!(Source::Cri.to_string(), "cri");
}
