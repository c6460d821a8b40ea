//! Feeds the comparison with other nodes: takes the addresses whose claims or conflicts changed, after the round, and sends what is to be
//! registered and published of them.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use detector_engine::{
    CertainClaim, ClaimantId, ConflictId, Engine, Ipam, Pool, PoolUpdate, Timestamp,
};
use detector_event::{Pod, PodAnswer};
use detector_fleet::{Subject, objects::ConflictCause};
use ipnet::{IpNet, IpSubnets, Ipv4Subnets, Ipv6Subnets};

use super::{Core, Reporter};
use crate::{
    fleet::{Candidate, ClaimSelector, ConflictSelector, Inbox, PodsAndCauses},
    metrics::gauge_value,
    pods::{LookupUpdate, PodDirectory},
    process::clock,
};

/// Most addresses of one round. Those of a large snapshot take several, between which the kernel is served.
const MAX_ADDRESSES: usize = 256;

/// What the registration is fed with, and how.
#[derive(Debug)]
pub struct FleetFeed {
    claims: ClaimSelector,
    conflicts: ConflictSelector,
    /// Addresses whose claims, or what else decides about them, may have changed.
    changed_claims: BTreeSet<IpAddr>,
    /// Addresses whose conflicts changed.
    changed_conflicts: BTreeSet<IpAddr>,
    inbox: Inbox,
    pods: Arc<PodDirectory>,
}

impl FleetFeed {
    /// Sends to `inbox` the claims that `claims` selects.
    #[must_use]
    pub fn new(claims: ClaimSelector, inbox: Inbox, pods: Arc<PodDirectory>) -> Self {
        Self {
            claims,
            conflicts: ConflictSelector::default(),
            changed_claims: BTreeSet::new(),
            changed_conflicts: BTreeSet::new(),
            inbox,
            pods,
        }
    }

    fn update(&mut self, engine: &Engine, address: IpAddr, now: Timestamp) {
        let claims = engine.view().certain_claims(address, now).into_iter();
        let candidates = claims.map(|claim| self.candidate(claim)).collect();
        if let Some(update) = self.claims.update(now, address, candidates) {
            self.inbox.send(update);
        }
    }

    fn update_conflicts(
        &mut self,
        engine: &Engine,
        reporter: &Reporter,
        address: IpAddr,
        now: Timestamp,
    ) {
        let conflicts = engine.view().conflicts_of(address, now);
        let pods = &self.pods;
        let pods_and_causes = PodsAndCauses {
            pod_of: &|claimant| known(pods.pod_of(claimant)),
            cause_of: &|conflict| reporter.cause_of(conflict.into()),
        };
        let updates =
            (self.conflicts).update(address, &conflicts, &pods_and_causes, &clock::moment());
        for update in updates {
            self.inbox.send_conflict(update);
        }
    }

    /// Has the cause of a conflict between nodes written into its object.
    pub(super) fn publish_cause(&self, subject: Subject, id: ConflictId, cause: ConflictCause) {
        self.inbox.send_cause(subject, id, cause);
    }

    fn candidate(&self, claim: CertainClaim) -> Candidate {
        let pod = known(self.pods.pod_of(&claim.claimant));
        let is_settled = self.claims.is_complete()
            || match claim.claimant.id {
                ClaimantId::Device(ifindex, generation) => {
                    self.pods.is_settled(ifindex, generation)
                }
                ClaimantId::Host | ClaimantId::BehindBridge(..) | ClaimantId::Registered(_) => true,
            };
        Candidate {
            claim,
            pod,
            is_settled,
        }
    }
}

fn known(answer: PodAnswer) -> Option<Arc<Pod>> {
    match answer {
        PodAnswer::Known(pod) => Some(pod),
        PodAnswer::Unknown(_) => None,
    }
}

impl Core {
    /// Whether addresses wait for [`Core::feed_fleet`].
    pub(super) fn has_claims_to_feed(&self) -> bool {
        // Before the first snapshot the networks of claims are not known.
        self.outputs.fleet.as_ref().is_some_and(|fleet| {
            self.resync.has_merged_first
                && (self.engine.view().has_changed_claims()
                    || !fleet.changed_claims.is_empty()
                    || !fleet.changed_conflicts.is_empty())
        })
    }

    /// A conflict within this node was raised, updated or resolved.
    pub(super) fn mark_conflict(&mut self, address: IpAddr) {
        if let Some(fleet) = &mut self.outputs.fleet {
            fleet.changed_conflicts.insert(address);
        }
    }

