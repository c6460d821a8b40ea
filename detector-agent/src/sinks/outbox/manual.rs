//! An outbox in memory without a thread, for tests of the senders: events are stored when the test says so.

#![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

use std::{sync::Arc, time::Duration};

use detector_event::{Event, Role};

use super::{Outbox, OutboxBounds, SinkQueue, SinkSpec, worker::OutboxWorker};
use crate::{
    health::Health,
    metrics::Metrics,
    persist::store::Store,
    sinks::{EventSink as _, filter::Filter},
};

/// The outbox of one sink named `hook`.
#[derive(Debug)]
pub(crate) struct ManualOutbox {
    outbox: Outbox,
    worker: OutboxWorker,
}

impl ManualOutbox {
    pub(crate) fn new(metrics: &Arc<Metrics>) -> Self {
        let spec = SinkSpec {
            name: "hook".to_owned(),
            filter: Filter::default(),
            window: None,
        };
        let store = Arc::new(Store::in_memory());
        let health = Health::default().part(Role::Sink, "outbox");
        let (outbox, worker) =
            Outbox::assemble(&store, vec![spec], OutboxBounds::default(), metrics, health);
        Self { outbox, worker }
    }

    pub(crate) fn sink_queue(&self) -> Arc<SinkQueue> {
        Arc::clone(&self.outbox.sink_queues()[0])
    }

    pub(crate) fn report(&self, event: Event) {
        self.outbox.sink().on_event(&event.into());
    }

    /// Stores the events accepted so far.
    pub(crate) fn turn(&mut self) {
        self.worker.turn(Some(Duration::ZERO));
    }
}
