//! The detection thread's side: offers, never waits.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{SyncSender, TrySendError},
    },
    time::Duration,
};

use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use tracing::error;

use super::Change;
use crate::{
    engine::{Conflict, Engine, Timestamp},
    health::Part,
    metrics::{Delivery, Metrics, Sink},
};

/// The label of the store among the sinks.
const SINK: &str = "state";
/// Addresses told in one turn, so that a long list does not hold up what happens meanwhile.
const TURN: usize = 256;

/// What became of the changes.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    pub(super) written: Counter,
    pub(super) dropped: Counter,
    pub(super) failed: Counter,
    pub(super) pending: Gauge,
}

impl Counts {
    pub(super) fn new(metrics: &Arc<Metrics>) -> Self {
        let outcome = |outcome| {
            let sink = SINK.to_owned();
            let labels = Delivery { sink, outcome };
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

/// A list that is being told.
#[derive(Debug)]
struct Telling {
    /// The last one comes first.
    left: Vec<IpAddr>,
    /// All of it, not only what the kernel does not hold.
    whole: bool,
}

/// Offers what is open to the store.
#[derive(Debug)]
pub struct Keeper {
    changes: Option<SyncSender<Change>>,
    /// Set by the thread that writes where it has lost something.
    wants_all: Arc<AtomicBool>,
    telling: Option<Telling>,
    refresh: Duration,
    next_refresh: Timestamp,
    part: Part,
    counts: Counts,
}

impl Keeper {
    pub(super) fn new(
        changes: SyncSender<Change>,
        wants_all: Arc<AtomicBool>,
        refresh: Duration,
        part: Part,
        counts: Counts,
    ) -> Self {
        Self {
            changes: Some(changes),
            wants_all,
            telling: None,
            refresh,
            next_refresh: Timestamp(0),
            part,
            counts,
        }
    }

    /// A conflict was raised, updated or resolved.
    pub fn changed(&mut self, engine: &Engine, conflict: &Conflict) {
        let change = match engine.open_record(conflict) {
            Some(record) => Change::Keep(Box::new(record)),
            None => Change::Drop(conflict.id),
        };
        self.offer(change);
    }

    /// The whole list is to be told. To be called once the first reading of everything is merged.
    pub fn tell_all(&mut self) {
        self.wants_all.store(true, Ordering::Relaxed);
    }

    /// Goes on with what is to be told. To be called about once a second.
    pub fn tick(&mut self, engine: &Engine, now: Timestamp) {
        if engine.is_restoring() || self.changes.is_none() {
            return;
        }
        if self.wants_all.swap(false, Ordering::Relaxed) {
            self.telling = None;
            if !self.offer(Change::Begin) {
                return;
            }
            self.begin(engine, true);
        } else if self.telling.is_none() && now >= self.next_refresh {
            self.next_refresh = now + self.refresh;
            self.begin(engine, false);
        }
        let Some(mut telling) = self.telling.take() else {
            return;
        };
        for _ in 0..TURN {
            let Some(address) = telling.left.pop() else {
                if telling.whole {
                    self.offer(Change::End);
                }
                return;
            };
            for conflict in engine.conflicts_of(address, now) {
                let record = engine.open_record(&conflict);
                let wanted = record.filter(|r| telling.whole || !r.is_in_kernel());
                if let Some(record) = wanted
                    && !self.offer(Change::Keep(Box::new(record)))
                {
                    return;
                }
            }
        }
        self.telling = Some(telling);
    }

    fn begin(&mut self, engine: &Engine, whole: bool) {
        let mut left = engine.conflict_addresses();
        left.reverse();
        self.telling = Some(Telling { left, whole });
    }

    /// `false` where there is no room; everything is told again then.
    fn offer(&mut self, change: Change) -> bool {
        let Some(changes) = &self.changes else {
            return false;
        };
        // First, so that the other side never takes away what is not there yet.
        self.counts.pending.inc();
        let Err(refused) = changes.try_send(change) else {
            return true;
        };
        self.counts.pending.dec();
        self.counts.dropped.inc();
        match refused {
            TrySendError::Full(_) => self.tell_all(),
            TrySendError::Disconnected(_) => {
                let problem = "the thread that keeps open conflicts has ended";
                self.part.failed(problem);
                error!(
                    "{problem}; the next agent will not know of them. Please report this as a bug"
                );
                self.changes = None;
            }
        }
        self.telling = None;
        false
    }
}
