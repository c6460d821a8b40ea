//! The side of the outbox that a sink's sender sees.

use std::{
    fmt,
    sync::{Arc, Mutex, mpsc},
};

use tokio::{sync::Notify, time::Instant};

use super::{
    batch::Input,
    queue::{Idle, Job, Queue, locked},
    tables,
    worker::Message,
};
use crate::{
    event::AnyEvent,
    metrics::{Metrics, Sink},
    persist::store::{Store, StoreError},
};

/// One sink's events, in the order they may be sent.
pub struct Port {
    name: String,
    index: usize,
    pub(super) queue: Mutex<Queue>,
    changed: Notify,
    worker: mpsc::Sender<Message>,
    store: Arc<Store>,
    metrics: Arc<Metrics>,
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Port {
    pub(super) fn new(
        name: String,
        index: usize,
        queue: Queue,
        worker: mpsc::Sender<Message>,
        store: Arc<Store>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let port = Self {
            name,
            index,
            queue: Mutex::new(queue),
            changed: Notify::new(),
            worker,
            store,
            metrics,
        };
        port.tell();
        port
    }

    /// The sink's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the oldest event that may be sent at `now`; it must be followed by [`Port::delivered`], [`Port::failed`]
    /// or [`Port::given_up`].
    ///
    /// # Errors
    /// Where none may be sent: when to ask again.
    pub fn take(&self, now: Instant) -> Result<Job, Idle> {
        locked(&self.queue).take(now)
    }

    /// Returns when there may be more to take.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Reads an event's text from the store. Waits for the disk.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub fn read(&self, seq: u64) -> Result<Option<AnyEvent>, StoreError> {
        let database = self.store.database()?;
        let read = tables::read_event(&database, &self.name, seq);
        if read.is_err() {
            self.store.failed(database);
        }
        read
    }

    /// The sink has it.
    pub fn delivered(&self, seq: u64) {
        self.count("delivered", 1);
        self.done(seq);
    }

    /// The sink will never have it, because of `outcome`.
    pub fn given_up(&self, seq: u64, outcome: &'static str) {
        self.count(outcome, 1);
        self.done(seq);
    }

    /// The sink does not have it, and may be tried again at `at`.
    pub fn failed(&self, seq: u64, at: Instant) {
        self.count("failed", 1);
        locked(&self.queue).failed(seq, at);
    }

    /// It was not tried after all.
    pub fn put_back(&self, seq: u64) {
        locked(&self.queue).put_back(seq);
    }

    /// How many events wait.
    #[must_use]
    pub fn pending(&self) -> usize {
        locked(&self.queue).len()
    }

    /// Whether something will soon follow what was just delivered.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        locked(&self.queue).is_moving()
    }

    /// Counts what became of events.
    pub fn count(&self, outcome: &'static str, events: u64) {
        self.metrics.count_deliveries(&self.name, outcome, events);
    }

    /// Tells the sender and the metrics that the queue is another.
    pub(super) fn tell(&self) {
        let pending = i64::try_from(self.pending()).unwrap_or(i64::MAX);
        let labels = Sink {
            sink: self.name.clone(),
        };
        self.metrics.pending.get_or_create(&labels).set(pending);
        self.changed.notify_one();
    }

    fn done(&self, seq: u64) {
        let conflict = {
            let mut queue = locked(&self.queue);
            queue.done(seq);
            queue.conflict_of(seq)
        };
        if let Some(conflict) = conflict {
            // Where the thread has ended, the event stays stored and goes out again after the next start.
            let _ = self
                .worker
                .send(Message::Input(Input::Done(self.index, conflict, seq)));
        }
    }
}
