//! What objects of the cluster and the addresses of the node say.

use super::{OVERLAP, Proof};
use crate::diagnosis::{
    facts::{AllocationOwner, Facts, NodeRange, OwnedBy, PoolFacts},
    text::evidence,
};

pub(super) fn two_nodes_have_range(facts: &Facts) -> Option<Proof> {
    let (nodes, source) = facts.nodes_with_range.found()?;
    let nodes: Vec<&NodeRange> = if facts.finding == OVERLAP {
        nodes.iter().collect()
    } else {
        // Calico and the AWS VPC CNI do not assign from podCIDRs.
        facts.pool.value().filter(|pool| pool.is_of_node())?;
        // In a conflict the nodes are those of pods that were given the address.
        let has_pod = |range: &&NodeRange| {
            (0..facts.claimants.len()).any(|index| {
                facts.claimants[index].node == range.node && facts.is_given(index) == Some(true)
            })
        };
        nodes.iter().filter(has_pod).collect()
    };
    if nodes.len() < 2 {
        return None;
    }
    let written = nodes.iter().map(|range| Some(range.writer.value()?.at));
    // The range is in use twice since the last of them got it.
    let written: Option<Vec<_>> = written.collect();
    let since = written.and_then(|written| written.into_iter().max());
    let ranges = nodes
        .iter()
        .map(|range| evidence::node_range(range, source));
    Some(Proof::of_claimants(since, ranges))
}

pub(super) fn one_node_has_range(facts: &Facts) -> bool {
    let nodes = facts.nodes_with_range.value();
    facts.nodes_with_range.is_absent()
        || nodes.is_some_and(|nodes| nodes.len() < 2)
        || (facts.finding != OVERLAP && !facts.is_on_several_nodes())
}

pub(super) fn pool_gave_address_of_node(facts: &Facts) -> Option<Proof> {
    facts.node_address.value()?;
    let (pool, source) = facts.pool.found()?;
    let is_in_range = pool.network.assigns(facts.address);
    let owners = pool.known_owners()?;
    let is_given_by_pool = |&index: &usize| {
        facts.is_given(index) == Some(true) && facts.is_from_pool(index) == Some(true)
    };
    let index = (0..facts.claimants.len()).find(is_given_by_pool)?;
    let is_comparable = owners
        .iter()
        .all(|owner| owner.is != OwnedBy::NotComparable);
    if !is_in_range || !is_comparable || owners.iter().any(is_node) {
        return None;
    }
    let evidence = [
        evidence::node_address(facts),
        evidence::range_of_pool(facts, pool, source),
        evidence::cni_result(facts, index),
    ];
    Some(Proof::of_claimants(None, evidence).and(evidence::owners(facts)))
}

fn is_node(owner: &AllocationOwner) -> bool {
    owner.is == OwnedBy::Node
}

pub(super) fn address_is_reserved_for_node(facts: &Facts) -> bool {
    let owners = facts.pool.value().and_then(PoolFacts::known_owners);
    facts.node_address.is_absent() || owners.is_some_and(|owners| owners.iter().any(is_node))
}

pub(super) fn resource_version_went_back(facts: &Facts) -> Option<Proof> {
    let pool = facts.pool.value()?;
    let versions = facts.resource_versions.value()?;
    if !pool.is_in_datastore() || versions.now >= versions.before {
        return None;
    }
    let victim = facts.victims().find(|&index| {
        let set_up = facts.set_up(index);
        facts.is_from_pool(index) == Some(true)
            && set_up.is_some_and(|set_up| set_up.latest < versions.noticed_at)
    })?;
    let evidence = [
        evidence::resource_versions(facts),
        evidence::sandbox(facts, victim),
        evidence::live_pods(pool),
    ];
    Some(Proof::of_pool(None, evidence).and(evidence::owners(facts)))
}

pub(super) fn resource_version_grew(facts: &Facts) -> bool {
    let pool = facts.pool.value();
    let versions = facts.resource_versions.value();
    pool.is_some_and(PoolFacts::is_in_datastore)
        && versions.is_some_and(|versions| versions.now >= versions.before)
}
