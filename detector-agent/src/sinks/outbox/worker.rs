//! The thread "outbox": the only writer of the outbox's tables.
//!
//! What came in while the disk was busy is one commit (group commit). Where a commit fails, its inputs are kept and
//! tried again, in order, with the store opened anew; what comes in meanwhile waits behind it, within the bound of
//! [`super::CAPACITY`] events.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashSet},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use redb::Database;
use tokio::{sync::oneshot, time::Instant};
use tracing::{error, info, warn};

use super::{
    batch::{Changes, Input},
    ledger::Ledger,
    port::Port,
    queue::locked,
    tables::Now,
};
use crate::{
    health::Part,
    metrics::Metrics,
    persist::store::{Store, StoreError},
    sinks::retry::Backoff,
};

/// Inputs of one commit at most.
const BATCH: usize = 512;
/// A removal that was not written to the disk is, once it is quiet for so long.
const FLUSH: Duration = Duration::from_secs(1);
/// Waits after failures of the store.
const STORE: Backoff = Backoff {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(30),
};

/// What the thread hears.
#[derive(Debug)]
pub(super) enum Message {
    Input(Input),
    /// Answer once all that came before is stored and with the senders.
    Sync(oneshot::Sender<()>),
    Stop,
}

/// What the detection side and the thread share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Events offered and not stored yet.
    pub(super) queued: AtomicUsize,
    /// Something was dropped: all active conflicts are to be told anew.
    pub(super) behind: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) inputs: Receiver<Message>,
    pub(super) ledger: Ledger,
    pub(super) store: Arc<Store>,
    pub(super) ports: Vec<Arc<Port>>,
    pub(super) shared: Arc<Shared>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) due: Due,
    pub(super) health: Part,
    pub(super) progress: Progress,
    /// What earlier runs left was read; nothing is stored before.
    pub(super) loaded: bool,
}

/// What is under way.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Not committed yet.
    batch: Vec<Input>,
    /// Removals that a crash would undo, and so would opening the database anew after somebody's error.
    unsynced: Vec<Input>,
    /// The database as it was open at the last commit.
    last: Weak<Database>,
    /// A commit that failed, and may be on the disk all the same.
    pub(super) doubt: Option<Changes>,
    /// Commits that failed since the last one that did not.
    failures: u32,
    /// Those that wait for an answer.
    waiting: Vec<oneshot::Sender<()>>,
}

/// Conflicts that sinks are to hear of later.
#[derive(Debug, Default)]
pub(super) struct Due {
    times: BinaryHeap<Reverse<(Instant, usize, String)>>,
    known: HashSet<(usize, String)>,
}

impl Due {
    pub(super) fn add(&mut self, at: Instant, sink: usize, conflict: String) {
        if self.known.insert((sink, conflict.clone())) {
            self.times.push(Reverse((at, sink, conflict)));
        }
    }

    fn next(&self) -> Option<Instant> {
        self.times.peek().map(|Reverse((at, ..))| *at)
    }

    fn take(&mut self, now: Instant) -> Option<Input> {
        if self.next()? > now {
            return None;
        }
        let Reverse((_, sink, conflict)) = self.times.pop()?;
        self.known.remove(&(sink, conflict.clone()));
        Some(Input::Due(sink, conflict))
    }
}

impl Worker {
    /// Works until it is told to stop, or nobody can tell it anything any more.
    pub(super) fn run(mut self) {
        let mut random = fastrand::Rng::new();
        loop {
            let wait = if self.progress.failures > 0 {
                Some(STORE.wait(self.progress.failures, &mut random))
            } else {
                let until = |at: Instant| at.saturating_duration_since(Instant::now());
                let due = self.due.next().map(until);
                let flush = (!self.progress.unsynced.is_empty()).then_some(FLUSH);
                due.into_iter().chain(flush).min()
            };
            if self.turn(wait) {
                break;
            }
        }
        if !self.progress.batch.is_empty() {
            warn!(
                "{} changes of the outbox could not be stored before the end; the next start makes up for what is still active",
                self.progress.batch.len()
            );
        }
    }

    /// Reads what waits from earlier runs.
    ///
    /// # Errors
    /// Where the store cannot be opened or read; it is tried again before the next commit.
    pub(super) fn load(&mut self) -> Result<(), StoreError> {
        let outcome = self.store.database().and_then(|database| {
            let loaded = self.ledger.load(&database, Now::get());
            if loaded.is_err() {
                self.store.failed(database);
            }
            loaded
        });
        let loaded = match outcome {
            Ok(loaded) => loaded,
            Err(why) => {
                self.failed(&why);
                return Err(why);
            }
        };
        if loaded.orphaned > 0 {
            warn!(
                "dropped {} events that waited for sinks that are no longer configured",
                loaded.orphaned
            );
        }
        if loaded.unreadable > 0 {
            error!(
                "dropped {} records of the outbox that cannot be read; what they told is made up for as far as it is still active",
                loaded.unreadable
            );
        }
        self.count("orphaned", loaded.orphaned as u64);
        self.count("unreadable", loaded.unreadable as u64);
        for (port, queue) in self.ports.iter().zip(loaded.queues) {
            *locked(&port.queue) = queue;
            port.tell();
        }
        let now = Instant::now();
        for held in loaded.held {
            self.due.add(now + held.wait, held.sink, held.conflict);
        }
        self.loaded = true;
        self.works();
        Ok(())
    }

