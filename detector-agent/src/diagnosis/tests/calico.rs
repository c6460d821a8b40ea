//! What Calico's blocks explain.

use std::time::Duration;

use detector_engine::{
    Allocation, ChangedAddresses, Completeness, Coverage, Ipam, Pool, PoolId, PoolPart, PoolSource,
    PoolUpdate, Timestamp as Monotonic,
};
use detector_testkit::scenario::CalicoStaleEndpoints;

use super::*;
use crate::{
    ipam::calico::{FollowedBlocks, PLACE},
    persist::store::Store,
};

const ADDRESS: &str = "10.244.9.5";
const OTHER: &str = "10.244.9.6";
const BLOCKS: &str = "/apis/crd.projectcalico.org/v1/ipamblocks";
const POOLS: &str = "/apis/crd.projectcalico.org/v1/ippools";

fn handle(pod: &TestPod) -> String {
    format!("k8s-pod-network.{}", pod.sandbox())
}

/// The block of [`ADDRESS`], with the handles by the last byte of the address, allocated for this node.
fn block(created: Timestamp, node: &str, handles: &[(usize, &str)]) -> Value {
    let mut allocations = vec![Value::Null; 64];
    let mut attributes = Vec::new();
    for (ordinal, handle) in handles {
        allocations[*ordinal] = attributes.len().into();
        let secondary = json!({"node": node, "namespace": "shop", "pod": "web-1",
            "timestamp": "2026-11-25 04:04:10.123456789 +0000 UTC"});
        attributes.push(json!({"handle_id": handle, "secondary": secondary}));
    }
    json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock",
        "metadata": {"name": "10-244-9-0-26", "creationTimestamp": created.round(jiff::Unit::Second).unwrap().to_string()},
        "spec": {"cidr": "10.244.9.0/26", "affinity": format!("host:{NODE}"), "strictAffinity": false,
            "sequenceNumber": 7, "allocations": allocations, "attributes": attributes}})
}

/// Two pods with one address, and a third one with its own.
fn node() -> (TestNode, [TestPod; 3]) {
    let mut node = TestNode::new(
        &json!({"cniVersion": "0.3.1", "name": "k8s-pod-network", "plugins": [
        {"type": "calico", "datastore_type": "kubernetes", "ipam": {"type": "calico-ipam"}}]}),
    );
    node.api.apply(
        POOLS,
        "default",
        &json!({"cidr": "10.244.0.0/16", "blockSize": 26}),
    );
    node.api.install(BLOCKS);
    let pods = [
        TestPod::new("first", ADDRESS, minute(5)),
        TestPod::new("second", ADDRESS, minute(50)),
        TestPod::new("third", OTHER, minute(6)),
    ];
    for pod in &pods {
        node.add(pod);
    }
    (node, pods)
}

/// The cause of the conflict, with a collector that had looked at the API server before the pods were created.
fn cause_of_conflict(node: &mut TestNode) -> Diagnosis {
    let mut collector = node.collector();
    collector.look();
    explain(&mut collector, Finding::Conflict(&node.conflict(ADDRESS)))
}

#[test]
fn allocation_that_went_from_an_old_block_was_released() {
    let (mut node, [_, second, third]) = node();
    let handles = [(5, &*handle(&second)), (6, &*handle(&third))];
    node.api
        .apply_object(BLOCKS, &block(minute(-900), NODE, &handles));
    let diagnosis = cause_of_conflict(&mut node);
    assert_cause(&diagnosis, Cause::ReleasedInUse, CauseConfidence::Proven);
    assert!(has_fact(&diagnosis, &handle(&second)), "{diagnosis:#?}");
    // Nothing is known from before the pods: a restored datastore would look the same.
    node.age_pods();
    let diagnosis = cause_of_conflict(&mut node);
    assert_unknown(&diagnosis);
    assert!(
        !diagnosis.ruled_out.contains(&Cause::ReleasedInUse),
        "{diagnosis:#?}"
    );
}

/// The IPAM watcher has read the block with these handles.
fn read(node: &TestNode, handles: &[(usize, &str)]) {
    let allocation = |(last, handle): &(usize, &str)| {
        let allocation = Allocation {
            owner: Some((*handle).into()),
            ..Allocation::default()
        };
        (format!("10.244.9.{last}").parse().unwrap(), allocation)
    };
    let pool = Pool {
        id: PoolId(1),
        source: Arc::new(PoolSource {
            ipam: Ipam::Calico,
            network: "k8s-pod-network".to_owned(),
            place: PLACE.to_owned(),
        }),
        coverage: Coverage::default(),
        completeness: Completeness::Complete,
        allocated: handles.iter().map(allocation).collect(),
        can_detect_leaks: true,
        record_delay: Duration::ZERO,
        read_at: Monotonic(1),
        parts: Some(vec![PoolPart {
            range: "10.244.9.0".parse().unwrap()..="10.244.9.63".parse().unwrap(),
            confirmed_at: None,
        }]),
    };
    let update = PoolUpdate::Read(Arc::new(pool), ChangedAddresses::All);
    node.watched.pools.note(&update);
}

