//! Agents that have nothing to do with a conflict: each watches the IPConflicts that name its node; there are none.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use http_body_util::BodyExt as _;
use hyper::{StatusCode, body::Incoming};
use serde_json::Value;
use tokio::{sync::Semaphore, task::JoinSet, time::sleep};

use super::{
    client::{Api, Call, Connection},
    objects::CONFLICTS,
};

/// Watches that are opened at the same time.
const OPENING: usize = 16;
/// The last bytes of a watch that are kept, more than an event has.
const TAIL: usize = 16 << 10;
/// How often it is checked whether to end.
const POLL: Duration = Duration::from_millis(50);

/// What all watchers have received.
#[derive(Debug)]
pub(super) struct Received {
    started: Instant,
    /// Watches that are open.
    open: AtomicUsize,
    /// All of them are.
    is_ready: AtomicBool,
    is_ended: AtomicBool,
    /// Bytes of bodies that all watchers have received.
    bytes: AtomicU64,
    /// Bytes and events of the first watcher. All receive the same.
    first_bytes: AtomicU64,
    first_events: AtomicU64,
    /// When something was received last, in microseconds since `started`.
    last: AtomicU64,
    /// Watches that the server ended and that were continued.
    continued: AtomicU64,
    /// Those of them that had to begin with a list.
    listed_again: AtomicU64,
}

/// The counters at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) bytes: u64,
    pub(super) first_bytes: u64,
    pub(super) events: u64,
    pub(super) continued: u64,
    pub(super) listed_again: u64,
}

impl Received {
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
            open: AtomicUsize::new(0),
            is_ready: AtomicBool::new(false),
            is_ended: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            first_bytes: AtomicU64::new(0),
            first_events: AtomicU64::new(0),
            last: AtomicU64::new(0),
            continued: AtomicU64::new(0),
            listed_again: AtomicU64::new(0),
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Relaxed)
    }

    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// When something was received last.
    pub(super) fn last(&self) -> Instant {
        self.started + Duration::from_micros(self.last.load(Ordering::Relaxed))
    }

    pub(super) fn counters(&self) -> Counters {
        Counters {
            bytes: self.bytes.load(Ordering::Relaxed),
            first_bytes: self.first_bytes.load(Ordering::Relaxed),
            events: self.first_events.load(Ordering::Relaxed),
            continued: self.continued.load(Ordering::Relaxed),
            listed_again: self.listed_again.load(Ordering::Relaxed),
        }
    }

    /// Ends the watches.
    pub(super) fn end(&self) {
        self.is_ended.store(true, Ordering::Relaxed);
    }

    fn add(&self, chunk: &[u8], is_first: bool) {
        let length = chunk.len() as u64;
        self.bytes.fetch_add(length, Ordering::Relaxed);
        if is_first {
            let events = chunk.iter().filter(|byte| **byte == b'\n').count();
            self.first_events
                .fetch_add(events as u64, Ordering::Relaxed);
            self.first_bytes.fetch_add(length, Ordering::Relaxed);
        }
        let now = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last.fetch_max(now, Ordering::Relaxed);
    }
}

/// Opens `count` watches, each on a connection of its own, and reads them until [`Received::end`].
pub(super) async fn watch(api: &Api, count: usize, received: &Arc<Received>) -> Result<()> {
    let mut connection = api.connect().await?;
    let version = list_version(&mut connection, &node(0)).await?;
    let slots = Arc::new(Semaphore::new(OPENING));
    let mut watchers = JoinSet::new();
    for number in 0..count {
        let slot = Arc::clone(&slots).acquire_owned().await?;
        let (api, version, received) = (api.clone(), version.clone(), Arc::clone(received));
        watchers.spawn(async move {
            let node = node(number);
            let opened = open(&api, &version, &node).await?;
            drop(slot);
            received.open.fetch_add(1, Ordering::Relaxed);
            follow(&api, opened, version, &received, &node, number == 0).await
        });
    }
    while received.open() < count && !received.is_ended.load(Ordering::Relaxed) {
        if let Some(failed) = watchers.try_join_next() {
            failed??;
        }
        sleep(POLL).await;
    }
    received.is_ready.store(true, Ordering::Relaxed);
    while !received.is_ended.load(Ordering::Relaxed) {
        sleep(POLL).await;
    }
    Ok(())
}

