//! IPAMs without facts of their own: what their allocations alone explain; and virtual IPs.

use std::time::Duration;

use detector_engine::{
    Allocation, ChangedAddresses, Completeness, Coverage, Ipam, Pool, PoolId, PoolPart, PoolSource,
    PoolUpdate, Timestamp as Monotonic,
};

use super::*;
use crate::process::clock;

const ADDRESS: &str = "10.240.0.84";

fn node() -> TestNode {
    let mut node = TestNode::new(&json!({"cniVersion": "0.3.0", "name": "azure", "plugins": [
        {"type": "azure-vnet", "mode": "transparent", "ipam": {"type": "azure-cns"}}]}));
    node.add(&TestPod::new("first", ADDRESS, minute(5)));
    node.add(&TestPod::new("second", ADDRESS, minute(50)));
    node
}

/// The IPAM watcher has read that the address is allocated to these.
fn read(node: &TestNode, completeness: Completeness, owners: [Option<String>; 2]) {
    let [owner, second_owner] = owners.map(|owner| owner.map(Into::into));
    let allocation = Allocation {
        owner,
        second_owner,
        ..Allocation::default()
    };
    let pool = Pool {
        id: PoolId(1),
        source: Arc::new(PoolSource {
            ipam: Ipam::Azure,
            network: "azure".to_owned(),
            place: "/var/run/azure-cns/azure-endpoints.json".to_owned(),
        }),
        coverage: Coverage::default(),
        completeness,
        allocated: [(ADDRESS.parse().unwrap(), allocation)].into(),
        can_detect_leaks: false,
        record_delay: Duration::ZERO,
        read_at: Monotonic(1),
        parts: None,
    };
    let update = PoolUpdate::Read(Arc::new(pool), ChangedAddresses::All);
    node.watched.pools.note(&update);
}

fn cause(node: &mut TestNode) -> Diagnosis {
    let mut collector = node.collector();
    explain(&mut collector, Finding::Conflict(&node.conflict(ADDRESS)))
}

#[test]
fn two_endpoints_with_one_address_are_allocated_twice() {
    let mut node = node();
    let owners = [0, 1].map(|n: usize| Some(node.pods[n].sandbox()));
    read(&node, Completeness::Complete, owners.clone());
    let diagnosis = cause(&mut node);
    assert_cause(&diagnosis, Cause::AllocatedTwice, CauseConfidence::Proven);
    let [first, _] = owners.clone();
    read(&node, Completeness::Complete, [first, None]);
    assert_unknown(&cause(&mut node));
    read(&node, Completeness::Unknown, owners);
    assert_unknown(&cause(&mut node));
}

/// The record of the address was read so many minutes from now.
fn read_record(node: &TestNode, after: u64, owner: &str, second_owner: Option<&str>) {
    let address = ADDRESS.parse().unwrap();
    let allocation = Allocation {
        owner: Some(owner.into()),
        second_owner: second_owner.map(Into::into),
        ..Allocation::default()
    };
    let at = Monotonic(clock::now().0 + after * 60_000_000_000);
    let pool = Pool {
        id: PoolId(1),
        source: Arc::new(PoolSource {
            ipam: Ipam::Whereabouts,
            network: "whereabouts".to_owned(),
            place: "overlappingrangeipreservations.whereabouts.cni.cncf.io".to_owned(),
        }),
        coverage: Coverage::default(),
        completeness: Completeness::Complete,
        allocated: [(address, allocation)].into(),
        can_detect_leaks: false,
        record_delay: Duration::ZERO,
        read_at: at,
        parts: Some(vec![PoolPart {
            range: address..=address,
            confirmed_at: Some(at),
        }]),
    };
    let update = PoolUpdate::Read(Arc::new(pool), ChangedAddresses::All);
    node.watched.pools.note(&update);
}

/// The network is in no file of /etc/cni/net.d: Multus reads it from the API.
#[test]
fn record_that_a_lease_names_explains_the_address() {
    let mut node =
        TestNode::new(&json!({"name": "lan", "type": "bridge", "ipam": {"type": "whereabouts"}}));
    node.write("net.d/10-net.conflist", "{}");
    node.add(&TestPod::new("first", ADDRESS, minute(5)));
    node.add(&TestPod::new("second", ADDRESS, minute(50)));
    read_record(&node, 60, "shop/second", None);
    let mut collector = node.collector();
    collector.look();
    let conflict = node.conflict(ADDRESS);
    let diagnosis = explain(&mut collector, Finding::Conflict(&conflict));
    assert_cause(&diagnosis, Cause::ReleasedInUse, CauseConfidence::Proven);
    assert!(diagnosis.summary.contains("shop/first"), "{diagnosis:#?}");
    read_record(&node, 60, "shop/second", Some("shop/first"));
    let diagnosis = explain(&mut collector, Finding::Conflict(&conflict));
    assert_cause(&diagnosis, Cause::AllocatedTwice, CauseConfidence::Proven);
    // It was read before the second pod was given the address.
    read_record(&node, 20, "shop/first", None);
    let diagnosis = explain(&mut collector, Finding::Conflict(&conflict));
    assert_unknown(&diagnosis);
}

#[test]
fn address_that_no_network_gave_is_not_from_ipam() {
    let mut node = node();
    // The second pod got another one, and assigned this one to itself.
    node.pods.truncate(1);
    let mut squatter = TestPod::new("second", "10.240.0.85", minute(50));
    node.add(&squatter);
    squatter.address = ADDRESS;
    node.pods[1] = squatter;
    let owner = node.pods[0].sandbox();
    read(&node, Completeness::Complete, [Some(owner), None]);
    let diagnosis = cause(&mut node);
    assert_cause(&diagnosis, Cause::NotFromIpam, CauseConfidence::Proven);
    assert!(diagnosis.summary.contains("shop/second"), "{diagnosis:#?}");
}

#[test]
fn address_that_moves_between_replicas_is_shared_on_purpose() {
    const VIP: &str = "10.240.0.200";
    let mut node = node();
    node.pods.clear();
    for (name, address) in [("vip-a", "10.240.0.90"), ("vip-b", "10.240.0.91")] {
        let mut pod = TestPod::new(name, address, minute(5));
        node.add(&pod);
        pod.address = VIP;
        *node.pods.last_mut().unwrap() = pod;
    }
    let mut collector = node.collector();
    let duplicate = node.conflict(VIP);
    let mut flapping = duplicate.clone();
    flapping.kind = detector_engine::ConflictKind::Flapping;
    let diagnosis = explain(&mut collector, Finding::Conflict(&flapping));
    assert_cause(&diagnosis, Cause::SharedOnPurpose, CauseConfidence::Likely);
    assert!(
        has_fact(&diagnosis, "moved by an announcement"),
        "{diagnosis:#?}"
    );
    // Of other addresses it is not known whether they move.
    let diagnosis = explain(&mut collector, Finding::Conflict(&duplicate));
    assert_ne!(diagnosis.cause, Cause::SharedOnPurpose, "{diagnosis:#?}");
}
