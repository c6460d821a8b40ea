//! Collects the facts about one finding.

use std::{
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use detector_engine::{
    AnomalyKind, ConflictKind, ConflictScope, IfIndex,
    diagnosis::{ClaimantFacts, Facts, FindingKind, Known, NodeRange, PoolFacts, Source, UnixTime},
};
use detector_event::{AnomalyData, AnyEvent, ClaimantData, ConflictData, Pod};

use super::{
    PoolHistory, claimants,
    files::{not_checked, unix},
    node,
    nodes::OtherNodes,
    plugins,
    pool::{Candidate, PoolReader},
    requests::Requests,
    results,
    routing::{Routing, RoutingFacts},
    sandboxes::Sandboxes,
    stored_history::StoredHistory,
    versions::Versions,
};
use crate::{
    ipam::{IpamSettings, calico::FollowedBlocks},
    kube_client::KubeClient,
    persist::store::Store,
    pods::{PluginPods, PodDirectory, PodLookupSettings, SandboxList},
};

/// What is to be explained.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Finding<'d> {
    /// A conflict.
    Conflict(&'d ConflictData),
    /// An anomaly.
    Anomaly(&'d AnomalyData),
}

impl<'d> From<&'d AnyEvent> for Finding<'d> {
    fn from(event: &'d AnyEvent) -> Self {
        match event {
            AnyEvent::Conflict(event) => Self::Conflict(&event.data),
            AnyEvent::Anomaly(event) => Self::Anomaly(&event.data),
        }
    }
}

/// A finding that is explained.
struct Subject<'e> {
    finding: FindingKind,
    /// The address of the pod.
    address: IpAddr,
    /// The gateway that the pod asks for.
    gateway: Option<IpAddr>,
    node: &'e str,
    /// The pods, without the node itself.
    claimants: Vec<Candidate>,
    /// Why the records of network plugins and IPAM have nothing to do with it.
    records: Result<(), &'static str>,
    /// The index of the claimant that had the address last.
    newest: Known<usize>,
    /// The routes of the kernel, or why they are not known.
    routing: Result<Routing, String>,
    /// The Nodes whose podCIDR has the address.
    nodes: Known<Vec<NodeRange>>,
    /// When the address last moved by an announcement.
    moved_at: Known<UnixTime>,
}

const MOVES: &str = "moves of the address by announcements";
/// Why a fact is not collected.
const NOT_NEEDED: &str = "no cause of this finding depends on it";
/// The same for routes and sysctls in a VLAN.
const ROUTES_IN_VLAN: &str = "it is not known which device of the node is in the VLAN";
/// The same for records: what a pod announces in a VLAN may be on a VLAN interface inside it, which no network plugin knows.
const IN_VLAN: &str = "it is not known which network of the pods is in the VLAN";

/// What other threads keep up to date.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched {
    pub(crate) pods: Arc<PodDirectory>,
    pub(crate) plugins: Arc<PluginPods>,
    pub(crate) pools: Arc<PoolHistory>,
    pub(crate) blocks: Arc<FollowedBlocks>,
}

/// Collects facts on this node.
#[derive(Debug)]
pub(crate) struct Collector {
    pools: PoolReader,
    sandboxes: Sandboxes,
    /// The CNI result cache; `None` if it is not used.
    results: Option<PathBuf>,
    plugins: Arc<PluginPods>,
    requests: Requests,
    history: StoredHistory,
    versions: Versions,
    nodes: OtherNodes,
}

impl Collector {
    /// With the sources of the pod lookups.
    ///
    /// # Errors
    /// If the system refuses basic resources.
    pub(crate) fn new(
        ipam: &IpamSettings,
        settings: &PodLookupSettings,
        kube: Option<KubeClient>,
        watched: Watched,
    ) -> io::Result<Self> {
        Ok(Self {
            sandboxes: Sandboxes::new(SandboxList::new()?, Arc::clone(&watched.pods)),
            pools: PoolReader::new(ipam, &watched),
            results: settings.cni_cache_dir.path().map(Path::to_owned),
            plugins: watched.plugins,
            history: StoredHistory::new(watched.pools),
            versions: Versions::default(),
            nodes: OtherNodes::default(),
            requests: Requests::new(kube)?,
        })
    }

