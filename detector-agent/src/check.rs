//! `check`: takes one snapshot of the kernel state and reports conflicts. It loads no eBPF program and changes nothing.

use std::{
    collections::HashSet,
    io::{self, Write as _},
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{
    cli::{CheckArgs, CheckFormat},
    clock::{self, Moment, WallTime},
    engine::{
        AnomalyRules, ChangedAddresses, Conflict, Engine, IfIndex, Observation, PodDevice,
        PoolUpdate, Settings, Snapshot, SnapshotScope, SnapshotToken, TimedObservation, Timestamp,
    },
    event::{
        AnomalyData, ConflictData,
        text::{Colour, clean, conflict_table, reasons},
    },
    ipam,
    kube_client::KubeClient,
    node::{self, NodeNameError},
    observe::netlink::{
        BoundedSnapshot, DeviceSelector, NetlinkReader, Omitted, OpenError, PatternError, ReadError,
    },
    pods::{self, PodSources},
};

/// How long to wait for devices with an unreadable namespace to disappear. When a pod is deleted, the kernel removes the id
/// of its namespace first and the devices connected to it later.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Delay between two snapshots.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(20);

/// An anomaly is reported only if it is still there after this time; CNI plugins cause drift briefly.
const ANOMALY_RECHECK: Duration = Duration::from_secs(2);

/// Why the check has no result.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// A device pattern is invalid.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The node name cannot be determined.
    #[error(transparent)]
    NodeName(#[from] NodeNameError),
    /// The netlink socket cannot be opened.
    #[error(transparent)]
    Netlink(#[from] OpenError),
    /// The kernel state cannot be read.
    #[error("cannot read the kernel state: {0}")]
    Read(#[from] ReadError),
    /// Pod lookups cannot be started.
    #[error("cannot look up pods: {0}")]
    PodLookup(io::Error),
    /// The result cannot be written.
    #[error("cannot write the result: {0}")]
    Write(#[from] io::Error),
}

/// The result as JSON.
#[derive(Debug, Serialize)]
struct Report<'a> {
    node: &'a str,
    checked_at: WallTime,
    devices: usize,
    /// Which state was not read, if any; conflicts may have been missed then.
    incomplete: Option<String>,
    conflicts: Vec<ConflictData>,
    anomalies: Vec<AnomalyData>,
    /// Which IPAM sources were found, with the result of reading each.
    ipam: Vec<String>,
}

/// Checks the node once and prints the result. Returns the exit code: 0 for no conflicts, 1 for conflicts, 2 if no conflict
/// was found but some state could not be read.
///
/// # Errors
/// If the check has no result (exit code 2). The output is a complete JSON document in this case too, if JSON was requested.
pub fn run(args: &CheckArgs) -> Result<u8, CheckError> {
    let result = check_and_print(args);
    if let (Err(error), CheckFormat::Json) = (&result, args.format) {
        let document = serde_json::json!({ "error": error.to_string(), "conflicts": null });
        writeln!(io::stdout().lock(), "{document:#}")?;
    }
    result
}

fn check_and_print(args: &CheckArgs) -> Result<u8, CheckError> {
    let NodeState {
        mut engine,
        now,
        omitted,
        ipam,
    } = read_node(args)?;
    let mut anomalies = engine.anomalies();
    if !anomalies.is_empty() {
        // A pod that is being created or deleted causes drift for a moment.
        thread::sleep(ANOMALY_RECHECK);
        let again = read_node(args)?.engine.anomalies();
        anomalies.retain(|a| {
            let mut again = again.iter();
            again.any(|b| (a.kind, a.address) == (b.kind, b.address))
        });
    }
    let node = node::name(args.common.node_name.as_deref())?;
    let in_conflict: HashSet<IfIndex> = engine
        .conflicts(now)
        .iter()
        .flat_map(Conflict::present)
        .map(|claimant| claimant.ifindex)
        .collect();
    let devices_to_look_up: Vec<PodDevice> = in_conflict
        .into_iter()
        .chain(
            anomalies
                .iter()
                .filter_map(|a| a.holder.as_ref())
                .map(|h| h.ifindex),
        )
        .collect::<HashSet<_>>()
        .into_iter()
        .filter_map(|ifindex| engine.device(ifindex))
        .collect();
    let settings = &args.common.pods;
    let kube = KubeClient::new(settings.kube);
    let sources = PodSources::new(settings, &node, kube);
    let (pods, found) = pods::resolve_once(devices_to_look_up, sources, settings.lookup_timeout)
        .map_err(CheckError::PodLookup)?;
    engine.networks_known(now, &found.networks, &mut Vec::new());
    let conflicts = engine.conflicts(now);
    let moment = Moment::now();
    let conflicts: Vec<ConflictData> = conflicts
        .iter()
        .map(|conflict| ConflictData::new(&node, &moment, conflict, |c| pods.pod_of(c)))
        .collect();
    let anomalies: Vec<AnomalyData> = anomalies
        .iter()
        .map(|anomaly| AnomalyData::new(&node, &moment, anomaly, |c| pods.pod_of(c)))
        .collect();
    let strict = args.strict && !anomalies.is_empty();
    let devices = engine.devices().len();
    let text = match args.format {
        CheckFormat::Json => {
            let report = Report {
                node: &node,
                checked_at: moment.wall_at(now),
                devices,
                incomplete: incomplete(omitted),
                conflicts: conflicts.clone(),
                anomalies,
                ipam,
            };
            serde_json::to_string_pretty(&report).map_err(io::Error::from)? + "\n"
        }
        CheckFormat::Text => {
            let colour = Colour::for_output(&io::stdout());
            let mut text = text(&conflicts, devices, incomplete(omitted), colour);
            append_anomalies(&mut text, &anomalies, &ipam);
            text
        }
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(
        match (conflicts.is_empty(), omitted == Omitted::default()) {
            (false, _) => 1,
            (true, _) if strict => 1,
            (true, true) => 0,
            (true, false) => 2,
        },
    )
}

/// The state of the node, from one snapshot.
struct NodeState {
    engine: Engine,
    now: Timestamp,
    omitted: Omitted,
    ipam: Vec<String>,
}

fn read_node(args: &CheckArgs) -> Result<NodeState, CheckError> {
    let selector = DeviceSelector::new(&args.common.interfaces, &args.common.exclude_interfaces)?;
    let mut requests = NetlinkReader::open()?;
    let (snapshot, unreadable) = read_until_settled(SETTLE_TIMEOUT, || {
        let snapshot = requests.read_node(&selector)?;
        let unreadable = unreadable_devices(&snapshot.snapshot);
        Ok::<_, ReadError>((snapshot, unreadable))
    })?;
    let BoundedSnapshot { snapshot, omitted } = snapshot;
    let omitted = Omitted {
        namespaces: unreadable as u64,
        ..omitted
    };
    let now = clock::now();
    let mut engine = Engine::new(Settings {
        allow: args.common.allow.clone(),
        id_seed: node::random(),
        // Lasting drift is confirmed by a second snapshot. One check cannot know how long an allocation has been unused.
        anomalies: AnomalyRules {
            drift_grace: Duration::ZERO,
            leak_after: Duration::MAX,
            stray_route_grace: Duration::ZERO,
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
    let settings = &args.common.pods;
    let node = node::name(args.common.node_name.as_deref())?;
    let kube = KubeClient::new(settings.kube);
    let allocations = ipam::read_once(&args.common.ipam, &node, kube, settings.lookup_timeout);
    for pool in allocations.pools {
        let update = PoolUpdate::Read(pool, ChangedAddresses::All);
        engine.update_pool(clock::now(), update, &mut Vec::new());
    }
    Ok(NodeState {
        engine,
        now,
        omitted,
        ipam: allocations.summaries,
    })
}

/// Appends anomalies and the state of IPAM sources.
fn append_anomalies(text: &mut String, anomalies: &[AnomalyData], ipam: &[String]) {
    if !anomalies.is_empty() {
        text.push_str(&format!(
            "\n{} anomalies (not conflicts):\n",
            anomalies.len()
        ));
    }
    for anomaly in anomalies {
        let pod = anomaly
            .pod
            .as_ref()
            .map(|pod| format!(" (pod {}/{})", clean(&pod.namespace), clean(&pod.name)));
        text.push_str(&format!(
            "{} {}{}\n",
            anomaly.kind.name(),
            clean(&anomaly.detail),
            pod.unwrap_or_default()
        ));
    }
    for summary in ipam {
        text.push_str(&format!("ipam: {}\n", clean(summary)));
    }
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

fn incomplete(omitted: Omitted) -> Option<String> {
    (omitted != Omitted::default()).then(|| {
        format!(
            "{} namespaces could not be read, {} entries were beyond a bound, {} messages could not be decoded",
            omitted.namespaces, omitted.over_bound, omitted.undecodable
        )
    })
}

/// The first line is at most 80 bytes, because node-problem-detector shows no more.
fn text(
    conflicts: &[ConflictData],
    devices: usize,
    incomplete: Option<String>,
    colour: Colour,
) -> String {
    let mut text = match conflicts {
        [] if incomplete.is_some() => {
            format!(
                "inconclusive: no conflict on {devices} pod devices, but some state was not read\n"
            )
        }
        [] => format!("no IP address conflict on {devices} pod devices\n"),
        [one] => format!("1 IP address conflict: {}\n", one.address),
        many => format!(
            "{} IP address conflicts, first {}\n",
            many.len(),
            many[0].address
        ),
    };
    if let Some(incomplete) = incomplete {
        text.push_str(&format!("incomplete: {incomplete}\n"));
    }
    for conflict in conflicts {
        text.push('\n');
        conflict_table(&mut text, conflict, colour);
    }
    let reasons = reasons(conflicts);
    if !reasons.is_empty() {
        text.push('\n');
    }
    for reason in reasons {
        text.push_str(&format!("pod unknown: {reason}\n"));
    }
    text
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

    #[test]
    fn first_line_fits_80_bytes() {
        let address = "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255";
        for line in [
            format!("{} IP address conflicts, first {address}", 65_536),
            format!("no IP address conflict on {} pod devices", usize::MAX),
            text(&[], 1_000_000, Some(String::new()), Colour::Off)
                .lines()
                .next()
                .unwrap()
                .to_owned(),
        ] {
            assert!(line.len() <= 80, "{line}: {}", line.len());
        }
    }
}
