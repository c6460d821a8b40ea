//! Questions that several rules ask. An answer `None` means that the facts do not tell.

use std::time::Duration;

use crate::{
    diagnosis::{
        facts::{
            AllocationOwner, ClaimantFacts, CniResult, Facts, FindingKind, NetworkConfig, OwnedBy,
            PoolFacts, PoolState, Release, SandboxState,
        },
        known::UnixTime,
    },
    model::{AnomalyKind, ConflictKind, EvidenceKind},
};

/// As long as kubelet waits for a sandbox: twice its `runtimeRequestTimeout`.
const LONGEST_SETUP: Duration = Duration::from_mins(4);

/// When a sandbox was given its address.
#[derive(Clone, Copy)]
pub(super) struct SetUp {
    /// What existed then, and still does, has the allocation unless that was released.
    pub(super) earliest: UnixTime,
    /// What was created later had never seen it.
    pub(super) latest: UnixTime,
}

impl NetworkConfig {
    /// Whether both assign addresses from the same state.
    pub(super) fn shares_state_with(&self, other: &Self) -> bool {
        // These record the addresses of all networks of the cluster together.
        let is_of_cluster = matches!(self.ipam.as_str(), "whereabouts" | "spiderpool");
        self.ipam == other.ipam
            && (is_of_cluster || (&self.name, &self.data_dir) == (&other.name, &other.data_dir))
    }

    /// Whether ranges of both overlap, or that is not excluded: one without ranges takes them from elsewhere.
    pub(super) fn may_overlap(&self, other: &Self) -> bool {
        self.ranges.is_empty() || other.ranges.is_empty() || self.shares_range_with(other)
    }
}

impl PoolFacts {
    pub(super) fn is_host_local(&self) -> bool {
        matches!(self.state, PoolState::HostLocal { .. })
    }

    pub(super) fn is_calico(&self) -> bool {
        matches!(self.state, PoolState::Calico { .. })
    }

    /// Whether its state is in the datastore of the API server, and all nodes share it.
    #[must_use]
    pub fn is_in_datastore(&self) -> bool {
        self.is_calico() || matches!(self.state, PoolState::ByLease)
    }

    pub(super) fn is_aws(&self) -> bool {
        matches!(self.state, PoolState::Aws { .. })
    }

    /// Whether it may assign from the node's podCIDR.
    pub(super) fn is_of_node(&self) -> bool {
        matches!(self.state, PoolState::HostLocal { .. } | PoolState::Other)
    }

    /// Since when the present state exists.
    pub(super) fn state_since(&self) -> Option<UnixTime> {
        match &self.state {
            PoolState::HostLocal {
                directory, lock, ..
            } => {
                let directory = directory.value()?.born?;
                // Early versions of host-local lock the directory itself.
                if lock.is_absent() {
                    return Some(directory);
                }
                Some(directory.max(lock.value()?.born?))
            }
            PoolState::Calico { block_created, .. } => block_created.value().copied(),
            PoolState::Aws { started, .. } => started.value().copied(),
            PoolState::ByLease | PoolState::Other => None,
        }
    }

    /// Whether its state had the allocation of a sandbox that was given an address then.
    pub(super) fn had_allocation(&self, given: SetUp) -> bool {
        let is_older = |since: UnixTime| since <= given.earliest;
        matches!(self.state, PoolState::ByLease) || self.state_since().is_some_and(is_older)
    }

    /// The owners of the address; none if it is not allocated. `None` if that was not checked.
    pub(super) fn known_owners(&self) -> Option<&[AllocationOwner]> {
        if self.owners.is_absent() {
            return Some(&[]);
        }
        self.owners.value().map(Vec::as_slice)
    }
}

impl ClaimantFacts {
    pub(super) fn is_running(&self) -> bool {
        let sandbox = self.sandbox.value();
        sandbox.is_some_and(|sandbox| sandbox.state == SandboxState::Ready)
    }

