//! A sink's queue, as its sender uses it.

use std::{
    fmt,
    sync::{Arc, Mutex, mpsc},
};

use detector_event::SubjectId;
use tokio::{sync::Notify, time::Instant};

use super::{
    batch::OutboxInput,
    queue::{Idle, Queue, SendJob, locked},
    tables,
    worker::OutboxMessage,
};
use crate::{
    metrics::Metrics,
    persist::store::{Store, StoreError},
    sinks::message::Message,
};

/// One sink's events, in the order in which they may be sent.
pub struct SinkQueue {
    name: String,
    index: usize,
    pub(super) queue: Mutex<Queue>,
    changed: Notify,
    worker: mpsc::Sender<OutboxMessage>,
    store: Arc<Store>,
    metrics: Arc<Metrics>,
}

impl fmt::Debug for SinkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkQueue")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl SinkQueue {
    pub(super) fn new(
        name: String,
        index: usize,
        queue: Queue,
        worker: mpsc::Sender<OutboxMessage>,
        store: Arc<Store>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let sink_queue = Self {
            name,
            index,
            queue: Mutex::new(queue),
            changed: Notify::new(),
            worker,
            store,
            metrics,
        };
        sink_queue.notify();
        sink_queue
    }

    /// The sink's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the oldest event that may be sent at `now`; must be followed by [`SinkQueue::delivered`],
    /// [`SinkQueue::failed`], [`SinkQueue::rejected`], [`SinkQueue::superseded`], [`SinkQueue::given_up`] or
    /// [`SinkQueue::put_back`].
    ///
    /// # Errors
    /// If none may be sent: until when.
    pub fn take(&self, now: Instant) -> Result<SendJob, Idle> {
        locked(&self.queue).take(now)
    }

    /// Returns when there may be another event to take.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Reads an event from the store; `None` if it is missing or cannot be decoded. Waits for the disk.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn read(&self, seq: u64) -> Result<Option<Message>, StoreError> {
        let database = self.store.database()?;
        let read = tables::read_message(&database, &self.name, seq);
        if read.is_err() {
            self.store.failed(database);
        }
        read
    }

    /// The event was delivered.
    pub fn delivered(&self, seq: u64) {
        self.count("delivered", 1);
        self.finished(seq, OutboxInput::Finished);
    }

    /// The event will not be delivered: a later one of its subject takes its place.
    pub fn superseded(&self, seq: u64) {
        self.count("superseded", 1);
        self.finished(seq, OutboxInput::Superseded);
    }

    /// The event will never be delivered; `outcome` says why in the metrics.
    pub fn given_up(&self, seq: u64, outcome: &'static str) {
        self.count(outcome, 1);
        self.finished(seq, OutboxInput::Finished);
    }

    /// An attempt failed; the event may be sent again at `at`.
    pub fn failed(&self, seq: u64, at: Instant) {
        self.count("failed", 1);
        locked(&self.queue).failed(seq, at);
    }

    /// The receiver rejected the event; it may be sent again at `at`.
    pub fn rejected(&self, seq: u64, at: Instant) {
        self.count("rejected", 1);
        locked(&self.queue).rejected(seq, at);
        self.update_metrics();
    }

    /// Returns the event as if it had not been taken.
    pub fn put_back(&self, seq: u64) {
        locked(&self.queue).put_back(seq);
    }

    /// The number of queued events.
    #[must_use]
    pub fn pending(&self) -> usize {
        locked(&self.queue).len()
    }

    /// The number of events that the receiver rejected, and of those that wait behind them.
    #[must_use]
    pub fn parked(&self) -> usize {
        locked(&self.queue).parked()
    }

    /// Whether an event waits only for the removal of the one before it.
    #[must_use]
    pub fn has_successors(&self) -> bool {
        locked(&self.queue).has_successors()
    }

    /// Counts the outcome of deliveries.
    pub fn count(&self, outcome: &'static str, events: u64) {
        self.metrics.count_deliveries(&self.name, outcome, events);
    }

    /// Wakes the sender and updates the metrics after the queue has changed.
    pub(super) fn notify(&self) {
        self.update_metrics();
        self.changed.notify_one();
    }

    fn update_metrics(&self) {
        let (all, parked) = {
            let queue = locked(&self.queue);
            (queue.len(), queue.parked())
        };
        self.metrics.show_queue(&self.name, all - parked, parked);
    }

    fn finished(&self, seq: u64, input: fn(usize, SubjectId, u64) -> OutboxInput) {
        let subject = {
            let mut queue = locked(&self.queue);
            queue.finished(seq);
            queue.subject_of(seq)
        };
        if let Some(subject) = subject {
            // If the outbox thread has ended, the event stays stored and is sent again after the next start.
            let input = input(self.index, subject, seq);
            let _ = self.worker.send(OutboxMessage::Input(input));
        }
    }
}
