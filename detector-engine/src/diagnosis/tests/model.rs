//! Random mixtures of the incidents, with facts left out and times moved, against a plain recomputation of the table.

use std::collections::BTreeSet;

use proptest::{
    collection::vec,
    prelude::{Just, Strategy, any, prop_oneof},
    prop_assert, prop_assert_eq,
};

use super::*;

/// A change of the facts of an incident.
#[derive(Clone, Debug)]
enum Change {
    /// A group of facts is that of another incident.
    Take(Part, usize),
    /// A fact of a claimant is that of a claimant of another incident.
    TakeOfClaimant(ClaimantPart, usize, usize, usize),
    /// A fact was not checked.
    Erase(usize),
    /// A time is another one.
    Move(Moment, u64),
    /// The allocation of the address.
    Own(Vec<OwnedBy>),
    /// So many of 20 pods have no allocation.
    Live(usize),
    /// The agent saw this.
    Remove(RemovedItem, u64),
    /// The agent last saw an allocation then.
    Release(OwnedBy, u64),
    /// A third claimant, as another incident has it.
    Join(usize, usize),
}

#[derive(Clone, Copy, Debug)]
enum Part {
    Finding,
    Claimants,
    Pool,
    Node,
    Networks,
    NodeAddress,
    MovedAt,
    Ranges,
    Versions,
    Routes,
    Gateway,
}

#[derive(Clone, Copy, Debug)]
enum ClaimantPart {
    Pod,
    Sandbox,
    CniResults,
    Assignment,
    Node,
}

#[derive(Clone, Copy, Debug)]
enum Moment {
    Sandbox(usize),
    CniResult(usize),
    Assigned(usize),
    Directory,
    Lock,
    State,
    Booted,
    Runtime,
    Configured,
    EtcCni,
    OptCni,
    VarLibCni,
    Kept,
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        Just(Part::Finding),
        Just(Part::Claimants),
        Just(Part::Pool),
        Just(Part::Node),
        Just(Part::Networks),
        Just(Part::NodeAddress),
        Just(Part::MovedAt),
        Just(Part::Ranges),
        Just(Part::Versions),
        Just(Part::Routes),
        Just(Part::Gateway),
    ]
}

fn claimant_part() -> impl Strategy<Value = ClaimantPart> {
    prop_oneof![
        Just(ClaimantPart::Pod),
        Just(ClaimantPart::Sandbox),
        Just(ClaimantPart::CniResults),
        Just(ClaimantPart::Assignment),
        Just(ClaimantPart::Node),
    ]
}

fn moment() -> impl Strategy<Value = Moment> {
    prop_oneof![
        (0..2_usize).prop_map(Moment::Sandbox),
        (0..2_usize).prop_map(Moment::CniResult),
        (0..2_usize).prop_map(Moment::Assigned),
        Just(Moment::Directory),
        Just(Moment::Lock),
        Just(Moment::State),
        Just(Moment::Booted),
        Just(Moment::Runtime),
        Just(Moment::Configured),
        Just(Moment::EtcCni),
        Just(Moment::OptCni),
        Just(Moment::VarLibCni),
        Just(Moment::Kept),
    ]
}

fn owned_by() -> impl Strategy<Value = OwnedBy> {
    prop_oneof![
        vec(0..3_usize, 1..3).prop_map(OwnedBy::Claimants),
        Just(OwnedBy::Node),
        Just(OwnedBy::Other),
        Just(OwnedBy::NotComparable),
    ]
}

fn removed() -> impl Strategy<Value = RemovedItem> {
    prop_oneof![
        Just(RemovedItem::Directory),
        Just(RemovedItem::Lock),
        Just(RemovedItem::Reservation(address())),
        (6..12_u8).prop_map(|n| RemovedItem::Reservation([10, 244, 2, n].into())),
    ]
}