    pub(super) fn has_sandbox_in(&self, state: SandboxState) -> bool {
        let sandbox = self.sandbox.value();
        sandbox.is_some_and(|sandbox| sandbox.state == state)
    }

    pub(super) fn is_assigned(&self) -> bool {
        self.assignment.value().is_some() || self.evidence.contains(&EvidenceKind::Address)
    }

    /// Whether a route to this device reaches the pod.
    pub(super) fn is_reached_by(&self, device: &str) -> bool {
        self.device == device || self.bridge.as_deref() == Some(device)
    }

    /// Whether frames and entries that followed from them are all that supports the claim.
    pub(super) fn has_only_frames(&self) -> bool {
        let is_frame = |kind: &EvidenceKind| matches!(kind, EvidenceKind::Arp | EvidenceKind::Ndp);
        self.evidence.iter().any(is_frame)
            && !self.evidence.contains(&EvidenceKind::Address)
            && !self.has_permanent_neighbour
    }
}

impl Facts {
    pub(super) fn is_drift(&self) -> bool {
        self.finding == FindingKind::Anomaly(AnomalyKind::IpamDrift)
    }

    pub(super) fn is_host_conflict(&self) -> bool {
        self.finding == FindingKind::Conflict(ConflictKind::Host)
    }

    pub(super) fn is_flapping(&self) -> bool {
        self.finding == FindingKind::Conflict(ConflictKind::Flapping)
    }

    pub(super) fn is_on_several_nodes(&self) -> bool {
        let mut nodes = self.claimants.iter().map(|c| &c.node);
        nodes
            .next()
            .is_some_and(|first| nodes.any(|node| node != first))
    }

    /// Whether there are claimants and `is` holds for all of them.
    pub(super) fn all_claimants(&self, is: impl Fn(usize, &ClaimantFacts) -> bool) -> bool {
        !self.claimants.is_empty() && self.claimants.iter().enumerate().all(|(i, c)| is(i, c))
    }

    /// The CNI result that gives the address to the claimant.
    pub(super) fn cni_result_of(&self, index: usize) -> Option<&CniResult> {
        let mut results = self.claimants[index].cni_results.value()?.iter();
        results.find(|result| result.addresses.contains(&self.address))
    }

    /// The network whose plugin gave the claimant the address.
    pub(super) fn network_of(&self, index: usize) -> Option<&NetworkConfig> {
        Some(&self.cni_result_of(index)?.network)
    }

    /// The times between which the claimant's sandbox was given its address. The creation of the sandbox alone is too early to compare
    /// with: the first pod of a network is created before the directory with its reservation.
    pub(super) fn set_up(&self, index: usize) -> Option<SetUp> {
        let claimant = &self.claimants[index];
        let created = claimant.sandbox.value()?.created?;
        let stored = self.cni_result_of(index).and_then(|r| r.stored_at);
        // A pod may assign its address again, so this is no earliest time.
        let assigned = || claimant.assignment.value()?.since;
        let latest = stored.or_else(assigned).unwrap_or(created + LONGEST_SETUP);
        Some(SetUp {
            earliest: stored.unwrap_or(created).max(created),
            latest: latest.max(created),
        })
    }

    /// Whether a record that no pod writes gives the address to the claimant. Only CNI results tell that none does: the runtime and
    /// the Kubernetes API have the addresses of one interface alone.
    pub(super) fn is_given(&self, index: usize) -> Option<bool> {
        let claimant = &self.claimants[index];
        if claimant.cni_results.value().is_some() {
            return Some(self.network_of(index).is_some());
        }
        let sandbox = claimant.sandbox.value().map(|s| &s.addresses);
        let pod = claimant.pod.value().map(|p| &p.addresses);
        let mut recorded = sandbox.into_iter().chain(pod).flatten();
        let is_recorded = recorded.any(|address| *address == self.address);
        (is_recorded || self.has_allocation(index) == Some(true)).then_some(true)
    }

