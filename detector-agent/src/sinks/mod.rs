//! Where events go: event lines, webhooks, Alertmanagers, Kubernetes events and the HTTP feed.
//!
//! The event loop creates each event and offers it to every sink. A sink accepts it at once or drops it: none can
//! delay another, or detection.

pub mod alertmanager;
pub mod client;
pub(crate) mod feed;
pub mod filter;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub mod kube_events;
pub mod lines;
pub mod message;
mod notice;
pub mod outbox;
pub mod retry;
pub mod settings;
pub mod start;
mod unusable;
pub mod webhook;

use std::fmt;

use detector_event::AnyEvent;

pub use feed::Feed;

/// Receives events on the event loop's thread. Must return at once: a sink that sends over a network does so from a
/// queue of its own.
pub trait EventSink: Send + fmt::Debug {
    /// Accepts one event, or drops and counts it.
    fn offer(&mut self, event: &AnyEvent);

    /// Gets the state of an active conflict that is as in the last event about it: after a restart, because what that event
    /// contained becomes known again.
    fn repeat(&mut self, state: &AnyEvent) {
        self.offer(state);
    }

    /// Gets the state of an active conflict or anomaly without a change: one that an earlier agent raised, or whose pod
    /// became known.
    fn show(&mut self, _state: &AnyEvent) {}

    /// Gets an event that the agent of another node reports, for people who look at this node.
    fn display(&mut self, _event: &AnyEvent) {}

    /// Whether it dropped something, has room again, and wants [`EventSink::catch_up`].
    fn is_behind(&self) -> bool {
        false
    }

    /// Gets all conflicts and anomalies that are active now, as events with the change `updated`; any other that it
    /// has open is resolved.
    fn catch_up(&mut self, _active: &[AnyEvent]) {}
}
