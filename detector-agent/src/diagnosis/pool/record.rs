//! What a pool has recorded, whichever its IPAM is.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use detector_engine::{
    IfIndex,
    diagnosis::{
        AllocationOwner, ClaimantFacts, Known, LivePods, NetworkConfig, NotChecked, OwnedBy,
        PoolFacts, PoolState, Release, Source, UnixTime,
    },
};
use detector_event::Pod;

use crate::diagnosis::{files::not_checked, history::SeenRemoval};

/// The owners of each address that is allocated.
pub(super) type Allocations = HashMap<IpAddr, Vec<Owner>>;

/// A claimant that may be the owner of an allocation.
#[derive(Debug)]
pub(in crate::diagnosis) struct Candidate {
    pub(in crate::diagnosis) facts: ClaimantFacts,
    /// The id of its sandbox.
    pub(in crate::diagnosis) sandbox: Option<String>,
    /// Its `namespace/name`, unless that was found by the addresses on its device, which prove nothing about one of them.
    pub(in crate::diagnosis) name: Option<String>,
}

impl Candidate {
    pub(in crate::diagnosis) fn new(facts: ClaimantFacts, pod: Option<&Pod>) -> Self {
        let by_record = pod.filter(|pod| !pod.is_matched_by_address);
        Self {
            facts,
            sandbox: pod.and_then(|pod| pod.container_id.clone()),
            name: by_record.map(full_name),
        }
    }
}

/// An owner of an allocation.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    /// As IPAM names it.
    pub(super) name: String,
    pub(super) is: OwnerIs,
    /// When IPAM recorded it.
    pub(super) at: Option<UnixTime>,
}

#[derive(Clone, Debug)]
pub(super) enum OwnerIs {
    /// The sandbox with this id.
    Sandbox(String),
    /// Every pod of this `namespace/name`.
    PodNamed(String),
    Node,
    Other,
    /// IPAM does not say.
    Unnamed,
}

/// An allocation of the address that the agent has seen and that is gone.
#[derive(Clone, Debug)]
pub(super) struct SeenRelease {
    pub(super) owner: Owner,
    pub(super) seen: UnixTime,
    pub(super) at: Option<UnixTime>,
}

impl Owner {
    fn owned_by(&self, claimants: &[Candidate]) -> OwnedBy {
        let (ours, is_comparable): (Vec<usize>, bool) = match &self.is {
            OwnerIs::Sandbox(id) => (
                positions(claimants, |c| c.sandbox.as_ref() == Some(id)),
                claimants.iter().all(|c| c.sandbox.is_some()),
            ),
            OwnerIs::PodNamed(name) => (
                positions(claimants, |c| c.name.as_ref() == Some(name)),
                claimants.iter().all(|c| c.name.is_some()),
            ),
            OwnerIs::Node => return OwnedBy::Node,
            OwnerIs::Other => return OwnedBy::Other,
            OwnerIs::Unnamed => return OwnedBy::NotComparable,
        };
        match (ours.is_empty(), is_comparable) {
            (false, _) => OwnedBy::Claimants(ours),
            (true, true) => OwnedBy::Other,
            (true, false) => OwnedBy::NotComparable,
        }
    }

    /// Whether it may be this pod.
    fn may_be(&self, pod: &Pod) -> bool {
        match &self.is {
            OwnerIs::Sandbox(owner) => pod.container_id.as_ref().is_none_or(|id| id == owner),
            OwnerIs::PodNamed(name) => *name == full_name(pod),
            OwnerIs::Unnamed => true,
            OwnerIs::Node | OwnerIs::Other => false,
        }
    }
}

fn positions<T>(all: &[T], is: impl Fn(&T) -> bool) -> Vec<usize> {
    let all = all.iter().enumerate();
    all.filter(|(_, one)| is(one))
        .map(|(index, _)| index)
        .collect()
}

fn full_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// Which addresses of pods are of a pool.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    /// Those that the network's ranges have.
    Ranges,
    /// Those of every pod of the node.
    Node,
    /// That is not known.
    Unknown(String),
}

/// The pool of an address, with who has what in it.
#[derive(Clone, Debug)]
pub(in crate::diagnosis) struct FoundPool {
    pub(super) network: NetworkConfig,
    pub(super) place: String,
    pub(super) source: Source,
    /// Where the allocation of the address itself is.
    pub(super) address_source: Source,
    pub(super) allocations: Result<Arc<Allocations>, String>,
    pub(super) scope: Scope,
    pub(super) releases: Known<Vec<SeenRelease>>,
    pub(super) state: PoolState,
}

