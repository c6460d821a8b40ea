//! Tests of which conflicts within a node are published, and with what.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use detector_engine::{
    AnomalyId, Beginning, ConflictId, Evidence, EvidenceKind, LeaveReason, Mac, Network, Seen,
    Timestamp,
};
use detector_event::{Via, samples};

use super::*;
use crate::process::clock;

const ADDRESS: &str = "10.244.1.5";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The device `veth<n>`, which has the address assigned.
fn claimant(n: u32) -> Claimant {
    let id = ClaimantId::Device(n, 1);
    Claimant {
        mac: Some(Mac([2, 0, 0, 0, 0, 1])),
        evidence: [EvidenceKind::Arp, EvidenceKind::Address]
            .map(evidence)
            .into(),
        ..Claimant::new(id, format!("veth{n}"), n, Timestamp(1))
    }
}

fn evidence(kind: EvidenceKind) -> Evidence {
    Evidence {
        kind,
        seen: Seen::once(Timestamp(1), Beginning::default()),
        mac: None,
        detail: None,
    }
}

/// The conflict whose id begins with this number, between `veth1` and `veth2`.
fn conflict(id: u32, address: &str) -> Conflict {
    Conflict {
        id: ConflictId(u128::from(id) << 96),
        traffic_goes_to: Some("veth1".to_owned()),
        claimants: vec![claimant(1), claimant(2)],
        ..samples::conflict(address)
    }
}

/// The pod `shop/web-<n>` of device `n`.
fn pod_of(claimant: &Claimant) -> Option<Arc<Pod>> {
    let pod = Pod::named("shop", format!("web-{}", claimant.ifindex), Via::Cri);
    Some(Arc::new(pod))
}

impl ConflictSelector {
    /// The changes after these are the open conflicts of an address.
    fn changes(&mut self, address: &str, conflicts: &[Conflict]) -> Vec<ConflictUpdate> {
        self.changes_explained(address, conflicts, None)
    }

    /// The same if the cause of all is known.
    fn changes_explained(
        &mut self,
        address: &str,
        conflicts: &[Conflict],
        cause: Option<ConflictCause>,
    ) -> Vec<ConflictUpdate> {
        let known = PodsAndCauses {
            pod_of: &pod_of,
            cause_of: &|_| cause.clone(),
        };
        self.update(ip(address), conflicts, &known, &clock::moment())
    }
}

/// The names, and the states; `None`: no longer published.
fn states(updates: &[ConflictUpdate]) -> Vec<(&str, Option<ConflictState>)> {
    let state = |update: &ConflictUpdate| update.spec.as_ref().map(|spec| spec.state);
    updates.iter().map(|u| (&*u.name, state(u))).collect()
}

#[test]
fn conflict_is_published_with_its_pods_until_it_is_over() {
    let mut selector = ConflictSelector::default();
    let updates = selector.changes(ADDRESS, &[conflict(0xab, ADDRESS)]);
    let [
        ConflictUpdate {
            name,
            spec: Some(spec),
        },
    ] = &updates[..]
    else {
        panic!("{updates:?}");
    };
    assert_eq!(name, "10.244.1.5-000000ab");
    assert_eq!(spec.scope, ConflictScope::Node);
    assert_eq!(spec.state, ConflictState::Active);
    assert_eq!(spec.pods, "shop/web-1, shop/web-2");
    let parties = spec.claimants.iter().map(|c| &c.party);
    let parties: Vec<_> = parties.map(|p| (&*p.device, &*p.pod, p.evidence)).collect();
    let strongest = Some(EvidenceKind::Address);
    assert_eq!(
        parties,
        [("veth1", "web-1", strongest), ("veth2", "web-2", strongest)]
    );
    let updates = selector.changes(ADDRESS, &[]);
    let over = Some(ConflictState::Resolved);
    assert_eq!(states(&updates), [("10.244.1.5-000000ab", over)]);
    let end = updates[0].spec.as_ref().unwrap();
    assert!(end.resolved_at >= spec.raised_at);
    assert_eq!(end.pods, spec.pods);
    assert_eq!(selector.changes(ADDRESS, &[]), []);
}

#[test]
fn name_is_one_of_the_api_and_of_no_other_object() {
    for (address, name) in [
        ("10.0.0.1", "10.0.0.1-0000000a"),
        ("fd00::5", "fd00--5-0000000a"),
        ("fd00::", "fd00--0-0000000a"),
    ] {
        let mut selector = ConflictSelector::default();
        let updates = selector.changes(address, &[conflict(10, address)]);
        assert_eq!(states(&updates), [(name, Some(ConflictState::Active))]);
        assert!(name.parse::<Subject>().is_err(), "{name}");
    }
}

