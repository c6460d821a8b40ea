//! The table once more, as plainly as possible: one condition for each cause, from the facts alone.

mod host_local;
mod pod;

use super::*;
use pod::{Pod, pods};

type Time = Option<UnixTime>;

const SECOND: u64 = 1_000_000_000;

fn same(a: &NetworkConfig, b: &NetworkConfig) -> bool {
    a.name == b.name && a.ipam == b.ipam && a.data_dir == b.data_dir
}

struct Table<'f> {
    facts: &'f Facts,
    pods: Vec<Pod>,
    pool: Option<&'f PoolFacts>,
    duplicate: bool,
    host: bool,
    drift: bool,
}

pub(super) fn verdict(facts: &Facts) -> (Cause, CauseConfidence) {
    use AnomalyKind as Anomaly;
    use ConflictKind as Conflict;
    let table = Table {
        facts,
        pods: pods(facts),
        pool: facts.pool.value(),
        duplicate: facts.finding == FindingKind::Conflict(Conflict::Duplicate),
        host: facts.finding == FindingKind::Conflict(Conflict::Host),
        drift: facts.finding == FindingKind::Anomaly(Anomaly::IpamDrift),
    };
    let proven = match facts.finding {
        FindingKind::Conflict(Conflict::Duplicate) | FindingKind::Anomaly(Anomaly::IpamDrift) => {
            table.about_pods()
        }
        FindingKind::Conflict(Conflict::Host) => table.about_host(),
        FindingKind::Anomaly(Anomaly::PodCidrOverlap) => {
            let nodes = facts.nodes_with_range.value();
            nodes
                .filter(|nodes| nodes.len() >= 2)
                .map(|_| Cause::PodCidrTwice)
        }
        FindingKind::Anomaly(Anomaly::GatewayUnresolved) => table.about_gateway(),
        FindingKind::Anomaly(Anomaly::RouteAstray) => table.about_route(),
        FindingKind::Conflict(Conflict::Flapping) | FindingKind::Anomaly(_) => None,
    };
    if let Some(cause) = proven {
        return (cause, CauseConfidence::Proven);
    }
    (table.likely(), CauseConfidence::Likely)
}

