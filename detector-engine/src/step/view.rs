//! What the engine holds, for the endpoints, the metrics, the persistence and the event loop.

use std::{collections::BTreeSet, net::IpAddr};

#[cfg(test)]
use crate::mirror::facts::Facts;
use crate::{
    mirror::{facts::Owner, links::LinkState},
    model::{
        Anomaly, AnomalyId, AnomalyKind, CertainClaim, ClaimantId, Conflict, ConflictId,
        ConflictKind, DropCounters, IfIndex, ListedClaim, NODE_WIDE, NudState, OpenConflict,
        PodDevice, PoolRequest, Reported, Scope, Timestamp, is_link_local, mark_newest,
    },
    step::Engine,
};

/// A look at an [`Engine`] between two steps.
#[derive(Clone, Copy, Debug)]
pub struct View<'e>(&'e Engine);

impl Engine {
    /// What it holds now.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View(self)
    }

    /// For the model test, which takes over what the engine believes after a loss.
    #[cfg(test)]
    pub(crate) fn facts(&self) -> &Facts {
        &self.mirror.facts
    }
}

impl<'e> View<'e> {
    /// The open conflicts with their claimants' newest evidence, oldest first.
    #[must_use]
    pub fn conflicts(self, now: Timestamp) -> Vec<Conflict> {
        let mut conflicts: Vec<_> = self
            .conflict_addresses()
            .into_iter()
            .flat_map(|address| self.conflicts_of(address, now))
            .collect();
        conflicts.sort_by_key(|c| (c.raised_at, c.address, c.vlan));
        conflicts
    }

