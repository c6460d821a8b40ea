//! What is not yet a conflict: IPAM's books against live addresses, pods that ask in vain, routes that lead astray.

use std::{collections::BTreeMap, sync::Arc};

use super::*;
use crate::engine::anomaly::{
    Allocation, ChangedAddresses, Completeness, Coverage, Ipam, Pool, PoolId, PoolSource,
    PoolUpdate,
};

/// Completeness of 10.0.0.0/24 that hold these addresses.
pub(super) fn books(node: &Node, held: &[&str], books: Completeness) -> Pool {
    Pool {
        id: PoolId(1),
        source: Arc::new(PoolSource {
            ipam: Ipam::HostLocal,
            network: "net".to_owned(),
            place: "/data/net".to_owned(),
        }),
        coverage: Coverage {
            ranges: vec![ip("10.0.0.0")..=ip("10.0.0.255")],
            ..Coverage::default()
        },
        completeness: books,
        allocated: held
            .iter()
            .map(|address| (ip(address), Allocation::default()))
            .collect::<BTreeMap<_, _>>(),
        can_detect_leaks: true,
        read_at: node.now,
    }
}

impl Node {
    pub(super) fn books(&mut self, pool: Pool) {
        let news = PoolUpdate::Read(Arc::new(pool), ChangedAddresses::All);
        self.engine.update_pool(self.now, news, &mut self.effects);
    }

    pub(super) fn told_of_anomalies(&mut self) -> Vec<String> {
        let effects = std::mem::take(&mut self.effects);
        let told = |effect| match effect {
            Effect::Anomaly(AnomalyEffect::Raised(a)) => {
                Some(format!("raised {} {}", a.kind.name(), a.address))
            }
            Effect::Anomaly(AnomalyEffect::Resolved(a)) => Some(format!(
                "resolved {} {} {}",
                a.kind.name(),
                a.address,
                a.resolve_reason.unwrap().name()
            )),
            Effect::Anomaly(AnomalyEffect::ReadPool(_)) => Some("read books".to_owned()),
            _ => None,
        };
        effects.into_iter().filter_map(told).collect()
    }

    /// One pod with 10.0.0.2 and 10.0.0.3, on a node that was read, within these bounds.
    pub(super) fn with_two_addresses(bounds: Bounds) -> Self {
        let mut node = Self::within(bounds);
        node.pod(1);
        node.was_read();
        node.pod(1);
        node.address(1, "10.0.0.2");
        node.address(1, "10.0.0.3");
        node
    }

    /// Everything the node has was read once.
    pub(super) fn was_read(&mut self) {
        let links = (1..=2).map(pod).collect();
        let snapshot = Snapshot {
            links,
            pods: (1..=2)
                .map(|ifindex| PodAddresses {
                    peer: peer(ifindex),
                    mac: None,
                    addresses: Some(Vec::new()),
                })
                .collect(),
            ..Snapshot::default()
        };
        self.tell(Observation::SnapshotStarted(SnapshotToken(77)));
        self.tell(Observation::Snapshot(
            SnapshotToken(77),
            SnapshotScope::Node,
            Box::new(snapshot),
        ));
        self.effects.clear();
    }
}

pub(super) fn node() -> Node {
    let mut node = Node::with_pods(2);
    node.was_read();
    node
}

#[test]
fn books_that_were_deleted_are_believed_at_once() {
    let mut node = node();
    node.address(1, "10.0.0.2");
    node.now.0 += MS;
    let pool = books(&node, &["10.0.0.2"], Completeness::Complete);
    node.books(pool);
    assert!(node.told_of_anomalies().is_empty());
    node.now.0 += MS;
    let pool = books(&node, &[], Completeness::Deleted);
    node.books(pool);
    assert_eq!(node.told_of_anomalies(), ["raised ipam_drift 10.0.0.2"]);
    let pool = books(&node, &["10.0.0.2"], Completeness::Complete);
    node.books(pool);
    assert_eq!(
        node.told_of_anomalies(),
        ["resolved ipam_drift 10.0.0.2 allocated"]
    );
}

#[test]
fn books_that_are_older_than_the_address_are_read_again_first() {
    let mut node = node();
    let pool = books(&node, &[], Completeness::Deleted);
    node.books(pool);
    node.address(1, "10.0.0.2");
    assert_eq!(node.told_of_anomalies(), ["read books"]);
    node.now.0 += MS;
    let pool = books(&node, &["10.0.0.2"], Completeness::Complete);
    node.books(pool);
    assert!(node.told_of_anomalies().is_empty());
}

#[test]
fn an_address_that_is_freed_before_its_device_goes_is_no_drift() {
    let mut node = node();
    node.address(1, "10.0.0.2");
    node.now.0 += MS;
    let pool = books(&node, &["10.0.0.2"], Completeness::Complete);
    node.books(pool);
    let pool = books(&node, &[], Completeness::Complete);
    node.books(pool);
    node.wait(Duration::from_millis(1500));
    node.gone(1);
    node.wait_secs(60);
    assert!(node.told_of_anomalies().is_empty());
}

