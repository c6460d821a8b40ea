//! An outbox in memory without a thread, for tests of the senders: it stores what it was offered when it is told to.

#![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

use std::{sync::Arc, time::Duration};

use super::{Bounds, Outbox, Port, SinkSpec, worker::Worker};
use crate::{
    event::Event,
    health::{Health, Role},
    metrics::Metrics,
    persist::store::Store,
    sinks::{EventSink as _, filter::Filter},
};

/// The outbox of one sink named `hook`.
#[derive(Debug)]
pub(crate) struct ByHand {
    outbox: Outbox,
    worker: Worker,
}

impl ByHand {
    pub(crate) fn new(metrics: &Arc<Metrics>) -> Self {
        let spec = SinkSpec {
            name: "hook".to_owned(),
            filter: Filter::default(),
        };
        let store = Arc::new(Store::in_memory());
        let health = Health::default().part(Role::Sink, "outbox");
        let (outbox, worker) =
            Outbox::assemble(&store, vec![spec], Bounds::default(), metrics, health);
        Self { outbox, worker }
    }

    pub(crate) fn port(&self) -> Arc<Port> {
        Arc::clone(&self.outbox.ports()[0])
    }

    pub(crate) fn offer(&self, event: Event) {
        self.outbox.sink().offer(&Arc::new(event));
    }

    /// Stores what came in.
    pub(crate) fn turn(&mut self) {
        self.worker.turn(Some(Duration::ZERO));
    }
}
