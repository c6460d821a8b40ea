//! One claimant has the address without IPAM, or all hold it on purpose.

use std::net::IpAddr;

use super::Proof;
use crate::diagnosis::{
    facts::{Facts, SandboxState},
    known::UnixTime,
    text::evidence,
};

/// The first claimant for which `is` holds, if the claimants that IPAM does not explain explain the finding.
fn intruder(facts: &Facts, is: impl Fn(&Facts, usize) -> bool) -> Option<usize> {
    let first = (0..facts.claimants.len()).find(|&index| is(facts, index))?;
    let is_explained = facts.is_explained_by(|index| facts.is_intruder(index));
    is_explained.then_some(first)
}

fn assigned_at(facts: &Facts, index: usize) -> Option<UnixTime> {
    facts.claimants[index].assignment.value()?.since
}

pub(super) fn sandbox_is_gone(facts: &Facts) -> Option<Proof> {
    let index = intruder(facts, Facts::is_leftover)?;
    Some(Proof::of_claimants(None, [evidence::sandbox(facts, index)]))
}

pub(super) fn sandbox_is_not_ready(facts: &Facts) -> Option<Proof> {
    let is_stopped = |index: usize| facts.claimants[index].has_sandbox_in(SandboxState::NotReady);
    let first = (0..facts.claimants.len()).find(|&index| is_stopped(index))?;
    let is_explained = facts.is_explained_by(|i| is_stopped(i) || facts.is_intruder(i));
    is_explained.then(|| Proof::of_claimants(None, [evidence::sandbox(facts, first)]))
}

pub(super) fn all_sandboxes_run(facts: &Facts) -> bool {
    facts.all_claimants(|_, claimant| claimant.is_running())
}

pub(super) fn address_is_self_assigned(facts: &Facts) -> Option<Proof> {
    let index = intruder(facts, Facts::is_self_assigned).filter(|_| !facts.may_be_vip())?;
    let evidence = [
        evidence::cni_result(facts, index),
        evidence::assignment(facts, index),
        evidence::other_allocation(facts, index),
    ];
    Some(Proof::of_claimants(assigned_at(facts, index), evidence))
}

pub(super) fn ipam_gives_another_address(facts: &Facts) -> Option<Proof> {
    let address = facts.address;
    let has_another = |index: usize| {
        let claimant = &facts.claimants[index];
        let own = claimant.allocated_addresses.value();
        // A pod has one address of each family from a pool.
        let is_another = |own: &Vec<IpAddr>| {
            !own.contains(&address) && own.iter().any(|a| a.is_ipv4() == address.is_ipv4())
        };
        claimant.cni_results.is_absent()
            && claimant.is_assigned()
            && facts.is_given(index).is_none()
            && own.is_some_and(is_another)
    };
    let index = (0..facts.claimants.len()).find(|&index| has_another(index))?;
    if !facts.is_explained_by(|i| has_another(i) || facts.is_intruder(i)) {
        return None;
    }
    let evidence = [
        evidence::other_allocation(facts, index),
        evidence::cni_result(facts, index),
        evidence::assignment(facts, index),
    ];
    Some(Proof::of_claimants(assigned_at(facts, index), evidence))
}

pub(super) fn all_were_given_the_address(facts: &Facts) -> bool {
    facts.all_claimants(|index, _| facts.is_given(index) == Some(true))
}

pub(super) fn address_is_only_announced(facts: &Facts) -> Option<Proof> {
    let index = intruder(facts, Facts::is_only_announced).filter(|_| !facts.may_be_vip())?;
    let evidence = [
        evidence::frames(facts, index),
        evidence::assignment(facts, index),
        evidence::cni_result(facts, index),
    ];
    Some(Proof::of_claimants(None, evidence))
}

pub(super) fn all_have_the_address(facts: &Facts) -> bool {
    facts.all_claimants(|_, claimant| claimant.is_assigned())
}

pub(super) fn address_moves_between_holders(facts: &Facts) -> Option<Proof> {
    let is_given_to_none = facts.all_claimants(|index, _| facts.is_given(index) == Some(false));
    if !is_given_to_none || facts.moved_at.value().is_none() || !facts.have_signs_of_vip() {
        return None;
    }
    let evidence = [
        evidence::move_of_address(facts),
        evidence::one_controller(facts),
        evidence::vip_label(facts),
    ];
    let results = (0..facts.claimants.len()).filter_map(|i| evidence::cni_result(facts, i));
    Some(Proof::of_claimants(None, evidence).and(results))
}

pub(super) fn address_was_given_or_stays(facts: &Facts) -> bool {
    facts.moved_at.is_absent() || facts.is_given_to_some()
}
