//! The event loop's side: queues changes, never waits.

use std::{
    collections::HashSet,
    net::IpAddr,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{SyncSender, TrySendError},
    },
    time::Duration,
};

use detector_engine::{Anomaly, AnomalyId, Conflict, Engine, Timestamp};
use detector_event::AnyEvent;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use tracing::error;

use super::{OVERFLOW, Shared, WriteRequest};
use crate::{
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
    /// Of a full list, the anomalies that remain.
    anomalies: HashSet<AnomalyId>,
}

/// The queue to the thread, for all on the event loop's thread that have something to store.
#[derive(Clone, Debug)]
pub(super) struct RequestQueue {
    requests: SyncSender<WriteRequest>,
    shared: Arc<Shared>,
    counters: WriteCounters,
}

impl RequestQueue {
    pub(super) fn new(
        requests: SyncSender<WriteRequest>,
        shared: Arc<Shared>,
        counters: WriteCounters,
    ) -> Self {
        Self {
            requests,
            shared,
            counters,
        }
    }

    /// Queues a request; if there is no room, everything is written again.
    pub(super) fn send(&self, request: WriteRequest) -> Result<(), TrySendError<WriteRequest>> {
        // Before sending, so that the thread never decrements below zero.
        self.counters.pending.inc();
        self.requests.try_send(request).inspect_err(|_| {
            self.count_dropped();
            self.shared.wants_full_list.store(true, Ordering::Relaxed);
        })
    }

    /// Queues an event; if there is no room, it waits beside the queue in place of an earlier one of its subject.
    pub(super) fn send_event(&self, mut event: AnyEvent) {
        // Held while the queue is found full: the thread looks here once it has emptied the queue.
        let mut overflow = self.shared.overflow();
        self.counters.pending.inc();
        if overflow.is_empty() {
            match self.requests.try_send(WriteRequest::Event(event)) {
                Err(TrySendError::Full(WriteRequest::Event(refused))) => event = refused,
                Ok(()) => return,
                Err(_) => return self.count_dropped(),
            }
        }
        let id = event.subject_id();
        if overflow.len() >= OVERFLOW && !overflow.contains_key(&id) {
            self.count_dropped();
        } else if overflow.insert(id, event).is_some() {
            self.counters.pending.dec();
        }
    }

    fn count_dropped(&self) {
        self.counters.pending.dec();
        self.counters.dropped.inc();
    }
}

/// Queues changes of open conflicts and anomalies for the store.
#[derive(Debug)]
pub struct PersistenceHandle {
    /// None once the thread has ended.
    requests: Option<RequestQueue>,
    shared: Arc<Shared>,
    list: Option<ListInProgress>,
    refresh: Duration,
    next_refresh: Timestamp,
    part: Part,
}

impl PersistenceHandle {
    pub(super) fn new(requests: RequestQueue, refresh: Duration, part: Part) -> Self {
        Self {
            shared: Arc::clone(&requests.shared),
            requests: Some(requests),
            list: None,
            refresh,
            next_refresh: Timestamp(0),
            part,
        }
    }

    /// To be called when a conflict was raised, updated or resolved.
    pub fn conflict_changed(&mut self, engine: &Engine, conflict: &Conflict) {
        let request = match engine.view().open_record(conflict) {
            Some(record) => WriteRequest::PutConflict(Box::new(record)),
            None => WriteRequest::RemoveConflict(conflict.id),
        };
        self.queue(request);
    }

    /// To be called when an anomaly was raised, updated or resolved. Of an overlap of ranges, the registry of the cluster has the
    /// record.
    pub fn anomaly_changed(&mut self, anomaly: Anomaly) {
        if anomaly.overlap.is_some() {
            return;
        }
        let is_open = anomaly.resolved_at.is_none();
        self.queue(if is_open {
            WriteRequest::PutAnomaly(Box::new(anomaly))
        } else {
            WriteRequest::RemoveAnomaly(anomaly.id)
        });
    }

    /// Requests that everything is written again. To be called once the first snapshot is merged.
    pub fn request_full_list(&mut self) {
        self.shared.wants_full_list.store(true, Ordering::Relaxed);
    }

    /// Continues with the list in progress. To be called about once a second.
    pub fn tick(&mut self, engine: &Engine, now: Timestamp) {
        if engine.view().is_restoring() || self.requests.is_none() {
            return;
        }
        if self.shared.wants_full_list.swap(false, Ordering::Relaxed) {
            self.list = None;
            if !self.queue(WriteRequest::BeginFullList) {
                return;
            }
            self.begin_list(engine, true);
        } else if self.list.is_none() && now >= self.next_refresh {
            self.next_refresh = now + self.refresh;
            self.begin_list(engine, false);
        }
        let Some(mut list) = self.list.take() else {
            return;
        };
        if !list.anomalies.is_empty() {
            // Those that were resolved meanwhile are left out.
            let mut open = engine.view().anomalies();
            open.retain(|anomaly| list.anomalies.contains(&anomaly.id));
            let rest = open.split_off(open.len().min(ADDRESSES_PER_TICK));
            list.anomalies = rest.iter().map(|anomaly| anomaly.id).collect();
            for anomaly in open {
                if !self.queue(WriteRequest::PutAnomaly(Box::new(anomaly))) {
                    return;
                }
            }
            self.list = Some(list);
            return;
        }
        for _ in 0..ADDRESSES_PER_TICK {
            let Some(address) = list.remaining.pop() else {
                if list.is_full {
                    self.queue(WriteRequest::EndFullList);
                }
                return;
            };
            for conflict in engine.view().conflicts_of(address, now) {
                let record = engine.view().open_record(&conflict);
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
        let mut remaining = engine.view().conflict_addresses();
        remaining.reverse();
        let anomalies = engine.view().anomalies();
        let anomalies = anomalies
            .iter()
            .filter(|_| is_full)
            .map(|anomaly| anomaly.id);
        self.list = Some(ListInProgress {
            remaining,
            is_full,
            anomalies: anomalies.collect(),
        });
    }

    /// `false` if there is no room; then everything is written again.
    fn queue(&mut self, request: WriteRequest) -> bool {
        let Some(requests) = &self.requests else {
            return false;
        };
        let Err(refused) = requests.send(request) else {
            return true;
        };
        if let TrySendError::Disconnected(_) = refused {
            let problem = "the thread that writes --state-dir has ended";
            self.part.failed(problem);
            error!(
                "{problem}; the next run will not know the open conflicts. Please report this as a bug"
            );
            self.requests = None;
        }
        self.list = None;
        false
    }
}