    /// Whether the pool has allocated the address to the claimant.
    pub(super) fn has_allocation(&self, index: usize) -> Option<bool> {
        let owners = self.pool.value()?.known_owners()?;
        let is_ours =
            |o: &AllocationOwner| matches!(&o.is, OwnedBy::Claimants(c) if c.contains(&index));
        if owners.iter().any(is_ours) {
            return Some(true);
        }
        let is_comparable = |o: &AllocationOwner| o.is != OwnedBy::NotComparable;
        owners.iter().all(is_comparable).then_some(false)
    }

    /// The last allocation of the claimant that was there when it was set up, as far as the agent has seen, and that is gone.
    pub(super) fn release_of(&self, index: usize) -> Option<&Release> {
        let created = self.claimants[index].sandbox.value()?.created?;
        let set_up = self.set_up(index)?.latest;
        let releases = self.pool.value()?.releases.value()?.iter();
        let is_ours = |release: &&Release| {
            matches!(&release.of, OwnedBy::Claimants(c) if c.contains(&index))
                // One that was seen before may be an earlier pod's.
                && release.seen >= created
                && release.at.unwrap_or(release.seen) >= set_up
        };
        releases.filter(is_ours).max_by_key(|release| release.seen)
    }

    /// Until when the pool is known to have had the allocation of [`Self::release_of`].
    pub(super) fn released_after(&self, index: usize) -> Option<UnixTime> {
        let set_up = self.set_up(index)?.latest;
        Some(self.release_of(index)?.seen.max(set_up))
    }

    /// The latest time at which the pool is known to have had the allocation of the claimant, if it ever had it.
    pub(super) fn last_allocated(&self, index: usize) -> Option<UnixTime> {
        let seen = self.released_after(index);
        seen.or_else(|| Some(self.set_up(index)?.earliest))
    }

    /// Whether the claimant was given the address from the pool.
    pub(super) fn is_from_pool(&self, index: usize) -> Option<bool> {
        let pool = self.pool.value()?;
        match self.network_of(index) {
            Some(network) => Some(network.shares_state_with(&pool.network)),
            None => self.is_from_only_network(index, pool).then_some(true),
        }
    }

    /// The same without a CNI result: the runtime has recorded the address, and since before the claimant's sandbox no other network
    /// has been configured that assigns it.
    fn is_from_only_network(&self, index: usize, pool: &PoolFacts) -> bool {
        let claimant = &self.claimants[index];
        let since = self.node.cni_configured_since.value();
        let is_older = |created: UnixTime| since.is_some_and(|since| *since < created);
        let sandbox = claimant.sandbox.value();
        pool.is_host_local()
            && claimant.cni_results.value().is_none()
            && sandbox.is_some_and(|s| s.addresses.contains(&self.address))
            && sandbox.and_then(|s| s.created).is_some_and(is_older)
            && pool.network.assigns(self.address)
            && self.overlapping_networks.is_absent()
    }

    /// Whether the state of the pool has not been replaced by an older one since `time`; `None` if that is not known.
    pub(super) fn is_never_restored_since(&self, time: UnixTime) -> Option<bool> {
        if !self.pool.value()?.is_in_datastore() {
            return Some(true);
        }
        let versions = self.resource_versions.value()?;
        if versions.now < versions.before {
            return Some(false);
        }
        (versions.kept_at <= time).then_some(true)
    }

    /// The claimants for which the state of the pool can be the cause: they run and were given the address, the pool has no allocation
    /// for them, and, in a conflict, another claimant was given the same one for which that state decided.
    pub(super) fn victims(&self) -> impl Iterator<Item = usize> {
        (0..self.claimants.len()).filter(|&index| {
            self.claimants[index].is_running()
                && self.is_given(index) == Some(true)
                && self.has_allocation(index) == Some(false)
                && (self.is_drift() || self.has_successor(index))
        })
    }

