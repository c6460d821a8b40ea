//! The outbox: an event is stored before it is sent and removed after it was delivered.
//!
//! ```text
//! event loop ──event──► bounded channel ──► thread "outbox" ──commit──► tables in the state file
//!     ▲                      │                    │  ▲
//!     └── "send all active" ─┘ (was full)         ▼  └── finished ── senders (one for each sink)
//!                                           queues in memory ──take──►
//! ```
//!
//! An event is a full snapshot of its subject (a conflict or an anomaly), so the newest one says everything. For each sink
//! and subject at most two events are pending: the oldest, which the receiver may already have and which is never changed,
//! such as the raise; and the newest state, which a later one replaces.
//!
//! # Invariants
//! 1. A sink that got a raise gets the end, and both arrive if the receiver was down for all of it: from when a raise or an end
//!    is stored it is delivered at least once, across crashes, unless 24 h of failures make the sink give it up, which is
//!    counted. An update may be replaced by a newer state. A subject that ends, is raised again and ends while its first end
//!    is pending has ended once.
//! 2. Each sink gets the events of one subject in order. The next one is sent only after the one before it was removed from
//!    the disk, so even a repeat after a crash never follows a later event of its subject.
//! 3. What a sink gets of a subject is `raised`, then any number of `updated`, then `resolved`, whatever was replaced. If a
//!    sink's filter lets a subject pass only later, the sink gets it as `raised` then.
//! 4. An event keeps its id across all attempts, restarts included.
//! 5. A sink that notifies people gets what happens within one window of time as one message. All that is stored of a
//!    window is its incident, the subjects that were raised in it: before the message is sent, until each is over. What is part of
//!    a conflict that it got, or of an address sweep, is not raised; a raise of it that was not sent is taken back.
//! 6. Bounded: events and bytes of each sink, open subjects, events not stored yet. At a sink's bound further raises and
//!    updates are refused and counted, never an end (there is one at most for each subject that was admitted), and a raise
//!    is tried again while its subject is open. Nothing that is stored is evicted: a pod that fills the outbox while a
//!    receiver is down costs no other pod an event that was stored, nor a conflict that lasts.
//! 7. Nothing here blocks the event loop. An event that the channel has no room for is dropped and counted; the event
//!    loop then sends everything that is active, and the difference to what is stored becomes events: a subject
//!    that is open here and no longer active is resolved, one that is active and not open here is raised. The same
//!    happens once after each start, when the first snapshot is merged, which also repairs what a crash lost.
//! 8. If the disk is full or broken, at the start too, events wait in memory within the same bound and the store is
//!    retried; whether a failed commit reached the disk is read back. What another version of the agent stored and this one
//!    cannot read is deleted, counted and logged.
//!
//! Without `--state-dir` the same tables are in memory: all of this holds except across the end of the process.

mod batch;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod outbox_store;
pub mod queue;
mod sink_queue;
mod tables;
mod worker;

#[cfg(test)]
pub(crate) mod manual;
#[cfg(test)]
mod tests;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use prometheus_client::metrics::counter::Counter;
use tokio::sync::oneshot;
use tracing::{error, warn};

use detector_event::AnyEvent;
pub use queue::Window;
pub use sink_queue::SinkQueue;

use super::{EventSink, filter::Filter};
use crate::{
    health::Part,
    metrics::{Delivery, Metrics},
    persist::store::Store,
    process::{node, threads},
};
use batch::OutboxInput;
use outbox_store::OutboxStore;
use worker::{Backpressure, CommitState, DelayQueue, OutboxMessage, OutboxWorker};

/// The most events that wait to be stored.
pub const CAPACITY: usize = 8192;
/// The outbox's own name in the metrics.
const NAME: &str = "outbox";

/// A sink of the outbox.
#[derive(Clone, Debug)]
pub struct SinkSpec {
    /// Its name, under which its events are stored.
    pub name: String,
    /// Which events it gets.
    pub filter: Filter,
    /// How its events become messages to people, if they do.
    pub window: Option<Window>,
}

/// Upper bounds of the tables.
#[derive(Clone, Copy, Debug)]
pub struct OutboxBounds {
    /// Events queued for one sink.
    pub events: usize,
    /// Bytes of the events queued for one sink.
    pub bytes: usize,
    /// Open conflicts and anomalies, including those of earlier runs.
    pub open: usize,
}

impl Default for OutboxBounds {
    fn default() -> Self {
        Self {
            events: 20_000,
            bytes: 64 << 20,
            open: 16_384,
        }
    }
}

/// Why the outbox cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum OutboxError {
    /// The thread cannot be started.
    #[error("cannot start the outbox: {0}")]
    Thread(io::Error),
}

/// The running outbox.
#[derive(Debug)]
pub struct Outbox {
    sink_queues: Vec<Arc<SinkQueue>>,
    worker: mpsc::Sender<OutboxMessage>,
    backpressure: Arc<Backpressure>,
    ended: Option<mpsc::Receiver<()>>,
    dropped: Counter,
}

