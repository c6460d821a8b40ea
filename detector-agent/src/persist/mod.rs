//! Open conflicts over a restart: what `--state-dir` keeps of them.
//!
//! Invariants: the detection thread offers each change to a bounded queue and never waits; what found no room, or could
//! not be written, is counted, and the whole list is handed over again until the store has it. Nothing kept outlives the
//! boot and the network namespace it was seen in: its times and interface indices mean nothing anywhere else. A store
//! that does not work costs the memory of a restart, never detection.
//!
//! The store is behind what was said by one commit: a conflict raised in the last milliseconds before a SIGKILL may not
//! be in it. Waiting for the disk before the event goes out would close that gap and cost every event its latency.

mod anomalies;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod keeper;
mod records;
pub mod store;
mod worker;

use std::{
    io,
    sync::{
        Arc,
        atomic::AtomicBool,
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

use tracing::error;

use crate::{
    engine::{ConflictId, OpenConflict},
    health::Part,
    metrics::Metrics,
    persist::store::Store,
};

pub use anomalies::{AnomalyKeeper, AnomalyState};
pub use keeper::Keeper;

/// Changes that wait for the store. Beyond it the whole list is handed over anew.
const QUEUE: usize = 1024;
/// Longest that a start waits for the store.
const START: Duration = Duration::from_secs(5);
/// Longest that an end waits for it.
const END: Duration = Duration::from_secs(3);

/// What is to be written.
#[derive(Debug)]
enum Change {
    /// A conflict is open, and this is how.
    Keep(Box<OpenConflict>),
    /// It is open no longer.
    Drop(ConflictId),
    /// The whole list begins.
    Begin,
    /// The whole list is told: what was not in it is open no longer.
    End,
}

/// The thread that writes.
#[derive(Debug)]
pub struct State {
    ended: Receiver<()>,
}

/// What starts with the thread.
#[derive(Debug)]
pub struct Started {
    /// The thread.
    pub state: State,
    /// For the detection thread.
    pub keeper: Keeper,
    /// What an earlier agent left open, for the engine.
    pub kept: Vec<OpenConflict>,
}

impl State {
    /// Starts the thread and reads what an earlier agent of this boot left open. `refresh` is how often what the kernel
    /// does not hold is written anew.
    ///
    /// # Errors
    /// Where no thread can be started. A store that does not work is no error: it is said in the log and by `part`.
    pub fn start(
        store: Arc<Store>,
        refresh: Duration,
        part: Part,
        metrics: &Arc<Metrics>,
    ) -> io::Result<Started> {
        let (changes, offered) = mpsc::sync_channel(QUEUE);
        let (loaded, load) = mpsc::sync_channel(1);
        let (end, ended) = mpsc::sync_channel::<()>(1);
        let wants_all = Arc::new(AtomicBool::new(false));
        let counts = keeper::Counts::new(metrics);
        let worker = worker::Worker::new(
            store,
            offered,
            Arc::clone(&wants_all),
            part.clone(),
            counts.clone(),
        );
        thread::Builder::new()
            .name("state".to_owned())
            .spawn(move || {
                // Dropped at the end, however it comes.
                let _end = end;
                worker.run(&loaded);
            })?;
        let kept = load.recv_timeout(START).unwrap_or_else(|_| {
            let problem = "reading the open conflicts from --state-dir takes too long";
            part.failed(problem);
            error!("{problem}; the agent starts without them");
            Vec::new()
        });
        let keeper = Keeper::new(changes, wants_all, refresh, part, counts);
        Ok(Started {
            state: Self { ended },
            keeper,
            kept,
        })
    }

    /// Waits, but not for long, until what was offered is written. The [`Keeper`] must be gone by then.
    pub fn finish(self) {
        if self.ended.recv_timeout(END) == Err(mpsc::RecvTimeoutError::Timeout) {
            error!("the open conflicts may not all be in --state-dir: writing takes too long");
        }
    }
}

#[cfg(test)]
mod tests;
