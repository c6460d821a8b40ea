//! From conflicts to what people and machines read.
//!
//! The detection thread makes each event here and offers it to every sink. A sink takes it at once or not at all: none
//! can make another, or detection, wait.

pub mod alertmanager;
pub mod client;
pub mod filter;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub mod kube_events;
pub mod lines;
pub mod outbox;
mod reporter;
pub mod retry;
pub mod start;
pub mod webhook;

use std::{fmt, sync::Arc};

use crate::event::{AnomalyEvent, AnyEvent, Event};

pub use reporter::Reporter;

/// Takes events on the detection thread. Must return at once: a sink that sends does so from a queue of its own.
pub trait EventSink: Send + fmt::Debug {
    /// Takes, or drops and counts, one event.
    fn offer(&mut self, event: &Arc<Event>);

    /// The same with an event about an anomaly.
    fn offer_anomaly(&mut self, event: &Arc<AnomalyEvent>);

    /// Whether it dropped something, has room again, and wants [`EventSink::catch_up`].
    fn is_behind(&self) -> bool {
        false
    }

    /// Takes all conflicts and anomalies that are active now, as events of type `updated`; what it knows of besides is
    /// over.
    fn catch_up(&mut self, _active: &[AnyEvent]) {}
}