#[test]
fn conflicts_of_one_address_in_two_networks_are_two_objects() {
    let mut selector = ConflictSelector::default();
    let mut other = conflict(2, ADDRESS);
    other.network = Network::Bridge("br0".to_owned());
    let updates = selector.changes(ADDRESS, &[conflict(1, ADDRESS), other.clone()]);
    assert_eq!(updates.len(), 2);
    let updates = selector.changes(ADDRESS, &[other]);
    let over = Some(ConflictState::Resolved);
    assert_eq!(states(&updates), [("10.244.1.5-00000001", over)]);
}

#[test]
fn what_a_pod_can_change_as_often_as_it_likes_is_no_change() {
    let mut selector = ConflictSelector::default();
    let before = conflict(1, ADDRESS);
    selector.changes(ADDRESS, std::slice::from_ref(&before));
    let mut now = before.clone();
    now.traffic_goes_to = Some("veth2".to_owned());
    now.updated_at = Timestamp(9);
    now.claimants.swap(0, 1);
    for claimant in &mut now.claimants {
        claimant.mac = Some(Mac([2, 0, 0, 0, 0, 9]));
        claimant.evidence[0].seen.last = Timestamp(9);
    }
    assert_eq!(selector.changes(ADDRESS, &[now]), []);
}

#[test]
fn cause_is_a_change_once() {
    let mut selector = ConflictSelector::default();
    let conflict = [conflict(1, ADDRESS)];
    selector.changes(ADDRESS, &conflict);
    let cause = detector_fleet::samples::cause();
    let updates = selector.changes_explained(ADDRESS, &conflict, Some(cause.clone()));
    let explained = updates[0].spec.clone().unwrap();
    assert_eq!(explained.cause.as_deref(), Some(&cause));
    let reworded = ConflictCause {
        summary: "Another sentence.".to_owned(),
        ..cause.clone()
    };
    for now in [Some(cause), Some(reworded), None] {
        assert_eq!(selector.changes_explained(ADDRESS, &conflict, now), []);
    }
    let end = selector.changes(ADDRESS, &[]).remove(0).spec.unwrap();
    assert_eq!(end.cause, explained.cause);
}

#[test]
fn claimant_that_comes_or_leaves_is_a_change() {
    let mut selector = ConflictSelector::default();
    let mut conflict = conflict(1, ADDRESS);
    selector.changes(ADDRESS, std::slice::from_ref(&conflict));
    conflict.claimants.push(claimant(3));
    let updates = selector.changes(ADDRESS, std::slice::from_ref(&conflict));
    let pods = |updates: &[ConflictUpdate]| updates[0].spec.as_ref().unwrap().pods.clone();
    assert_eq!(pods(&updates), "shop/web-1, shop/web-2, shop/web-3");
    conflict.claimants[0].left = Some(LeaveReason::AddressRemoved);
    let updates = selector.changes(ADDRESS, &[conflict]);
    assert_eq!(pods(&updates), "shop/web-2, shop/web-3");
}

#[test]
fn victims_of_a_sweep_are_not_published() {
    let mut selector = ConflictSelector::default();
    let mut victim = conflict(1, ADDRESS);
    victim.sweep = Some(AnomalyId(7));
    assert_eq!(selector.changes(ADDRESS, std::slice::from_ref(&victim)), []);
    victim.sweep = None;
    assert_eq!(
        selector
            .changes(ADDRESS, std::slice::from_ref(&victim))
            .len(),
        1
    );
    victim.sweep = Some(AnomalyId(7));
    let updates = selector.changes(ADDRESS, &[victim]);
    assert_eq!(states(&updates), [("10.244.1.5-00000001", None)]);
}

#[test]
fn published_conflicts_are_bounded_and_the_next_one_gets_the_room() {
    let mut selector = ConflictSelector::default();
    let address = |n: u32| format!("10.244.2.{n}");
    let count = u32::try_from(MAX_PUBLISHED).unwrap();
    for n in 0..count {
        assert_eq!(
            selector
                .changes(&address(n), &[conflict(n, &address(n))])
                .len(),
            1
        );
    }
    assert!(!selector.take_has_room());
    assert_eq!(selector.changes(ADDRESS, &[conflict(1, ADDRESS)]), []);
    assert!(!selector.take_has_room());
    // One that is published still changes.
    let mut more = conflict(0, &address(0));
    more.claimants.push(claimant(3));
    assert_eq!(selector.changes(&address(0), &[more]).len(), 1);
    selector.changes(&address(0), &[]);
    assert!(selector.take_has_room());
    assert!(!selector.take_has_room(), "once");
    assert_eq!(selector.changes(ADDRESS, &[conflict(1, ADDRESS)]).len(), 1);
}

#[test]
fn addresses_are_found_by_the_devices_of_their_claimants() {
    let mut selector = ConflictSelector::default();
    selector.changes(ADDRESS, &[conflict(1, ADDRESS)]);
    let found = |selector: &ConflictSelector, device| selector.addresses_on(&[device]).count();
    assert_eq!(found(&selector, (2, 1)), 1);
    assert_eq!(
        found(&selector, (2, 2)),
        0,
        "another device of the same index"
    );
    assert_eq!(found(&selector, (3, 1)), 0);
}