impl Outbox {
    /// Loads the queues of earlier runs and starts the thread; `health` shows whether events can be stored. If the
    /// store cannot be read now, the thread retries.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        store: &Arc<Store>,
        sinks: Vec<SinkSpec>,
        bounds: OutboxBounds,
        metrics: &Arc<Metrics>,
        health: Part,
    ) -> Result<Self, OutboxError> {
        let (mut outbox, thread) = Self::assemble(store, sinks, bounds, metrics, health);
        let (end, ended) = mpsc::channel();
        threads::spawn(NAME, move || {
            thread.run();
            // `stop` may have timed out.
            let _ = end.send(());
        })
        .map_err(OutboxError::Thread)?;
        outbox.ended = Some(ended);
        Ok(outbox)
    }

    fn assemble(
        store: &Arc<Store>,
        sinks: Vec<SinkSpec>,
        bounds: OutboxBounds,
        metrics: &Arc<Metrics>,
        health: Part,
    ) -> (Self, OutboxWorker) {
        let tables = OutboxStore::new(sinks, bounds, node::random());
        let labels = Delivery::new(NAME, "dropped");
        let dropped = metrics.deliveries.get_or_create(&labels).clone();
        let (worker, inputs) = mpsc::channel();
        let sink_queues: Vec<_> = tables
            .sinks()
            .iter()
            .enumerate()
            .map(|(index, spec)| {
                Arc::new(SinkQueue::new(
                    spec.name.clone(),
                    index,
                    spec.window,
                    worker.clone(),
                    Arc::clone(store),
                    Arc::clone(metrics),
                ))
            })
            .collect();
        let backpressure = Arc::new(Backpressure {
            queued: AtomicUsize::new(0),
            behind: AtomicBool::new(true),
        });
        let mut thread = OutboxWorker {
            inputs,
            tables,
            store: Arc::clone(store),
            sink_queues: sink_queues.clone(),
            backpressure: Arc::clone(&backpressure),
            metrics: Arc::clone(metrics),
            due: DelayQueue::default(),
            health,
            commit_state: CommitState::default(),
            loaded: false,
        };
        // A failure is logged, and the thread retries.
        let _ = thread.load();
        let outbox = Self {
            sink_queues,
            worker,
            backpressure,
            ended: None,
            dropped,
        };
        (outbox, thread)
    }

    /// The queues for the senders, in the order of the sinks.
    #[must_use]
    pub fn sink_queues(&self) -> &[Arc<SinkQueue>] {
        &self.sink_queues
    }

    /// The sink for the event loop.
    #[must_use]
    pub fn sink(&self) -> OutboxSink {
        OutboxSink {
            worker: self.worker.clone(),
            backpressure: Arc::clone(&self.backpressure),
            dropped: self.dropped.clone(),
            ended: false,
        }
    }

    /// Has the messages of windows that are not over sent at once, because the agent stops.
    pub fn close_windows(&self) {
        for sink_queue in &self.sink_queues {
            sink_queue.close_window();
        }
    }

    /// Returns when all events accepted before are stored and available to the senders, which takes long if the disk is
    /// full.
    pub async fn sync(&self) {
        let (answer, answered) = oneshot::channel();
        if self.worker.send(OutboxMessage::Sync(answer)).is_ok() {
            // If the thread has ended instead, there is nothing to wait for.
            let _ = answered.await;
        }
    }

    /// Stores the accepted events and ends the thread. `false` if that takes longer than `deadline`.
    pub fn stop(self, deadline: Duration) -> bool {
        // It fails if the thread has ended already.
        let _ = self.worker.send(OutboxMessage::Stop);
        self.ended
            .is_none_or(|ended| ended.recv_timeout(deadline).is_ok())
    }
}

/// The outbox as a sink of the event loop.
#[derive(Debug)]
pub struct OutboxSink {
    worker: mpsc::Sender<OutboxMessage>,
    backpressure: Arc<Backpressure>,
    dropped: Counter,
    ended: bool,
}

impl OutboxSink {
    fn send(&mut self, input: OutboxInput) -> bool {
        let sent = self.worker.send(OutboxMessage::Input(input)).is_ok();
        if !sent && !self.ended {
            self.ended = true;
            error!(
                "the outbox thread has ended, events are no longer delivered; please report this as a bug"
            );
        }
        sent
    }

    fn queue(&mut self, input: OutboxInput) {
        let waiting = self.backpressure.queued.fetch_add(1, Ordering::AcqRel);
        if waiting < CAPACITY && self.send(input) {
            return;
        }
        self.backpressure.queued.fetch_sub(1, Ordering::AcqRel);
        self.dropped.inc();
        if !self.backpressure.behind.swap(true, Ordering::AcqRel) && !self.ended {
            warn!(
                waiting = CAPACITY,
                "outbox backlog is full, events are dropped; everything active is reported again once there is room"
            );
        }
    }
}

impl EventSink for OutboxSink {
    fn on_event(&mut self, event: &AnyEvent) {
        self.queue(OutboxInput::Event(event.clone()));
    }

    fn on_unchanged_update(&mut self, state: &AnyEvent) {
        self.queue(OutboxInput::Unchanged(state.clone()));
    }

    fn is_behind(&self) -> bool {
        self.backpressure.behind.load(Ordering::Acquire)
            && self.backpressure.queued.load(Ordering::Acquire) < CAPACITY / 2
            && !self.ended
    }

    fn catch_up(&mut self, active: &[AnyEvent]) {
        self.backpressure.behind.store(false, Ordering::Release);
        self.send(OutboxInput::Active(active.to_vec()));
    }
}