    /// Continues in `store` what is known of the datastore and of pools from before the agent's start.
    pub(crate) fn stored(mut self, store: Option<Arc<Store>>) -> Self {
        self.history = self.history.stored(store.clone());
        self.versions = Versions::stored(store);
        self
    }

    /// With a runtime that lists these sandboxes, whether or not each is ready.
    #[cfg(test)]
    pub(super) fn with_sandboxes(mut self, listed: crate::pods::ListedSandboxes) -> Self {
        self.sandboxes = self.sandboxes.listing(listed);
        self
    }

    /// When [`Self::look`] is to be called next.
    pub(super) fn next_look(&self) -> Instant {
        let due = self.versions.due();
        self.history.due().map_or(due, |other| other.min(due))
    }

    /// Reads what has to be known from before a finding, and stores what has to outlive the agent.
    pub(super) fn look(&mut self) {
        self.history.keep();
        if self.versions.due() > Instant::now() {
            return;
        }
        match self.pools.is_any_in_datastore() {
            true => self.versions.refresh(Instant::now(), &mut self.requests),
            false => self.versions.skip(),
        }
    }

    /// Stores what has to outlive the agent.
    pub(super) fn close(&mut self) {
        self.history.write();
    }

    /// The facts at `due` or later; `None` if findings of this kind are not explained.
    pub(crate) fn facts(&mut self, finding: Finding<'_>, due: Instant) -> Option<Facts> {
        self.pools.refresh(due);
        self.sandboxes.refresh(due);
        let subject = match finding {
            Finding::Conflict(data) => self.conflict(data),
            Finding::Anomaly(data) => self.anomaly(data)?,
        };
        Some(self.collect(subject, due))
    }

