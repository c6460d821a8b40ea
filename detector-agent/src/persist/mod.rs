//! Open conflicts and anomalies across a restart of the agent, and those that ended, in `--state-dir`.
//!
//! Invariants: the event loop puts each change into a bounded queue and never waits; a change that finds no room or
//! cannot be written is counted, and then the full list is written again. Events wait beside a full queue, at most one of each
//! conflict and anomaly, so that each end reaches the history. Nothing stored outlives the boot and the
//! network namespace it was seen in: its times and interface indices are meaningless elsewhere. A broken store costs
//! what it should remember, never detection.
//!
//! The store lags behind the events by one commit: a conflict raised in the last milliseconds before a SIGKILL may be
//! missing. Waiting for the disk before the event is written would close that gap and delay every event.

mod anomalies;
mod conflicts;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod handle;
pub mod history;
mod last_events;
pub mod store;
mod worker;

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::AtomicBool,
        mpsc::{self, Receiver},
    },
    time::Duration,
};

use detector_engine::{Anomaly, AnomalyId, ConflictId, OpenConflict};
use detector_event::{AnyEvent, SubjectId};
use tracing::error;

use crate::{health::Part, metrics::Metrics, persist::store::Store, process::threads};

pub use handle::PersistenceHandle;
use handle::RequestQueue;
use history::{History, HistorySink};

/// The most changes that wait for the store. Beyond it the full list is written again.
const QUEUE: usize = 1024;
/// The most events beside it, each the newest of its subject: of all that can be open at once.
const OVERFLOW: usize = 20_480;
/// The longest time a start waits for the store.
const START: Duration = Duration::from_secs(5);
/// The longest time a shutdown waits for it.
const END: Duration = Duration::from_secs(3);

/// A change to be written.
#[derive(Debug)]
enum WriteRequest {
    /// This conflict is open.
    PutConflict(Box<OpenConflict>),
    /// This conflict is no longer open.
    RemoveConflict(ConflictId),
    /// This anomaly is open.
    PutAnomaly(Box<Anomaly>),
    /// This anomaly is no longer open.
    RemoveAnomaly(AnomalyId),
    /// The newest event of its subject.
    Event(AnyEvent),
    /// The full list of what is open starts.
    BeginFullList,
    /// The full list is complete: what was not in it is no longer open.
    EndFullList,
}

/// Shared between the event loop and the thread.
#[derive(Debug, Default)]
struct Shared {
    /// Set when a change was lost: everything must be written again.
    wants_full_list: AtomicBool,
    overflow: Mutex<Overflow>,
}

/// The newest event of each subject whose event found no room in the queue. Once there is one, later events follow it here, so that
/// they stay in order.
type Overflow = BTreeMap<SubjectId, AnyEvent>;

impl Shared {
    fn overflow(&self) -> MutexGuard<'_, Overflow> {
        // A panic while it was held leaves at worst an event that is missing.
        self.overflow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an earlier agent of this boot left open.
#[derive(Debug, Default)]
pub struct Restored {
    /// Its open conflicts.
    pub conflicts: Vec<OpenConflict>,
    /// Its open anomalies.
    pub anomalies: Vec<Anomaly>,
}

/// The thread that writes.
#[derive(Debug)]
pub struct PersistenceThread {
    ended: Receiver<()>,
}

/// What the event loop gets.
#[derive(Debug)]
pub struct Persistence {
    /// Stores what is open.
    pub handle: PersistenceHandle,
    /// Stores events.
    pub sink: HistorySink,
    /// What an earlier agent of this boot left open.
    pub restored: Restored,
}

/// Starts the thread and reads what an earlier agent of this boot left open. Evidence that the next agent cannot read
/// from the kernel is written again every `refresh`. What ends goes to `history`.
///
/// # Errors
/// If no thread can be started. A broken store is no error: it is logged and shown by `part`.
pub fn start(
    store: Arc<Store>,
    history: Arc<History>,
    refresh: Duration,
    part: Part,
    metrics: &Arc<Metrics>,
) -> io::Result<(Persistence, PersistenceThread)> {
    let (requests, queue) = mpsc::sync_channel(QUEUE);
    let (loaded, load) = mpsc::sync_channel(1);
    let (end, ended) = mpsc::sync_channel::<()>(1);
    let shared = Arc::new(Shared::default());
    let counters = handle::WriteCounters::new(metrics);
    let worker = worker::PersistenceWorker::new(
        store,
        Arc::clone(&history),
        queue,
        Arc::clone(&shared),
        part.clone(),
        counters.clone(),
    );
    threads::spawn("persist", move || {
        // Dropped when the thread ends, even by a panic.
        let _end = end;
        worker.run(&loaded);
    })?;
    let restored = load.recv_timeout(START).unwrap_or_else(|_| {
        let problem = "reading --state-dir takes too long";
        part.failed(problem);
        error!("{problem}; starting without the open conflicts and anomalies of the previous run");
        Restored::default()
    });
    let requests = RequestQueue::new(requests, shared, counters);
    let sink = HistorySink::stored(history, requests.clone());
    let persistence = Persistence {
        handle: PersistenceHandle::new(requests, refresh, part),
        sink,
        restored,
    };
    Ok((persistence, PersistenceThread { ended }))
}

impl PersistenceThread {
    /// Waits, at most 3 s, until all changes are written. The [`PersistenceHandle`] and the sink must be dropped before.
    pub fn finish(self) {
        if self.ended.recv_timeout(END) == Err(mpsc::RecvTimeoutError::Timeout) {
            error!("writing to --state-dir takes too long; it may lack the newest changes");
        }
    }
}

#[cfg(test)]
mod tests;
