//! The thread "outbox", the only writer of the outbox's tables.
//!
//! Inputs that arrived while the disk was busy are one commit (group commit). If a commit fails, its inputs are retried
//! in order with the store reopened; further ones queue up behind, at most [`super::CAPACITY`] events.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use detector_event::SubjectId;
use redb::Database;
use tokio::{sync::oneshot, time::Instant};
use tracing::{error, info, warn};

use super::{
    batch::{BatchOutcome, OutboxInput},
    outbox_store::OutboxStore,
    queue::locked,
    sink_queue::SinkQueue,
    tables::Now,
};
use crate::{
    health::Part,
    metrics::Metrics,
    persist::store::{Store, StoreError},
    sinks::retry::RetryPolicy,
};

/// Inputs of one commit at most.
const BATCH: usize = 512;
/// Removals that are not synced to the disk are once no input has arrived for this long.
const FLUSH: Duration = Duration::from_secs(1);
/// Waits between retries of the store.
const STORE: RetryPolicy = RetryPolicy {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(30),
};

/// The thread's input.
#[derive(Debug)]
pub(super) enum OutboxMessage {
    Input(OutboxInput),
    /// To be answered once everything before it is stored and available to the senders.
    Sync(oneshot::Sender<()>),
    Stop,
}

/// State shared with the event loop's side.
#[derive(Debug)]
pub(super) struct Backpressure {
    /// Events accepted and not stored yet.
    pub(super) queued: AtomicUsize,
    /// An event was dropped: everything active has to be sent again.
    pub(super) behind: AtomicBool,
}

#[derive(Debug)]
pub(super) struct OutboxWorker {
    pub(super) inputs: Receiver<OutboxMessage>,
    pub(super) tables: OutboxStore,
    pub(super) store: Arc<Store>,
    pub(super) sink_queues: Vec<Arc<SinkQueue>>,
    pub(super) backpressure: Arc<Backpressure>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) due: DelayQueue,
    pub(super) health: Part,
    pub(super) commit_state: CommitState,
    /// Whether the tables were read; nothing is written before.
    pub(super) loaded: bool,
}

/// The commit in progress.
#[derive(Debug, Default)]
pub(super) struct CommitState {
    /// Not committed yet.
    batch: Vec<OutboxInput>,
    /// Committed removals that are not synced: a crash undoes them, and so does reopening the database.
    unsynced: Vec<OutboxInput>,
    /// The database of the last commit.
    last: Weak<Database>,
    /// A commit that failed but may have reached the disk.
    pub(super) uncertain: Option<BatchOutcome>,
    /// Failed commits since the last successful one.
    failures: u32,
    /// Pending [`OutboxMessage::Sync`]s.
    waiting: Vec<oneshot::Sender<()>>,
}

/// Subjects that sinks get once they have lasted long enough. Only open subjects are in it, so it is bounded
/// as they are.
#[derive(Debug, Default)]
pub(super) struct DelayQueue {
    times: BTreeSet<(Instant, usize, SubjectId)>,
    known: HashMap<(usize, SubjectId), Instant>,
}

impl DelayQueue {
    pub(super) fn add(&mut self, at: Instant, sink: usize, subject: SubjectId) {
        if let Entry::Vacant(entry) = self.known.entry((sink, subject)) {
            entry.insert(at);
            self.times.insert((at, sink, subject));
        }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.times.first().map(|(at, ..)| *at)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.times.len()
    }

    fn remove(&mut self, sink: usize, subject: SubjectId) {
        if let Some(at) = self.known.remove(&(sink, subject)) {
            self.times.remove(&(at, sink, subject));
        }
    }

    fn take(&mut self, now: Instant) -> Option<OutboxInput> {
        if self.next()? > now {
            return None;
        }
        let (_, sink, subject) = self.times.pop_first()?;
        self.known.remove(&(sink, subject));
        Some(OutboxInput::DelayElapsed(sink, subject))
    }
}