/// Few, so that times are equal and close.
fn time() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(A_CREATED),
        Just(390_u64),
        Just(395),
        Just(400),
        Just(405),
        Just(B_CREATED),
        Just(700),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let incident = || 0..INCIDENTS.len();
    prop_oneof![
        4 => (part(), incident()).prop_map(|(part, from)| Change::Take(part, from)),
        3 => (claimant_part(), 0..2_usize, incident(), 0..2_usize)
            .prop_map(|(part, to, from, of)| Change::TakeOfClaimant(part, to, from, of)),
        2 => any::<usize>().prop_map(Change::Erase),
        3 => (moment(), time()).prop_map(|(moment, at)| Change::Move(moment, at)),
        1 => vec(owned_by(), 0..3).prop_map(Change::Own),
        1 => (0..20_usize).prop_map(Change::Live),
        1 => (removed(), time()).prop_map(|(item, at)| Change::Remove(item, at)),
        1 => (owned_by(), time()).prop_map(|(of, seen)| Change::Release(of, seen)),
        1 => (incident(), 0..2_usize).prop_map(|(from, of)| Change::Join(from, of)),
    ]
}

fn apply(facts: &mut Facts, change: Change) {
    match change {
        Change::Take(part, from) => take((INCIDENTS[from].facts)(), part, facts),
        Change::TakeOfClaimant(part, to, from, of) => {
            let from = (INCIDENTS[from].facts)();
            if let (Some(to), Some(from)) = (facts.claimants.get_mut(to), from.claimants.get(of)) {
                take_of_claimant(from.clone(), part, to);
            }
        }
        Change::Erase(nth) => {
            if let Some(less) = without(facts.clone(), nth % 50) {
                *facts = less;
            }
        }
        Change::Move(moment, at) => move_to(facts, moment, at),
        Change::Own(owners) => {
            if let Known::Value(facts, _) = &mut facts.pool {
                *facts = PoolFacts {
                    releases: facts.releases.clone(),
                    ..pool(facts.network.clone(), facts.state.clone(), &owners)
                };
            }
        }
        Change::Live(without_allocation) => {
            if let Known::Value(pool, _) = &mut facts.pool {
                pool.live_pods = known(LivePods {
                    total: 20,
                    without_allocation,
                    addresses_without_allocation: without_allocation,
                });
            }
        }
        Change::Remove(item, at) => {
            if let Known::Value(pool, _) = &mut facts.pool
                && let PoolState::HostLocal { removals, .. } = &mut pool.state
            {
                let mut all = removals.value().cloned().unwrap_or_default();
                all.push(Removal {
                    item,
                    at: minute(at),
                });
                *removals = known(all);
            }
        }
        Change::Release(of, seen) => {
            if let Known::Value(pool, _) = &mut facts.pool {
                let mut all = pool.releases.value().cloned().unwrap_or_default();
                all.push(Release {
                    of,
                    seen: minute(seen),
                    at: None,
                });
                pool.releases = known(all);
            }
        }
        Change::Join(from, of) => {
            if facts.claimants.len() < 3 {
                let from = (INCIDENTS[from].facts)();
                facts.claimants.extend(from.claimants.get(of).cloned());
            }
        }
    }
}

fn take(from: Facts, part: Part, to: &mut Facts) {
    match part {
        Part::Finding => to.finding = from.finding,
        Part::Claimants => to.claimants = from.claimants,
        Part::Pool => to.pool = from.pool,
        Part::Node => to.node = from.node,
        Part::Networks => to.overlapping_networks = from.overlapping_networks,
        Part::NodeAddress => to.node_address = from.node_address,
        Part::MovedAt => to.moved_at = from.moved_at,
        Part::Ranges => to.nodes_with_range = from.nodes_with_range,
        Part::Versions => to.resource_versions = from.resource_versions,
        Part::Routes => to.route = from.route,
        Part::Gateway => {
            to.gateway_route = from.gateway_route;
            to.gateway_on_node = from.gateway_on_node;
            to.sysctls = from.sysctls;
        }
    }
}

fn take_of_claimant(from: ClaimantFacts, part: ClaimantPart, to: &mut ClaimantFacts) {
    match part {
        ClaimantPart::Pod => to.pod = from.pod,
        ClaimantPart::Sandbox => to.sandbox = from.sandbox,
        ClaimantPart::CniResults => {
            to.cni_results = from.cni_results;
            to.allocated_addresses = from.allocated_addresses;
        }
        ClaimantPart::Assignment => {
            to.assignment = from.assignment;
            to.evidence = from.evidence;
        }
        ClaimantPart::Node => to.node = from.node,
    }
}

