//! The outbox: what was reported is stored before it is sent, and removed after it was delivered.
//!
//! ```text
//! detection ──offer──► bounded channel ──► thread "outbox" ──commit──► tables in the state file
//!     ▲                     │                    │  ▲
//!     └─── "tell me all" ◄──┘ (was full)         ▼  └── delivered ── senders (one for each sink)
//!                                          queues in memory ──take──►
//! ```
//!
//! # Invariants
//! 1. An event is *reported* once it is stored. From then on each sink that wants it gets it at least once, over any
//!    crash, until it is delivered, given up (24 h of failures) or evicted; the last two are counted.
//! 2. Each sink gets the events of one conflict in order. The next one is sent only after the one before it was removed
//!    from the disk, so even a repeat after a crash never comes after a later event of its conflict.
//! 3. The first event a sink gets of a conflict is `raised`, and one that got `raised` gets `resolved` (where the bound
//!    does not cost it): a sink whose filter lets a conflict pass only later hears of it as raised then.
//! 4. An event keeps its id over all attempts, restarts included.
//! 5. Bounded: events and bytes of each sink, open conflicts, events not stored yet. At a sink's bound the oldest
//!    conflict that is over and that the sink does not know goes first (see [`queue::Queue`]).
//! 6. Nothing here makes detection wait. What the channel has no room for is dropped and counted; detection is then asked
//!    for all active conflicts, and what differs from what is stored becomes an event: a conflict that is open here and
//!    no longer active is resolved, one that is active and not open here is raised. The same happens once after each
//!    start, when the first snapshot is merged, so what a crash took between detection and the disk heals too.
//! 7. Where the disk is full or broken, also at the start, events wait in memory within the same bound and the store is tried again;
//!    whether a commit that failed has reached the disk is read back from there, not guessed.
//!
//! Without `--state-dir` the same tables live in memory: all of this holds but for the end of the process.

mod batch;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod ledger;
mod port;
pub mod queue;
mod tables;
mod worker;

#[cfg(test)]
pub(crate) mod by_hand;
#[cfg(test)]
mod tests;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use prometheus_client::metrics::counter::Counter;
use tokio::sync::oneshot;
use tracing::{error, warn};

pub use port::Port;

use super::{EventSink, filter::Filter};
use crate::{
    event::{AnomalyEvent, Event, any_event::AnyEvent},
    metrics::{Delivery, Metrics},
};
use crate::{health::Part, node, persist::store::Store};
use batch::Input;
use ledger::Ledger;
use queue::Queue;
use worker::{Due, Message, Progress, Shared, Worker};

/// Events that wait to be stored at most.
pub const CAPACITY: usize = 8192;
/// The outbox's own name in the metrics.
const NAME: &str = "outbox";

/// A sink, as the outbox knows it.
#[derive(Clone, Debug)]
pub struct SinkSpec {
    /// Its name; what is stored for it is found by it after a restart.
    pub name: String,
    /// Which conflicts it hears of.
    pub filter: Filter,
}

/// Upper bounds of what is stored.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Events waiting for one sink.
    pub events: usize,
    /// Bytes of the events waiting for one sink.
    pub bytes: usize,
    /// Conflicts that are not over, also those of earlier runs.
    pub open: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            events: 20_000,
            bytes: 64 << 20,
            open: 16_384,
        }
    }
}

/// Why there is no outbox.
#[derive(Debug, thiserror::Error)]
pub enum OutboxError {
    /// The system gives no thread.
    #[error("cannot start the outbox: {0}")]
    Thread(io::Error),
}

/// The running outbox.
#[derive(Debug)]
pub struct Outbox {
    ports: Vec<Arc<Port>>,
    worker: mpsc::Sender<Message>,
    shared: Arc<Shared>,
    ended: Option<mpsc::Receiver<()>>,
    dropped: Counter,
}

impl Outbox {
    /// Reads what waits from earlier runs, and starts the thread; `health` shows whether it can store. Where the store
    /// cannot be read now, the thread goes on trying.
    ///
    /// # Errors
    /// Where the thread cannot be started.
    pub fn start(
        store: &Arc<Store>,
        sinks: Vec<SinkSpec>,
        bounds: Bounds,
        metrics: &Arc<Metrics>,
        health: Part,
    ) -> Result<Self, OutboxError> {
        let (mut outbox, thread) = Self::assemble(store, sinks, bounds, metrics, health);
        let (end, ended) = mpsc::channel();
        thread::Builder::new()
            .name(NAME.to_owned())
            .spawn(move || {
                thread.run();
                // Whoever waited may have given up.
                let _ = end.send(());
            })
            .map_err(OutboxError::Thread)?;
        outbox.ended = Some(ended);
        Ok(outbox)
    }

