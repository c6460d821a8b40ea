//! Ranges, addresses of the node, and restored datastores.

use super::*;

fn nodes(facts: &mut Facts) -> &mut Vec<NodeRange> {
    match &mut facts.nodes_with_range {
        Known::Value(nodes, _) => nodes,
        _ => panic!("the nodes are known"),
    }
}

#[test]
fn range_of_two_nodes_explains_only_pods_on_both() {
    let mut one_node = pod_cidr_twice();
    nodes(&mut one_node)[1].node = "node-3".to_owned();
    assert_eq!(diagnose(&one_node).cause, Cause::Unknown);
    let mut taken = pod_cidr_twice();
    taken.claimants[1].cni_results = known(Vec::new());
    assert_eq!(diagnose(&taken).cause, Cause::NotFromIpam);
    let mut calico = released_by_calico();
    calico.nodes_with_range = pod_cidr_twice().nodes_with_range;
    calico.claimants[1].node = "node-2".to_owned();
    assert_ne!(diagnose(&calico).cause, Cause::PodCidrTwice);
}

#[test]
fn unknown_writer_leaves_the_time_open() {
    let mut facts = pod_cidr_overlap();
    nodes(&mut facts)[0].writer = not_checked();
    let diagnosis = diagnose(&facts);
    assert_eq!(diagnosis.cause, Cause::PodCidrTwice);
    assert_eq!(diagnosis.since, None);
    assert_eq!(diagnosis.not_checked.len(), 1);
    nodes(&mut facts).pop();
    let diagnosis = diagnose(&facts);
    assert_eq!(diagnosis.cause, Cause::Unknown);
    assert_eq!(diagnosis.ruled_out, [Cause::PodCidrTwice]);
}

#[test]
fn address_reserved_for_the_node_was_not_given_by_the_pool() {
    let mut reserved = node_address_in_range();
    pool_of(&mut reserved).owners = known(vec![owner(OwnedBy::Node)]);
    let diagnosis = diagnose(&reserved);
    assert_eq!(diagnosis.cause, Cause::Unknown);
    assert!(diagnosis.ruled_out.contains(&Cause::NodeAddressInRange));
    let mut outside = node_address_in_range();
    pool_of(&mut outside).network.ranges = Vec::new();
    assert_eq!(diagnose(&outside).cause, Cause::Unknown);
    let mut taken = node_address_in_range();
    taken.claimants[0].cni_results = known(Vec::new());
    assert_eq!(diagnose(&taken).cause, Cause::NotFromIpam);
}

#[test]
fn resource_version_that_grew_is_no_restore() {
    let mut facts = datastore_restored();
    assert_eq!(diagnose(&facts).cause, Cause::DatastoreRestored);
    if let Known::Value(versions, _) = &mut facts.resource_versions {
        versions.now = versions.before;
        versions.kept_at = minute(0);
    }
    let diagnosis = diagnose(&facts);
    assert_eq!(diagnosis.cause, Cause::ReleasedInUse);
    assert!(diagnosis.ruled_out.contains(&Cause::DatastoreRestored));
    // host-local has its state on the node.
    let mut local = ipam_state_wiped();
    local.resource_versions = datastore_restored().resource_versions;
    assert_eq!(diagnose(&local).cause, Cause::IpamStateWiped);
    // A pod that is younger than the restore was allocated after it.
    let mut young = datastore_restored();
    sandbox_of(&mut young, 0).created = Some(minute(420));
    assert_eq!(diagnose(&young).cause, Cause::Unknown);
}
