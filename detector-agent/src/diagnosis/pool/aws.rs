//! ipamd's allocations, and when and how it was started.

use std::{collections::HashMap, path::Path, sync::Arc, time::Instant};

use detector_engine::diagnosis::{Known, LogLine, NetworkConfig, PoolState, Source, UnixTime};

use super::record::{Allocations, FoundPool, Owner, OwnerIs, Scope};
use crate::{
    diagnosis::{
        files::{not_checked, source, unix_timestamp},
        plugins,
        requests::Requests,
    },
    ipam::{FileError, IpamSettings, aws, read_file, read_tail},
    pods::PluginPods,
};

/// The DaemonSet whose container of the same name is ipamd.
const DAEMON_SET: &str = "aws-node";
/// How much of the log's end is read.
const MAX_LOG: u64 = 1 << 20;
/// What ipamd writes first.
const STARTED: &str = "Starting L-IPAMD";
/// What it writes if it starts without the allocations that it had made. In the order of versions: up to 1.6 it asked the runtime for
/// its containers, later versions have a checkpoint.
const REASONS: [&str; 5] = [
    "Not able to get local",
    "due to no matching container",
    "backing store doesn't exist",
    "failed ipam state recovery",
    "failed normalize checkpoint",
];
/// Longest message that is shown, in characters.
const MAX_MESSAGE: usize = 200;

/// What was read for the present findings.
#[derive(Debug, Default)]
pub(super) struct Ipamd(Option<(Instant, FoundPool)>);

impl Ipamd {
    /// What was read before `due` is read again.
    pub(super) fn refresh(&mut self, due: Instant) {
        self.0.take_if(|(read_at, _)| *read_at < due);
    }

    /// ipamd's pool. `is_only`: the node has no other network.
    pub(super) fn pool(
        &mut self,
        network: &NetworkConfig,
        is_only: bool,
        settings: &IpamSettings,
        plugins: &PluginPods,
        requests: &Requests,
    ) -> FoundPool {
        let known = self.0.take().unwrap_or_else(|| {
            let read_at = Instant::now();
            (read_at, read(network, is_only, settings, plugins, requests))
        });
        self.0.insert(known).1.clone()
    }
}

fn read(
    network: &NetworkConfig,
    is_only: bool,
    settings: &IpamSettings,
    plugins: &PluginPods,
    requests: &Requests,
) -> FoundPool {
    let file = &settings.aws_ipam_file;
    let (place, allocations) = match read_file(file, aws::MAX_BYTES) {
        Ok(bytes) => (
            file.display().to_string(),
            aws::parse_allocations(&bytes).map(of_file),
        ),
        Err(FileError::Missing) => {
            let port = settings.aws_introspection;
            let assigned = requests.wait_for(aws::introspect(port));
            let unnamed = || Owner {
                name: "a pod that the port does not name".to_owned(),
                is: OwnerIs::Unnamed,
                at: None,
            };
            let allocations = assigned.map(|assigned| {
                let addresses = assigned.into_keys();
                addresses.map(|a| (a, vec![unnamed()])).collect()
            });
            (format!("http://{port}/v1/enis"), allocations)
        }
        Err(why) => (file.display().to_string(), Err(format!("it {why}"))),
    };
    let log = read_log(&settings.aws_log_file);
    let (started, log_line) = match log {
        Ok(start) => {
            let source = source(&settings.aws_log_file);
            let reason = match start.reason {
                Some(reason) => Known::Value(reason, source.clone()),
                None => Known::Absent(source.clone()),
            };
            (Known::Value(start.at, source), reason)
        }
        Err(why) => (
            plugins::last_start(plugins, DAEMON_SET, "ipamd"),
            not_checked("ipamd's log", why),
        ),
    };
    FoundPool {
        network: network.clone(),
        source: Source::File(place.clone()),
        releases: Known::Absent(Source::File(place.clone())),
        address_source: Source::File(place.clone()),
        place,
        allocations: allocations.map(Arc::new),
        scope: match is_only {
            true => Scope::Node,
            false => Scope::Unknown("the node has other networks".to_owned()),
        },
        state: PoolState::Aws { started, log_line },
    }
}