/// The pods are older than the first agent. What it saw of their allocations outlives it.
#[test]
fn allocation_that_an_earlier_agent_saw_was_released() {
    let (mut node, [first, second, third]) = node();
    node.age_pods();
    let [first, second, third] = [first, second, third].map(|pod| handle(&pod));
    let store = Arc::new(Store::in_memory());
    let mut start = |handles: &[(usize, &str)]| {
        node.watched.pools = Arc::default();
        let block = block(minute(-900), NODE, handles);
        node.api.apply_object(BLOCKS, &block);
        let mut collector = node.collector().stored(Some(Arc::clone(&store)));
        collector.look();
        read(&node, handles);
        let diagnosis = explain(&mut collector, Finding::Conflict(&node.conflict(ADDRESS)));
        collector.close();
        diagnosis
    };
    let unknown = start(&[(5, &first), (6, &third)]);
    assert_unknown(&unknown);
    let released = start(&[(5, &second), (6, &third)]);
    assert_cause(&released, Cause::ReleasedInUse, CauseConfidence::Proven);
    let last_seen = "the agent last saw 10.244.9.5 allocated to shop/first";
    assert!(has_fact(&released, last_seen), "{released:#?}");
    // The next one knows that it went.
    let released = start(&[(5, &second), (6, &third)]);
    assert_cause(&released, Cause::ReleasedInUse, CauseConfidence::Proven);
}

#[test]
fn block_that_is_younger_than_the_pod_was_created_again() {
    let (mut node, [_, second, _]) = node();
    let created = minute(30);
    let handles = [(5, &*handle(&second))];
    node.api
        .apply_object(BLOCKS, &block(created, NODE, &handles));
    let diagnosis = cause_of_conflict(&mut node);
    assert_cause(&diagnosis, Cause::BlockRecreated, CauseConfidence::Proven);
    let since = diagnosis.since.unwrap().0;
    assert!(since.abs_diff(created.as_nanosecond() as u64) <= 1_000_000_000);
    // The first and the third pod have no allocation.
    assert_eq!(diagnosis.affected.pods, 2, "{diagnosis:#?}");
}

#[test]
fn block_is_probably_created_again_if_nothing_is_known_from_before() {
    let (mut node, [_, second, _]) = node();
    node.age_pods();
    let handles = [(5, &*handle(&second))];
    node.api
        .apply_object(BLOCKS, &block(minute(-30), NODE, &handles));
    let diagnosis = cause_of_conflict(&mut node);
    assert_cause(&diagnosis, Cause::BlockRecreated, CauseConfidence::Likely);
    // Without the API server nothing is.
    node.api.uninstall(BLOCKS);
    node.api.uninstall(POOLS);
    let diagnosis = cause_of_conflict(&mut node);
    assert_unknown(&diagnosis);
    let is_listed = |n: &detector_engine::diagnosis::NotChecked| n.because.contains("ippools");
    assert!(
        diagnosis.not_checked.iter().any(is_listed),
        "{diagnosis:#?}"
    );
}

#[test]
fn address_in_two_blocks_is_allocated_twice() {
    let (mut node, [first, second, _]) = node();
    let mut larger = block(minute(-900), NODE, &[(5, &handle(&first))]);
    larger["spec"]["cidr"] = "10.244.9.0/25".into();
    let smaller = block(minute(-900), NODE, &[(5, &handle(&second))]);
    let blocks = [larger["spec"].clone(), smaller["spec"].clone()];
    node.watched.blocks = Arc::new(FollowedBlocks::of(&blocks));
    let diagnosis = cause_of_conflict(&mut node);
    assert_cause(&diagnosis, Cause::AllocatedTwice, CauseConfidence::Proven);
    assert!(diagnosis.since.is_some(), "{diagnosis:#?}");
    let requests = node.api.requests();
    assert!(
        !requests.iter().any(|(_, r)| r.contains("ipamblocks")),
        "they are followed"
    );
    // One owner is not two.
    node.watched.blocks = Arc::new(FollowedBlocks::of(&blocks[..1]));
    let diagnosis = cause_of_conflict(&mut node);
    assert!(
        diagnosis.ruled_out.contains(&Cause::AllocatedTwice),
        "{diagnosis:#?}"
    );
}

#[test]
fn handle_of_the_old_form_is_shared_by_the_pods_of_a_stateful_set() {
    let (mut node, _) = node();
    node.pods.remove(1);
    node.pods[0].controller = "StatefulSet";
    let shared = block(minute(-900), NODE, &[(5, "shop.first")]);
    node.api.apply_object(BLOCKS, &shared);
    let mut collector = node.collector();
    let drift = node.drift(ADDRESS);
    let diagnosis = explain(&mut collector, Finding::Anomaly(&drift));
    assert_cause(&diagnosis, Cause::SharedHandle, CauseConfidence::Proven);
    // A pod with a name of its own shares it with none.
    node.pods[0].controller = "ReplicaSet";
    let mut collector = node.collector();
    assert_unknown(&explain(
        &mut collector,
        Finding::Anomaly(&node.drift(ADDRESS)),
    ));
}

