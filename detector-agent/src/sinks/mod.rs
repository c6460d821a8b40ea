//! Where events go: event lines, webhooks, Alertmanagers, Kubernetes events and the HTTP feed.
//!
//! The event loop creates each event and passes it to every sink. A sink accepts it at once or drops it: none can
//! delay another, or detection.

mod alert_series;
pub mod alertmanager;
pub mod client;
pub(crate) mod event_feed;
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

pub use alert_series::AlertSeries;
pub use event_feed::EventFeed;

/// Receives events on the event loop's thread. Must return at once: a sink that sends over a network does so from a
/// queue of its own.
pub trait EventSink: Send + fmt::Debug {
    /// Something was raised, updated or resolved. Accepts the event, or drops and counts it.
    fn on_event(&mut self, event: &AnyEvent);

    /// An update changed nothing that the last event about the conflict contained: after a restart, that becomes known again.
    fn on_unchanged_update(&mut self, state: &AnyEvent) {
        self.on_event(state);
    }

    /// The state of an active conflict or anomaly, without an update: an earlier agent raised it, or its pod became known.
    fn on_current_state(&mut self, _state: &AnyEvent) {}

    /// The agent of another node reports this event; it is for people who look at this node.
    fn on_remote_event(&mut self, _event: &AnyEvent) {}

    /// Whether it dropped something, has room again, and wants [`EventSink::catch_up`].
    fn is_behind(&self) -> bool {
        false
    }

    /// Gets all conflicts and anomalies that are active now, as events with the change `updated`; any other that it
    /// has open is resolved.
    fn catch_up(&mut self, _active: &[AnyEvent]) {}
}
