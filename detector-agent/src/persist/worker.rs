//! The thread that writes to the store.

use std::{
    collections::HashSet,
    iter,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{Receiver, RecvTimeoutError, SyncSender},
    },
    time::{Duration, Instant},
};

use redb::Database;
use tracing::{debug, error, info};

use super::{
    Restored, Shared, WriteRequest, anomalies, conflicts,
    handle::WriteCounters,
    history::{History, HistoryWriter},
    last_events,
};
use crate::{
    health::Part,
    persist::store::{Store, StoreError},
};

/// Changes in one commit.
const BATCH: usize = 256;
/// The time between a failure of the store and the next attempt.
const RETRY: Duration = Duration::from_secs(5);

pub(super) struct PersistenceWorker {
    store: Arc<Store>,
    history: HistoryWriter,
    queue: Receiver<WriteRequest>,
    shared: Arc<Shared>,
    part: Part,
    counters: WriteCounters,
    /// The boot and network namespace, once the tables are prepared for them.
    world: Option<String>,
    /// Ids in the full list being received.
    full_list: Option<HashSet<u128>>,
    /// A change was lost: only a full list repairs that.
    behind: Option<Behind>,
    /// What is open may differ from what the stored events are about.
    may_have_ended: bool,
}

#[derive(Clone, Copy)]
enum Behind {
    /// A full list is requested at this time.
    Until(Instant),
    /// A full list was requested.
    Requested,
}

/// What a commit left in the store.
struct Committed {
    /// Filled by the first commit.
    restored: Restored,
    /// Open conflicts.
    open: u64,
}

impl PersistenceWorker {
    pub(super) fn new(
        store: Arc<Store>,
        history: Arc<History>,
        queue: Receiver<WriteRequest>,
        shared: Arc<Shared>,
        part: Part,
        counters: WriteCounters,
    ) -> Self {
        Self {
            store,
            history: HistoryWriter::new(history),
            queue,
            shared,
            part,
            counters,
            world: None,
            full_list: None,
            behind: None,
            may_have_ended: false,
        }
    }

    /// Passes on what is stored, then writes until the handle is dropped.
    pub(super) fn run(mut self, loaded: &SyncSender<Restored>) {
        let restored = match self.commit(&[]) {
            Ok(committed) => {
                self.part.works("stored in --state-dir");
                committed.restored
            }
            Err(problem) => {
                self.failed(&problem);
                Restored::default()
            }
        };
        // The receiver may have given up.
        let _ = loaded.send(restored);
        self.history.load();
        self.may_have_ended = true;
        self.keep_history();
        while let Some(batch) = self.next() {
            self.take(batch);
        }
    }

    /// The next changes; none if nothing waits and it was time to request a full list or to tidy the history; `None` at the end.
    fn next(&mut self) -> Option<Vec<WriteRequest>> {
        let retry = match self.behind {
            Some(Behind::Until(at)) => Some(at),
            _ => None,
        };
        let tidy = self.history.next();
        let wake = retry.map_or(tidy, |at| at.min(tidy));
        let wait = match self.has_overflow() {
            true => Duration::ZERO,
            false => wake.duration_since(Instant::now()),
        };
        let first = match self.queue.recv_timeout(wait) {
            Ok(request) => request,
            Err(RecvTimeoutError::Timeout) => {
                if retry.is_some_and(|at| at <= Instant::now()) {
                    self.shared.wants_full_list.store(true, Ordering::Relaxed);
                    self.behind = Some(Behind::Requested);
                }
                if tidy <= Instant::now() {
                    self.keep_history();
                }
                return Some(self.take_overflow());
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Some(self.take_overflow()).filter(|rest| !rest.is_empty());
            }
        };
        let mut batch = vec![first];
        batch.extend(self.queue.try_iter().take(BATCH - 1));
        self.count_taken(batch.len());
        Some(batch)
    }

    /// Whether events wait beside the queue that can be stored.
    fn has_overflow(&self) -> bool {
        self.behind.is_none() && !self.shared.overflow().is_empty()
    }

