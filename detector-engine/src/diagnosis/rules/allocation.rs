//! What IPAM's record of the address says.

use std::time::Duration;

use super::Proof;
use crate::diagnosis::{
    Evidence,
    facts::{AllocationOwner, Facts, OwnedBy, PodFacts, PoolFacts, PoolState, RemovedItem},
    known::UnixTime,
    queries::SetUp,
    text::evidence,
};

/// What started this short before an allocation went is named with it.
const JUST_BEFORE: Duration = Duration::from_mins(10);

/// The claimants that were given the address.
fn given(facts: &Facts) -> impl Iterator<Item = usize> {
    (0..facts.claimants.len()).filter(|&index| facts.is_given(index) == Some(true))
}

/// The owners of the address, if no claimant that was given it is missing among them; in a conflict there are two of these at least.
fn owners_of_all(facts: &Facts) -> Option<&[AllocationOwner]> {
    let owners = facts.pool.value()?.known_owners()?;
    let is_complete = given(facts).all(|index| facts.has_allocation(index) != Some(false));
    let least = if facts.is_drift() { 1 } else { 2 };
    (is_complete && given(facts).count() >= least).then_some(owners)
}

pub(super) fn two_networks_gave_address(facts: &Facts) -> Option<Proof> {
    if facts.is_drift() {
        let (pool, source) = facts.pool.found()?;
        let index = given(facts).find(|&index| {
            facts.is_from_pool(index) == Some(false) && pool.network.assigns(facts.address)
        })?;
        let evidence = [
            evidence::cni_result(facts, index),
            evidence::range_of_pool(facts, pool, source),
        ];
        return Some(Proof::of_claimants(None, evidence));
    }
    let networks = given(facts).filter_map(|index| Some((index, facts.network_of(index)?)));
    let networks: Vec<_> = networks.collect();
    let (first, network) = networks.first()?;
    let (second, _) = networks
        .iter()
        .find(|(_, other)| !other.shares_state_with(network) && other.may_overlap(network))?;
    let evidence = [*first, *second].map(|index| evidence::cni_result(facts, index));
    Some(Proof::of_claimants(None, evidence))
}

pub(super) fn one_network_gave_address(facts: &Facts) -> bool {
    if facts.is_drift() {
        return facts.all_claimants(|index, _| facts.is_from_pool(index) == Some(true));
    }
    let first = (!facts.claimants.is_empty()).then(|| facts.network_of(0));
    let first = first.flatten();
    facts.all_claimants(|index, _| {
        let network = facts.network_of(index);
        let both = network.zip(first);
        both.is_some_and(|(network, first)| network.shares_state_with(first))
    })
}

pub(super) fn address_has_two_owners(facts: &Facts) -> Option<Proof> {
    let owners = owners_of_all(facts).filter(|owners| owners.len() > 1)?;
    let recorded = owners.iter().filter_map(|owner| owner.allocated_at);
    let second = (recorded.clone().count() == owners.len()).then(|| recorded.max());
    Some(Proof::of_claimants(second.flatten(), []).and(evidence::owners(facts)))
}

pub(super) fn address_has_at_most_one_owner(facts: &Facts) -> bool {
    let owners = facts.pool.value().and_then(PoolFacts::known_owners);
    owners.is_some_and(|owners| owners.len() < 2)
}

pub(super) fn handle_is_shared_with_earlier_pod(facts: &Facts) -> Option<Proof> {
    if !facts.pool.value()?.is_calico() {
        return None;
    }
    let owners = owners_of_all(facts)?;
    // The pods of a StatefulSet keep their names.
    let keeps_name = |pod: &PodFacts| {
        let controller = pod.controller.as_ref();
        pod.earlier_pod_ended.value().is_some()
            || controller.is_some_and(|controller| controller.kind == "StatefulSet")
    };
    let named = owners.iter().filter(|owner| owner.is_pod_name);
    let claimants = named.flat_map(|owner| match &owner.is {
        OwnedBy::Claimants(claimants) => claimants.as_slice(),
        _ => &[],
    });
    let index = *claimants.into_iter().find(|&&index| {
        let claimant = facts.claimants.get(index);
        claimant.and_then(|c| c.pod.value()).is_some_and(keeps_name)
    })?;
    let evidence = [evidence::earlier_pod(facts, index)];
    Some(Proof::of_claimants(None, evidence).and(evidence::owners(facts)))
}

pub(super) fn no_handle_is_a_pod_name(facts: &Facts) -> bool {
    let pool = facts.pool.value().filter(|pool| pool.is_calico());
    let owners = pool.and_then(PoolFacts::known_owners);
    owners.is_some_and(|owners| owners.iter().all(|owner| !owner.is_pod_name))
}

/// The first pod whose allocation is missing from the pool that gave it, and for which `is` holds with the time when it was set up.
/// A state of the datastore from before the allocation does not have it either: whether that is excluded.
fn forgotten(
    facts: &Facts,
    is_never_restored: Option<bool>,
    is: impl Fn(usize, SetUp) -> bool,
) -> Option<usize> {
    facts.victims().find(|&index| {
        let allocated = facts.last_allocated(index);
        let is_never_restored_since = allocated.map(|at| facts.is_never_restored_since(at));
        facts.is_from_pool(index) == Some(true)
            && is_never_restored_since == Some(is_never_restored)
            && facts.set_up(index).is_some_and(|set_up| is(index, set_up))
    })
}