fn of_file(allocations: Vec<aws::AwsAllocation>) -> Allocations {
    let mut all: Allocations = HashMap::new();
    for allocation in allocations {
        let (name, is) = match (allocation.container, allocation.pod) {
            (Some(id), Some(pod)) => (format!("{pod} ({id})"), OwnerIs::Sandbox(id)),
            (Some(id), None) => (id.clone(), OwnerIs::Sandbox(id)),
            (None, pod) => (
                pod.unwrap_or_else(|| "a pod that is not named".to_owned()),
                OwnerIs::Unnamed,
            ),
        };
        let owners = all.entry(allocation.address).or_default();
        if owners.iter().all(|owner| owner.name != name) {
            let at = allocation.at.filter(|at| *at > 0).map(UnixTime);
            owners.push(Owner { name, is, at });
        }
    }
    all
}

/// A start of ipamd.
#[derive(Debug, PartialEq, Eq)]
struct Start {
    at: UnixTime,
    /// Why it knew fewer allocations than before.
    reason: Option<LogLine>,
}

/// The last start of ipamd in its log.
fn read_log(path: &Path) -> Result<Start, String> {
    match read_tail(path, MAX_LOG) {
        Ok(bytes) => last_start(&String::from_utf8_lossy(&bytes))
            .ok_or_else(|| format!("the last MiB of {} has no start", path.display())),
        Err(FileError::Missing) => Err(format!("{} is not mounted", path.display())),
        Err(why) => Err(format!("{} {why}", path.display())),
    }
}

fn last_start(log: &str) -> Option<Start> {
    let mut last = None;
    for line in log.lines() {
        let is_start = line.contains(STARTED);
        let is_reason = || REASONS.iter().any(|reason| line.contains(reason));
        if !is_start && !is_reason() {
            continue;
        }
        let Some(line) = parse(line) else {
            continue;
        };
        match &mut last {
            _ if is_start => {
                last = Some(Start {
                    at: line.at,
                    reason: None,
                });
            }
            Some(start) if start.reason.is_none() => start.reason = Some(line),
            _ => {}
        }
    }
    last
}

/// A line: JSON, or of early versions `<time> [<level>] <message>`.
fn parse(line: &str) -> Option<LogLine> {
    let time = |text: &str| {
        let at: jiff::Timestamp = text.parse().ok()?;
        unix_timestamp(at)
    };
    let message = |text: &str| text.trim().chars().take(MAX_MESSAGE).collect();
    if let Ok(json) = serde_json::from_str::<serde_json::Value>(line) {
        return Some(LogLine {
            at: time(json.get("ts")?.as_str()?)?,
            text: message(json.get("msg")?.as_str()?),
        });
    }
    let (at, rest) = line.split_once(char::is_whitespace)?;
    let text = rest.trim_start();
    let text = text.split_once(']').map_or(text, |(_, text)| text);
    Some(LogLine {
        at: time(at)?,
        text: message(text),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn last_start_in_the_log_has_its_reason() {
        let log = concat!(
            r#"{"level":"debug","ts":"2026-11-25T01:00:00.000Z","msg":"backing store doesn't exists, assuming bootstrap on a new node"}"#,
            "\n",
            r#"{"level":"info","ts":"2026-11-25T04:04:10.000Z","caller":"aws-k8s-agent/main.go:28","msg":"Starting L-IPAMD v1.19.0  ..."}"#,
            "\nnot a line of the log\n",
            r#"{"level":"debug","ts":"2026-11-25T04:04:11.500Z","msg":"backing store doesn't exists, assuming bootstrap on a new node"}"#,
            "\n",
        );
        let start = last_start(log).unwrap();
        assert_eq!(start.at.to_string(), "2026-11-25 04:04:10Z");
        let reason = start.reason.unwrap();
        assert_eq!(reason.at.to_string(), "2026-11-25 04:04:11Z");
        assert!(reason.text.starts_with("backing store"), "{reason:?}");
        let cut = log.split_once('\n').unwrap().0;
        assert_eq!(last_start(cut), None);
    }

    #[test]
    fn log_of_an_early_version_is_read() {
        let log = "2019-11-05T18:15:39.046Z [INFO] Starting L-IPAMD v1.5.3  ...\n\
            2019-11-05T18:15:42.100Z [INFO] Skipping Pod kiali, Namespace istio-system, due to no matching container\n";
        let start = last_start(log).unwrap();
        assert_eq!(start.at.to_string(), "2019-11-05 18:15:39Z");
        let reason = start.reason.unwrap().text;
        assert!(reason.starts_with("Skipping Pod kiali"), "{reason}");
    }
}