#[test]
fn one_that_stays_is_drift_after_two_seconds_by_fresh_books() {
    let mut node = node();
    node.address(1, "10.0.0.2");
    node.now.0 += MS;
    let pool = books(&node, &[], Completeness::Complete);
    node.books(pool);
    node.wait(Duration::from_millis(2500));
    assert_eq!(node.told_of_anomalies(), ["read books"]);
    let pool = books(&node, &[], Completeness::Complete);
    node.books(pool);
    assert_eq!(node.told_of_anomalies(), ["raised ipam_drift 10.0.0.2"]);
    node.address_gone(1, "10.0.0.2");
    assert_eq!(
        node.told_of_anomalies(),
        ["resolved ipam_drift 10.0.0.2 address_gone"]
    );
}

#[test]
fn unknown_books_conclude_nothing() {
    let mut node = node();
    node.address(1, "10.0.0.2");
    node.now.0 += MS;
    let pool = books(&node, &[], Completeness::Unknown);
    node.books(pool);
    node.wait_secs(3600);
    assert!(node.told_of_anomalies().is_empty());
}

#[test]
fn an_address_that_nobody_has_is_a_leak_after_a_while() {
    let mut node = node();
    let pool = books(&node, &["10.0.0.9"], Completeness::Complete);
    node.books(pool);
    node.wait_secs(599);
    assert!(node.told_of_anomalies().is_empty());
    node.wait_secs(2);
    assert_eq!(node.told_of_anomalies(), ["raised ipam_leak 10.0.0.9"]);
    node.address(2, "10.0.0.9");
    assert_eq!(
        node.told_of_anomalies(),
        ["resolved ipam_leak 10.0.0.9 in_use"]
    );
}

#[test]
fn an_earlier_agents_anomaly_goes_on_without_a_word_or_ends() {
    let mut before = node();
    before.address(1, "10.0.0.2");
    before.address(2, "10.0.0.3");
    before.now.0 += MS;
    let pool = books(&before, &[], Completeness::Deleted);
    before.books(pool);
    let open = before.engine.anomalies();
    assert_eq!(open.len(), 2);
    let mut node = Node::new();
    node.engine.restore_anomalies(open.clone());
    for ifindex in 1..=2 {
        node.pod(ifindex);
    }
    node.was_read();
    node.address(1, "10.0.0.2");
    node.now.0 += MS;
    let pool = books(&node, &[], Completeness::Deleted);
    node.books(pool);
    assert!(node.told_of_anomalies().is_empty());
    assert!(node.engine.anomalies().iter().any(|a| a.id == open[0].id));
    node.wait_secs(30);
    assert_eq!(
        node.told_of_anomalies(),
        ["resolved ipam_drift 10.0.0.3 not_seen"]
    );
}

pub(super) fn question(ifindex: IfIndex, target: &str) -> Observation {
    Observation::UnansweredProbe(UnansweredProbe {
        ifindex,
        target: ip(target),
        sender: ip("10.0.0.2"),
        vlan: Vlan::default(),
        count: 3,
    })
}

#[test]
fn an_unresolved_gateway_ends_when_the_device_goes_or_is_quiet() {
    let mut node = node();
    node.tell(question(1, "169.254.1.1"));
    assert_eq!(
        node.told_of_anomalies(),
        ["raised gateway_unresolved 169.254.1.1"]
    );
    node.wait_secs(61);
    assert_eq!(
        node.told_of_anomalies(),
        ["resolved gateway_unresolved 169.254.1.1 quiet"]
    );
    node.tell(question(1, "169.254.1.1"));
    node.gone(1);
    let told = node.told_of_anomalies();
    assert_eq!(
        told[1],
        "resolved gateway_unresolved 169.254.1.1 device_gone"
    );
}

#[test]
fn a_peer_on_the_pods_subnet_is_not_taken_for_a_gateway() {
    let mut node = node();
    node.address(1, "10.0.0.2");
    node.tell(Observation::PodAddress(
        peer(2),
        AssignedAddress {
            prefix_len: 24,
            ..assigned("10.0.1.2")
        },
    ));
    node.tell(question(2, "10.0.1.77"));
    assert!(node.told_of_anomalies().is_empty());
    // On no subnet of a pod with a host prefix.
    node.tell(question(1, "10.9.9.9"));
    assert_eq!(
        node.told_of_anomalies(),
        ["raised gateway_unresolved 10.9.9.9"]
    );
}

#[test]
fn a_host_route_that_leads_past_the_pod_is_told_after_a_while() {
    let mut node = node();
    node.address(1, "10.0.0.2");
    node.route("10.0.0.2", 1);
    node.route_gone("10.0.0.2", 1);
    node.route("10.0.0.2", 2);
    node.wait_secs(4);
    assert!(node.told_of_anomalies().is_empty());
    node.wait_secs(2);
    assert_eq!(node.told_of_anomalies(), ["raised route_astray 10.0.0.2"]);
    node.route_gone("10.0.0.2", 2);
    node.route("10.0.0.2", 1);
    assert_eq!(
        node.told_of_anomalies(),
        ["resolved route_astray 10.0.0.2 route_right"]
    );
    // Where there never was a host route, a wider one says nothing.
    node.address(2, "10.0.0.3");
    node.wait_secs(60);
    assert!(node.told_of_anomalies().is_empty());
}
