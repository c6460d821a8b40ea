//! Which claimant records give an address to, and the drift about one that IPAM has allocated to another pod.

use super::*;
use crate::{anomaly_fixtures::*, restart::restart};

/// A pod with this sandbox, to which its records give these addresses.
pub(super) fn known(sandbox: &str, addresses: &[&str]) -> KnownPod {
    KnownPod {
        name: format!("shop/{sandbox}"),
        sandbox: Some(sandbox.into()),
        addresses: addresses.iter().map(|address| ip(address)).collect(),
        ..KnownPod::default()
    }
}

impl Node {
    pub(super) fn know(&mut self, ifindex: IfIndex, pod: KnownPod) {
        let generation = self.engine.view().device(ifindex).unwrap().generation;
        self.observe(Observation::PodsKnown(PodsKnown {
            records: vec![(ifindex, generation, pod)],
            ..PodsKnown::default()
        }));
    }

    /// Reads the pool, in which these addresses are allocated to these sandboxes.
    fn read_owners(&mut self, owners: &[(&str, &str)]) {
        self.tick();
        let mut pool = host_local_pool(self.now, &[], Completeness::Complete);
        for (address, owner) in owners {
            pool.allocated.insert(ip(address), allocation_to(owner));
        }
        self.update_pool(pool);
    }

    /// Of each present claimant of the only conflict: whether it is rightful, and whether the allocation is its pod's.
    fn records(&self) -> Vec<(Option<bool>, Option<bool>)> {
        let conflicts = self.engine.view().conflicts(self.now);
        assert_eq!(conflicts.len(), 1);
        let claimants = conflicts[0].present();
        claimants.map(|c| (c.rightful, c.allocated)).collect()
    }

    fn drift(&self) -> Anomaly {
        let mut open = self.engine.view().anomalies();
        assert_eq!(open.len(), 1, "{open:?}");
        open.remove(0)
    }
}

/// Pod 1 has assigned 10.0.0.5 to itself, which IPAM then gives to pod 2.
fn squatted() -> Node {
    let mut node = synced_node();
    node.know(1, known("squatter", &["10.7.0.1"]));
    node.address(1, "10.0.0.5");
    node.read_owners(&[]);
    node.wait_secs(3);
    node.read_owners(&[]);
    assert_eq!(node.drift().cause, AnomalyCause::NotAllocated);
    node.read_owners(&[("10.0.0.5", "legit")]);
    node.address(2, "10.0.0.5");
    node
}

#[test]
fn pod_that_ipam_gave_the_address_is_rightful() {
    let mut node = squatted();
    assert_eq!(
        node.records(),
        [(Some(false), Some(false)), (None, None)],
        "the pod of the second is not known yet"
    );
    node.effects.clear();
    node.know(2, known("legit", &["10.0.0.5"]));
    assert_eq!(
        node.records(),
        [(Some(false), Some(false)), (Some(true), Some(true))]
    );
    assert_eq!(node.conflict_events().len(), 1);
    node.know(2, known("legit", &["10.0.0.5"]));
    assert_eq!(node.conflict_events(), [""; 0], "nothing new");
}

#[test]
fn drift_about_a_squatter_stays_open_as_owned_by_another() {
    let mut node = squatted();
    node.know(2, known("legit", &["10.0.0.5"]));
    let id = node.drift().id;
    node.effects.clear();
    node.wait_secs(3);
    node.read_owners(&[("10.0.0.5", "legit")]);
    let events = node.anomaly_events();
    assert!(
        events.contains(&"updated ipam_drift 10.0.0.5".to_owned()),
        "{events:?}"
    );
    let drift = node.drift();
    assert_eq!((drift.id, drift.cause), (id, AnomalyCause::OwnedByAnother));
    assert_eq!(drift.holder.unwrap().ifindex, 1);
    assert_eq!(drift.also_on, [""; 0], "the owner's device is none of them");
    assert_eq!(drift.owner.as_deref(), Some("legit"));
    assert!(drift.detail.contains("shop/legit"), "{}", drift.detail);
    node.address_gone(1, "10.0.0.5");
    assert_eq!(
        node.anomaly_events(),
        ["resolved ipam_drift 10.0.0.5 allocated"],
        "who has it now is the owner"
    );
}

