//! What has to survive a restart of the agent: which subjects may be registered in this node's name, and which conflicts were
//! reported. Unlike other state it outlives a boot, because what was registered before does.
//!
//! Invariants: a subject is on disk before the first request that registers it is sent, unless the disk fails or hangs; then
//! registration continues without, and everything is written as soon as the disk works again. Nothing here waits for the disk
//! except a thread of its own. What is lost costs no false report: a claim that no agent confirms is removed when it is in the way.

mod records;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use detector_fleet::{Memory, Subject};
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};
use tracing::{info, warn};

use crate::{
    persist::store::{Store, StoreError},
    process::timer::sleep_until_some,
};

/// The longest time a start waits for the disk.
const READ_DEADLINE: Duration = Duration::from_secs(5);
/// The longest time a request waits for the disk.
const WRITE_DEADLINE: Duration = Duration::from_secs(1);
/// What no request waits for is written together after this time.
const LAZY: Duration = Duration::from_secs(1);
/// Time between a failure and the next attempt.
const RETRY: Duration = Duration::from_secs(5);

/// Changes by subject; `None` removes.
type Changes = BTreeMap<Subject, Option<Vec<u8>>>;

/// The journal of one agent.
#[derive(Debug)]
pub(super) struct Journal {
    /// `None` without `--state-dir`.
    store: Option<Arc<Store>>,
    node: String,
    changes: Changes,
    /// A request waits for what is in `changes`.
    is_urgent: bool,
    /// When to write what is in `changes` even if no request waits for it.
    due: Option<Instant>,
    write: Option<Write>,
    is_failing: bool,
}

/// A write in progress.
#[derive(Debug)]
struct Write {
    task: JoinHandle<Result<(), StoreError>>,
    changes: Arc<Changes>,
    deadline: Instant,
}

impl Journal {
    /// Reads what an earlier agent of this node left; without `--state-dir`, or if that fails, nothing.
    pub(super) async fn open(store: Option<Arc<Store>>, node: &str) -> (Self, Vec<Memory>) {
        let mut journal = Self::new(store, node);
        let Some(store) = journal.store.clone() else {
            return (journal, Vec::new());
        };
        let node = node.to_owned();
        let reading = tokio::task::spawn_blocking(move || records::read(&store, &node));
        let memories = match timeout(READ_DEADLINE, reading).await {
            Ok(Ok(Ok(memories))) => Ok(memories),
            Ok(Ok(Err(why))) => Err(why.to_string()),
            Ok(Err(panic)) => Err(panic.to_string()),
            Err(_) => Err("reading --state-dir takes too long".to_owned()),
        };
        let memories = memories.unwrap_or_else(|why| {
            journal.fail(&why);
            Vec::new()
        });
        (journal, memories)
    }

    fn new(store: Option<Arc<Store>>, node: &str) -> Self {
        Self {
            store,
            node: node.to_owned(),
            changes: Changes::new(),
            is_urgent: false,
            due: None,
            write: None,
            is_failing: false,
        }
    }

    /// Replaces what is known of a subject. [`is_settled`](Self::is_settled) is false until that is on disk.
    pub(super) fn remember(&mut self, memory: &Memory) {
        // Plain data always serialises.
        let record = serde_json::to_vec(memory).unwrap_or_default();
        self.change(memory.subject, Some(record));
        self.is_urgent |= !self.is_failing && self.store.is_some();
    }

    /// Nothing of the subject has to survive.
    pub(super) fn forget(&mut self, subject: Subject) {
        self.change(subject, None);
    }

    fn change(&mut self, subject: Subject, record: Option<Vec<u8>>) {
        if self.store.is_none() {
            return;
        }
        self.changes.insert(subject, record);
        self.due.get_or_insert_with(|| Instant::now() + LAZY);
    }

    /// Whether everything that a request waits for is on disk, or need not be waited for.
    pub(super) fn is_settled(&self) -> bool {
        let hangs = |write: &Write| Instant::now() >= write.deadline;
        self.is_failing || self.write.as_ref().map_or(!self.is_urgent, hangs)
    }

    /// Writes what there is; returns when [`is_settled`](Self::is_settled) may have changed. May be cancelled.
    pub(super) async fn progress(&mut self) {
        if self.write.is_none() {
            if !self.is_urgent || self.is_failing {
                sleep_until_some(self.due).await;
            }
            self.begin();
        }
        let Some(write) = &mut self.write else {
            return;
        };
        let deadline = (Instant::now() < write.deadline).then_some(write.deadline);
        let result = tokio::select! {
            result = &mut write.task => result,
            () = sleep_until_some(deadline) => return,
        };
        let Some(write) = self.write.take() else {
            return;
        };
        match result.map_err(|panic| panic.to_string()) {
            Ok(Ok(())) => {
                if std::mem::take(&mut self.is_failing) {
                    info!("registered addresses are remembered in --state-dir again");
                }
            }
            Ok(Err(why)) => self.retry(&write.changes, &why.to_string()),
            Err(why) => self.retry(&write.changes, &why),
        }
    }

    /// Writes what is left. For the end.
    pub(super) async fn finish(&mut self) {
        while !self.is_failing && (self.write.is_some() || !self.changes.is_empty()) {
            self.is_urgent = true;
            self.progress().await;
        }
    }

    fn begin(&mut self) {
        self.due = None;
        self.is_urgent = false;
        let Some(store) = self.store.clone() else {
            return;
        };
        let changes = Arc::new(std::mem::take(&mut self.changes));
        let (written, node) = (Arc::clone(&changes), self.node.clone());
        let task = tokio::task::spawn_blocking(move || records::write(&store, &node, &written));
        self.write = Some(Write {
            task,
            changes,
            deadline: Instant::now() + WRITE_DEADLINE,
        });
    }

    fn retry(&mut self, lost: &Changes, why: &str) {
        for (subject, record) in lost {
            // A later change takes precedence.
            let change = self.changes.entry(*subject);
            change.or_insert_with(|| record.clone());
        }
        self.due = Some(Instant::now() + RETRY);
        self.fail(why);
    }

    fn fail(&mut self, why: &str) {
        if !std::mem::replace(&mut self.is_failing, true) {
            warn!(
                "cannot remember registered addresses in --state-dir: {why}; registration continues without"
            );
        }
    }
}