    /// Whether the state that has no allocation for the claimant can have given its address to another one.
    fn has_successor(&self, index: usize) -> bool {
        let is_shared_by_nodes = self.pool.value().is_some_and(PoolFacts::is_in_datastore);
        let victim = &self.claimants[index];
        let mut others = self.claimants.iter().enumerate();
        others.any(|(other, claimant)| {
            other != index
                && self.is_given(other) == Some(true)
                && self.is_from_pool(other) != Some(false)
                && (is_shared_by_nodes || claimant.node == victim.node)
        })
    }

    /// Whether the runtime no longer lists the claimant's sandbox.
    pub(super) fn is_leftover(&self, index: usize) -> bool {
        self.claimants[index].has_sandbox_in(SandboxState::Gone)
    }

    /// Whether the claimant has the address assigned, and no network plugin gave it to it.
    pub(super) fn is_self_assigned(&self, index: usize) -> bool {
        self.is_given(index) == Some(false)
            && self.claimants[index].is_assigned()
            && !self.is_leftover(index)
    }

    /// Whether the claimant announces the address and has never had it.
    pub(super) fn is_only_announced(&self, index: usize) -> bool {
        let claimant = &self.claimants[index];
        claimant.assignment.is_absent()
            && claimant.has_only_frames()
            && self.is_given(index) != Some(true)
            && !self.is_leftover(index)
    }

    /// Whether a claim has nothing to do with IPAM: that of a left-over device, or of a pod that took the address.
    pub(super) fn is_intruder(&self, index: usize) -> bool {
        self.is_leftover(index) || self.is_self_assigned(index) || self.is_only_announced(index)
    }

    /// Whether the finding would be over without these claimants.
    pub(super) fn is_explained_by(&self, is_intruder: impl Fn(usize) -> bool) -> bool {
        let others = (0..self.claimants.len()).filter(|&index| !is_intruder(index));
        // The node is the other claimant of a host conflict, and drift is about each holder.
        let allowed = usize::from(!self.is_host_conflict() && !self.is_drift());
        others.count() <= allowed
    }

    /// Whether a record gives the address to some claimant.
    pub(super) fn is_given_to_some(&self) -> bool {
        (0..self.claimants.len()).any(|index| self.is_given(index) == Some(true))
    }

    /// Whether the claimants are replicas, or say that they manage virtual IPs.
    pub(super) fn have_signs_of_vip(&self) -> bool {
        self.have_one_controller() || self.vip_label().is_some()
    }

    /// Whether it is not excluded that the address is a VIP, which software assigns that manages it. Nobody is harmed then, because
    /// no other pod was given the address.
    pub(super) fn may_be_vip(&self) -> bool {
        let is_without_signs =
            || self.all_claimants(|_, c| c.pod.value().is_some()) && !self.have_signs_of_vip();
        self.finding == FindingKind::Conflict(ConflictKind::Duplicate)
            && !self.is_given_to_some()
            && !self.moved_at.is_absent()
            && !is_without_signs()
    }

    pub(super) fn have_one_controller(&self) -> bool {
        let key = |claimant: &'_ ClaimantFacts| {
            let pod = claimant.pod.value()?;
            let (namespace, _) = pod.name.split_once('/')?;
            let controller = pod.controller.as_ref()?;
            Some((
                namespace.to_owned(),
                controller.kind.clone(),
                controller.name.clone(),
            ))
        };
        let mut keys = self.claimants.iter().map(key);
        let first = keys.next().flatten();
        self.claimants.len() > 1 && first.is_some() && keys.all(|key| key == first)
    }

    /// A claimant's label that names software for virtual IPs, and the claimant.
    pub(super) fn vip_label(&self) -> Option<(usize, &str)> {
        let mut claimants = self.claimants.iter().enumerate();
        claimants.find_map(|(i, c)| Some((i, c.pod.value()?.vip_label.as_deref()?)))
    }
}
