//! Which facts were not checked.

use std::collections::BTreeSet;

use crate::{
    diagnosis::{
        facts::{ClaimantFacts, Facts, FindingKind, NodeFacts, NodeRange, PoolFacts, PoolState},
        known::{Known, NotChecked},
    },
    model::{AnomalyKind, ConflictKind},
};

#[derive(Default)]
struct List(BTreeSet<NotChecked>);

impl List {
    fn add<T>(&mut self, fact: &Known<T>) {
        self.0.extend(fact.not_checked().cloned());
    }

    // The structures are taken apart without `..`, so that a new fact cannot be forgotten here.

    fn add_claimant(&mut self, claimant: &ClaimantFacts) {
        let ClaimantFacts {
            device: _,
            bridge: _,
            node: _,
            pod,
            sandbox,
            cni_results,
            assignment,
            allocated_addresses,
            evidence: _,
            has_permanent_neighbour: _,
        } = claimant;
        self.add(pod);
        self.add(sandbox);
        self.add(cni_results);
        self.add(assignment);
        self.add(allocated_addresses);
        if let Some(pod) = pod.value() {
            self.add(&pod.earlier_pod_ended);
        }
    }

    fn add_pool(&mut self, pool: &PoolFacts) {
        let PoolFacts {
            network: _,
            place: _,
            owners,
            live_pods,
            releases,
            state,
        } = pool;
        self.add(owners);
        self.add(live_pods);
        self.add(releases);
        match state {
            PoolState::HostLocal {
                directory,
                lock,
                filesystem,
                removals,
            } => {
                self.add(directory);
                self.add(lock);
                self.add(filesystem);
                self.add(removals);
            }
            PoolState::Calico {
                block_created,
                secondary_node,
            } => {
                self.add(block_created);
                self.add(secondary_node);
            }
            PoolState::Aws { started, log_line } => {
                self.add(started);
                self.add(log_line);
            }
            PoolState::ByLease | PoolState::Other => {}
        }
    }

    fn add_ranges(&mut self, nodes: &Known<Vec<NodeRange>>) {
        self.add(nodes);
        for range in nodes.value().into_iter().flatten() {
            self.add(&range.writer);
        }
    }

    fn add_files_of_node(&mut self, node: &NodeFacts) {
        let NodeFacts {
            name: _,
            booted,
            runtime_started,
            cni_configured_since,
            etc_cni_born,
            opt_cni_born,
            var_lib_cni_born,
            plugin_starts: _,
        } = node;
        self.add(booted);
        self.add(runtime_started);
        self.add(cni_configured_since);
        self.add(etc_cni_born);
        self.add(opt_cni_born);
        self.add(var_lib_cni_born);
    }
}

impl Facts {
    /// The facts that were not checked and that a rule for this kind of finding reads, each once.
    pub(in crate::diagnosis) fn not_checked(&self) -> Vec<NotChecked> {
        let Self {
            finding,
            address: _,
            claimants,
            newest,
            pool,
            overlapping_networks,
            node,
            node_address,
            moved_at,
            nodes_with_range,
            resource_versions,
            route,
            gateway_route,
            gateway_on_node,
            sysctls,
        } = self;
        let mut list = List::default();
        match finding {
            FindingKind::Anomaly(AnomalyKind::GatewayUnresolved) => {
                list.add(route);
                list.add(gateway_route);
                list.add(gateway_on_node);
                list.add(sysctls);
            }
            FindingKind::Anomaly(AnomalyKind::RouteAstray) => {
                list.add(route);
                if let Some(route) = route.value() {
                    list.add(&route.holder);
                }
            }
            FindingKind::Anomaly(AnomalyKind::PodCidrOverlap) => {
                list.add_ranges(nodes_with_range);
            }
            FindingKind::Conflict(_) | FindingKind::Anomaly(_) => {
                for claimant in claimants {
                    list.add_claimant(claimant);
                }
                list.add(newest);
                list.add(pool);
                if let Some(pool) = pool.value() {
                    list.add_pool(pool);
                }
                if pool.value().is_some_and(PoolFacts::is_host_local) {
                    list.add(overlapping_networks);
                    list.add_files_of_node(node);
                }
                list.add(&node.plugin_starts);
                match finding {
                    FindingKind::Conflict(ConflictKind::Host) => list.add(node_address),
                    FindingKind::Conflict(_) => list.add(moved_at),
                    FindingKind::Anomaly(_) => {}
                }
                if self.is_on_several_nodes() {
                    list.add_ranges(nodes_with_range);
                }
                if pool.value().is_some_and(PoolFacts::is_in_datastore) {
                    list.add(resource_versions);
                }
            }
        }
        list.0.into_iter().collect()
    }
}