    fn conflict<'e>(&mut self, data: &'e ConflictData) -> Subject<'e> {
        let mut own = data
            .present()
            .filter(|claimant| is_on(claimant, &data.node));
        let device = own.find(|claimant| !claimant.is_node);
        let nodes = match data.scope {
            ConflictScope::Node => not_checked("the podCIDRs of other nodes", NOT_NEEDED),
            ConflictScope::Fleet => self.nodes.with_range(
                data.present().map(|claimant| &*claimant.node),
                data.address.into(),
                &mut self.requests,
            ),
        };
        let mut claimants = self.conflict_claimants(data);
        let is_assigned = |candidate: &Candidate| candidate.facts.assignment.value().is_some();
        let records = match data.vlan {
            Some(_) if !claimants.iter().all(is_assigned) => Err(IN_VLAN),
            _ => Ok(()),
        };
        if let Err(why) = records {
            for candidate in &mut claimants {
                claimants::leave_out_records(&mut candidate.facts, why);
            }
        }
        Subject {
            finding: FindingKind::Conflict(data.kind),
            address: data.address,
            gateway: None,
            node: &data.node,
            claimants,
            records,
            newest: newest(data),
            routing: match data.vlan {
                Some(_) => Err(ROUTES_IN_VLAN.to_owned()),
                None => Routing::around(device.map(|claimant| claimant.ifindex)),
            },
            nodes,
            moved_at: moved_at(data),
        }
    }

    fn anomaly<'e>(&mut self, data: &'e AnomalyData) -> Option<Subject<'e>> {
        if !data.is_diagnosed() {
            return None;
        }
        if let Some(range) = data.range {
            return Some(Subject {
                finding: FindingKind::Anomaly(data.kind),
                address: data.address,
                gateway: None,
                node: &data.node,
                claimants: Vec::new(),
                records: Ok(()),
                newest: Known::Absent(Source::Engine),
                routing: Err(NOT_NEEDED.to_owned()),
                nodes: self.nodes.with_range(
                    data.nodes.iter().map(String::as_str),
                    range,
                    &mut self.requests,
                ),
                moved_at: not_checked(MOVES, NOT_NEEDED),
            });
        }
        let device = data.device.as_deref()?;
        let pod = self.pod_on(data.ifindex, data.pod.as_ref());
        let mut routing = match data.vlan {
            Some(_) => Err(ROUTES_IN_VLAN.to_owned()),
            None => Routing::around(data.ifindex),
        };
        let gateway = (data.kind == AnomalyKind::GatewayUnresolved).then_some(data.address);
        let address = match gateway {
            // The address of the pod in the VLAN is not known.
            Some(gateway) if data.vlan.is_some() => gateway,
            Some(gateway) => address_of(pod.as_deref(), &mut routing, gateway.is_ipv4())?,
            None => data.address,
        };
        let holder = ClaimantFacts {
            bridge: routing.as_ref().ok().and_then(Routing::bridge),
            ..claimants::of_anomaly(data, pod.as_deref(), device, &mut self.sandboxes)
        };
        Some(Subject {
            finding: FindingKind::Anomaly(data.kind),
            address,
            gateway,
            node: &data.node,
            claimants: vec![Candidate::new(holder, pod.as_deref())],
            records: Ok(()),
            newest: Known::Absent(Source::Engine),
            routing,
            nodes: not_checked("the podCIDRs of other nodes", NOT_NEEDED),
            moved_at: not_checked(MOVES, NOT_NEEDED),
        })
    }

    /// The pod on a device as it is known now: more may be known than when the event was made.
    fn pod_on(&mut self, ifindex: Option<IfIndex>, known: Option<&Arc<Pod>>) -> Option<Arc<Pod>> {
        let now = ifindex.and_then(|ifindex| self.pools.pods().get(&ifindex));
        now.or(known).map(Arc::clone)
    }

    /// The present claimants, without the node itself.
    fn conflict_claimants(&mut self, data: &ConflictData) -> Vec<Candidate> {
        let pods = data.present().filter(|claimant| !claimant.is_node);
        pods.map(|claimant| {
            if !is_on(claimant, &data.node) {
                let facts = self.on_other_node(claimant, data.address);
                return Candidate::new(facts, claimant.pod.as_deref());
            }
            let pod = self.pod_on(Some(claimant.ifindex), claimant.pod.as_ref());
            let facts =
                claimants::of_conflict(claimant, pod.as_deref(), data.address, &mut self.sandboxes);
            Candidate::new(facts, pod.as_deref())
        })
        .collect()
    }

    /// A claimant on another node: only the API server has facts about it.
    fn on_other_node(&mut self, claimant: &ClaimantData, address: IpAddr) -> ClaimantFacts {
        let pod = claimant.pod.as_deref();
        let mut facts = claimants::on_other_node(claimant, pod, address);
        if let (Known::Value(known, _), Some(pod)) = (&mut facts.pod, pod) {
            let requests = &mut self.requests;
            match self.nodes.addresses_of_pod(&claimant.node, pod, requests) {
                Ok(addresses) => known.addresses = addresses,
                Err(why) => facts.pod = not_checked(format!("pod {}", known.name), why),
            }
        }
        facts
    }

    fn collect(&mut self, subject: Subject<'_>, due: Instant) -> Facts {
        let Subject {
            finding,
            address,
            gateway,
            node,
            mut claimants,
            records,
            newest,
            routing,
            nodes,
            moved_at,
        } = subject;
        let recorded_at = self.pools.recorded_at(address);
        let pool = match records {
            Err(why) => Err(why.to_owned()),
            Ok(()) if claimants.is_empty() => Err(NOT_NEEDED.to_owned()),
            Ok(()) => self.pools.find(address, node, &mut self.requests),
        };
        for Candidate {
            facts: claimant,
            sandbox,
            ..
        } in &mut claimants
        {
            let is_here = claimant.node.is_empty() || claimant.node == node;
            let is_recorded = is_here && records.is_ok();
            let (Some(sandbox), Some(directory), true) = (sandbox, &self.results, is_recorded)
            else {
                continue;
            };
            // The runtime lists a sandbox once all of its networks are set up; before, a result that is missing means nothing.
            claimant.cni_results = match claimant.sandbox.value() {
                Some(_) => results::of_sandbox(directory, sandbox),
                None => not_checked(
                    format!("the CNI results of {}", claimant.device),
                    "the container runtime does not list the sandbox yet, or is not reached",
                ),
            };
            if let Ok(pool) = &pool {
                claimant.allocated_addresses = pool.addresses_of(sandbox);
            }
        }
        let pool = match recorded_at {
            Some(at) if is_given_since(&claimants, address, at) => Err(format!(
                "the record of {address} was not read since a network plugin returned it to a pod"
            )),
            _ => pool,
        };
        let what = "networks with overlapping ranges";
        let (pool, overlapping_networks) = match pool {
            Ok(pool) => {
                let facts = pool.facts(address, &claimants, self.pools.pods());
                let overlapping = self.pools.overlapping(pool.network());
                (Known::Value(facts, self.pools.source()), overlapping)
            }
            Err(why) => (
                not_checked(format!("the IPAM pool of {address}"), why.clone()),
                not_checked(what, why),
            ),
        };
        let routing = RoutingFacts::read(routing, finding, address, gateway, |device| {
            let pod = self.pools.pods().get(&device).cloned()?;
            let sandbox = self.sandboxes.of(&pod);
            Some((pod, sandbox))
        });
        if pool.value().is_some_and(PoolFacts::is_in_datastore) {
            self.versions.refresh(due, &mut self.requests);
        }
        Facts {
            finding,
            address,
            claimants: claimants
                .into_iter()
                .map(|claimant| claimant.facts)
                .collect(),
            newest,
            pool,
            overlapping_networks,
            node: node::facts(
                node,
                self.pools.cni_configuration(),
                self.sandboxes.runtime_started(),
                plugins::starts(&self.plugins),
            ),
            node_address: routing.node_address,
            moved_at,
            nodes_with_range: nodes,
            resource_versions: self.versions.facts(),
            route: routing.route,
            gateway_route: routing.gateway_route,
            gateway_on_node: routing.gateway_on_node,
            sysctls: routing.sysctls,
        }
    }
}

