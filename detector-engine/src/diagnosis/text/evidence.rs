//! Evidence in words. Each function is one fact, and gives nothing if that was not found.

use crate::diagnosis::{
    Evidence,
    facts::{
        AllocationOwner, ClaimantFacts, Facts, FileFacts, Filesystem, LogLine, NodeRange,
        PluginStart, PoolFacts, PoolState, Removal, RemovedItem, RouteHolder, SandboxState,
    },
    known::{Known, Source, UnixTime},
    text::{counted, pod},
};

fn evidence(fact: String, source: &Source, at: Option<UnixTime>) -> Option<Evidence> {
    Some(Evidence {
        fact,
        source: source.clone(),
        at,
    })
}

fn claimant(facts: &Facts, index: usize) -> (&ClaimantFacts, String) {
    (&facts.claimants[index], pod(facts, index))
}

pub(in crate::diagnosis) fn sandbox(facts: &Facts, index: usize) -> Option<Evidence> {
    let (claimant, pod) = claimant(facts, index);
    let (sandbox, source) = claimant.sandbox.found()?;
    let fact = match sandbox.state {
        SandboxState::Ready => format!("the sandbox of {pod} was created, and runs"),
        SandboxState::NotReady => format!("the sandbox of {pod} was created, and is not ready"),
        SandboxState::Gone => format!(
            "the runtime no longer lists the sandbox of {pod}, whose device {} is still there",
            claimant.device
        ),
    };
    evidence(fact, source, sandbox.created)
}

pub(in crate::diagnosis) fn cni_result(facts: &Facts, index: usize) -> Option<Evidence> {
    let (claimant, pod) = claimant(facts, index);
    let source = claimant.cni_results.source()?;
    let address = facts.address;
    let at = facts.cni_result_of(index).and_then(|r| r.stored_at);
    let fact = match (facts.network_of(index), claimant.cni_results.value()) {
        (Some(network), _) => format!(
            "network {} ({}) gave {address} to {pod}",
            network.name, network.ipam
        ),
        (None, Some(_)) => format!("no network gave {address} to {pod}"),
        (None, None) => format!("no CNI result is stored for {pod}"),
    };
    evidence(fact, source, at)
}

pub(in crate::diagnosis) fn assignment(facts: &Facts, index: usize) -> Option<Evidence> {
    let (claimant, pod) = claimant(facts, index);
    let source = claimant.assignment.source().unwrap_or(&Source::Engine);
    let address = facts.address;
    if claimant.assignment.is_absent() {
        return evidence(
            format!("{address} has never been assigned in the namespace of {pod}"),
            source,
            None,
        );
    }
    let at = claimant.assignment.value().and_then(|a| a.since);
    let fact = format!("{address} is assigned in the namespace of {pod}");
    claimant
        .is_assigned()
        .then(|| evidence(fact, source, at))
        .flatten()
}

pub(in crate::diagnosis) fn frames(facts: &Facts, index: usize) -> Option<Evidence> {
    let (claimant, pod) = claimant(facts, index);
    let kinds: Vec<_> = claimant.evidence.iter().map(|kind| kind.name()).collect();
    let fact = format!("all that shows the claim of {pod}: {}", kinds.join(", "));
    evidence(fact, &Source::Engine, None)
}

pub(in crate::diagnosis) fn other_allocation(facts: &Facts, index: usize) -> Option<Evidence> {
    let (claimant, pod) = claimant(facts, index);
    let (addresses, source) = claimant.allocated_addresses.found()?;
    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let fact = format!("IPAM has allocated {} to {pod}", addresses.join(", "));
    evidence(fact, source, None)
}

/// The owners of the address.
pub(in crate::diagnosis) fn owners(facts: &Facts) -> Vec<Evidence> {
    let Some(pool) = facts.pool.value() else {
        return Vec::new();
    };
    let Some(source) = pool.owners.source() else {
        return Vec::new();
    };
    let owners = pool.known_owners().unwrap_or_default();
    if owners.is_empty() {
        let fact = format!("{} is not allocated", facts.address);
        return evidence(fact, source, None).into_iter().collect();
    }
    let owner = |owner: &AllocationOwner| {
        let fact = format!("{} is allocated to {}", facts.address, owner.name);
        evidence(fact, source, owner.allocated_at)
    };
    owners.iter().filter_map(owner).collect()
}

pub(in crate::diagnosis) fn live_pods(pool: &PoolFacts) -> Option<Evidence> {
    let (live, source) = pool.live_pods.found()?;
    let fact = format!(
        "without an allocation: {} of {}",
        live.without_allocation,
        counted(live.total, "running pod")
    );
    evidence(fact, source, None)
}

pub(in crate::diagnosis) fn file(what: &str, file: &Known<FileFacts>) -> Option<Evidence> {
    let source = file.source()?;
    match file.value() {
        None => evidence(format!("{what} does not exist"), source, None),
        Some(file) => {
            let born = file.born?;
            evidence(format!("{what} was created"), source, Some(born))
        }
    }
}

