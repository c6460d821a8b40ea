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
    clock::{self, Moment},
    detect::{
        Conflict, Device, Engine, IfIndex, Observation, ReadScope, ReadToken, Settings, Snapshot,
        Stamped,
    },
    identify::{self, Sources},
    node::{self, NodeNameError},
    observe::netlink::{
        DeviceSelector, LeftOut, OpenError, PatternError, ReadError, Reading, Requests,
    },
    report::{
        event::ConflictData,
        text::{Colour, conflict_table, reasons},
    },
};

/// How long a device whose namespace cannot be read may be on its way out: the kernel takes a namespace's id away first
/// and the devices that lead there later, in its own time. It is the ordinary end of a pod.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two readings.
const PAUSE: Duration = Duration::from_millis(20);

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
    Identify(io::Error),
    /// The answer could not be written.
    #[error("cannot write the answer: {0}")]
    Write(#[from] io::Error),
}

/// The answer as JSON.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    node: &'a str,
    checked_at: String,
    devices: usize,
    /// Not everything could be read: no conflict among what was read does not mean none.
    incomplete: Option<String>,
    conflicts: Vec<ConflictData>,
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
    let selector = DeviceSelector::new(&args.common.interfaces, &args.common.exclude_interfaces)?;
    let node = node::name(args.common.node_name.as_deref())?;
    let mut requests = Requests::open()?;
    let (reading, stuck) = settled(PATIENCE, || {
        let reading = requests.read_node(&selector)?;
        let missed = missed(&reading.snapshot);
        Ok::<_, ReadError>((reading, missed))
    })?;
    let Reading { snapshot, left_out } = reading;
    let left_out = LeftOut {
        namespaces: stuck as u64,
        ..left_out
    };
    let now = clock::now();
    let mut engine = Engine::new(Settings {
        allow: args.common.allow.clone(),
        id_seed: node::random(),
        ..Settings::default()
    });
    let token = ReadToken(0);
    for what in [
        Observation::ReadBegun(token),
        Observation::Read(token, ReadScope::Node, Box::new(snapshot)),
    ] {
        // Conflicts are asked for below; what else follows from a snapshot is for an agent that stays.
        engine.step(now, Stamped { at: now, what }, &mut Vec::new());
    }
    let conflicts = engine.conflicts(now);
    let in_conflict: HashSet<IfIndex> = conflicts
        .iter()
        .flat_map(Conflict::present)
        .map(|claimant| claimant.ifindex)
        .collect();
    let wanted: Vec<Device> = in_conflict
        .into_iter()
        .filter_map(|ifindex| engine.device(ifindex))
        .collect();
    let settings = &args.common.identify;
    let sources = Sources::new(settings, &node);
    let pods = identify::look_once(wanted, sources, settings.lookup_timeout)
        .map_err(CheckError::Identify)?;
    let moment = Moment::now();
    let conflicts: Vec<ConflictData> = conflicts
        .iter()
        .map(|conflict| ConflictData::new(&node, &moment, conflict, |c| pods.pod_of(c)))
        .collect();
    let devices = engine.devices().len();
    let text = match args.format {
        CheckFormat::Json => {
            let answer = Answer {
                node: &node,
                checked_at: moment.rfc3339(now),
                devices,
                incomplete: incomplete(left_out),
                conflicts: conflicts.clone(),
            };
            serde_json::to_string_pretty(&answer).map_err(io::Error::from)? + "\n"
        }
        CheckFormat::Text => {
            let colour = Colour::for_output(&io::stdout());
            text(&conflicts, devices, incomplete(left_out), colour)
        }
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(
        match (conflicts.is_empty(), left_out == LeftOut::default()) {
            (false, _) => 1,
            (true, true) => 0,
            (true, false) => 2,
        },
    )
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

fn incomplete(left_out: LeftOut) -> Option<String> {
    (left_out != LeftOut::default()).then(|| {
        format!(
            "{} namespaces could not be read, {} entries were beyond a bound, {} messages were not understood",
            left_out.namespaces, left_out.over_bound, left_out.undecodable
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