/// The node of a watcher.
fn node(number: usize) -> String {
    format!("watcher-{number}")
}

/// Lists the IPConflicts of a node from the watch cache; the version from which a watch continues.
pub(super) async fn list_version(connection: &mut Connection, node: &str) -> Result<String> {
    let list = Call::get(format!("{CONFLICTS}?resourceVersion=0&{}", selector(node)));
    let list: Value = serde_json::from_slice(&connection.send(&list).await?)?;
    let version = list.pointer("/metadata/resourceVersion");
    let version = version.and_then(Value::as_str);
    Ok(version.context("a list without a version")?.to_owned())
}

/// The watch that continues from there.
pub(super) fn watch_call(version: &str, node: &str) -> Call {
    Call::get(format!(
        "{CONFLICTS}?watch=1&resourceVersion={version}&timeoutSeconds=1800&allowWatchBookmarks=true&{}",
        selector(node)
    ))
}

fn selector(node: &str) -> String {
    format!("labelSelector=node.ipconflict.io%2F{node}")
}

async fn open(api: &Api, version: &str, node: &str) -> Result<(Connection, Incoming)> {
    let mut connection = api.connect().await?;
    let (status, events) = connection.open(&watch_call(version, node)).await?;
    ensure!(status == StatusCode::OK, "the watch: {status}");
    Ok((connection, events))
}

/// Reads a watch, and continues it whenever the server ends it: the API server does that to a watcher that it has too many
/// events for.
async fn follow(
    api: &Api,
    opened: (Connection, Incoming),
    mut version: String,
    received: &Received,
    node: &str,
    is_first: bool,
) -> Result<()> {
    let (mut _connection, mut events) = opened;
    loop {
        let end = read(events, received, is_first).await;
        received.continued.fetch_add(1, Ordering::Relaxed);
        if end.is_error {
            received.listed_again.fetch_add(1, Ordering::Relaxed);
            version = list_version(&mut api.connect().await?, node).await?;
        } else if let Some(last) = end.version {
            version = last;
        }
        (_connection, events) = open(api, &version, node).await?;
    }
}

/// How a watch ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct End {
    /// The version of the last event.
    version: Option<String>,
    /// The last event is an error, such as that the version is too old.
    is_error: bool,
}

/// Reads until the server ends the watch, or the connection breaks.
async fn read(mut events: Incoming, received: &Received, is_first: bool) -> End {
    let mut tail = Vec::new();
    while let Some(Ok(frame)) = events.frame().await {
        if let Some(chunk) = frame.data_ref() {
            received.add(chunk, is_first);
            tail.extend_from_slice(chunk);
            let surplus = tail.len().saturating_sub(TAIL);
            tail.drain(..surplus);
        }
    }
    end(&tail)
}

/// The end of a watch whose last bytes are these.
fn end(tail: &[u8]) -> End {
    const VERSION: &str = r#""resourceVersion":""#;
    let text = String::from_utf8_lossy(tail);
    // An event is a line; what follows the last one was cut off.
    let Some((complete, _)) = text.rsplit_once('\n') else {
        return End::default();
    };
    let last = complete.rsplit('\n').next().unwrap_or_default();
    let version = complete.rsplit_once(VERSION);
    End {
        version: version.and_then(|(_, rest)| Some(rest.split_once('"')?.0.to_owned())),
        is_error: last.starts_with(r#"{"type":"ERROR""#),
    }
}

#[cfg(test)]
mod tests {
    use super::{End, end};

    #[test]
    fn watch_continues_after_its_last_complete_event() {
        let event = |version| {
            format!(
                r#"{{"type":"ADDED","object":{{"metadata":{{"resourceVersion":"{version}"}}}}}}"#
            )
        };
        let cut = format!("{}\n{}\n{}", event(7), event(8), event(9));
        let expected = End {
            version: Some("8".to_owned()),
            is_error: false,
        };
        assert_eq!(end(cut.as_bytes()), expected);
        assert_eq!(end(b""), End::default());
        let gone = format!(
            "{}\n{{\"type\":\"ERROR\",\"object\":{{\"code\":410}}}}\n",
            event(7)
        );
        assert!(end(gone.as_bytes()).is_error);
    }
}