pub(in crate::diagnosis) fn birth(what: &str, born: &Known<UnixTime>) -> Option<Evidence> {
    let (born, source) = born.found()?;
    evidence(format!("{what} was created"), source, Some(*born))
}

/// Since when the pool's state exists.
pub(in crate::diagnosis) fn state(pool: &PoolFacts) -> Option<Evidence> {
    match &pool.state {
        PoolState::HostLocal { directory, .. } => file("the directory", directory),
        PoolState::Calico { block_created, .. } => birth("the block", block_created),
        PoolState::Aws { started, .. } => start("ipamd was started", started),
        PoolState::ByLease | PoolState::Other => None,
    }
}

/// That the pool's range has the address.
pub(in crate::diagnosis) fn range_of_pool(
    facts: &Facts,
    pool: &PoolFacts,
    source: &Source,
) -> Option<Evidence> {
    let mut ranges = pool.network.ranges.iter();
    let range = ranges.find(|range| range.contains(&facts.address))?;
    let fact = format!(
        "network {} ({}) assigns from {} to {}",
        pool.network.name,
        pool.network.ipam,
        range.start(),
        range.end()
    );
    evidence(fact, source, None)
}

pub(in crate::diagnosis) fn removal(removal: Removal, source: &Source) -> Option<Evidence> {
    let fact = match removal.item {
        RemovedItem::Directory => "the directory was deleted".to_owned(),
        RemovedItem::Lock => "the lock was deleted".to_owned(),
        RemovedItem::Reservation(address) => format!("the reservation of {address} was deleted"),
    };
    evidence(fact, source, Some(removal.at))
}

/// That an allocation of the claimant is gone which the agent has seen.
pub(in crate::diagnosis) fn release(facts: &Facts, index: usize) -> Option<Evidence> {
    let release = facts.release_of(index)?;
    let source = facts.pool.value()?.releases.source()?;
    let (address, pod) = (facts.address, pod(facts, index));
    match release.at {
        Some(at) => {
            let fact = format!("the allocation of {address} to {pod} was removed");
            evidence(fact, source, Some(at))
        }
        None => {
            let fact = format!("the agent last saw {address} allocated to {pod}");
            evidence(fact, source, Some(release.seen))
        }
    }
}

pub(in crate::diagnosis) fn filesystem(filesystem: &Known<Filesystem>) -> Option<Evidence> {
    let (filesystem, source) = filesystem.found()?;
    let fact = match filesystem {
        Filesystem::Tmpfs => "the directory is on tmpfs, which is empty after a boot",
        Filesystem::Overlay => "the directory is in the writable layer of a container",
        Filesystem::Disk => "the directory is on a disk",
    };
    evidence(fact.to_owned(), source, None)
}

pub(in crate::diagnosis) fn start(what: &str, at: &Known<UnixTime>) -> Option<Evidence> {
    let (at, source) = at.found()?;
    evidence(what.to_owned(), source, Some(*at))
}

/// The starts of the network plugin in a span of time, each with the end before it.
pub(in crate::diagnosis) fn plugin_starts(
    facts: &Facts,
    is_near: impl Fn(UnixTime) -> bool,
) -> Vec<Evidence> {
    let Some((starts, source)) = facts.node.plugin_starts.found() else {
        return Vec::new();
    };
    let near = starts.iter().filter(|start| is_near(start.at));
    near.flat_map(|start| plugin_start(start, source)).collect()
}

fn plugin_start(start: &PluginStart, source: &Source) -> impl Iterator<Item = Evidence> {
    let PluginStart {
        pod,
        container,
        at,
        restarts,
        end_before,
    } = start;
    let name = format!("{container} of {pod}");
    let end = end_before.as_ref();
    let end = end.and_then(|e| evidence(format!("{name} ended: {}", e.why), source, Some(e.at)));
    let restart = match restarts {
        0 => String::new(),
        n => format!(" (restart {n})"),
    };
    let start = evidence(format!("{name} was started{restart}"), source, Some(*at));
    end.into_iter().chain(start)
}

pub(in crate::diagnosis) fn secondary_node(
    facts: &Facts,
    index: usize,
    secondary: &Known<String>,
) -> Option<Evidence> {
    let (claimant, pod) = claimant(facts, index);
    let (secondary, source) = secondary.found()?;
    let fact = format!(
        "the allocation says node {secondary}, and {pod} is on {}",
        claimant.node
    );
    evidence(fact, source, None)
}

pub(in crate::diagnosis) fn earlier_pod(facts: &Facts, index: usize) -> Option<Evidence> {
    let (claimant, name) = claimant(facts, index);
    let (pod, source) = claimant.pod.found()?;
    if let Some((ended, source)) = pod.earlier_pod_ended.found() {
        let fact = format!("an earlier pod {name} ended");
        return evidence(fact, source, Some(*ended));
    }
    let controller = pod.controller.as_ref()?;
    let fact = format!(
        "{name} belongs to {} {}, whose pods keep their names",
        controller.kind, controller.name
    );
    evidence(fact, source, None)
}