    /// Once a round: feeds what changed.
    pub(super) fn feed_fleet(&mut self, now: Timestamp) {
        if !self.has_claims_to_feed() {
            return;
        }
        let Some(fleet) = &mut self.outputs.fleet else {
            return;
        };
        fleet
            .changed_claims
            .extend(self.engine.take_changed_claims());
        for _ in 0..MAX_ADDRESSES {
            let Some(address) = fleet.changed_claims.pop_first() else {
                break;
            };
            fleet.update(&self.engine, address, now);
        }
        for _ in 0..MAX_ADDRESSES {
            let Some(address) = fleet.changed_conflicts.pop_first() else {
                return;
            };
            fleet.update_conflicts(&self.engine, &self.outputs.reporter, address, now);
        }
    }

    /// Once a second: has addresses looked at again that may be fed now, and completes the start.
    pub(super) fn recheck_fleet(&mut self, now: Timestamp) {
        let is_fed = self.outputs.readiness.is_ready() && !self.has_claims_to_feed();
        let Some(fleet) = &mut self.outputs.fleet else {
            return;
        };
        for device in fleet.claims.take_rechecks(now) {
            fleet
                .changed_claims
                .extend(self.engine.view().addresses_on(device));
        }
        let overflow = &self.outputs.metrics.fleet_overflow;
        overflow.set(gauge_value(fleet.claims.overflowing_devices()));
        if is_fed && fleet.claims.complete_if_decided() {
            // Those that were restored have not changed.
            for address in self.engine.view().conflict_addresses() {
                fleet.update_conflicts(&self.engine, &self.outputs.reporter, address, now);
            }
            fleet.inbox.complete();
        }
        if fleet.conflicts.take_has_room() {
            let open = self.engine.view().conflict_addresses();
            fleet.changed_conflicts.extend(open);
        }
        fleet.changed_claims.extend(fleet.claims.undecided());
    }

    /// Pods became known, or changed.
    pub(super) fn recheck_fleet_pods(&mut self, update: &LookupUpdate) {
        let Some(fleet) = &mut self.outputs.fleet else {
            return;
        };
        for devices in [&update.pods, &update.details] {
            let addresses = fleet.conflicts.addresses_on(devices);
            fleet.changed_conflicts.extend(addresses);
        }
        for device in update.pods.iter().chain(&update.details) {
            fleet
                .changed_claims
                .extend(self.engine.view().addresses_on(*device));
            // Whatever leads to them.
            if let PodAnswer::Known(pod) = fleet.pods.pod_behind(device.0, device.1) {
                let addresses = pod.primary_addresses.iter().copied();
                fleet.changed_claims.extend(addresses);
            }
        }
    }

    /// The ranges that an IPAM gave this node alone.
    pub(super) fn feed_ranges(&mut self, update: &PoolUpdate, now: Timestamp) {
        let Some(fleet) = &mut self.outputs.fleet else {
            return;
        };
        let updates = match update {
            PoolUpdate::Found(pools) => {
                fleet.claims.await_pools(pools.clone());
                return;
            }
            PoolUpdate::Read(pool, _) if pool.source.ipam == Ipam::Calico => fleet
                .claims
                .update_ranges(now, pool.id, "calico", blocks(pool)),
            PoolUpdate::Read(pool, _) => fleet.claims.update_ranges(now, pool.id, "", []),
            PoolUpdate::Gone(id) => fleet.claims.update_ranges(now, *id, "", []),
        };
        for update in updates {
            fleet.inbox.send(update);
        }
    }
}

/// The node's own blocks.
fn blocks(pool: &Pool) -> impl Iterator<Item = IpNet> + '_ {
    let ranges = pool.coverage.ranges.iter();
    let subnets = ranges.filter_map(|range| match (*range.start(), *range.end()) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            Some(IpSubnets::V4(Ipv4Subnets::new(first, last, 0)))
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            Some(IpSubnets::V6(Ipv6Subnets::new(first, last, 0)))
        }
        _ => None,
    });
    // A block is one range, which is one subnet.
    subnets.flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::time::Duration;

    use detector_engine::{Completeness, Coverage, PoolId, PoolSource};

    use super::*;

    #[test]
    fn blocks_are_the_ranges_of_the_pool() {
        let blocks_of = ["10.1.0.64/26", "10.1.0.128/26", "fd00:1::40/122"];
        let ranges = blocks_of.iter().map(|block| {
            let net: IpNet = block.parse().unwrap();
            net.network()..=net.broadcast()
        });
        let pool = Pool {
            id: PoolId(1),
            source: Arc::new(PoolSource {
                ipam: Ipam::Calico,
                network: "k8s-pod-network".to_owned(),
                place: String::new(),
            }),
            coverage: Coverage {
                ranges: ranges.collect(),
                ..Coverage::default()
            },
            completeness: Completeness::Complete,
            allocated: std::collections::BTreeMap::default(),
            can_detect_leaks: true,
            record_delay: Duration::ZERO,
            read_at: Timestamp(1),
            parts: None,
        };
        let found: Vec<_> = blocks(&pool).map(|net| net.to_string()).collect();
        assert_eq!(found, blocks_of);
    }
}