impl OutboxWorker {
    /// Works until it is stopped, or until every sender of inputs is gone.
    pub(super) fn run(mut self) {
        let mut random = fastrand::Rng::new();
        loop {
            let wait = if self.commit_state.failures > 0 {
                Some(STORE.wait(self.commit_state.failures, &mut random))
            } else {
                let until = |at: Instant| at.saturating_duration_since(Instant::now());
                let due = self.due.next().map(until);
                let flush = (!self.commit_state.unsynced.is_empty()).then_some(FLUSH);
                due.into_iter().chain(flush).min()
            };
            if self.turn(wait) {
                break;
            }
        }
        if !self.commit_state.batch.is_empty() {
            warn!(
                "{} outbox changes were not stored before shutdown; the next start reports what is still active",
                self.commit_state.batch.len()
            );
        }
    }

    /// Loads the queues of earlier runs.
    ///
    /// # Errors
    /// If the store cannot be opened or read; loading is retried before the next commit.
    pub(super) fn load(&mut self) -> Result<(), StoreError> {
        let tables = &mut self.tables;
        let loaded = match self.store.access(|d| tables.load(d, Now::get())) {
            Ok(loaded) => loaded,
            Err(why) => {
                self.failed(&why);
                return Err(why);
            }
        };
        if loaded.orphaned > 0 {
            warn!(
                "dropped {} queued events of sinks that are no longer configured",
                loaded.orphaned
            );
        }
        if loaded.unreadable > 0 {
            error!(
                "dropped {} outbox records that cannot be decoded; what is still active is reported again",
                loaded.unreadable
            );
        }
        if !loaded.deleted.is_empty() {
            warn!(
                tables = ?loaded.deleted,
                "deleted what another version of the agent stored for the outbox; an incident that it opened at a pager has to be resolved there"
            );
        }
        self.count("orphaned", loaded.orphaned as u64);
        self.count("unreadable", loaded.unreadable as u64);
        for (sink_queue, queue) in self.sink_queues.iter().zip(loaded.queues) {
            *locked(&sink_queue.queue) = queue;
            sink_queue.notify();
        }
        let now = Instant::now();
        for delayed in loaded.delayed {
            self.due
                .add(now + delayed.wait, delayed.sink, delayed.subject);
        }
        self.loaded = true;
        self.works();
        Ok(())
    }

    fn works(&self) {
        self.health.works(if self.store.is_durable() {
            "events are stored before they are sent"
        } else {
            "events are held in memory only: --state-dir is not set"
        });
    }

    fn failed(&mut self, why: &StoreError) {
        if self.commit_state.failures == 0 {
            error!(
                "cannot store events: {why}; they are sent once the store works again, detection is not affected"
            );
        }
        self.health.failed(format!("cannot store events: {why}"));
        self.commit_state.failures = self.commit_state.failures.saturating_add(1);
        self.count("store_failed", 1);
    }

    /// Waits for inputs for at most `wait` and commits them; `true` when it is time to stop.
    pub(super) fn turn(&mut self, wait: Option<Duration>) -> bool {
        let stopping = self.collect(wait);
        while self.commit_state.batch.len() < BATCH
            && let Some(due) = self.due.take(Instant::now())
        {
            self.commit_state.batch.push(due);
        }
        if !self.loaded && self.load().is_err() {
            return stopping;
        }
        if !self.commit_state.batch.is_empty() || !self.commit_state.unsynced.is_empty() {
            match self.commit() {
                Ok(()) => self.commit_state.batch.clear(),
                Err(why) => {
                    self.failed(&why);
                    return stopping;
                }
            }
        }
        if self.commit_state.failures > 0 {
            info!("outbox store works again");
            self.works();
            self.commit_state.failures = 0;
        }
        for waiting in self.commit_state.waiting.drain(..) {
            // The receiver may have given up.
            let _ = waiting.send(());
        }
        stopping
    }