impl Table<'_> {
    /// Whether at most one pod is left (none, if it is about each) without these.
    fn is_over_without(&self, these: impl Fn(&Pod) -> bool) -> bool {
        let left = self.pods.iter().filter(|pod| !these(pod)).count();
        left == 0 || self.duplicate && left == 1
    }

    fn is_pools(&self, pod: &Pod) -> Option<bool> {
        let pool = self.pool?;
        if let Some(network) = &pod.network {
            return Some(same(network, &pool.network));
        }
        let since = self.facts.node.cni_configured_since.value();
        let is_unchanged = since.zip(pod.given_from).is_some_and(|(s, c)| *s < c);
        let mut ranges = pool.network.ranges.iter();
        let is_only = matches!(pool.state, PoolState::HostLocal { .. })
            && ranges.any(|range| range.contains(&self.facts.address))
            && self.facts.overlapping_networks.is_absent();
        (is_only && is_unchanged && pod.runtime_has_it && !pod.has_result).then_some(true)
    }

    fn outside_ipam(&self) -> Option<Cause> {
        if !self.is_over_without(Pod::is_outside_ipam) {
            return None;
        }
        if self.pods.iter().any(|pod| pod.is_gone) {
            return Some(Cause::SandboxGone);
        }
        if self.may_be_vip() {
            return None;
        }
        if self.pods.iter().any(Pod::took_it) {
            return Some(Cause::NotFromIpam);
        }
        let announced = !self.drift && self.pods.iter().any(|pod| pod.only_announced);
        announced.then_some(Cause::FramesOnly)
    }

    fn has_vip_signs(&self) -> bool {
        let first = self.pods.first().and_then(|pod| pod.controller.as_ref());
        let one_controller = self.pods.len() >= 2
            && first.is_some()
            && self.pods.iter().all(|pod| pod.controller.as_ref() == first);
        one_controller || self.pods.iter().any(|pod| pod.vip_label)
    }

    fn may_be_vip(&self) -> bool {
        let is_given = self.pods.iter().any(|pod| pod.given == Some(true));
        let is_excluded = self.pods.iter().all(|pod| pod.is_pod_known) && !self.has_vip_signs();
        let never_moved = self.facts.moved_at.is_absent();
        self.duplicate && !is_given && !never_moved && !is_excluded
    }

    /// Those that IPAM may have forgotten, with the time of their creation.
    fn victims(&self) -> Vec<&Pod> {
        let shared = matches!(
            self.pool.map(|p| &p.state),
            Some(PoolState::Calico { .. } | PoolState::ByLease)
        );
        let mut victims = Vec::new();
        for (index, pod) in self.pods.iter().enumerate() {
            if !pod.is_ready || pod.given != Some(true) || pod.allocated != Some(false) {
                continue;
            }
            let mut has_rival = self.drift;
            for (other, rival) in self.pods.iter().enumerate() {
                has_rival |= other != index
                    && rival.given == Some(true)
                    && self.is_pools(rival) != Some(false)
                    && (shared || rival.node == pod.node);
            }
            if has_rival {
                victims.push(pod);
            }
        }
        victims
    }

    fn about_pods(&self) -> Option<Cause> {
        if self.duplicate && self.pod_cidr_twice() {
            return Some(Cause::PodCidrTwice);
        }
        if let Some(cause) = self.outside_ipam() {
            return Some(cause);
        }
        if self.two_allocators() {
            return Some(Cause::TwoAllocators);
        }
        let given: Vec<_> = self.pods.iter().filter(|p| p.given == Some(true)).collect();
        let all_owned = given.iter().all(|pod| pod.allocated != Some(false))
            && given.len() >= if self.drift { 1 } else { 2 };
        let owners = match self.pool.map(|pool| &pool.owners) {
            Some(Known::Value(owners, _)) => owners.as_slice(),
            _ => &[],
        };
        if all_owned && owners.len() >= 2 {
            return Some(Cause::AllocatedTwice);
        }
        if all_owned && self.has_shared_handle(owners) {
            return Some(Cause::SharedHandle);
        }
        match &self.pool?.state {
            PoolState::HostLocal { .. } => self.about_host_local(),
            PoolState::Calico { block_created, .. } => {
                let block = block_created.value().copied();
                self.about_datastore(Some(block))
            }
            PoolState::Aws { started, .. } => self.about_aws(*started.value()?),
            PoolState::ByLease => self.about_datastore(None),
            PoolState::Other => None,
        }
    }

    fn pod_cidr_twice(&self) -> bool {
        let by_node = matches!(
            self.pool.map(|pool| &pool.state),
            Some(PoolState::HostLocal { .. } | PoolState::Other)
        );
        let ranges = self.facts.nodes_with_range.value().into_iter().flatten();
        let with_pod = ranges.filter(|range| {
            let mut pods = self.pods.iter();
            pods.any(|pod| pod.node == range.node && pod.given == Some(true))
        });
        by_node && with_pod.count() >= 2
    }

    fn two_allocators(&self) -> bool {
        let address = self.facts.address;
        if self.drift {
            return self.pool.is_some_and(|pool| {
                pool.network.ranges.iter().any(|r| r.contains(&address))
                    && self
                        .pods
                        .iter()
                        .any(|pod| self.is_pools(pod) == Some(false))
            });
        }
        let networks: Vec<_> = self
            .pods
            .iter()
            .filter_map(|p| p.network.as_ref())
            .collect();
        // All of the fixtures overlap.
        let first = networks.first();
        first.is_some_and(|first| networks.iter().any(|network| !same(first, network)))
    }

    fn has_shared_handle(&self, owners: &[AllocationOwner]) -> bool {
        let is_calico = matches!(self.pool.map(|p| &p.state), Some(PoolState::Calico { .. }));
        is_calico
            && owners.iter().any(|owner| match &owner.is {
                OwnedBy::Claimants(claimants) if owner.is_pod_name => claimants
                    .iter()
                    .any(|&index| self.pods.get(index).is_some_and(|pod| pod.keeps_name)),
                _ => false,
            })
    }

    /// `block`: the creation of Calico's; `None` if it is another IPAM.
    fn about_datastore(&self, block: Option<Time>) -> Option<Cause> {
        let versions = self.facts.resource_versions.value()?;
        let victims = self.victims();
        let known = || {
            victims
                .iter()
                .filter(|pod| self.is_pools(pod) == Some(true))
        };
        if versions.now < versions.before {
            let mut times = known().filter_map(|pod| pod.given_by);
            let is_lost = times.any(|at| at < versions.noticed_at);
            return is_lost.then_some(Cause::DatastoreRestored);
        }
        let is_watched = |pod: &Pod| pod.had_it.is_some_and(|at| versions.kept_at <= at);
        let Some(block) = block else {
            return known()
                .any(|pod| is_watched(pod))
                .then_some(Cause::ReleasedInUse);
        };
        let block = block?;
        let is_older = |pod: &Pod| pod.seen.or(pod.given_by).is_some_and(|at| block > at);
        if known().any(|pod| is_watched(pod) && is_older(pod)) {
            return Some(Cause::BlockRecreated);
        }
        let is_younger = |pod: &Pod| pod.given_from.is_some_and(|at| block <= at);
        let is_released = known().any(|pod| is_watched(pod) && is_younger(pod));
        is_released.then_some(Cause::ReleasedInUse)
    }

    fn about_aws(&self, started: UnixTime) -> Option<Cause> {
        let victims = self.victims();
        let known = || {
            victims
                .iter()
                .filter(|pod| self.is_pools(pod) == Some(true))
        };
        let is_later = |pod: &&&Pod| pod.given_by.is_some_and(|at| started > at);
        if known().any(|pod| is_later(&pod) && pod.is_running_pod) {
            return Some(Cause::IpamDaemonForgot);
        }
        let mut created = known().filter_map(|pod| pod.given_from);
        created
            .any(|at| started <= at)
            .then_some(Cause::ReleasedInUse)
    }

    fn about_host(&self) -> Option<Cause> {
        if let Some(cause) = self.outside_ipam() {
            return Some(cause);
        }
        let pool = self.pool?;
        let is_free = match &pool.owners {
            Known::Value(owners, _) => owners
                .iter()
                .all(|owner| !matches!(owner.is, OwnedBy::Node | OwnedBy::NotComparable)),
            Known::Absent(_) => true,
            Known::NotChecked(_) => false,
        };
        let in_range = pool
            .network
            .ranges
            .iter()
            .any(|r| r.contains(&self.facts.address));
        let has_given = self.pods.iter().any(|pod| self.is_pools(pod) == Some(true));
        let is_cause = self.host
            && self.facts.node_address.value().is_some()
            && is_free
            && in_range
            && has_given;
        is_cause.then_some(Cause::NodeAddressInRange)
    }

    fn leads_to_pod(&self, route: &RouteFacts) -> bool {
        let mut claimants = self.facts.claimants.iter();
        claimants.any(|c| c.device == route.device || c.bridge.as_ref() == Some(&route.device))
    }

    fn about_gateway(&self) -> Option<Cause> {
        let facts = self.facts;
        let sysctls = facts.sysctls.value();
        let elsewhere = facts
            .route
            .value()
            .is_some_and(|route| !self.leads_to_pod(route));
        let is_filtered = |s: &DeviceSysctls| match s.rp_filter {
            0 => false,
            1 => true,
            _ => !s.has_address,
        };
        if elsewhere && sysctls.is_some_and(is_filtered) {
            return Some(Cause::ReversePathFilter);
        }
        let foreign = facts.gateway_on_node.is_absent();
        let unrouted = match &facts.gateway_route {
            Known::Value(route, _) => self.leads_to_pod(route),
            Known::Absent(_) => true,
            Known::NotChecked(_) => false,
        };
        let no_source = facts.route.is_absent() && sysctls.is_some_and(|s| s.rp_filter > 0);
        if foreign && unrouted || no_source {
            return Some(Cause::NoRoute);
        }
        let is_off = foreign && sysctls.is_some_and(|s| !s.proxy_arp);
        is_off.then_some(Cause::NoProxyArp)
    }

    fn about_route(&self) -> Option<Cause> {
        let route = self.facts.route.value()?;
        if self.leads_to_pod(route) {
            return None;
        }
        match route.holder.value()? {
            RouteHolder::DeletedPod => Some(Cause::RouteOfDeletedPod),
            RouteHolder::Pod(_) => Some(Cause::RouteOfOtherPod),
            RouteHolder::Node => None,
        }
    }

    fn likely(&self) -> Cause {
        let is_flapping = self.facts.finding == FindingKind::Conflict(ConflictKind::Flapping);
        if self.duplicate || self.host || self.drift {
            let is_stopped = |pod: &Pod| pod.is_stopped || pod.is_outside_ipam();
            if self.pods.iter().any(|pod| pod.is_stopped) && self.is_over_without(is_stopped) {
                return Cause::SandboxGone;
            }
            let is_other = |pod: &Pod| pod.likely_other || pod.is_outside_ipam();
            if self.pods.iter().any(|pod| pod.likely_other) && self.is_over_without(is_other) {
                return Cause::NotFromIpam;
            }
        }
        if (self.duplicate || self.drift) && self.is_block_likely_recreated() {
            return Cause::BlockRecreated;
        }
        if (self.duplicate || self.drift) && self.is_likely_wiped() {
            return Cause::IpamStateWiped;
        }
        if (self.duplicate || self.drift) && self.is_release_predicted() {
            return Cause::ReleasedInUse;
        }
        let given_to_none = self
            .pods
            .iter()
            .all(|pod| pod.given == Some(false) && pod.has_result);
        let moved = self.facts.moved_at.value().is_some();
        if (self.duplicate || is_flapping)
            && moved
            && !self.pods.is_empty()
            && given_to_none
            && self.has_vip_signs()
        {
            return Cause::SharedOnPurpose;
        }
        Cause::Unknown
    }

    fn is_block_likely_recreated(&self) -> bool {
        let Some(PoolState::Calico { block_created, .. }) = self.pool.map(|pool| &pool.state)
        else {
            return false;
        };
        let Some(block) = block_created.value() else {
            return false;
        };
        let versions = self.facts.resource_versions.value();
        let may_be_restored = |pod: &Pod| match versions {
            None => true,
            Some(v) => v.now >= v.before && pod.had_it.is_some_and(|at| v.kept_at > at),
        };
        let mut victims = self.victims().into_iter();
        victims.any(|pod| {
            self.is_pools(pod) == Some(true)
                && pod.seen.or(pod.given_by).is_some_and(|at| *block > at)
                && may_be_restored(pod)
        })
    }

    fn is_release_predicted(&self) -> bool {
        let Some(PoolState::Calico {
            secondary_node,
            block_created,
        }) = self.pool.map(|pool| &pool.state)
        else {
            return false;
        };
        let Some(node) = secondary_node.value() else {
            return false;
        };
        let block = block_created.value();
        let all_older = !self.pods.is_empty()
            && block.is_some_and(|block| {
                let mut pods = self.pods.iter();
                pods.all(|pod| pod.given_by.is_some_and(|created| *block > created))
            });
        let mut pods = self.pods.iter();
        !all_older
            && pods.any(|pod| pod.allocated == Some(true) && pod.is_ready && pod.node != *node)
    }
}
