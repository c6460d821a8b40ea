//! `check`: one look at the kernel's state. No program is loaded, nothing is attached, nothing is changed.

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

/// How long a device whose namespace cannot be read may be on its way out: the kernel takes a namespace's id away first
/// and the devices that lead there later, in its own time. It is the ordinary end of a pod.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two readings.
const PAUSE: Duration = Duration::from_millis(20);

/// Drift that is still there after this long is none that a plugin makes in passing.
const ANOMALY_LASTS: Duration = Duration::from_secs(2);

/// Why the check could not tell.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// A pattern is wrong.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The node's name is not known.
    #[error(transparent)]
    NodeName(#[from] NodeNameError),
    /// Netlink is closed to us.
    #[error(transparent)]
    Netlink(#[from] OpenError),
    /// The kernel's state could not be read.
    #[error("cannot read the kernel's state: {0}")]
    Read(#[from] ReadError),
    /// The system gives no means to wait for the sources of pods' names.
    #[error("cannot look up pods: {0}")]
    PodLookup(io::Error),
    /// The answer could not be written.
    #[error("cannot write the answer: {0}")]
    Write(#[from] io::Error),
}

/// The answer as JSON.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    node: &'a str,
    checked_at: WallTime,
    devices: usize,
    /// Not everything could be read: no conflict among what was read does not mean none.
    incomplete: Option<String>,
    conflicts: Vec<ConflictData>,
    /// What is not yet a conflict.
    anomalies: Vec<AnomalyData>,
    /// Which IPAM was recognised, what was read and what not.
    ipam: Vec<String>,
}

/// Looks once and prints what it finds. Gives the exit code: 0 no conflict, 1 conflicts, 2 no conflict among what could
/// be read, where that was not everything.
///
/// # Errors
/// Where it could not tell (exit code 2). What is printed is a whole JSON document then, too, if one was asked for.
pub fn run(args: &CheckArgs) -> Result<u8, CheckError> {
    let answer = look(args);
    if let (Err(error), CheckFormat::Json) = (&answer, args.format) {
        let document = serde_json::json!({ "error": error.to_string(), "conflicts": null });
        writeln!(io::stdout().lock(), "{document:#}")?;
    }
    answer
}

fn look(args: &CheckArgs) -> Result<u8, CheckError> {
    let Look {
        engine,
        now,
        omitted,
        ipam,
    } = look_at_node(args)?;
    let mut anomalies = engine.anomalies();
    if !anomalies.is_empty() {
        // A pod that is being made or deleted may look like drift for a moment.
        thread::sleep(ANOMALY_LASTS);
        let again = look_at_node(args)?.engine.anomalies();
        anomalies.retain(|a| {
            let mut still = again.iter();
            still.any(|b| (a.kind, a.address) == (b.kind, b.address))
        });
    }
    let node = node::name(args.common.node_name.as_deref())?;
    let conflicts = engine.conflicts(now);
    let in_conflict: HashSet<IfIndex> = conflicts
        .iter()
        .flat_map(Conflict::present)
        .map(|claimant| claimant.ifindex)
        .collect();
    let wanted: Vec<PodDevice> = in_conflict
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
    let pods = pods::resolve_once(wanted, sources, settings.lookup_timeout)
        .map_err(CheckError::PodLookup)?;
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
            let answer = Answer {
                node: &node,
                checked_at: moment.wall_at(now),
                devices,
                incomplete: incomplete(omitted),
                conflicts: conflicts.clone(),
                anomalies,
                ipam,
            };
            serde_json::to_string_pretty(&answer).map_err(io::Error::from)? + "\n"
        }
        CheckFormat::Text => {
            let colour = Colour::for_output(&io::stdout());
            let mut text = text(&conflicts, devices, incomplete(omitted), colour);
            anomaly_section(&mut text, &anomalies, &ipam);
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

/// What one look at the node gave.
struct Look {
    engine: Engine,
    now: Timestamp,
    omitted: Omitted,
    ipam: Vec<String>,
}

fn look_at_node(args: &CheckArgs) -> Result<Look, CheckError> {
    let selector = DeviceSelector::new(&args.common.interfaces, &args.common.exclude_interfaces)?;
    let mut requests = NetlinkReader::open()?;
    let (reading, stuck) = settled(PATIENCE, || {
        let reading = requests.read_node(&selector)?;
        let missed = missed(&reading.snapshot);
        Ok::<_, ReadError>((reading, missed))
    })?;
    let BoundedSnapshot { snapshot, omitted } = reading;
    let omitted = Omitted {
        namespaces: stuck as u64,
        ..omitted
    };
    let now = clock::now();
    let mut engine = Engine::new(Settings {
        allow: args.common.allow.clone(),
        id_seed: node::random(),
        // What lasts is told apart by a second look; how long an address was idle one look cannot know.
        anomalies: AnomalyRules {
            drift_grace: Duration::ZERO,
            leak_after: Duration::MAX,
            stray_route_grace: Duration::ZERO,
        },
        ..Settings::default()
    });
    let token = SnapshotToken(0);
    for what in [
        Observation::SnapshotStarted(token),
        Observation::Snapshot(token, SnapshotScope::Node, Box::new(snapshot)),
    ] {
        // Conflicts are asked for below; what else follows from a snapshot is for an agent that stays.
        engine.step(
            now,
            TimedObservation {
                at: now,
                observation: what,
            },
            &mut Vec::new(),
        );
    }
    // After the kernel: IPAM writes first, so what is live by then stands in its books.
    let settings = &args.common.pods;
    let node = node::name(args.common.node_name.as_deref())?;
    let kube = KubeClient::new(settings.kube);
    let allocations = ipam::read_once(&args.common.ipam, &node, kube, settings.lookup_timeout);
    for pool in allocations.pools {
        let news = PoolUpdate::Read(pool, ChangedAddresses::All);
        engine.update_pool(clock::now(), news, &mut Vec::new());
    }
    Ok(Look {
        engine,
        now,
        omitted,
        ipam: allocations.summaries,
    })
}

/// What is no conflict, after all that is.
fn anomaly_section(text: &mut String, anomalies: &[AnomalyData], ipam: &[String]) {
    if !anomalies.is_empty() {
        text.push_str(&format!(
            "\n{} anomalies, no conflict yet:\n",
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
    for told in ipam {
        text.push_str(&format!("ipam: {}\n", clean(told)));
    }
}

/// Reads, again while a device whose namespace the first reading missed is still there and still cannot be read. Gives
/// the last reading and how many such devices are left.
fn settled<R, E>(
    patience: Duration,
    mut read: impl FnMut() -> Result<(R, HashSet<IfIndex>), E>,
) -> Result<(R, usize), E> {
    let until = Instant::now() + patience;
    let (mut reading, mut stuck) = read()?;
    while !stuck.is_empty() && Instant::now() < until {
        thread::sleep(PAUSE);
        let (next, missed) = read()?;
        reading = next;
        stuck.retain(|ifindex| missed.contains(ifindex));
    }
    Ok((reading, stuck.len()))
}

/// The devices that lead to a namespace that could not be read.
fn missed(snapshot: &Snapshot) -> HashSet<IfIndex> {
    let unreadable = |peer| {
        let mut pods = snapshot.pods.iter();
        pods.any(|pod| pod.addresses.is_none() && pod.peer == peer)
    };
    let links = snapshot.links.iter();
    links
        .filter(|link| link.peer.is_some_and(unreadable))
        .map(|link| link.ifindex)
        .collect()
}

fn incomplete(omitted: Omitted) -> Option<String> {
    (omitted != Omitted::default()).then(|| {
        format!(
            "{} namespaces could not be read, {} entries were beyond a bound, {} messages were not understood",
            omitted.namespaces, omitted.over_bound, omitted.undecodable
        )
    })
}

/// The first line is at most 80 bytes, as node-problem-detector shows no more.
fn text(
    conflicts: &[ConflictData],
    devices: usize,
    incomplete: Option<String>,
    colour: Colour,
) -> String {
    let mut text = match conflicts {
        [] if incomplete.is_some() => {
            format!("could not tell: no conflict seen on {devices} pod devices, but not all read\n")
        }
        [] => format!("no IP address conflict on {devices} pod devices\n"),
        [one] => format!("1 IP address conflict: {}\n", one.address),
        many => format!(
            "{} IP address conflicts, first {}\n",
            many.len(),
            many[0].address
        ),
    };
    if let Some(what) = incomplete {
        text.push_str(&format!("not everything could be read: {what}\n"));
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

    /// How many devices `settled` gives up on where the readings miss these, and how many readings it took.
    fn settle(patience: Duration, missed: &[&[IfIndex]]) -> (usize, usize) {
        let mut readings = 0;
        let read = || {
            let missed = missed[readings.min(missed.len() - 1)];
            readings += 1;
            Ok::<_, Infallible>(((), missed.iter().copied().collect()))
        };
        let ((), stuck) = settled(patience, read).unwrap();
        (stuck, readings)
    }

    #[test]
    fn pods_that_went_meanwhile_are_read_over_and_one_that_stays_unreadable_is_told() {
        let long = Duration::from_secs(60);
        assert_eq!(settle(long, &[&[]]), (0, 1));
        assert_eq!(settle(long, &[&[7, 8], &[8], &[]]), (0, 3));
        // Others are going by now.
        assert_eq!(settle(long, &[&[7], &[8, 9]]), (0, 2));
        assert_eq!(settle(Duration::from_millis(100), &[&[7, 8], &[7]]).0, 1);
    }

    #[test]
    fn the_first_line_fits_eighty_bytes_for_the_longest_address() {
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
