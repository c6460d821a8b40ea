//! One look at the kernel state. It loads no eBPF program and changes nothing.

use std::{
    collections::HashSet,
    io,
    net::IpAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use detector_client::Gap;
use detector_engine::{
    Anomaly, AnomalyCause, AnomalyKind, AnomalyRules, ChangedAddresses, Conflict, Engine, IfIndex,
    Observation, PodDevice, PodsKnown, PoolUpdate, Settings, Snapshot, SnapshotScope,
    SnapshotToken, TimedObservation, Timestamp,
};
use detector_event::{AnomalyData, ConflictData, Explanation, Explanations, SubjectId, counted};

use super::{
    CheckError,
    report::{Findings, Source},
};
use crate::{
    cli::CommonArgs,
    diagnosis::{Collector, Finding, Watched},
    ipam,
    kube_client::KubeClient,
    observe::netlink::{BoundedSnapshot, DeviceSelector, NetlinkReader, Omitted, ReadError},
    pods::{self, PluginPods, PodDirectory, PodSources},
    process::{clock, node},
};

/// How long to wait for devices with an unreadable namespace to disappear. When a pod is deleted, the kernel removes the id
/// of its namespace first and the devices connected to it later.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Delay between two snapshots.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(20);

/// What a single look cannot see.
const NOT_SEEN: [&str; 2] = [
    "claims made only in ARP or NDP frames, such as those of a spoofing pod, and moves of an address",
    "anomalies that show over time: unresolved gateways, IPAM leaks, address sweeps in frames",
];

/// Reads the state of the node, IPAM and the pods, twice if there are anomalies. `no_agent`: why no agent is the source.
///
/// # Errors
/// If the kernel state cannot be read.
pub(super) fn look(args: &CommonArgs, no_agent: String) -> Result<Look, CheckError> {
    let node = node::name(args.node_name.as_deref())?;
    let mut state = read_node(args, &node)?;
    let mut anomalies = state.engine.view().anomalies();
    if let Some(grace) = anomalies.iter().map(|anomaly| grace_of(anomaly.kind)).max() {
        thread::sleep(grace);
        state = read_node(args, &node)?;
        let before: HashSet<_> = anomalies.iter().map(identity).collect();
        anomalies = state.engine.view().anomalies();
        anomalies.retain(|anomaly| before.contains(&identity(anomaly)));
    }
    let NodeState {
        engine,
        now,
        omitted,
        ipam,
        pods,
        plugins,
    } = state;
    let conflicts = engine.view().conflicts(now);
    let moment = clock::moment();
    let name = node.as_str().into();
    let conflicts: Vec<ConflictData> = conflicts
        .iter()
        .map(|conflict| ConflictData {
            cluster: args.cluster_name.clone(),
            timeline: None,
            ..ConflictData::new(&name, &moment, conflict, |c| pods.pod_of(c))
        })
        .collect();
    let anomalies: Vec<AnomalyData> = anomalies
        .iter()
        .map(|anomaly| AnomalyData {
            cluster: args.cluster_name.clone(),
            timeline: None,
            ..AnomalyData::new(&name, &moment, anomaly, |c| pods.pod_of(c))
        })
        .collect();
    let findings = Findings {
        checked_at: moment.wall_at(now),
        address: None,
        devices: Some(engine.view().devices().len()),
        gaps: incomplete(omitted).into_iter().collect(),
        not_seen: NOT_SEEN.map(str::to_owned).into(),
        node,
        source: Source::Kernel { no_agent },
        conflicts,
        anomalies,
        ipam,
        impaired: Vec::new(),
    };
    Ok(Look {
        findings,
        pods,
        plugins,
        engine,
        now,
    })
}

/// What one look found.
pub(super) struct Look {
    pub(super) findings: Findings,
    /// The pods of the devices that are involved.
    pods: Arc<PodDirectory>,
    plugins: Arc<PluginPods>,
    engine: Engine,
    now: Timestamp,
}

impl Look {
    /// Keeps the conflict of an address, and the anomalies of it and of the devices that have it.
    pub(super) fn retain_address(&mut self, address: IpAddr) {
        let claims = self.engine.view().claims_of(address, self.now);
        let holders: Vec<_> = claims.iter().map(|claim| claim.claimant.ifindex).collect();
        self.findings.conflicts.retain(|c| c.address == address);
        (self.findings.anomalies).retain(|a| a.is_about(address, &holders));
    }

    /// Adds why everything was found, as far as one look can show it: what was deleted before is unknown.
    ///
    /// # Errors
    /// If the system refuses basic resources.
    pub(super) fn explain(&mut self, args: &CommonArgs) -> io::Result<()> {
        let watched = Watched {
            pods: Arc::clone(&self.pods),
            plugins: Arc::clone(&self.plugins),
            ..Watched::default()
        };
        let kube = KubeClient::new(args.pods.kube);
        let mut collector = Collector::new(&args.ipam, &args.pods, kube, watched)?;
        let due = Instant::now();
        let explanations = Explanations::default();
        let mut collect = |id: SubjectId, finding: Finding<'_>| {
            if let Some(facts) = collector.facts(finding, due) {
                explanations.set(id, Explanation::of(&facts));
            }
        };
        for conflict in &mut self.findings.conflicts {
            collect(conflict.conflict_id.into(), Finding::Conflict(conflict));
            conflict.explain(&explanations);
        }
        for anomaly in &mut self.findings.anomalies {
            collect(anomaly.anomaly_id.into(), Finding::Anomaly(anomaly));
            anomaly.explain(&explanations);
        }
        Ok(())
    }
}