fn move_to(facts: &mut Facts, moment: Moment, at: u64) {
    let node = &mut facts.node;
    match moment {
        Moment::Sandbox(index) => {
            let claimant = facts.claimants.get_mut(index);
            if let Some(Known::Value(sandbox, _)) = claimant.map(|c| &mut c.sandbox) {
                sandbox.created = Some(minute(at));
            }
        }
        Moment::CniResult(index) => {
            let claimant = facts.claimants.get_mut(index);
            if let Some(Known::Value(results, _)) = claimant.map(|c| &mut c.cni_results)
                && let Some(result) = results.first_mut()
            {
                result.stored_at = (at > 0).then(|| minute(at));
            }
        }
        Moment::Assigned(index) => {
            let claimant = facts.claimants.get_mut(index);
            if let Some(Known::Value(assignment, _)) = claimant.map(|c| &mut c.assignment) {
                assignment.since = (at > 0).then(|| minute(at));
            }
        }
        Moment::Booted => node.booted = known(minute(at)),
        Moment::Runtime => node.runtime_started = known(minute(at)),
        Moment::Configured => node.cni_configured_since = known(minute(at)),
        Moment::EtcCni => node.etc_cni_born = known(minute(at)),
        Moment::OptCni => node.opt_cni_born = known(minute(at)),
        Moment::VarLibCni => node.var_lib_cni_born = known(minute(at)),
        Moment::Kept => {
            if let Known::Value(versions, _) = &mut facts.resource_versions {
                versions.kept_at = minute(at);
            }
        }
        Moment::Directory | Moment::Lock | Moment::State => {
            let Known::Value(pool, _) = &mut facts.pool else {
                return;
            };
            match (&mut pool.state, moment) {
                (PoolState::HostLocal { directory, .. }, Moment::Directory) => {
                    *directory = born(at);
                }
                (PoolState::HostLocal { lock, .. }, Moment::Lock) => *lock = born(at),
                (PoolState::Calico { block_created, .. }, _) => {
                    *block_created = known(minute(at));
                }
                (PoolState::Aws { started, .. }, _) => *started = known(minute(at)),
                _ => {}
            }
        }
    }
}

fn mixtures() -> impl Strategy<Value = Facts> {
    (0..INCIDENTS.len(), vec(change(), 0..8)).prop_map(|(incident, changes)| {
        let mut facts = (INCIDENTS[incident].facts)();
        for change in changes {
            apply(&mut facts, change);
        }
        facts
    })
}

#[test]
fn diagnosis_equals_a_plain_recomputation() {
    detector_model_run::run(mixtures, |facts| {
        let diagnosis = diagnose(&facts);
        let found = (diagnosis.cause, diagnosis.confidence);
        prop_assert_eq!(found, expected::verdict(&facts), "{:#?}", diagnosis);
        prop_assert_eq!(&diagnose(&facts), &diagnosis, "not repeatable");
        let is_named = diagnosis.ruled_out.contains(&diagnosis.cause);
        prop_assert!(!is_named, "{:?} is ruled out", diagnosis.cause);
        let is_explained = diagnosis.cause != Cause::Unknown;
        prop_assert_eq!(is_explained, !diagnosis.evidence.is_empty());
        for rule in RULES {
            let is_both = (rule.proven)(&facts).is_some() && (rule.is_ruled_out)(&facts);
            prop_assert!(!is_both, "{:?} is proven and ruled out", rule.cause);
        }
        let entries = timeline(&facts);
        prop_assert!(entries.len() <= MAX_TIMELINE && entries.is_sorted_by_key(|entry| entry.at));
        let distinct: BTreeSet<_> = diagnosis.not_checked.iter().collect();
        prop_assert_eq!(distinct.len(), diagnosis.not_checked.len());
        Ok(())
    });
}
