//! Collects the facts about one finding.

use std::{net::IpAddr, path::PathBuf, sync::Arc, time::Instant};

use detector_engine::{
    AnomalyKind, ConflictScope, IfIndex,
    diagnosis::{ClaimantFacts, Facts, FindingKind, Known, Source},
};
use detector_event::{AnyEvent, ClaimantData, ConflictData, Pod};

use super::{PoolHistory, claimants, files::not_checked, node, pool::PoolReader, results};
use crate::{
    ipam::IpamSettings,
    pods::{IS_THE_NODE, PathSetting, PodDirectory},
};

/// The findings of a node that are explained.
const EXPLAINED: [AnomalyKind; 1] = [AnomalyKind::IpamDrift];

/// Collects facts on this node.
#[derive(Debug)]
pub(crate) struct Collector {
    pools: PoolReader,
    /// The CNI result cache; `None` if it is not used.
    results: Option<PathBuf>,
    history: Arc<PoolHistory>,
}

impl Collector {
    /// With the CNI result cache in the directory `results`.
    #[must_use]
    pub(crate) fn new(
        ipam: &IpamSettings,
        results: &PathSetting,
        pods: Arc<PodDirectory>,
        history: Arc<PoolHistory>,
    ) -> Self {
        Self {
            pools: PoolReader::new(ipam, pods),
            results: match results {
                PathSetting::At(directory) => Some(directory.clone()),
                PathSetting::Off => None,
            },
            history,
        }
    }

    /// The facts at `due` or later about a conflict or an anomaly; `None` if findings of its kind are not explained.
    pub(crate) fn facts(&mut self, event: &AnyEvent, due: Instant) -> Option<Facts> {
        self.pools.refresh(due);
        let (finding, address, node, claimants, newest) = match event {
            AnyEvent::Conflict(event) => {
                let data = &event.data;
                if data.scope != ConflictScope::Node || data.vlan.is_some() {
                    return None;
                }
                (
                    FindingKind::Conflict(data.kind),
                    data.address,
                    &data.node,
                    self.conflict_claimants(data),
                    newest(data),
                )
            }
            AnyEvent::Anomaly(event) => {
                let data = &event.data;
                let device = data
                    .device
                    .as_deref()
                    .filter(|_| EXPLAINED.contains(&data.kind))?;
                let pod = self.pod_on(data.ifindex, data.pod.as_ref());
                let holder = claimants::of_anomaly(data, pod.as_deref(), device);
                let sandbox = pod.and_then(|pod| pod.container_id.clone());
                (
                    FindingKind::Anomaly(data.kind),
                    data.address,
                    &data.node,
                    vec![(holder, sandbox)],
                    Known::Absent(Source::Engine),
                )
            }
        };
        Some(self.collect(finding, address, node, claimants, newest))
    }

    /// The pod on a device as it is known now: more may be known than when the event was made.
    fn pod_on(&mut self, ifindex: Option<IfIndex>, known: Option<&Arc<Pod>>) -> Option<Arc<Pod>> {
        let now = ifindex.and_then(|ifindex| self.pools.pods().get(&ifindex));
        now.or(known).map(Arc::clone)
    }

    /// The present claimants with their sandboxes' ids, without the node itself.
    fn conflict_claimants(&mut self, data: &ConflictData) -> Vec<(ClaimantFacts, Option<String>)> {
        let pods = data.present().filter(|claimant| !is_node(claimant));
        pods.map(|claimant| {
            let pod = self.pod_on(Some(claimant.ifindex), claimant.pod.as_ref());
            let facts = claimants::of_conflict(claimant, pod.as_deref(), data.address);
            (facts, pod.and_then(|pod| pod.container_id.clone()))
        })
        .collect()
    }

    fn collect(
        &mut self,
        finding: FindingKind,
        address: IpAddr,
        node: &str,
        mut claimants: Vec<(ClaimantFacts, Option<String>)>,
        newest: Known<usize>,
    ) -> Facts {
        let pool = self.pools.find(address);
        for (claimant, sandbox) in &mut claimants {
            let (Some(sandbox), Some(directory)) = (sandbox, &self.results) else {
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
        let what = "networks with overlapping ranges";
        let (pool, overlapping_networks) = match pool {
            Ok(pool) => {
                let facts = pool.facts(address, &claimants, self.pools.pods(), &self.history);
                let overlapping = self.pools.overlapping(pool.network());
                (Known::Value(facts, self.pools.source()), overlapping)
            }
            Err(why) => (
                not_checked(format!("the IPAM pool of {address}"), why.clone()),
                not_checked(what, why),
            ),
        };
        let not_collected = "it is not collected";
        Facts {
            finding,
            address,
            claimants: claimants
                .into_iter()
                .map(|(claimant, _)| claimant)
                .collect(),
            newest,
            pool,
            overlapping_networks,
            node: node::facts(node, self.pools.cni_configuration()),
            node_address: not_checked("the node's address", not_collected),
            moved_at: not_checked("moves of the address by announcements", not_collected),
            nodes_with_range: not_checked("the podCIDRs of other nodes", not_collected),
            resource_versions: not_checked("resource versions of the API server", not_collected),
            route: not_checked("the route to the address", not_collected),
            gateway_route: not_checked("the route to the gateway", not_collected),
            gateway_on_node: not_checked("the gateway's address on the node", not_collected),
            sysctls: not_checked("the sysctls of the device", not_collected),
        }
    }
}

fn is_node(claimant: &ClaimantData) -> bool {
    claimant.pod_unknown_because.as_deref() == Some(IS_THE_NODE)
}

fn newest(data: &ConflictData) -> Known<usize> {
    let mut pods = data.present().filter(|claimant| !is_node(claimant));
    match pods.position(|claimant| claimant.newest().is_some()) {
        Some(index) => Known::Value(index, Source::Engine),
        None => not_checked(
            "which claimant had the address last",
            "both were there before the agent could see them",
        ),
    }
}