/// How long a running agent waits before it reports such an anomaly, since network plugins cause some for a moment.
fn grace_of(kind: AnomalyKind) -> Duration {
    let rules = AnomalyRules::default();
    match kind {
        AnomalyKind::IpamDrift => rules.drift_grace,
        AnomalyKind::MacDuplicate | AnomalyKind::MacMoved => rules.mac_grace,
        _ => rules.stray_route_grace,
    }
}

/// Identifies an anomaly in both reads, whose engines assign ids and generations of their own.
fn identity(anomaly: &Anomaly) -> (AnomalyKind, AnomalyCause, IpAddr, Option<IfIndex>) {
    let holder = anomaly.holder.as_ref().map(|holder| holder.ifindex);
    (anomaly.kind, anomaly.cause, anomaly.address, holder)
}

/// The state of the node, from one snapshot.
struct NodeState {
    engine: Engine,
    now: Timestamp,
    omitted: Omitted,
    ipam: Vec<String>,
    pods: Arc<PodDirectory>,
    plugins: Arc<PluginPods>,
}

fn read_node(args: &CommonArgs, node: &str) -> Result<NodeState, CheckError> {
    let selector = DeviceSelector::new(&args.interfaces, &args.exclude_interfaces)?;
    let mut requests = NetlinkReader::open()?;
    let (snapshot, unreadable) = read_until_settled(SETTLE_TIMEOUT, || {
        let snapshot = requests.read_node(&selector)?;
        let unreadable = unreadable_devices(&snapshot.snapshot);
        Ok::<_, ReadError>((snapshot, unreadable))
    })?;
    let BoundedSnapshot {
        snapshot, omitted, ..
    } = snapshot;
    let omitted = Omitted {
        namespaces: unreadable as u64,
        ..omitted
    };
    let now = clock::now();
    let mut engine = Engine::new(Settings {
        allow: args.allow.clone(),
        id_seed: node::random(),
        // A second read replaces the grace periods. One check cannot know how long an allocation has been unused.
        anomalies: AnomalyRules {
            drift_grace: Duration::ZERO,
            leak_after: Duration::MAX,
            stray_route_grace: Duration::ZERO,
            mac_grace: Duration::ZERO,
            ..AnomalyRules::default()
        },
        ..Settings::default()
    });
    let token = SnapshotToken(0);
    let step = |engine: &mut Engine, observation| {
        let observation = TimedObservation {
            at: now,
            observation,
        };
        // The effects are dropped: conflicts are queried from the engine, and nothing else matters to a single check.
        engine.step(now, observation, &mut Vec::new());
    };
    for observation in [
        Observation::SnapshotStarted(token),
        Observation::Snapshot(token, SnapshotScope::Node, Box::new(snapshot)),
    ] {
        step(&mut engine, observation);
    }
    let lookup = requests.look_up_routes(&engine.take_route_lookups(usize::MAX));
    if let Some(error) = lookup.error {
        return Err(error.into());
    }
    step(&mut engine, Observation::RoutesLookedUp(lookup.answers));
    // Read IPAM after the kernel: IPAM allocates an address before it is configured, so every live address is in it.
    let settings = &args.pods;
    let kube = KubeClient::new(settings.kube);
    let limit = settings.lookup_timeout;
    let results = settings.cni_cache_dir.path();
    let allocations = ipam::read_once(&args.ipam, node, kube.clone(), results, limit);
    // The owner of an allocation can only be compared with a pod that is known.
    let devices = if allocations.pools.is_empty() {
        involved_devices(&engine, now)
    } else {
        engine.view().devices()
    };
    let sources = PodSources::new(settings, node, kube);
    let plugins = sources.plugins();
    let (pods, found) =
        pods::resolve_once(devices, sources, limit).map_err(CheckError::PodLookup)?;
    let known = PodsKnown {
        records: pods.known_pods(found.pods.iter().chain(&found.details)),
        ..PodsKnown::default()
    };
    step(&mut engine, Observation::NetworksKnown(found.networks));
    step(&mut engine, Observation::PodsKnown(known));
    for pool in allocations.pools {
        // The engine trusts only recent allocations, and the pod lookup may have taken longer than that.
        let read_at = pool.read_at;
        let update = PoolUpdate::Read(pool, ChangedAddresses::All);
        engine.step(read_at, update.observed(read_at), &mut Vec::new());
    }
    Ok(NodeState {
        engine,
        now,
        omitted,
        ipam: allocations.summaries,
        pods,
        plugins,
    })
}

