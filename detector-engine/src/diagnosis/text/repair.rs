//! What to do about a cause, in an order that does not break the pod that stays.

use super::{is_conflict, pod, pods};
use crate::diagnosis::{cause::Cause, facts::Facts};

/// One to four sentences for `cause`.
pub(in crate::diagnosis) fn repair(facts: &Facts, cause: Cause) -> String {
    let repair = repair_of(facts, cause);
    let is_said = matches!(cause, Cause::NodeAddressInRange | Cause::Unknown);
    let pods = pods(facts, 0..facts.claimants.len());
    match pods.filter(|_| facts.is_host_conflict() && !is_said) {
        Some(pods) => {
            format!("Delete {pods} first: an address of the node serves every pod on it. {repair}")
        }
        None => repair,
    }
}

fn repair_of(facts: &Facts, cause: Cause) -> String {
    let address = facts.address;
    let intruders = |is: fn(&Facts, usize) -> bool| {
        let indices = (0..facts.claimants.len()).filter(|&index| is(facts, index));
        pods(facts, indices).unwrap_or_else(|| "the pod".to_owned())
    };
    match cause {
        Cause::IpamStateWiped => renew_addresses(facts, ""),
        Cause::IpamStateNotPersistent => renew_addresses(
            facts,
            " Then drain the node, and move the state to a directory that survives a restart (ipam.dataDir).",
        ),
        Cause::NodeReset => {
            renew_addresses(facts, " Drain a node before you clean or restore it.")
        }
        Cause::ReleasedInUse if facts.victims().next().is_none() => format!(
            "Keep new pods off the node (kubectl cordon {}) and recreate {}, so that the allocation names its node.",
            facts.node.name,
            intruders(|_, _| true)
        ),
        Cause::ReleasedInUse => renew_addresses(
            facts,
            " Find out what released the lease: a garbage collector, or a restart of the network plugin.",
        ),
        Cause::IpamDaemonForgot => renew_addresses(
            facts,
            " Check that ipamd reaches the container runtime and its checkpoint file before it is restarted again.",
        ),
        Cause::BlockRecreated => renew_addresses(
            facts,
            " Find out what deleted the block; no pods may run with addresses of a block that is deleted.",
        ),
        Cause::DatastoreRestored => renew_addresses(
            facts,
            " After a restore, recreate the pods that were created after the backup, on every node.",
        ),
        Cause::AllocatedTwice => renew_addresses(
            facts,
            " Afterwards check the record for other addresses with two owners.",
        ),
        Cause::SharedHandle => format!(
            "Do not delete old records by their handle: that releases {address}. Upgrade the network plugin, then recreate {}, whose allocation is then its own.",
            intruders(|_, _| true)
        ),
        Cause::TwoAllocators => {
            "Keep new pods off the node until only one of the networks assigns from the range: remove the configuration that is left over, or change its subnet. Then recreate the pods of the network that was removed.".to_owned()
        }
        Cause::NotFromIpam => {
            let who = intruders(|facts, index| {
                facts.is_self_assigned(index) || facts.is_given(index).is_none()
            });
            format!(
                "Change what assigns {address} in {who}: its command, its configuration or its image. Recreating the pod repeats it. Leave the other pods alone."
            )
        }
        Cause::FramesOnly => format!(
            "Check whether {who} is meant to answer for {address} (a proxy, a virtual machine). If it is not, stop what sends in {who}; recreating the pod may repeat it.",
            who = intruders(Facts::is_only_announced)
        ),
        Cause::SandboxGone => {
            let left = facts.claimants.iter().filter(|c| !c.is_running());
            let devices: Vec<_> = left.map(|claimant| claimant.device.as_str()).collect();
            let first = devices.first().unwrap_or(&"DEVICE");
            let restore = if is_routed_to_leftover(facts) {
                format!(
                    " The route to {address} goes with it: recreate the pod that stays if the network plugin does not set it again."
                )
            } else {
                String::new()
            };
            format!(
                "Check that no container of the old pod runs, then remove what is left of it (ip link delete {first}).{restore}"
            )
        }
        Cause::PodCidrTwice => {
            "Keep new pods off all but one of the nodes (kubectl cordon). Drain the others, delete their Node objects, and let them register again with a range of their own.".to_owned()
        }
        Cause::NodeAddressInRange => format!(
            "Keep new pods off the node (kubectl cordon {}). Delete {}: an address of the node serves every pod on it. Then reserve {address} in IPAM, or exclude it from the range.",
            facts.node.name,
            intruders(|_, _| true)
        ),
        // Only addresses that are allowed flap.
        Cause::SharedOnPurpose if facts.is_flapping() => {
            "Check the election between the holders (keepalived, kube-vip, MetalLB); deleting a pod does not help.".to_owned()
        }
        Cause::SharedOnPurpose => format!(
            "If {address} is meant to move, allow it (--allow {address}). Otherwise give each pod an address of its own."
        ),
        Cause::ReversePathFilter => format!(
            "Find out why the route to {address} leads to {}: usually another pod has the address. Repair that first. Switching rp_filter off only hides it: packets to {address} still go there.",
            facts.route.value().map_or("another device", |r| &r.device)
        ),
        Cause::NoRoute => format!(
            "Restore the node's routes (restart the network plugin), or recreate {}.",
            intruders(|_, _| true)
        ),
        Cause::NoProxyArp => {
            let device = facts.claimants.first().map_or("DEVICE", |c| &c.device);
            format!(
                "Switch proxy ARP on again (sysctl -w net/ipv4/conf/{device}/proxy_arp=1), and find out what switched it off."
            )
        }
        Cause::RouteOfDeletedPod => {
            let device = facts.route.value().map_or("DEVICE", |route| &route.device);
            format!(
                "Remove what is left of the deleted pod (ip link delete {device}). Then restart the network plugin, or recreate {}, so that its route is set again.",
                intruders(|_, _| true)
            )
        }
        Cause::RouteOfOtherPod => {
            let device = facts.claimants.first().map_or("DEVICE", |c| &c.device);
            format!(
                "Find out which of the pods was given {address}. Recreate {} if it was not. Otherwise restart the network plugin, which sets the routes again, or set this one by hand if the plugin does so only for new pods, as ptp does (ip route replace {address} dev {device}).",
                intruders(|_, _| true)
            )
        }
        Cause::Unknown => {
            "Follow the next step of the finding; the runbook shows what else to look at."
                .to_owned()
        }
    }
}

