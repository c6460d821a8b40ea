//! The thread that waits for the disk.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender},
    },
    time::{Duration, Instant},
};

use redb::{Database, WriteTransaction};
use tracing::{debug, error, info};

use super::{Change, keeper::Counts, records};
use crate::{
    engine::OpenConflict,
    health::Part,
    persist::store::{Store, StoreError},
};

/// Changes in one commit.
const BATCH: usize = 256;
/// How long a store that failed is left alone.
const RETRY: Duration = Duration::from_secs(5);

pub(super) struct Worker {
    store: Arc<Store>,
    offered: Receiver<Change>,
    wants_all: Arc<AtomicBool>,
    part: Part,
    counts: Counts,
    /// Of which world the records are; unknown until the store was readable once.
    prepared: bool,
    /// Ids of the list that is being told.
    told: Option<HashSet<u128>>,
    /// Something was lost: only a whole list helps, asked for at this time.
    behind: Option<Behind>,
}

#[derive(Clone, Copy)]
enum Behind {
    Until(Instant),
    Asked,
}

impl Worker {
    pub(super) fn new(
        store: Arc<Store>,
        offered: Receiver<Change>,
        wants_all: Arc<AtomicBool>,
        part: Part,
        counts: Counts,
    ) -> Self {
        Self {
            store,
            offered,
            wants_all,
            part,
            counts,
            prepared: false,
            told: None,
            behind: None,
        }
    }

    /// Hands over what was kept, then writes until the keeper is gone.
    pub(super) fn run(mut self, loaded: &SyncSender<Vec<OpenConflict>>) {
        let kept = match self.commit(&[]) {
            Ok((kept, _)) => {
                self.part.works("kept in --state-dir");
                kept
            }
            Err(problem) => {
                self.failed(&problem);
                Vec::new()
            }
        };
        // Nobody waits any more where it took too long.
        let _ = loaded.send(kept);
        while let Some(batch) = self.next() {
            self.take(batch);
        }
    }

    /// What is offered now, or nothing where it is time to ask for a whole list; `None` at the end.
    fn next(&mut self) -> Option<Vec<Change>> {
        let first = match self.behind {
            Some(Behind::Until(at)) => {
                match self.offered.recv_timeout(at.duration_since(Instant::now())) {
                    Ok(change) => change,
                    Err(RecvTimeoutError::Timeout) => {
                        self.wants_all.store(true, Ordering::Relaxed);
                        self.behind = Some(Behind::Asked);
                        return Some(Vec::new());
                    }
                    Err(RecvTimeoutError::Disconnected) => return None,
                }
            }
            _ => self.offered.recv().ok()?,
        };
        let mut batch = vec![first];
        batch.extend(self.offered.try_iter().take(BATCH - 1));
        self.counts
            .pending
            .dec_by(batch.len().try_into().unwrap_or(i64::MAX));
        Some(batch)
    }

    fn take(&mut self, mut batch: Vec<Change>) {
        if self.behind.is_some() {
            // Before the whole list begins, nothing that is told makes the store whole again.
            let begins = |change: &Change| matches!(change, Change::Begin);
            let whole = match self.behind {
                Some(Behind::Asked) => batch.iter().position(begins),
                _ => None,
            };
            let useless = batch.drain(..whole.unwrap_or(batch.len()));
            self.counts.dropped.inc_by(useless.len() as u64);
            drop(useless);
        }
        if batch.is_empty() {
            return;
        }
        match self.commit(&batch) {
            Ok((_, open)) => {
                self.counts.written.inc_by(batch.len() as u64);
                if self.behind.take().is_some() {
                    info!("the open conflicts are kept in --state-dir again");
                }
                self.part.works(match open {
                    1 => "1 open conflict is kept".to_owned(),
                    open => format!("{open} open conflicts are kept"),
                });
                debug!(open, "wrote the open conflicts");
            }
            Err(problem) => {
                self.counts.failed.inc_by(batch.len() as u64);
                self.failed(&problem);
            }
        }
    }

    fn failed(&mut self, problem: &StoreError) {
        self.part.failed(problem.to_string());
        if self.behind.is_none() {
            error!(
                "open conflicts are not kept over a restart: {problem}; detection goes on, and the store is tried again every {} s",
                RETRY.as_secs()
            );
        }
        self.prepared = false;
        self.told = None;
        self.behind = Some(Behind::Until(Instant::now() + RETRY));
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(Vec<OpenConflict>, u64), StoreError> {
        let database = self.store.database()?;
        let done = self.transact(&database, changes);
        if done.is_err() {
            self.store.failed(database);
        }
        done
    }

    fn transact(
        &mut self,
        database: &Database,
        changes: &[Change],
    ) -> Result<(Vec<OpenConflict>, u64), StoreError> {
        let write: WriteTransaction = database.begin_write()?;
        let mut kept = Vec::new();
        if !self.prepared {
            let world = records::world().map_err(redb::Error::Io)?;
            kept = records::prepare(&write, &world)?;
        }
        let open = records::write(&write, changes, &mut self.told)?;
        write.commit()?;
        self.prepared = true;
        Ok((kept, open))
    }
}