/// Whether a network plugin may have returned the address to a pod after `time`.
fn is_given_since(claimants: &[Candidate], address: IpAddr, time: UnixTime) -> bool {
    let results = claimants.iter().filter_map(|c| c.facts.cni_results.value());
    let mut given = results.flatten().filter(|r| r.addresses.contains(&address));
    given.any(|result| result.stored_at.is_none_or(|at| at > time))
}

/// The address of this family that a pod was given: as its source has it, else the first one on its device.
fn address_of(
    pod: Option<&Pod>,
    routing: &mut Result<Routing, String>,
    is_ipv4: bool,
) -> Option<IpAddr> {
    let given = pod.into_iter().flat_map(|pod| &pod.primary_addresses);
    let given = given.copied().find(|given| given.is_ipv4() == is_ipv4);
    given.or_else(|| routing.as_mut().ok()?.address_of_pod(is_ipv4))
}

/// An address that flaps has moved several times shortly before; moves of others are not noted.
fn moved_at(data: &ConflictData) -> Known<UnixTime> {
    let at = unix(data.raised_at).filter(|_| data.kind == ConflictKind::Flapping);
    match at {
        Some(at) => Known::Value(at, Source::Engine),
        None => not_checked(MOVES, "only those of allowed addresses are noted"),
    }
}

/// Whether it is on this node, whose name events of an earlier version do not repeat.
fn is_on(claimant: &ClaimantData, node: &str) -> bool {
    claimant.node.is_empty() || *claimant.node == *node
}

fn newest(data: &ConflictData) -> Known<usize> {
    let mut pods = data.present().filter(|claimant| !claimant.is_node);
    match pods.position(|claimant| claimant.newest().is_some()) {
        Some(index) => Known::Value(index, Source::Engine),
        None => not_checked(
            "which claimant had the address last",
            "both were there before the agent could see them",
        ),
    }
}
