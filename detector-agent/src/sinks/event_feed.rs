//! Recent events for event streams: a sink, and its subscribers.
//!
//! Invariants: the sink never blocks on a subscriber; a subscriber that falls behind by more than [`RECENT_EVENTS`]
//! events is notified and continues with current ones; a resuming subscriber gets every event once and without a gap.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use detector_event::AnyEvent;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};

use crate::sinks::EventSink;

/// Events kept for resuming subscribers; also how far a slow one may fall behind.
const RECENT_EVENTS: usize = 256;
/// Concurrent subscribers on the node, and as many of others: less than either may have connections.
const MAX_SUBSCRIBERS: usize = 64;

/// Where a subscriber is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subscriber {
    /// On the node.
    Node,
    /// Elsewhere.
    Other,
}

/// An event, and its JSON once it was requested.
#[derive(Debug)]
pub(crate) struct FeedEvent {
    event: AnyEvent,
    json: OnceLock<String>,
}

impl FeedEvent {
    /// The event's id.
    pub(crate) fn id(&self) -> &str {
        self.event.id()
    }

    /// The event as one line of JSON.
    pub(crate) fn json(&self) -> &str {
        let serialise = || serde_json::to_string(&self.event).unwrap_or_default();
        self.json.get_or_init(serialise)
    }
}

#[derive(Debug)]
struct Recent {
    events: VecDeque<Arc<FeedEvent>>,
    sender: broadcast::Sender<Arc<FeedEvent>>,
}

/// Distributes events to event streams. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EventFeed {
    recent: Arc<Mutex<Recent>>,
    node_permits: Arc<Semaphore>,
    other_permits: Arc<Semaphore>,
}

impl Default for EventFeed {
    fn default() -> Self {
        Self {
            recent: Arc::new(Mutex::new(Recent {
                events: VecDeque::new(),
                sender: broadcast::Sender::new(RECENT_EVENTS),
            })),
            node_permits: Arc::new(Semaphore::new(MAX_SUBSCRIBERS)),
            other_permits: Arc::new(Semaphore::new(MAX_SUBSCRIBERS)),
        }
    }
}

impl EventSink for EventFeed {
    fn on_event(&mut self, event: &AnyEvent) {
        let event = Arc::new(FeedEvent {
            event: event.clone(),
            json: OnceLock::new(),
        });
        let mut recent = self.lock();
        if recent.events.len() == RECENT_EVENTS {
            recent.events.pop_front();
        }
        recent.events.push_back(Arc::clone(&event));
        // Fails if there is no subscriber.
        let _ = recent.sender.send(event);
    }

    fn on_remote_event(&mut self, event: &AnyEvent) {
        self.on_event(event);
    }
}

/// A subscription.
#[derive(Debug)]
pub(crate) struct Subscription {
    /// Events after the last one the subscriber has.
    pub(crate) missed: Vec<Arc<FeedEvent>>,
    /// No event is missing between that one and `missed`.
    pub(crate) resumed: bool,
    /// Events from now on.
    pub(crate) receiver: broadcast::Receiver<Arc<FeedEvent>>,
    _permit: OwnedSemaphorePermit,
}

impl EventFeed {
    fn lock(&self) -> MutexGuard<'_, Recent> {
        // No code panics while holding the lock.
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes, resuming after the event with this id; `None` if there are too many subscribers.
    pub(crate) fn subscribe(
        &self,
        subscriber: Subscriber,
        last_id: Option<&str>,
    ) -> Option<Subscription> {
        let permits = match subscriber {
            Subscriber::Node => &self.node_permits,
            Subscriber::Other => &self.other_permits,
        };
        let permit = Arc::clone(permits).try_acquire_owned().ok()?;
        let recent = self.lock();
        let known = last_id.and_then(|id| recent.events.iter().position(|k| k.id() == id));
        Some(Subscription {
            missed: known
                .map(|at| recent.events.iter().skip(at + 1).cloned().collect())
                .unwrap_or_default(),
            resumed: known.is_some(),
            receiver: recent.sender.subscribe(),
            _permit: permit,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use detector_event::{Change, EventMaker, PodAnswer, samples};

    use super::*;

    fn events(count: usize) -> Vec<AnyEvent> {
        let conflict = samples::conflict("10.0.0.1");
        let mut maker = EventMaker::new("node", 7);
        (0..count)
            .map(|_| {
                let event = maker.event(
                    &crate::process::clock::moment(),
                    Change::Resolved,
                    &conflict,
                    |_| PodAnswer::Unknown("test".into()),
                );
                event.into()
            })
            .collect()
    }

    #[test]
    fn a_resuming_subscriber_gets_every_event_once() {
        let mut feed = EventFeed::default();
        let events = events(5);
        for event in &events[..3] {
            feed.on_event(event);
        }
        let mut subscription = feed
            .subscribe(Subscriber::Node, Some(events[0].id()))
            .unwrap();
        assert!(subscription.resumed);
        let missed: Vec<_> = subscription
            .missed
            .iter()
            .map(|k| k.id().to_owned())
            .collect();
        assert_eq!(missed, [events[1].id(), events[2].id()]);
        feed.on_event(&events[3]);
        assert_eq!(
            subscription.receiver.try_recv().unwrap().id(),
            events[3].id()
        );
        let stranger = feed.subscribe(Subscriber::Node, Some("unknown")).unwrap();
        assert!(!stranger.resumed && stranger.missed.is_empty());
    }

    #[test]
    fn subscribers_and_recent_events_are_bounded() {
        let mut feed = EventFeed::default();
        let subscriptions: Vec<_> = (0..MAX_SUBSCRIBERS)
            .map(|_| feed.subscribe(Subscriber::Node, None).unwrap())
            .collect();
        assert!(feed.subscribe(Subscriber::Node, None).is_none());
        let pod = Subscriber::Other;
        assert!(feed.subscribe(pod, None).is_some());
        for event in &events(RECENT_EVENTS * 2) {
            feed.on_event(event);
        }
        assert_eq!(feed.lock().events.len(), RECENT_EVENTS);
        let mut slow = subscriptions.into_iter().next().unwrap();
        assert!(matches!(
            slow.receiver.try_recv(),
            Err(broadcast::error::TryRecvError::Lagged(_))
        ));
        assert!(feed.subscribe(Subscriber::Node, None).is_some());
    }
}