fn is_routed_to_leftover(facts: &Facts) -> bool {
    let route = facts.route.value();
    let mut leftovers = facts.claimants.iter().filter(|c| !c.is_running());
    route.is_some_and(|route| leftovers.any(|c| c.is_reached_by(&route.device)))
}

/// The safe order where IPAM considers the address of a running pod free: whatever is deleted first may take the allocation or the route
/// of the other with it, and a pod that is created meanwhile may get an address that is in use.
fn renew_addresses(facts: &Facts, then: &str) -> String {
    let cordon = format!(
        "Keep new pods off the node (kubectl cordon {}).",
        facts.node.name
    );
    if !is_conflict(facts) {
        let restore = match facts.pool.value() {
            Some(pool) if pool.is_host_local() => format!(
                "write the missing reservations to {}, or recreate the pods without one",
                pool.place
            ),
            _ => "recreate the pods that have no allocation".to_owned(),
        };
        return format!("{cordon} Then {restore}.{then}");
    }
    let Some((newest, others)) = newest_and_others(facts) else {
        return format!(
            "{cordon} Find out which pod came last and delete it. Then recreate the others, or restore their allocation.{then}"
        );
    };
    let takes_route = takes_route(facts, newest);
    let restore = match facts.pool.value() {
        // A reservation does not bring the route back.
        Some(pool) if pool.is_host_local() && !takes_route => {
            format!(", or write its reservation to {}", pool.place)
        }
        _ => String::new(),
    };
    let is_route_known = facts.route.value().is_some();
    let why = match (
        facts.has_allocation(newest) == Some(true),
        takes_route && is_route_known,
    ) {
        (true, true) => ": the allocation and the route go with the newest",
        (true, false) => ": the allocation goes with the newest",
        (false, true) => ": the route goes with the newest",
        (false, false) => "",
    };
    let newest = pod(facts, newest);
    let live = facts.pool.value().and_then(|pool| pool.live_pods.value());
    let rest = match live.map_or(0, |live| live.without_allocation) {
        0 | 1 => String::new(),
        without => format!(
            " Do not let new pods in before all {without} pods without an allocation were recreated or have one again."
        ),
    };
    format!("{cordon} Delete {newest}, then recreate {others}{restore}{why}.{rest}{then}")
}

fn newest_and_others(facts: &Facts) -> Option<(usize, String)> {
    let newest = *facts.newest.value()?;
    let others = (0..facts.claimants.len()).filter(|&index| index != newest);
    Some((newest, pods(facts, others)?)).filter(|_| newest < facts.claimants.len())
}

/// Whether the route of the address goes with the claimant's device; one that leads to a bridge stays. So it is assumed if it is not
/// known where the route leads.
fn takes_route(facts: &Facts, index: usize) -> bool {
    let route = facts.route.value();
    route.is_none_or(|route| facts.claimants[index].device == route.device)
}