    /// What has to be read again to know who has an address in a pool that nodes share: its allocation may have changed on another node.
    pub fn pool_requests(self, address: IpAddr) -> impl Iterator<Item = PoolRequest> + 'e {
        self.0.tracked.anomalies.pools.parts_with(address)
    }

    /// The addresses with an open conflict, oldest conflict first; see [`View::conflicts_of`].
    #[must_use]
    pub fn conflict_addresses(self) -> Vec<IpAddr> {
        let open = self.0.tracked.lifecycle.open();
        let mut addresses: Vec<_> = open.map(|(_, c)| (c.raised_at, c.address)).collect();
        addresses.sort_unstable();
        let mut seen = BTreeSet::new();
        addresses.retain(|(_, address)| seen.insert(*address));
        addresses.into_iter().map(|(_, address)| address).collect()
    }

    /// When each open conflict was raised, and its address; see [`View::conflicts_of`].
    #[must_use]
    pub fn conflict_ids(self) -> Vec<(Timestamp, IpAddr, ConflictId)> {
        let open = self.0.tracked.lifecycle.open();
        open.map(|(_, c)| (c.raised_at, c.address, c.id)).collect()
    }

    /// The open conflicts of one address, with their claimants' newest evidence.
    #[must_use]
    pub fn conflicts_of(self, address: IpAddr, now: Timestamp) -> Vec<Conflict> {
        let derived = self.0.claim_context().derive(address, now);
        let refreshed = |(scope, conflict): (Scope, &Conflict)| {
            let mut conflict = conflict.clone();
            if conflict.quiet_since.is_some() {
                return conflict;
            }
            for fresh in derived.get(&scope).into_iter().flatten() {
                if let Some(shown) = conflict.claimants.iter_mut().find(|c| c.id == fresh.id) {
                    // Of those beyond the bound of the list, only the decision knew.
                    let known = std::mem::replace(shown, fresh.clone());
                    shown.is_newest = known.is_newest;
                    shown.keep_records(&known);
                }
            }
            if conflict.claimants_omitted == 0 {
                mark_newest(Some(conflict.kind), &mut conflict.claimants);
            }
            conflict
        };
        self.0
            .tracked
            .lifecycle
            .open_of(address)
            .map(refreshed)
            .collect()
    }

    /// What the last event about an open conflict contained; `None` if there was none.
    #[must_use]
    pub fn reported(self, conflict: &Conflict) -> Option<&'e Reported> {
        let mut open = self.0.tracked.lifecycle.open_of(conflict.address);
        let (_, open) = open.find(|(_, open)| open.id == conflict.id)?;
        open.reported.as_ref()
    }

    /// How many conflicts of `kind` are open.
    #[must_use]
    pub fn open_conflicts(self, kind: ConflictKind) -> usize {
        self.0.tracked.lifecycle.count(kind)
    }

    /// Every address with facts, in no order; see [`View::claims_of`].
    #[must_use]
    pub fn addresses(self) -> Vec<IpAddr> {
        self.0.mirror.facts.addresses().collect()
    }

    /// Every address that there are facts about on a pod device (index and generation).
    pub fn addresses_on(self, device: (IfIndex, u64)) -> impl Iterator<Item = IpAddr> {
        let link = self.0.mirror.links.device(device);
        let owners = link.into_iter().flat_map(|link| {
            let peer = link.link.peer.map(Owner::Peer);
            [Some(Owner::Link(link.link.ifindex)), peer]
                .into_iter()
                .flatten()
        });
        owners.flat_map(move |owner| self.0.mirror.facts.owned_by(owner))
    }

    /// How many live claims there are, without the node's own: as many as [`View::claims_of`]
    /// lists for all addresses together.
    #[must_use]
    pub fn claim_count(self) -> usize {
        self.0.noted.counts.total()
    }

    /// The claims of one address, without the node's own.
    #[must_use]
    pub fn claims_of(self, address: IpAddr, now: Timestamp) -> Vec<ListedClaim> {
        let derived = self.0.claim_context().derive(address, now);
        let context = self.0.claim_context();
        let claims = derived.into_iter().flat_map(|(scope, claimants)| {
            let network = context.network(scope.network);
            claimants.into_iter().map(move |claimant| ListedClaim {
                address,
                network: network.clone(),
                vlan: scope.vlan,
                claimant,
            })
        });
        claims
            .filter(|c| c.claimant.id != ClaimantId::Host)
            .collect()
    }

    /// All pod devices.
    #[must_use]
    pub fn devices(self) -> Vec<PodDevice> {
        self.0
            .mirror
            .links
            .iter()
            .filter(|l| l.is_pod())
            .map(LinkState::device)
            .collect()
    }

    /// How many pod devices there are.
    #[must_use]
    pub fn device_count(self) -> usize {
        self.0.mirror.links.pod_count()
    }

    /// The pod device with this index, if there is one.
    #[must_use]
    pub fn device(self, ifindex: IfIndex) -> Option<PodDevice> {
        self.0.mirror.links.pod(ifindex).map(LinkState::device)
    }

    /// What was dropped at bounds so far.
    #[must_use]
    pub fn drop_counters(self) -> DropCounters {
        self.0.drops
    }

    /// The open anomalies, oldest first, including restored ones that may still be found again.
    #[must_use]
    pub fn anomalies(self) -> Vec<Anomaly> {
        let mut open: Vec<_> = self.0.tracked.anomalies.open().cloned().collect();
        open.sort_by_key(|a| (a.raised_at, a.address, a.kind));
        open
    }

    /// When each open anomaly was raised, and its address; see [`View::anomalies_of`].
    #[must_use]
    pub fn anomaly_ids(self) -> Vec<(Timestamp, IpAddr, AnomalyId)> {
        let open = self.0.tracked.anomalies.open();
        open.map(|a| (a.raised_at, a.address, a.id)).collect()
    }

    /// The open ones among these anomalies.
    #[must_use]
    pub fn anomalies_of(self, ids: &[AnomalyId]) -> Vec<Anomaly> {
        let mut found: Vec<_> = self
            .0
            .tracked
            .anomalies
            .open()
            .filter(|a| ids.contains(&a.id))
            .cloned()
            .collect();
        found.sort_by_key(|a| (a.raised_at, a.address, a.kind));
        found
    }

    /// The open anomalies of these devices (index and generation).
    pub fn anomalies_held_by(
        self,
        devices: &[(IfIndex, u64)],
    ) -> impl Iterator<Item = &'e Anomaly> {
        self.0.tracked.anomalies.open().filter(|anomaly| {
            let holder = anomaly.holder.as_ref();
            let device = holder.and_then(|holder| holder.id.device());
            device.is_some_and(|device| devices.contains(&device))
        })
    }

    /// How many anomalies of `kind` are open.
    #[must_use]
    pub fn open_anomalies(self, kind: AnomalyKind) -> usize {
        self.0.tracked.anomalies.count(kind)
    }

    /// Anomalies rejected at a bound.
    #[must_use]
    pub fn anomalies_refused(self) -> u64 {
        self.0.tracked.anomalies.refused()
    }

    /// Whether [`Engine::take_changed_claims`] returns any address.
    #[must_use]
    pub fn has_changed_claims(self) -> bool {
        let changed = self.0.noted.changed.as_ref();
        changed.is_some_and(|changed| !changed.is_empty())
    }

    /// The certain claims of an address, oldest first. For an address that was only heard, this costs a look at its facts.
    #[must_use]
    pub fn certain_claims(self, address: IpAddr, now: Timestamp) -> Vec<CertainClaim> {
        let Some(facts) = self.0.mirror.facts.get(address) else {
            return Vec::new();
        };
        let may_be_certain = !facts.assigned.is_empty()
            || facts
                .neighbours
                .iter()
                .any(|n| n.state == NudState::Permanent);
        if !may_be_certain || is_link_local(address) {
            return Vec::new();
        }
        let context = self.0.claim_context();
        let Some(claimants) = context.derive(address, now).remove(&NODE_WIDE) else {
            return Vec::new();
        };
        let is_contested = claimants.len() > 1;
        let receiver = is_contested
            .then(|| context.traffic_receiver(address, NODE_WIDE, &claimants))
            .flatten()
            .map(|claimant| claimant.id);
        let claimants = claimants.into_iter();
        claimants
            .filter(|c| matches!(c.id, ClaimantId::Device(..)) && c.is_certain())
            .map(|claimant| CertainClaim {
                is_on_device: claimant.peer.is_some_and(|peer| facts.is_assigned_on(peer)),
                receives_traffic: receiver == Some(claimant.id),
                claimant,
            })
            .collect()
    }

    /// How many claimed addresses are not in the table, as it was last taken.
    #[must_use]
    pub fn claimed_addresses_omitted(self) -> usize {
        self.0.noted.table.omitted()
    }

    /// Whether restored conflicts still wait for the first full snapshot.
    #[must_use]
    pub fn is_restoring(self) -> bool {
        !self.0.tracked.restored.is_empty()
    }

    /// Every open conflict in its persisted form, including those that wait for the first full
    /// snapshot.
    #[must_use]
    pub fn open_records(self, now: Timestamp) -> Vec<OpenConflict> {
        let mut records = self.0.tracked.restored.records().to_vec();
        for address in self.conflict_addresses() {
            for conflict in self.conflicts_of(address, now) {
                records.extend(self.open_record(&conflict));
            }
        }
        records
    }

    /// One open conflict in its persisted form; `None` if it is no longer open.
    #[must_use]
    pub fn open_record(self, conflict: &Conflict) -> Option<OpenConflict> {
        self.0.open_record(conflict)
    }

    /// Whether [`Engine::take_route_lookups`] returns any address.
    #[must_use]
    pub fn has_route_lookups(self) -> bool {
        self.0.mirror.route_lookups.is_pending()
    }

    /// The `count` pod devices that follow the index `after`, or all if there are fewer: in the
    /// order of their indices, after the highest from the lowest again.
    #[must_use]
    pub fn next_devices(self, after: IfIndex, count: usize) -> Vec<IfIndex> {
        let pods = self.0.mirror.links.iter().filter(|link| link.is_pod());
        // Those up to `after` follow those above it.
        let mut order: Vec<_> = pods
            .map(|link| link.link.ifindex)
            .map(|ifindex| (ifindex <= after, ifindex))
            .collect();
        order.sort_unstable();
        order.truncate(count);
        order.into_iter().map(|(_, ifindex)| ifindex).collect()
    }
}