#[test]
fn allocation_for_another_node_predicts_a_release() {
    let (mut node, [first, ..]) = node();
    node.pods.remove(1);
    let handles = [(5, &*handle(&first))];
    node.api
        .apply_object(BLOCKS, &block(minute(-900), "worker-8", &handles));
    let mut collector = node.collector();
    let diagnosis = explain(&mut collector, Finding::Anomaly(&node.drift(ADDRESS)));
    assert_cause(&diagnosis, Cause::ReleasedInUse, CauseConfidence::Likely);
    node.api
        .apply_object(BLOCKS, &block(minute(-900), NODE, &handles));
    let mut collector = node.collector();
    assert_unknown(&explain(
        &mut collector,
        Finding::Anomaly(&node.drift(ADDRESS)),
    ));
}

#[test]
fn version_that_went_back_is_a_restored_datastore() {
    let (mut node, [_, second, _]) = node();
    let handles = [(5, &*handle(&second))];
    node.api
        .apply_object(BLOCKS, &block(minute(-900), NODE, &handles));
    node.age_pods();
    let mut collector = node.collector();
    collector.look();
    node.api.continue_from(500);
    let conflict = node.conflict(ADDRESS);
    let diagnosis = explain(&mut collector, Finding::Conflict(&conflict));
    assert_cause(
        &diagnosis,
        Cause::DatastoreRestored,
        CauseConfidence::Proven,
    );
    assert!(has_fact(&diagnosis, "was 1"), "{diagnosis:#?}");
}

/// `calico-stale-endpoints.json`: a pod whose address is not allocated, in a block with handles of the old form.
#[test]
fn incident_with_stale_endpoints_is_a_release() {
    let spec = CalicoStaleEndpoints::load().unwrap().block;
    let (mut node, _) = node();
    node.pods.clear();
    let address = "192.168.106.70";
    node.add(&TestPod::new("dashboard", address, minute(5)));
    node.watched.blocks = Arc::new(FollowedBlocks::of(&[spec]));
    let mut collector = node.collector();
    collector.look();
    let diagnosis = explain(&mut collector, Finding::Anomaly(&node.drift(address)));
    assert_cause(&diagnosis, Cause::ReleasedInUse, CauseConfidence::Proven);
}

/// `calico-eleven-devices.json`: eleven pods with one address, after an upgrade that left IPAM inconsistent.
#[test]
fn incident_with_eleven_pods_is_a_block_that_was_created_again() {
    let text =
        include_str!("../../../../detector-testkit/fixtures/scenarios/calico-eleven-devices.json");
    let facts: Value = serde_json::from_str(text).unwrap();
    let (mut node, _) = node();
    node.pods.clear();
    for (n, pod) in (1..).zip(facts["neighbours"].as_array().unwrap()) {
        let name: &'static str = pod["pod"].as_str().unwrap().to_owned().leak();
        node.add(&TestPod::new(name, ADDRESS, minute(n)));
    }
    // In etcd, which cannot be read.
    node.api.uninstall(POOLS);
    let diagnosis = cause_of_conflict(&mut node);
    assert_unknown(&diagnosis);
    let excluded = [Cause::SandboxGone, Cause::NotFromIpam, Cause::TwoAllocators];
    assert!(
        excluded
            .iter()
            .all(|cause| diagnosis.ruled_out.contains(cause))
    );
    // In the API server, with a block that knows the last pod.
    let pool = json!({"cidr": "10.244.0.0/16", "blockSize": 26});
    node.api.apply(POOLS, "default", &pool);
    let last = handle(node.pods.last().unwrap());
    let block = block(minute(10), NODE, &[(5, &last)]);
    node.api.apply_object(BLOCKS, &block);
    let diagnosis = cause_of_conflict(&mut node);
    assert_cause(&diagnosis, Cause::BlockRecreated, CauseConfidence::Proven);
    assert_eq!(diagnosis.affected.pods, 10, "{diagnosis:#?}");
}

#[test]
fn storm_of_findings_costs_one_read_of_each_block() {
    let (mut node, [_, second, _]) = node();
    let handles = [(5, &*handle(&second))];
    node.api
        .apply_object(BLOCKS, &block(minute(30), NODE, &handles));
    let mut collector = node.collector();
    let due = Instant::now();
    for _ in 0..100 {
        let conflict = node.conflict(ADDRESS);
        collector.facts(Finding::Conflict(&conflict), due).unwrap();
    }
    let requests = node.api.requests();
    assert_eq!(requests.len(), 3, "pools, block, version: {requests:?}");
}
