//! The cause in one sentence.

use super::{counted, enumeration, is_conflict, pods};
use crate::diagnosis::{
    cause::{Cause, CauseConfidence},
    facts::{Facts, LivePods, OwnedBy, PoolState, RouteHolder},
    known::UnixTime,
};

/// One or two sentences for `cause`.
pub(in crate::diagnosis) fn summary(
    facts: &Facts,
    cause: Cause,
    confidence: CauseConfidence,
    since: Option<UnixTime>,
) -> String {
    let words = Words::of(facts, since);
    let sentence = sentence(facts, cause, &words);
    match confidence {
        CauseConfidence::Likely if cause != Cause::Unknown => format!("Probably: {sentence}"),
        _ => sentence,
    }
}

/// What most sentences contain.
struct Words {
    /// ` at 04:04:10`, or nothing.
    at: String,
    /// ` (since 04:04:10)`, or nothing.
    since: String,
    place: String,
    ipam: String,
    live: String,
    pods: String,
}

impl Words {
    fn of(facts: &Facts, since: Option<UnixTime>) -> Self {
        let pool = facts.pool.value();
        let live = pool.and_then(|pool| pool.live_pods.value());
        let live = live.map_or_else(
            || "pods were running".to_owned(),
            |LivePods {
                 without_allocation, ..
             }| match without_allocation {
                1 => "1 pod was running".to_owned(),
                n => format!("{} were running", counted(*n, "pod")),
            },
        );
        // From what is left, only the latest possible time is known.
        let preposition = if since.is_some_and(|since| is_only_seen_after(facts, since)) {
            "by"
        } else {
            "at"
        };
        Self {
            at: since.map_or_else(String::new, |since| format!(" {preposition} {since}")),
            since: since.map_or_else(String::new, |since| format!(" (since {since})")),
            place: pool.map_or_else(|| "its place".to_owned(), |pool| pool.place.clone()),
            ipam: pool.map_or_else(|| "IPAM".to_owned(), |pool| pool.network.ipam.clone()),
            live,
            pods: pods(facts, 0..facts.claimants.len()).unwrap_or_else(|| "pods".to_owned()),
        }
    }
}

/// Whether files of `host-local` were created at this time, which had been deleted before.
fn is_only_seen_after(facts: &Facts, time: UnixTime) -> bool {
    let pool = facts.pool.value();
    let births = pool.and_then(|pool| match &pool.state {
        PoolState::HostLocal {
            directory, lock, ..
        } => Some([directory.value(), lock.value()]),
        _ => None,
    });
    let node = &facts.node;
    let directories = [
        &node.etc_cni_born,
        &node.opt_cni_born,
        &node.var_lib_cni_born,
    ];
    let of_files = births
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|f| f.born);
    let of_directories = directories
        .into_iter()
        .filter_map(|born| born.value().copied());
    let mut all = of_files.chain(of_directories);
    all.any(|born| born == time)
}