pub(in crate::diagnosis) fn log_line(line: &Known<LogLine>) -> Option<Evidence> {
    let (line, source) = line.found()?;
    evidence(
        format!("the log says: {}", line.text),
        source,
        Some(line.at),
    )
}

pub(in crate::diagnosis) fn resource_versions(facts: &Facts) -> Option<Evidence> {
    let (versions, source) = facts.resource_versions.found()?;
    let fact = format!(
        "the resource version is {}, and was {} before",
        versions.now, versions.before
    );
    evidence(fact, source, Some(versions.noticed_at))
}

pub(in crate::diagnosis) fn node_range(range: &NodeRange, source: &Source) -> Option<Evidence> {
    let node = &range.node;
    match range.writer.found() {
        Some((writer, source)) => {
            let fact = format!("{} wrote the podCIDR of node {node}", writer.manager);
            evidence(fact, source, Some(writer.at))
        }
        None => evidence(format!("node {node} has the range"), source, None),
    }
}

pub(in crate::diagnosis) fn node_address(facts: &Facts) -> Option<Evidence> {
    let (address, source) = facts.node_address.found()?;
    let fact = format!("the node has {} on {}", facts.address, address.device);
    evidence(fact, source, None)
}

pub(in crate::diagnosis) fn move_of_address(facts: &Facts) -> Option<Evidence> {
    let (at, source) = facts.moved_at.found()?;
    let fact = format!("{} moved by an announcement", facts.address);
    evidence(fact, source, Some(*at))
}

pub(in crate::diagnosis) fn vip_label(facts: &Facts) -> Option<Evidence> {
    let (index, label) = facts.vip_label()?;
    let source = facts.claimants[index].pod.source()?;
    let fact = format!("{} has the label {label}", pod(facts, index));
    evidence(fact, source, None)
}

pub(in crate::diagnosis) fn one_controller(facts: &Facts) -> Option<Evidence> {
    let (pod, source) = facts.claimants.first()?.pod.found()?;
    let controller = pod.controller.as_ref()?;
    let fact = format!("all pods belong to {} {}", controller.kind, controller.name);
    facts
        .have_one_controller()
        .then(|| evidence(fact, source, None))
        .flatten()
}

pub(in crate::diagnosis) fn route(facts: &Facts) -> Option<Evidence> {
    let address = facts.address;
    match facts.route.found() {
        Some((route, source)) => {
            let fact = format!(
                "the route to {address} leads to {} (protocol {})",
                route.device, route.protocol
            );
            evidence(fact, source, route.changed_at)
        }
        None => {
            let source = facts.route.source()?;
            evidence(format!("the node has no route to {address}"), source, None)
        }
    }
}

pub(in crate::diagnosis) fn route_holder(facts: &Facts) -> Option<Evidence> {
    let route = facts.route.value()?;
    let (holder, source) = route.holder.found()?;
    let device = &route.device;
    let fact = match holder {
        RouteHolder::Pod(pod) => format!("{device} belongs to {pod}"),
        RouteHolder::DeletedPod => format!("{device} was left over from a deleted pod"),
        RouteHolder::Node => format!("{device} belongs to the node"),
    };
    evidence(fact, source, None)
}

pub(in crate::diagnosis) fn gateway_route(facts: &Facts) -> Option<Evidence> {
    let source = facts.gateway_route.source()?;
    let fact = match facts.gateway_route.value() {
        Some(route) => format!("the route to the gateway leads to {}", route.device),
        None => "the node has no route to the gateway".to_owned(),
    };
    evidence(fact, source, None)
}

pub(in crate::diagnosis) fn gateway_on_node(facts: &Facts) -> Option<Evidence> {
    let source = facts.gateway_on_node.source()?;
    let fact = match facts.gateway_on_node.value() {
        Some(device) => format!("the node has the gateway's address on {device}"),
        None => "the node does not have the gateway's address".to_owned(),
    };
    evidence(fact, source, None)
}

pub(in crate::diagnosis) fn rp_filter(facts: &Facts) -> Option<Evidence> {
    let (sysctls, source) = facts.sysctls.found()?;
    evidence(format!("rp_filter is {}", sysctls.rp_filter), source, None)
}

pub(in crate::diagnosis) fn no_address() -> Option<Evidence> {
    let fact = "the device that takes the requests in has no IPv4 address, so a loose filter drops them as well";
    evidence(fact.to_owned(), &Source::Netlink, None)
}

/// What shows the network of a claimant without a CNI result.
pub(in crate::diagnosis) fn configuration(facts: &Facts, index: usize) -> Option<Evidence> {
    let since = facts.node.cni_configured_since.found();
    let (since, source) = since.filter(|_| facts.network_of(index).is_none())?;
    let fact = "the network configuration was changed last".to_owned();
    evidence(fact, source, Some(*since))
}

pub(in crate::diagnosis) fn proxy_arp(facts: &Facts) -> Option<Evidence> {
    let (sysctls, source) = facts.sysctls.found()?;
    let value = u8::from(sysctls.proxy_arp);
    evidence(format!("proxy_arp is {value}"), source, None)
}