    fn assemble(
        store: &Arc<Store>,
        sinks: Vec<SinkSpec>,
        bounds: Bounds,
        metrics: &Arc<Metrics>,
        health: Part,
    ) -> (Self, Worker) {
        let ledger = Ledger::new(sinks, bounds, node::random());
        let labels = Delivery {
            sink: NAME.to_owned(),
            outcome: "dropped",
        };
        let dropped = metrics.deliveries.get_or_create(&labels).clone();
        let (worker, inputs) = mpsc::channel();
        let ports: Vec<_> = ledger
            .sinks()
            .iter()
            .enumerate()
            .map(|(index, spec)| {
                Arc::new(Port::new(
                    spec.name.clone(),
                    index,
                    Queue::default(),
                    worker.clone(),
                    Arc::clone(store),
                    Arc::clone(metrics),
                ))
            })
            .collect();
        let shared = Arc::new(Shared {
            queued: AtomicUsize::new(0),
            behind: AtomicBool::new(true),
        });
        let mut thread = Worker {
            inputs,
            ledger,
            store: Arc::clone(store),
            ports: ports.clone(),
            shared: Arc::clone(&shared),
            metrics: Arc::clone(metrics),
            due: Due::default(),
            health,
            progress: Progress::default(),
            loaded: false,
        };
        // Where that fails it is said, and the thread tries again.
        let _ = thread.load();
        let outbox = Self {
            ports,
            worker,
            shared,
            ended: None,
            dropped,
        };
        (outbox, thread)
    }

    /// The senders' side, in the order of the sinks.
    #[must_use]
    pub fn ports(&self) -> &[Arc<Port>] {
        &self.ports
    }

    /// The detection thread's side.
    #[must_use]
    pub fn sink(&self) -> OutboxSink {
        OutboxSink {
            worker: self.worker.clone(),
            shared: Arc::clone(&self.shared),
            dropped: self.dropped.clone(),
            ended: false,
        }
    }

    /// Returns when all that was offered before is stored and with the senders; where the disk is full, that takes long.
    pub async fn sync(&self) {
        let (answer, answered) = oneshot::channel();
        if self.worker.send(Message::Sync(answer)).is_ok() {
            // Where the thread has ended instead, there is nothing to wait for.
            let _ = answered.await;
        }
    }

    /// Stores what was offered, and ends. `false` where that takes longer than `deadline`.
    pub fn stop(self, deadline: Duration) -> bool {
        // Where the thread has ended already, nothing is left to do.
        let _ = self.worker.send(Message::Stop);
        self.ended
            .is_none_or(|ended| ended.recv_timeout(deadline).is_ok())
    }
}

/// Takes events on the detection thread.
#[derive(Debug)]
pub struct OutboxSink {
    worker: mpsc::Sender<Message>,
    shared: Arc<Shared>,
    dropped: Counter,
    ended: bool,
}

impl OutboxSink {
    fn send(&mut self, input: Input) -> bool {
        let sent = self.worker.send(Message::Input(input)).is_ok();
        if !sent && !self.ended {
            self.ended = true;
            error!(
                "the outbox has ended; events are no longer delivered. Please report this as a bug"
            );
        }
        sent
    }

    fn take(&mut self, event: AnyEvent) {
        let waiting = self.shared.queued.fetch_add(1, Ordering::AcqRel);
        if waiting < CAPACITY && self.send(Input::Event(event)) {
            return;
        }
        self.shared.queued.fetch_sub(1, Ordering::AcqRel);
        self.dropped.inc();
        if !self.shared.behind.swap(true, Ordering::AcqRel) && !self.ended {
            warn!(
                "the outbox is slower than the conflicts: {CAPACITY} events wait to be stored; what is active is told again when there is room"
            );
        }
    }
}

impl EventSink for OutboxSink {
    fn offer(&mut self, event: &Arc<Event>) {
        self.take(AnyEvent::Conflict(Arc::clone(event)));
    }

    fn offer_anomaly(&mut self, event: &Arc<AnomalyEvent>) {
        self.take(AnyEvent::Anomaly(Arc::clone(event)));
    }

    fn is_behind(&self) -> bool {
        self.shared.behind.load(Ordering::Acquire)
            && self.shared.queued.load(Ordering::Acquire) < CAPACITY / 2
            && !self.ended
    }

    fn catch_up(&mut self, active: &[AnyEvent]) {
        self.shared.behind.store(false, Ordering::Release);
        self.send(Input::Active(active.to_vec()));
    }
}
