//! The event loop's side: queues changes, never waits.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{SyncSender, TrySendError},
    },
    time::Duration,
};

use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use tracing::error;

use super::{Shared, WriteRequest};
use crate::{
    engine::{Conflict, Engine, Timestamp},
    health::Part,
    metrics::{Delivery, Metrics, Sink},
};

/// The store's name among the sinks in metrics.
const SINK: &str = "state";
/// Addresses handled in one tick, so that a long list does not hold up the event loop.
const ADDRESSES_PER_TICK: usize = 256;

/// Outcomes of the changes.
#[derive(Clone, Debug)]
pub(super) struct WriteCounters {
    pub(super) written: Counter,
    pub(super) dropped: Counter,
    pub(super) failed: Counter,
    pub(super) pending: Gauge,
}

impl WriteCounters {
    pub(super) fn new(metrics: &Arc<Metrics>) -> Self {
        let outcome = |outcome| {
            let labels = Delivery::new(SINK, outcome);
            metrics.deliveries.get_or_create(&labels).clone()
        };
        let sink = SINK.to_owned();
        Self {
            written: outcome("delivered"),
            dropped: outcome("dropped"),
            failed: outcome("failed"),
            pending: metrics.pending.get_or_create(&Sink { sink }).clone(),
        }
    }
}

/// A list of conflicts that is being written, some at each tick.
#[derive(Debug)]
struct ListInProgress {
    /// The last one is next.
    remaining: Vec<IpAddr>,
    /// All conflicts, not only those whose evidence is not in the kernel.
    is_full: bool,
}

/// Queues changes of open conflicts and anomalies for the store.
#[derive(Debug)]
pub struct PersistenceHandle {
    requests: Option<SyncSender<WriteRequest>>,
    shared: Arc<Shared>,
    list: Option<ListInProgress>,
    anomalies_changed: bool,
    /// A list of anomalies was queued, so a loss may concern it.
    anomalies_queued: bool,
    refresh: Duration,
    next_refresh: Timestamp,
    part: Part,
    counters: WriteCounters,
}

impl PersistenceHandle {
    pub(super) fn new(
        requests: SyncSender<WriteRequest>,
        shared: Arc<Shared>,
        refresh: Duration,
        part: Part,
        counters: WriteCounters,
    ) -> Self {
        Self {
            requests: Some(requests),
            shared,
            list: None,
            anomalies_changed: false,
            anomalies_queued: false,
            refresh,
            next_refresh: Timestamp(0),
            part,
            counters,
        }
    }

    /// To be called when a conflict was raised, updated or resolved.
    pub fn conflict_changed(&mut self, engine: &Engine, conflict: &Conflict) {
        let request = match engine.open_record(conflict) {
            Some(record) => WriteRequest::PutConflict(Box::new(record)),
            None => WriteRequest::RemoveConflict(conflict.id),
        };
        self.queue(request);
    }

    /// To be called when an anomaly was raised or resolved. The list is written at the next tick.
    pub fn anomalies_changed(&mut self) {
        self.anomalies_changed = true;
    }

    /// Requests that everything is written again. To be called once the first snapshot is merged.
    pub fn request_full_list(&mut self) {
        self.shared.wants_full_list.store(true, Ordering::Relaxed);
    }

    /// Continues with the list in progress, and writes changed anomalies. To be called about once a second.
    pub fn tick(&mut self, engine: &Engine, now: Timestamp) {
        self.list_conflicts(engine, now);
        self.flush_anomalies(engine);
    }

    /// Queues the list of anomalies if it changed. To be called at shutdown, too.
    pub fn flush_anomalies(&mut self, engine: &Engine) {
        if self.requests.is_none() || !std::mem::take(&mut self.anomalies_changed) {
            return;
        }
        self.anomalies_queued = true;
        let unwritten = self.shared.replace_anomalies(Some(engine.anomalies()));
        // The request for a list that is not written yet is still queued.
        if unwritten.is_none() && !self.queue(WriteRequest::Anomalies) {
            self.shared.replace_anomalies(None);
            self.anomalies_changed = true;
        }
    }

    fn list_conflicts(&mut self, engine: &Engine, now: Timestamp) {
        if engine.is_restoring() || self.requests.is_none() {
            return;
        }
        if self.shared.wants_full_list.swap(false, Ordering::Relaxed) {
            self.list = None;
            if !self.queue(WriteRequest::BeginFullList) {
                return;
            }
            self.anomalies_changed |= self.anomalies_queued;
            self.begin_list(engine, true);
        } else if self.list.is_none() && now >= self.next_refresh {
            self.next_refresh = now + self.refresh;
            self.begin_list(engine, false);
        }
        let Some(mut list) = self.list.take() else {
            return;
        };
        for _ in 0..ADDRESSES_PER_TICK {
            let Some(address) = list.remaining.pop() else {
                if list.is_full {
                    self.queue(WriteRequest::EndFullList);
                }
                return;
            };
            for conflict in engine.conflicts_of(address, now) {
                let record = engine.open_record(&conflict);
                let wanted = record.filter(|r| list.is_full || !r.is_in_kernel());
                if let Some(record) = wanted
                    && !self.queue(WriteRequest::PutConflict(Box::new(record)))
                {
                    return;
                }
            }
        }
        self.list = Some(list);
    }

    fn begin_list(&mut self, engine: &Engine, is_full: bool) {
        let mut remaining = engine.conflict_addresses();
        remaining.reverse();
        self.list = Some(ListInProgress { remaining, is_full });
    }

    /// `false` if there is no room; then everything is written again.
    fn queue(&mut self, request: WriteRequest) -> bool {
        let Some(requests) = &self.requests else {
            return false;
        };
        // Before sending, so that the thread never decrements below zero.
        self.counters.pending.inc();
        let Err(refused) = requests.try_send(request) else {
            return true;
        };
        self.counters.pending.dec();
        self.counters.dropped.inc();
        match refused {
            TrySendError::Full(_) => self.request_full_list(),
            TrySendError::Disconnected(_) => {
                let problem = "the thread that writes --state-dir has ended";
                self.part.failed(problem);
                error!(
                    "{problem}; the next run will not know the open conflicts. Please report this as a bug"
                );
                self.requests = None;
            }
        }
        self.list = None;
        false
    }
}