    /// Those events. To be called once the queue is empty: what is in it came before them.
    fn take_overflow(&self) -> Vec<WriteRequest> {
        if self.behind.is_some() {
            return Vec::new();
        }
        let mut overflow = self.shared.overflow();
        let events = iter::from_fn(|| overflow.pop_first());
        let batch: Vec<_> = events
            .take(BATCH)
            .map(|(_, event)| WriteRequest::Event(event))
            .collect();
        drop(overflow);
        self.count_taken(batch.len());
        batch
    }

    fn count_taken(&self, requests: usize) {
        let requests = requests.try_into().unwrap_or(i64::MAX);
        self.counters.pending.dec_by(requests);
    }

    fn take(&mut self, mut batch: Vec<WriteRequest>) {
        if self.behind.is_some() {
            // Before the full list begins, no change makes the store complete again.
            let begins = |request: &WriteRequest| matches!(request, WriteRequest::BeginFullList);
            let begin = match self.behind {
                Some(Behind::Requested) => batch.iter().position(begins),
                _ => None,
            };
            let dropped = batch.drain(..begin.unwrap_or(batch.len()));
            self.counters.dropped.inc_by(dropped.len() as u64);
            drop(dropped);
        }
        if batch.is_empty() {
            return;
        }
        match self.commit(&batch) {
            Ok(Committed { open, .. }) => {
                self.counters.written.inc_by(batch.len() as u64);
                if self.behind.take().is_some() {
                    info!("open conflicts are stored in --state-dir again");
                }
                match self.history.problem() {
                    Some(problem) => self.part.degraded(format!("the history: {problem}")),
                    None => self.part.works(match open {
                        1 => "1 open conflict stored".to_owned(),
                        open => format!("{open} open conflicts stored"),
                    }),
                }
                debug!(open, "wrote the open conflicts");
            }
            Err(problem) => {
                self.counters.failed.inc_by(batch.len() as u64);
                self.failed(&problem);
            }
        }
    }

    /// Moves what ended unseen to the history, and writes what could not be written before.
    fn keep_history(&mut self) {
        let was_failing = self.history.problem().is_some();
        if self.behind.is_none()
            && self.may_have_ended
            && let Err(problem) = self.commit(&[])
        {
            self.failed(&problem);
        }
        let lost = self.history.write(Vec::new());
        self.counters.failed.inc_by(lost);
        // While what is open cannot be stored either, that is shown.
        if self.behind.is_some() {
            return;
        }
        match self.history.problem() {
            Some(problem) => self.part.degraded(format!("the history: {problem}")),
            None if was_failing => self.part.works("stored in --state-dir"),
            None => {}
        }
    }

    fn failed(&mut self, problem: &StoreError) {
        self.part.failed(problem.to_string());
        if self.behind.is_none() {
            error!(
                retry_in = ?RETRY,
                "cannot store open conflicts for the next run: {problem}; detection is not affected"
            );
        }
        self.world = None;
        self.full_list = None;
        self.behind = Some(Behind::Until(Instant::now() + RETRY));
    }

    fn commit(&mut self, batch: &[WriteRequest]) -> Result<Committed, StoreError> {
        let store = Arc::clone(&self.store);
        store.access(|database| self.transact(database, batch))
    }

    fn transact(
        &mut self,
        database: &Database,
        batch: &[WriteRequest],
    ) -> Result<Committed, StoreError> {
        let write = database.begin_write()?;
        let mut restored = Restored::default();
        let world = match self.world.take() {
            Some(world) => world,
            None => {
                let world = conflicts::world().map_err(redb::Error::Io)?;
                restored = Restored {
                    conflicts: conflicts::prepare(&write, &world)?,
                    anomalies: anomalies::read(&write)?,
                };
                world
            }
        };
        let open = conflicts::write(&write, batch, &mut self.full_list)?;
        self.may_have_ended |= batch.iter().any(|r| matches!(r, WriteRequest::EndFullList));
        let mut ended = last_events::write(&write, batch)?;
        if self.may_have_ended {
            ended.extend(last_events::take_ended(&write)?);
        }
        if !ended.is_empty() {
            // First: after a SIGKILL in between it ends again, under the same id.
            let lost = self.history.write(ended);
            self.counters.failed.inc_by(lost);
        }
        write.commit()?;
        self.may_have_ended = false;
        self.world = Some(world);
        Ok(Committed { restored, open })
    }
}