fn sentence(facts: &Facts, cause: Cause, words: &Words) -> String {
    let Words {
        at,
        since,
        place,
        ipam,
        live,
        pods: all,
    } = words;
    let address = facts.address;
    let of = |is: fn(&Facts, usize) -> bool| {
        let indices = (0..facts.claimants.len()).filter(|&index| is(facts, index));
        pods(facts, indices).unwrap_or_else(|| "a pod".to_owned())
    };
    match cause {
        Cause::IpamStateWiped => {
            format!("The reservations of {ipam} in {place} were deleted{at}, while {live}.")
        }
        Cause::IpamStateNotPersistent => format!(
            "The reservations of {ipam} in {place} did not survive a restart{at}, while {live}."
        ),
        Cause::NodeReset => format!(
            "A clean-up of the node deleted the network configuration and the reservations in {place}{at}, while {live}."
        ),
        Cause::ReleasedInUse => match facts.victims().next() {
            Some(_) => format!(
                "{ipam} released {address}{at} although it is in use by {}.",
                of(|facts, index| facts.victims().any(|victim| victim == index))
            ),
            None => format!(
                "{ipam} records {address} for another node than that of {all}, and will release it."
            ),
        },
        Cause::AllocatedTwice => {
            format!("The record of {ipam} in {place} has two owners for {address}{since}.")
        }
        Cause::SharedHandle => format!(
            "{address} is allocated to the name {} alone, which an earlier pod shares: deleting that pod's record releases the address.",
            of(has_shared_handle)
        ),
        Cause::BlockRecreated => {
            format!("The block {place} was created again{at}, while {live} with addresses of it.")
        }
        Cause::IpamDaemonForgot => {
            format!("ipamd was restarted{at} and lost allocations, while {live}.")
        }
        Cause::DatastoreRestored => {
            "The datastore went back to an earlier state, in which allocations of running pods are missing.".to_owned()
        }
        Cause::TwoAllocators => format!(
            "Two networks assign {address} independently of each other: {}.",
            networks(facts)
        ),
        Cause::NotFromIpam => format!(
            "{address} was assigned by {}{at} and not by a network plugin.",
            of(|facts, index| facts.is_self_assigned(index)
                || facts.is_given(index).is_none() && facts.claimants[index].cni_results.is_absent())
        ),
        Cause::FramesOnly => format!(
            "{address} is only announced by {}, which does not have the address.",
            of(Facts::is_only_announced)
        ),
        Cause::SandboxGone => format!(
            "A device with {address} was left over from a pod that was deleted: {}.",
            of(|facts, index| !facts.claimants[index].is_running())
        ),
        Cause::PodCidrTwice => {
            let nodes = facts.nodes_with_range.value().into_iter().flatten();
            let nodes = enumeration(nodes.map(|range| range.node.clone()).collect());
            format!(
                "Several nodes have the range of {address}{since}: {}.",
                nodes.unwrap_or_default()
            )
        }
        Cause::NodeAddressInRange => {
            let device = facts.node_address.value().map(|address| &*address.device);
            format!(
                "{address} on the node's device {} is in the range from which {ipam} gives addresses to pods, and is not reserved.",
                device.unwrap_or("?")
            )
        }
        Cause::SharedOnPurpose => format!(
            "{address} is a virtual IP that moves between {all}."
        ),
        Cause::ReversePathFilter => format!(
            "The node drops the ARP requests of {all}: its route to {address} leads to {}, and rp_filter is on.",
            route_device(facts)
        ),
        Cause::NoRoute => format!("The node has no route by which it would answer {all}."),
        Cause::NoProxyArp => format!(
            "The node does not answer {all}: proxy_arp is off, and it does not have the gateway's address."
        ),
        Cause::RouteOfDeletedPod => format!(
            "The route to {address} leads to {}, which was left over from a deleted pod{since}.",
            route_device(facts)
        ),
        Cause::RouteOfOtherPod => {
            let holder = facts.route.value().and_then(|route| route.holder.value());
            let other = match holder {
                Some(RouteHolder::Pod(pod)) => pod,
                _ => "another pod",
            };
            format!(
                "The route to {address} leads to {}, the device of {other}{since}.",
                route_device(facts)
            )
        }
        Cause::Unknown if is_conflict(facts) => {
            format!("Why {all} have {address} is not known.")
        }
        Cause::Unknown => "The cause is not known.".to_owned(),
    }
}

fn route_device(facts: &Facts) -> &str {
    facts.route.value().map_or("?", |route| &route.device)
}

fn has_shared_handle(facts: &Facts, index: usize) -> bool {
    let owners = facts.pool.value().and_then(|pool| pool.known_owners());
    owners.is_some_and(|owners| {
        let mut shared = owners.iter().filter(|owner| owner.is_pod_name);
        shared.any(|owner| matches!(&owner.is, OwnedBy::Claimants(c) if c.contains(&index)))
    })
}

fn networks(facts: &Facts) -> String {
    let of_claimants = (0..facts.claimants.len()).filter_map(|index| facts.network_of(index));
    let of_pool = facts.pool.value().filter(|_| facts.is_drift());
    let networks = of_claimants.chain(of_pool.map(|pool| &pool.network));
    let mut names: Vec<_> = networks
        .map(|network| format!("{} ({})", network.name, network.ipam))
        .collect();
    names.sort();
    names.dedup();
    enumeration(names).unwrap_or_default()
}
