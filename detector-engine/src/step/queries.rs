//! What the engine holds, for the endpoints, the metrics and the event loop.

use std::{collections::BTreeSet, net::IpAddr};

use super::{DropCounters, Engine, ListedClaim};
use crate::{
    beginning::mark_newest,
    claimants::ClaimContext,
    conflict::{ClaimantId, Conflict, ConflictId, ConflictKind, Reported},
    links::{LinkState, PodDevice},
    observation::{IfIndex, Timestamp},
    scope::Scope,
};
#[cfg(test)]
use crate::{facts::Facts, links::PodIdentity, observation::NsId};

impl Engine {
    /// The open conflicts with their claimants' newest evidence, oldest first.
    #[must_use]
    pub fn conflicts(&self, now: Timestamp) -> Vec<Conflict> {
        let mut conflicts: Vec<_> = self
            .conflict_addresses()
            .into_iter()
            .flat_map(|address| self.conflicts_of(address, now))
            .collect();
        conflicts.sort_by_key(|c| (c.raised_at, c.address, c.vlan));
        conflicts
    }

    /// The addresses with an open conflict, oldest conflict first; see [`Engine::conflicts_of`].
    #[must_use]
    pub fn conflict_addresses(&self) -> Vec<IpAddr> {
        let open = self.tracked.lifecycle.open();
        let mut addresses: Vec<_> = open.map(|(_, c)| (c.raised_at, c.address)).collect();
        addresses.sort_unstable();
        let mut seen = BTreeSet::new();
        addresses.retain(|(_, address)| seen.insert(*address));
        addresses.into_iter().map(|(_, address)| address).collect()
    }

    /// When each open conflict was raised, and its address; see [`Engine::conflicts_of`].
    #[must_use]
    pub fn conflict_ids(&self) -> Vec<(Timestamp, IpAddr, ConflictId)> {
        let open = self.tracked.lifecycle.open();
        open.map(|(_, c)| (c.raised_at, c.address, c.id)).collect()
    }

    /// The open conflicts of one address, with their claimants' newest evidence.
    #[must_use]
    pub fn conflicts_of(&self, address: IpAddr, now: Timestamp) -> Vec<Conflict> {
        let derived = self.claim_context().derive(address, now);
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
        self.tracked
            .lifecycle
            .open_of(address)
            .map(refreshed)
            .collect()
    }

    /// What the last event about an open conflict contained; `None` if there was none.
    #[must_use]
    pub fn reported(&self, conflict: &Conflict) -> Option<&Reported> {
        let mut open = self.tracked.lifecycle.open_of(conflict.address);
        let (_, open) = open.find(|(_, open)| open.id == conflict.id)?;
        open.reported.as_ref()
    }

    /// Stores what the last event about a conflict contained.
    pub fn set_reported(&mut self, conflict: &Conflict, reported: Reported) {
        self.tracked
            .lifecycle
            .set_reported(conflict.address, conflict.id, reported);
    }

    /// How many conflicts of `kind` are open.
    #[must_use]
    pub fn open_conflicts(&self, kind: ConflictKind) -> usize {
        self.tracked.lifecycle.count(kind)
    }

    /// Every address with facts, in no order; see [`Engine::claims_of`].
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.mirror.facts.addresses().collect()
    }

    /// How many live claims there are, without the node's own: as many as [`Engine::claims_of`]
    /// lists for all addresses together.
    #[must_use]
    pub fn claim_count(&self) -> usize {
        self.noted.counts.total()
    }

    /// The claims of one address, without the node's own.
    #[must_use]
    pub fn claims_of(&self, address: IpAddr, now: Timestamp) -> Vec<ListedClaim> {
        let derived = self.claim_context().derive(address, now);
        let context = self.claim_context();
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
    pub fn devices(&self) -> Vec<PodDevice> {
        self.mirror
            .links
            .iter()
            .filter(|l| l.is_pod())
            .map(LinkState::device)
            .collect()
    }

    /// How many pod devices there are.
    #[must_use]
    pub fn device_count(&self) -> usize {
        self.mirror
            .links
            .iter()
            .filter(|link| link.is_pod())
            .count()
    }

    /// The pod device with this index, if there is one.
    #[must_use]
    pub fn device(&self, ifindex: IfIndex) -> Option<PodDevice> {
        self.mirror.links.pod(ifindex).map(LinkState::device)
    }

    /// What was dropped at bounds so far.
    #[must_use]
    pub fn drop_counters(&self) -> DropCounters {
        self.drops
    }

    /// Whether the whole node was read at least once.
    #[cfg(test)]
    pub(crate) fn has_full_snapshot(&self) -> bool {
        self.mirror.is_complete
    }

    /// Whether a change of an open conflict waits to be reported.
    #[cfg(test)]
    pub(crate) fn has_unreported_change(&self, conflict: &Conflict) -> bool {
        self.tracked
            .lifecycle
            .has_unreported_change(conflict.address, conflict.id)
    }

    #[cfg(test)]
    pub(crate) fn facts(&self) -> &Facts {
        &self.mirror.facts
    }

    /// The namespace in which the pod behind a device is, or last was.
    #[cfg(test)]
    pub(crate) fn namespace_of(&self, ifindex: IfIndex) -> Option<NsId> {
        let id = ClaimantId::Device(ifindex, self.mirror.links.get(ifindex)?.generation);
        match self.mirror.links.pod_identity(id) {
            PodIdentity::Namespace(nsid) => Some(nsid),
            PodIdentity::Claimant(_) => None,
        }
    }

    pub(super) fn claim_context(&self) -> ClaimContext<'_> {
        ClaimContext {
            mirror: &self.mirror,
            settings: &self.settings,
            pools: &self.tracked.anomalies.pools,
        }
    }
}