#[test]
fn drift_is_raised_for_an_allocation_of_another_sandbox() {
    let mut node = synced_node();
    node.know(1, known("old", &["10.0.0.5"]));
    node.address(1, "10.0.0.5");
    node.read_owners(&[("10.0.0.5", "another")]);
    assert_eq!(
        node.anomaly_events(),
        [""; 0],
        "a pod that is being deleted has its address for a moment longer"
    );
    node.wait_secs(3);
    node.read_owners(&[("10.0.0.5", "another")]);
    node.expect_anomalies(["read pool", "raised ipam_drift 10.0.0.5"]);
    // The allocation of the pod itself is written again.
    node.read_owners(&[("10.0.0.5", "old")]);
    node.expect_anomalies(["resolved ipam_drift 10.0.0.5 allocated"]);
}

#[test]
fn unknown_pod_is_not_accused_of_another_sandbox() {
    let mut node = synced_node();
    node.address(1, "10.0.0.5");
    node.read_owners(&[("10.0.0.5", "another")]);
    node.wait_secs(3);
    node.read_owners(&[("10.0.0.5", "another")]);
    assert_eq!(node.anomaly_events(), [""; 0]);
}

#[test]
fn allocation_without_an_owner_yet_does_not_end_drift() {
    let mut node = synced_node();
    node.know(1, known("squatter", &["10.7.0.1"]));
    node.address(1, "10.0.0.5");
    node.wait_secs(3);
    node.read_owners(&[]);
    node.wait_secs(3);
    node.read_owners(&[]);
    assert_eq!(node.drift().cause, AnomalyCause::NotAllocated);
    node.tick();
    let mut pool = host_local_pool(node.now, &[], Completeness::Complete);
    pool.allocated.insert(ip("10.0.0.5"), Allocation::default());
    node.update_pool(pool.clone());
    node.read_owners(&[("10.0.0.5", "legit")]);
    node.wait_secs(3);
    node.read_owners(&[("10.0.0.5", "legit")]);
    assert_eq!(node.drift().cause, AnomalyCause::OwnedByAnother);
    // A file that stays without an owner is an allocation nevertheless.
    pool.read_at = node.now;
    node.update_pool(pool);
    assert_eq!(node.engine.view().anomalies().len(), 1);
    node.wait_secs(3);
    assert_eq!(node.engine.view().anomalies(), []);
}

#[test]
fn drift_whose_owner_leaves_is_unallocated_again() {
    let mut node = squatted();
    node.know(2, known("legit", &["10.0.0.5"]));
    node.wait_secs(3);
    node.read_owners(&[("10.0.0.5", "legit")]);
    assert_eq!(node.drift().cause, AnomalyCause::OwnedByAnother);
    node.remove_link(2);
    node.read_owners(&[]);
    node.wait_secs(3);
    node.read_owners(&[]);
    let drift = node.drift();
    assert_eq!(drift.cause, AnomalyCause::NotAllocated);
    assert_eq!(drift.owner, None);
}

#[test]
fn both_pods_of_a_wipe_are_rightful() {
    let mut node = synced_node();
    for (ifindex, sandbox) in [(1, "old"), (2, "new")] {
        node.know(ifindex, known(sandbox, &["10.0.0.5"]));
    }
    node.address(1, "10.0.0.5");
    node.read_owners(&[("10.0.0.5", "new")]);
    node.address(2, "10.0.0.5");
    assert_eq!(
        node.records(),
        [(Some(true), Some(false)), (Some(true), Some(true))]
    );
    node.read_owners(&[]);
    assert_eq!(
        node.records(),
        [(Some(true), Some(false)), (Some(true), Some(false))]
    );
}

#[test]
fn match_by_address_makes_no_pod_rightful() {
    let mut node = synced_node();
    let matched = KnownPod {
        sandbox: None,
        is_matched_by_address: true,
        ..known("any", &["10.0.0.5"])
    };
    node.know(1, matched);
    node.addresses([1, 2], "10.0.0.5");
    assert_eq!(node.records(), [(None, None), (None, None)]);
}

#[test]
fn restart_keeps_what_records_had_until_they_are_known_again() {
    let mut node = squatted();
    node.know(2, known("legit", &["10.0.0.5"]));
    let before = node.records();
    let mut node = restart(&node);
    node.resync(snapshot(&[
        (1, &["10.7.0.1", "10.0.0.5"]),
        (2, &["10.7.0.2", "10.0.0.5"]),
    ]));
    assert_eq!(node.records(), before);
    // Each source is known again at another time.
    node.know(2, known("legit", &["10.0.0.5"]));
    node.read_owners(&[("10.0.0.5", "legit")]);
    node.know(1, known("squatter", &["10.7.0.1"]));
    assert_eq!(node.records(), before);
    assert_eq!(node.conflict_events(), [""; 0]);
}