/// Whether `is` holds for the times when the claimants were set up.
fn all_set_up(facts: &Facts, is: impl Fn(SetUp) -> bool) -> bool {
    facts.all_claimants(|index, _| facts.set_up(index).is_some_and(&is))
}

pub(super) fn block_is_younger_than_pod(facts: &Facts) -> Option<Proof> {
    block_that_forgot(facts, Some(true))
}

/// A restored datastore may have lacked the block as well.
pub(super) fn block_is_younger_and_maybe_restored(facts: &Facts) -> Option<Proof> {
    block_that_forgot(facts, None)
}

fn block_that_forgot(facts: &Facts, is_never_restored: Option<bool>) -> Option<Proof> {
    let pool = facts.pool.value()?;
    let PoolState::Calico { block_created, .. } = &pool.state else {
        return None;
    };
    let since = *block_created.value()?;
    let victim = forgotten(facts, is_never_restored, |index, set_up| {
        // An allocation that was seen in the present block was released.
        since > facts.released_after(index).unwrap_or(set_up.latest)
    })?;
    let evidence = [
        evidence::birth("the block", block_created),
        evidence::sandbox(facts, victim),
        evidence::live_pods(pool),
    ];
    Some(Proof::of_pool(Some(since), evidence).and(evidence::owners(facts)))
}

pub(super) fn block_is_older_than_pods(facts: &Facts) -> bool {
    let pool = facts.pool.value().filter(|pool| pool.is_calico());
    let since = pool.and_then(PoolFacts::state_since);
    since.is_some_and(|since| all_set_up(facts, |set_up| since <= set_up.earliest))
}

pub(super) fn daemon_started_after_pod(facts: &Facts) -> Option<Proof> {
    let pool = facts.pool.value()?;
    let PoolState::Aws { started, log_line } = &pool.state else {
        return None;
    };
    let since = *started.value()?;
    let victim = forgotten(facts, Some(true), |index, set_up| {
        let pod = facts.claimants[index].pod.value();
        since > set_up.latest && pod.is_some_and(|pod| pod.is_running)
    })?;
    let evidence = [
        evidence::start("ipamd was started", started),
        evidence::log_line(log_line),
        evidence::sandbox(facts, victim),
        evidence::live_pods(pool),
    ];
    Some(Proof::of_pool(Some(since), evidence).and(evidence::owners(facts)))
}

pub(super) fn daemon_started_before_pods(facts: &Facts) -> bool {
    let pool = facts.pool.value().filter(|pool| pool.is_aws());
    let since = pool.and_then(PoolFacts::state_since);
    since.is_some_and(|since| all_set_up(facts, |set_up| since <= set_up.earliest))
}

/// When the agent saw the reservation of the address go, after `set_up`.
fn removed_at(facts: &Facts, set_up: UnixTime) -> Option<(Option<UnixTime>, Option<Evidence>)> {
    let PoolState::HostLocal { removals, .. } = &facts.pool.value()?.state else {
        return None;
    };
    let (removals, source) = removals.found()?;
    let ours = removals.iter().filter(|removal| {
        removal.at > set_up && removal.item == RemovedItem::Reservation(facts.address)
    });
    let first = ours.min_by_key(|removal| removal.at)?;
    Some((Some(first.at), evidence::removal(*first, source)))
}

pub(super) fn live_lease_was_released(facts: &Facts) -> Option<Proof> {
    let pool = facts.pool.value()?;
    let victim = forgotten(facts, Some(true), |_, set_up| pool.had_allocation(set_up))?;
    let set_up = facts.set_up(victim)?.latest;
    let (since, removal) = match facts.release_of(victim) {
        Some(release) => (release.at, evidence::release(facts, victim)),
        None => removed_at(facts, set_up).unwrap_or_default(),
    };
    let owners = pool.known_owners().unwrap_or_default();
    // The lease was released before another pod got the address.
    let reused = owners.iter().filter_map(|owner| owner.allocated_at);
    let latest = since.or_else(|| reused.filter(|at| *at > set_up).min());
    let just_before = |at: UnixTime| {
        let before = latest.and_then(|latest| latest.0.checked_sub(at.0));
        before.is_some_and(|nanos| Duration::from_nanos(nanos) <= JUST_BEFORE)
    };
    let evidence = [
        removal,
        evidence::sandbox(facts, victim),
        evidence::cni_result(facts, victim),
        evidence::configuration(facts, victim),
        evidence::state(pool),
    ];
    Some(
        Proof::of_claimants(since, evidence)
            .and(evidence::owners(facts))
            .and(evidence::plugin_starts(facts, just_before)),
    )
}

pub(super) fn allocation_names_another_node(facts: &Facts) -> Option<Proof> {
    let PoolState::Calico { secondary_node, .. } = &facts.pool.value()?.state else {
        return None;
    };
    let secondary = secondary_node.value()?;
    let index = (0..facts.claimants.len()).find(|&index| {
        let claimant = &facts.claimants[index];
        facts.has_allocation(index) == Some(true)
            && claimant.is_running()
            && claimant.node != *secondary
    })?;
    let evidence = [
        evidence::secondary_node(facts, index, secondary_node),
        evidence::sandbox(facts, index),
    ];
    Some(Proof::of_claimants(None, evidence).and(evidence::owners(facts)))
}

pub(super) fn state_is_younger_than_pods(facts: &Facts) -> bool {
    let since = facts.pool.value().and_then(PoolFacts::state_since);
    since.is_some_and(|since| all_set_up(facts, |set_up| since > set_up.latest))
}
