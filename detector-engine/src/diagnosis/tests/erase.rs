//! Leaves facts out.

use super::*;

/// Makes the `nth` fact one that was not checked.
struct Eraser {
    nth: usize,
    seen: usize,
}

impl Eraser {
    fn visit<T>(&mut self, fact: &mut Known<T>) {
        if self.seen == self.nth {
            *fact = not_checked();
        }
        self.seen += 1;
    }
}

/// The facts without the `nth` one; `None` if there are fewer.
pub(super) fn without(mut facts: Facts, nth: usize) -> Option<Facts> {
    let mut eraser = Eraser { nth, seen: 0 };
    erase(&mut facts, &mut eraser);
    (nth < eraser.seen).then_some(facts)
}

fn erase(facts: &mut Facts, eraser: &mut Eraser) {
    for claimant in &mut facts.claimants {
        if let Known::Value(pod, _) = &mut claimant.pod {
            eraser.visit(&mut pod.earlier_pod_ended);
        }
        eraser.visit(&mut claimant.pod);
        eraser.visit(&mut claimant.sandbox);
        eraser.visit(&mut claimant.cni_results);
        eraser.visit(&mut claimant.assignment);
        eraser.visit(&mut claimant.allocated_addresses);
    }
    if let Known::Value(pool, _) = &mut facts.pool {
        eraser.visit(&mut pool.owners);
        eraser.visit(&mut pool.live_pods);
        eraser.visit(&mut pool.releases);
        match &mut pool.state {
            PoolState::HostLocal {
                directory,
                lock,
                filesystem,
                removals,
            } => {
                eraser.visit(directory);
                eraser.visit(lock);
                eraser.visit(filesystem);
                eraser.visit(removals);
            }
            PoolState::Calico {
                block_created,
                secondary_node,
            } => {
                eraser.visit(block_created);
                eraser.visit(secondary_node);
            }
            PoolState::Aws { started, log_line } => {
                eraser.visit(started);
                eraser.visit(log_line);
            }
            PoolState::ByLease | PoolState::Other => {}
        }
    }
    if let Known::Value(ranges, _) = &mut facts.nodes_with_range {
        for range in ranges {
            eraser.visit(&mut range.writer);
        }
    }
    for route in [&mut facts.route, &mut facts.gateway_route] {
        if let Known::Value(route, _) = route {
            eraser.visit(&mut route.holder);
        }
        eraser.visit(route);
    }
    let node = &mut facts.node;
    eraser.visit(&mut node.booted);
    eraser.visit(&mut node.runtime_started);
    eraser.visit(&mut node.cni_configured_since);
    eraser.visit(&mut node.etc_cni_born);
    eraser.visit(&mut node.opt_cni_born);
    eraser.visit(&mut node.var_lib_cni_born);
    eraser.visit(&mut node.plugin_starts);
    eraser.visit(&mut facts.newest);
    eraser.visit(&mut facts.pool);
    eraser.visit(&mut facts.overlapping_networks);
    eraser.visit(&mut facts.node_address);
    eraser.visit(&mut facts.moved_at);
    eraser.visit(&mut facts.nodes_with_range);
    eraser.visit(&mut facts.resource_versions);
    eraser.visit(&mut facts.gateway_on_node);
    eraser.visit(&mut facts.sysctls);
}