/// The devices that take part in a conflict or hold the address of an anomaly.
fn involved_devices(engine: &Engine, now: Timestamp) -> Vec<PodDevice> {
    let view = engine.view();
    let (conflicts, anomalies) = (view.conflicts(now), view.anomalies());
    let claimants = conflicts.iter().flat_map(Conflict::present);
    let holders = anomalies.iter().filter_map(|a| a.holder.as_ref());
    let involved: HashSet<IfIndex> = claimants.chain(holders).map(|c| c.ifindex).collect();
    involved
        .into_iter()
        .filter_map(|ifindex| view.device(ifindex))
        .collect()
}

/// Reads snapshots until every device that was unreadable in the first one is gone or readable, or until the timeout.
/// `read` returns a snapshot and its unreadable devices. Returns the last snapshot and how many of these devices remain.
fn read_until_settled<R, E>(
    timeout: Duration,
    mut read: impl FnMut() -> Result<(R, HashSet<IfIndex>), E>,
) -> Result<(R, usize), E> {
    let deadline = Instant::now() + timeout;
    let (mut snapshot, mut remaining) = read()?;
    while !remaining.is_empty() && Instant::now() < deadline {
        thread::sleep(SNAPSHOT_INTERVAL);
        let (next, unreadable) = read()?;
        snapshot = next;
        remaining.retain(|ifindex| unreadable.contains(ifindex));
    }
    Ok((snapshot, remaining.len()))
}

/// The devices whose peer is in a namespace that could not be read.
fn unreadable_devices(snapshot: &Snapshot) -> HashSet<IfIndex> {
    let is_unreadable = |peer| {
        let mut pods = snapshot.pods.iter();
        pods.any(|pod| pod.addresses.is_none() && pod.peer == peer)
    };
    let links = snapshot.links.iter();
    links
        .filter(|link| link.peer.is_some_and(is_unreadable))
        .map(|link| link.ifindex)
        .collect()
}

fn incomplete(omitted: Omitted) -> Option<Gap> {
    (omitted != Omitted::default()).then(|| Gap {
        headline: "no conflict in one look, but some state was not read",
        reason: format!(
            "not read: {}, {} beyond a bound, {} that could not be decoded",
            counted(omitted.namespaces, "namespace", "namespaces"),
            counted(omitted.over_bound, "entry", "entries"),
            counted(omitted.undecodable, "message", "messages")
        ),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::convert::Infallible;

    use super::*;

    /// Runs `read_until_settled` with these unreadable devices per snapshot. Returns the number of remaining devices and of
    /// snapshots.
    fn settle(timeout: Duration, unreadable: &[&[IfIndex]]) -> (usize, usize) {
        let mut snapshots = 0;
        let read = || {
            let unreadable = unreadable[snapshots.min(unreadable.len() - 1)];
            snapshots += 1;
            Ok::<_, Infallible>(((), unreadable.iter().copied().collect()))
        };
        let ((), remaining) = read_until_settled(timeout, read).unwrap();
        (remaining, snapshots)
    }

    #[test]
    fn only_devices_that_stay_unreadable_are_reported() {
        let long = Duration::from_secs(60);
        assert_eq!(settle(long, &[&[]]), (0, 1));
        assert_eq!(settle(long, &[&[7, 8], &[8], &[]]), (0, 3));
        // Devices that become unreadable later are not waited for.
        assert_eq!(settle(long, &[&[7], &[8, 9]]), (0, 2));
        assert_eq!(settle(Duration::from_millis(100), &[&[7, 8], &[7]]).0, 1);
    }
}