    /// Fills the batch with the inputs that are there. Waits up to `wait` for the first one, or for all of `wait` if the
    /// last commit failed. `true` when it is time to stop.
    fn collect(&mut self, wait: Option<Duration>) -> bool {
        let failing = self.commit_state.failures > 0;
        let batch = &mut self.commit_state.batch;
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
                OutboxMessage::Input(input) => batch.push(input),
                OutboxMessage::Sync(answer) => {
                    self.commit_state.waiting.push(answer);
                    return false;
                }
                OutboxMessage::Stop => return true,
            }
        }
        false
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        let database = self.store.database()?;
        let commit_state = &mut self.commit_state;
        let mut changes = BatchOutcome::default();
        let outcome = match commit_state.uncertain.take() {
            // The removals before it are there too, as it was based on them.
            Some(tried) if self.tables.is_applied(&database).unwrap_or(false) => {
                changes = tried;
                Ok(())
            }
            _ => {
                let queues: Vec<_> = self
                    .sink_queues
                    .iter()
                    .map(|sink_queue| &sink_queue.queue)
                    .collect();
                // A store that was reopened, even by another user of it, has lost what was not synced.
                let same = Weak::ptr_eq(&commit_state.last, &Arc::downgrade(&database));
                let again = if same {
                    &[]
                } else {
                    commit_state.unsynced.as_slice()
                };
                let inputs: Vec<_> = again.iter().chain(&commit_state.batch).cloned().collect();
                let force = commit_state.batch.is_empty() || !again.is_empty();
                self.tables
                    .apply(&database, &inputs, &queues, &mut changes, force, Now::get())
            }
        };
        if let Err(why) = outcome {
            commit_state.uncertain = Some(changes);
            self.store.failed(database);
            return Err(why);
        }
        commit_state.last = Arc::downgrade(&database);
        self.tables.applied(&changes);
        if changes.durable {
            commit_state.unsynced.clear();
        } else {
            commit_state.unsynced.extend_from_slice(&commit_state.batch);
        }
        let stored = commit_state
            .batch
            .iter()
            .filter(|input| matches!(input, OutboxInput::Event(_) | OutboxInput::Unchanged(_)))
            .count();
        self.publish(changes);
        if stored > 0 {
            self.backpressure.queued.fetch_sub(stored, Ordering::AcqRel);
            self.count("stored", stored as u64);
        }
        Ok(())
    }

    /// Brings the queues in memory in line with the disk.
    fn publish(&mut self, changes: BatchOutcome) {
        {
            // Between a removal and what follows it, a sender must not look.
            let mut queues: Vec<_> = self.sink_queues.iter().map(|q| locked(&q.queue)).collect();
            for (sink, subject, seq) in changes.removed {
                queues[sink].removed(subject, seq);
            }
            for ((sink, _), entry) in changes.pushed {
                queues[sink].push(entry);
            }
            for (sink, subject, incident) in changes.incidents {
                match incident {
                    Some(incident) => queues[sink].incidents.join(subject, incident),
                    None => queues[sink].incidents.leave(subject),
                }
            }
            for sink in changes.windows {
                queues[sink].window_stored();
            }
        }
        let counts = changes.superseded.iter().zip(&changes.refused);
        for (sink_queue, (superseded, refused)) in self.sink_queues.iter().zip(counts) {
            for (outcome, events) in [("superseded", *superseded), ("refused", *refused)] {
                if events > 0 {
                    sink_queue.count(outcome, events);
                }
            }
            sink_queue.notify();
        }
        if changes.refused_subjects > 0 {
            self.count("refused", changes.refused_subjects);
        }
        for subject in changes.undelayed {
            for sink in 0..self.sink_queues.len() {
                self.due.remove(sink, subject);
            }
        }
        let now = Instant::now();
        for delayed in changes.delayed {
            self.due
                .add(now + delayed.wait, delayed.sink, delayed.subject);
        }
    }

    fn count(&self, outcome: &'static str, events: u64) {
        self.metrics.count_deliveries(super::NAME, outcome, events);
    }
}
