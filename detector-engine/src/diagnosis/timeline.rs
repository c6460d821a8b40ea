//! What happened, in the order in which it happened.

use std::collections::BTreeSet;

use crate::diagnosis::{
    Evidence,
    facts::{Facts, PoolState, RemovedItem},
    known::{Source, UnixTime},
    text::evidence,
};

/// Entries of a timeline. Of more, the oldest are left out.
pub const MAX_TIMELINE: usize = 32;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimelineEntry {
    /// When.
    pub at: UnixTime,
    /// What, for people.
    pub what: String,
    /// Who says so.
    pub source: Source,
}

/// What happened around the finding, oldest first.
#[must_use]
pub fn timeline(facts: &Facts) -> Vec<TimelineEntry> {
    let mut entries: Vec<_> = timed(facts)
        .into_iter()
        .filter_map(|Evidence { fact, source, at }| {
            Some(TimelineEntry {
                at: at?,
                what: fact,
                source,
            })
        })
        .collect();
    let mut known = BTreeSet::new();
    entries.retain(|entry| known.insert(entry.clone()));
    // Of one moment, the facts stay in their order: a directory before what is in it.
    entries.sort_by_key(|entry| entry.at);
    entries.drain(..entries.len().saturating_sub(MAX_TIMELINE));
    entries
}

/// Facts; those without a time are dropped afterwards.
fn timed(facts: &Facts) -> Vec<Evidence> {
    let node = &facts.node;
    let mut all = vec![
        evidence::start("the node booted", &node.booted),
        evidence::start("the container runtime was started", &node.runtime_started),
        evidence::birth("/etc/cni", &node.etc_cni_born),
        evidence::birth("/opt/cni", &node.opt_cni_born),
        evidence::birth("/var/lib/cni", &node.var_lib_cni_born),
        evidence::move_of_address(facts),
        evidence::resource_versions(facts),
        evidence::route(facts),
    ];
    for (index, claimant) in facts.claimants.iter().enumerate() {
        all.push(evidence::sandbox(facts, index));
        all.push(evidence::cni_result(facts, index));
        all.push(evidence::assignment(facts, index));
        all.push(evidence::release(facts, index));
        let pod = claimant.pod.value();
        if pod.is_some_and(|pod| pod.earlier_pod_ended.value().is_some()) {
            all.push(evidence::earlier_pod(facts, index));
        }
    }
    if let Some((ranges, source)) = facts.nodes_with_range.found() {
        all.extend(
            ranges
                .iter()
                .map(|range| evidence::node_range(range, source)),
        );
    }
    let mut all: Vec<Evidence> = all.into_iter().flatten().collect();
    all.extend(of_pool(facts));
    all.extend(evidence::owners(facts));
    all.extend(evidence::plugin_starts(facts, |_| true));
    all
}

fn of_pool(facts: &Facts) -> Vec<Evidence> {
    let Some(pool) = facts.pool.value() else {
        return Vec::new();
    };
    let mut all = vec![evidence::state(pool)];
    match &pool.state {
        PoolState::HostLocal { lock, removals, .. } => {
            all.push(evidence::file("its lock", lock));
            let (removals, source) = match removals.found() {
                Some((removals, source)) => (removals.as_slice(), source),
                None => (&[][..], &Source::Engine),
            };
            // A wipe removes those of hundreds of pods.
            let is_about_finding = |item| match item {
                RemovedItem::Directory | RemovedItem::Lock => true,
                RemovedItem::Reservation(address) => address == facts.address,
            };
            let ours = removals.iter().filter(|r| is_about_finding(r.item));
            all.extend(ours.map(|removal| evidence::removal(*removal, source)));
        }
        PoolState::Aws { log_line, .. } => all.push(evidence::log_line(log_line)),
        PoolState::Calico { .. } | PoolState::ByLease | PoolState::Other => {}
    }
    all.into_iter().flatten().collect()
}