    fn works(&self) {
        self.health.works(if self.store.is_durable() {
            "stores events before they are sent"
        } else {
            "keeps events in memory: --state-dir is not given"
        });
    }

    fn failed(&mut self, why: &StoreError) {
        if self.progress.failures == 0 {
            error!(
                "events cannot be stored, and are not sent before they are: {why}; detection goes on and the outbox tries again"
            );
        }
        self.health.failed(format!("cannot store events: {why}"));
        self.progress.failures = self.progress.failures.saturating_add(1);
        self.count("store_failed", 1);
    }

    /// Waits for inputs as long as `wait` says and commits them; `true` at the end.
    pub(super) fn turn(&mut self, wait: Option<Duration>) -> bool {
        let stopping = self.collect(wait);
        while self.progress.batch.len() < BATCH
            && let Some(due) = self.due.take(Instant::now())
        {
            self.progress.batch.push(due);
        }
        if !self.loaded && self.load().is_err() {
            return stopping;
        }
        if !self.progress.batch.is_empty() || !self.progress.unsynced.is_empty() {
            match self.commit() {
                Ok(()) => self.progress.batch.clear(),
                Err(why) => {
                    self.failed(&why);
                    return stopping;
                }
            }
        }
        if self.progress.failures > 0 {
            info!("the outbox can be written again");
            self.works();
            self.progress.failures = 0;
        }
        for waiting in self.progress.waiting.drain(..) {
            // Whoever waited may have gone.
            let _ = waiting.send(());
        }
        stopping
    }

    /// Fills `batch` with what there is; waits for the first as long as `wait` says, or for all of `wait` where the
    /// last commit failed. `true` at the end.
    fn collect(&mut self, wait: Option<Duration>) -> bool {
        let failing = self.progress.failures > 0;
        let batch = &mut self.progress.batch;
        let until = wait.map(|wait| Instant::now() + wait);
        let mut first = batch.is_empty() || failing;
        while failing || batch.len() < BATCH {
            let message = if first {
                let received = match until {
                    Some(until) => self
                        .inputs
                        .recv_timeout(until.saturating_duration_since(Instant::now())),
                    None => self
                        .inputs
                        .recv()
                        .map_err(|_| RecvTimeoutError::Disconnected),
                };
                match received {
                    Ok(message) => message,
                    Err(RecvTimeoutError::Timeout) => return false,
                    Err(RecvTimeoutError::Disconnected) => return true,
                }
            } else {
                match self.inputs.try_recv() {
                    Ok(message) => message,
                    Err(_) => return false,
                }
            };
            first = failing;
            match message {
                Message::Input(input) => batch.push(input),
                Message::Sync(answer) => {
                    self.progress.waiting.push(answer);
                    return false;
                }
                Message::Stop => return true,
            }
        }
        false
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        let database = self.store.database()?;
        let progress = &mut self.progress;
        let mut changes = Changes::default();
        let outcome = match progress.doubt.take() {
            // The removals before it are there too: it was made on top of them.
            Some(tried) if self.ledger.is_applied(&database).unwrap_or(false) => {
                changes = tried;
                Ok(())
            }
            _ => {
                let queues: Vec<_> = self.ports.iter().map(|port| &port.queue).collect();
                // A store that was opened anew has forgotten what was not synced, whoever met the error.
                let same = Weak::ptr_eq(&progress.last, &Arc::downgrade(&database));
                let again = if same {
                    &[]
                } else {
                    progress.unsynced.as_slice()
                };
                let inputs: Vec<_> = again.iter().chain(&progress.batch).cloned().collect();
                let force = progress.batch.is_empty() || !again.is_empty();
                self.ledger
                    .apply(&database, &inputs, &queues, &mut changes, force, Now::get())
            }
        };
        if let Err(why) = outcome {
            progress.doubt = Some(changes);
            self.store.failed(database);
            return Err(why);
        }
        progress.last = Arc::downgrade(&database);
        self.ledger.applied(&changes);
        if changes.durable {
            progress.unsynced.clear();
        } else {
            progress.unsynced.extend_from_slice(&progress.batch);
        }
        let stored = progress
            .batch
            .iter()
            .filter(|input| matches!(input, Input::Event(_)))
            .count();
        self.publish(changes);
        if stored > 0 {
            self.shared.queued.fetch_sub(stored, Ordering::AcqRel);
            self.count("stored", stored as u64);
        }
        Ok(())
    }

    /// Brings the queues in memory to what is on the disk.
    fn publish(&mut self, changes: Changes) {
        for (sink, conflict, seq) in changes.removed {
            locked(&self.ports[sink].queue).removed(&conflict, seq);
        }
        for (sink, entry) in changes.pushed {
            locked(&self.ports[sink].queue).push(entry);
        }
        for (sink, outcome, events) in changes.evicted {
            self.ports[sink].count(outcome, events as u64);
        }
        for port in &self.ports {
            locked(&port.queue).thaw();
            port.tell();
        }
        if changes.refused > 0 {
            self.count("refused", changes.refused as u64);
        }
        let now = Instant::now();
        for held in changes.held {
            self.due.add(now + held.wait, held.sink, held.conflict);
        }
    }

    fn count(&self, outcome: &'static str, events: u64) {
        self.metrics.count_deliveries(super::NAME, outcome, events);
    }
}