impl FoundPool {
    /// With the allocations of the address that are gone, if the pool is followed. `owner` reads what IPAM calls an owner.
    pub(super) fn with_releases(
        mut self,
        removals: Option<Vec<SeenRemoval>>,
        owner: impl Fn(&str) -> Owner,
    ) -> Self {
        let release = |removal: SeenRemoval| {
            Some(SeenRelease {
                owner: owner(removal.owner.as_deref()?),
                seen: removal.seen,
                at: removal.at,
            })
        };
        self.releases = match removals {
            Some(removals) => {
                let releases = removals.into_iter().filter_map(release).collect();
                Known::Value(releases, self.source.clone())
            }
            None => not_checked("allocations that are gone", "no agent follows them"),
        };
        self
    }

    pub(in crate::diagnosis) fn network(&self) -> &NetworkConfig {
        &self.network
    }

    fn allocations(&self) -> Result<&Allocations, NotChecked> {
        let allocations = self.allocations.as_ref();
        allocations.map(Arc::as_ref).map_err(|why| NotChecked {
            what: self.place.clone(),
            because: why.clone(),
        })
    }

    /// The addresses that are allocated to a sandbox.
    pub(in crate::diagnosis) fn addresses_of(&self, sandbox: &str) -> Known<Vec<IpAddr>> {
        let all = match self.allocations() {
            Ok(all) => all,
            Err(why) => return Known::NotChecked(why),
        };
        let is_its = |owner: &Owner| matches!(&owner.is, OwnerIs::Sandbox(id) if id == sandbox);
        let own = all.iter().filter(|(_, owners)| owners.iter().any(is_its));
        let mut own: Vec<_> = own.map(|(address, _)| *address).collect();
        own.sort_unstable();
        match own.is_empty() {
            true => Known::Absent(self.source.clone()),
            false => Known::Value(own, self.source.clone()),
        }
    }

    /// The facts about the pool. `pods` are those of the node.
    pub(in crate::diagnosis) fn facts(
        &self,
        address: IpAddr,
        claimants: &[Candidate],
        pods: &HashMap<IfIndex, Arc<Pod>>,
    ) -> PoolFacts {
        let owners = match self.allocations() {
            Ok(all) => match all.get(&address) {
                Some(owners) => {
                    let owners = owners.iter().map(|owner| AllocationOwner {
                        name: owner.name.clone(),
                        is: owner.owned_by(claimants),
                        is_pod_name: matches!(owner.is, OwnerIs::PodNamed(_)),
                        allocated_at: owner.at,
                    });
                    Known::Value(owners.collect(), self.address_source.clone())
                }
                None => Known::Absent(self.source.clone()),
            },
            Err(why) => Known::NotChecked(why),
        };
        let release = |release: &SeenRelease| Release {
            of: release.owner.owned_by(claimants),
            seen: release.seen,
            at: release.at,
        };
        PoolFacts {
            network: self.network.clone(),
            place: self.place.clone(),
            owners,
            live_pods: self.live_pods(pods),
            releases: match &self.releases {
                Known::Value(all, source) => {
                    Known::Value(all.iter().map(release).collect(), source.clone())
                }
                Known::Absent(source) => Known::Absent(source.clone()),
                Known::NotChecked(why) => Known::NotChecked(why.clone()),
            },
            state: self.state.clone(),
        }
    }

    fn live_pods(&self, pods: &HashMap<IfIndex, Arc<Pod>>) -> Known<LivePods> {
        let all = match self.allocations() {
            Ok(all) => all,
            Err(why) => return Known::NotChecked(why),
        };
        let is_here = |address: &IpAddr| match &self.scope {
            Scope::Ranges => self.network.assigns(*address),
            Scope::Node | Scope::Unknown(_) => true,
        };
        if let Scope::Unknown(why) = &self.scope {
            return not_checked(format!("the pods with addresses of {}", self.place), why);
        }
        let live = pods.values().filter(|pod| {
            !pod.terminating
                && !pod.is_matched_by_address
                && pod.primary_addresses.iter().any(is_here)
        });
        let has_own = |pod: &Pod| {
            let mut addresses = pod.primary_addresses.iter();
            addresses.any(|a| all.get(a).is_some_and(|o| o.iter().any(|o| o.may_be(pod))))
        };
        let mut found = LivePods {
            total: 0,
            without_allocation: 0,
            addresses_without_allocation: 0,
        };
        for pod in live {
            found.total += 1;
            if !has_own(pod) {
                let here = pod.primary_addresses.iter().filter(|a| is_here(a));
                found.without_allocation += 1;
                found.addresses_without_allocation += here.count();
            }
        }
        Known::Value(found, self.source.clone())
    }
}
