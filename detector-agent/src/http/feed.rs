//! The events as they happen, for streams: a sink of the reporter, and those who follow it.
//!
//! Invariants: the sink returns at once, whoever follows; a follower that falls behind by more than [`KEPT`] events is
//! told so and goes on from the present; a follower that starts gets the kept events and the feed ones without a gap and
//! without one twice.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};

use crate::{
    event::{AnyEvent, Change, Event},
    sinks::EventSink,
};

/// Events kept for those who come back, and that a slow one may be behind.
const KEPT: usize = 256;
/// Resolved conflicts kept for the history.
const HISTORY: usize = 50;
/// Followers at once.
const FOLLOWERS: usize = 64;

/// An event, and its JSON once it was requested.
#[derive(Debug)]
pub(super) struct FeedEvent {
    event: AnyEvent,
    json: OnceLock<String>,
}

impl FeedEvent {
    /// The event's id.
    pub(super) fn id(&self) -> &str {
        self.event.id()
    }

    /// The event as one line of JSON.
    pub(super) fn json(&self) -> &str {
        let serialise = || serde_json::to_string(&self.event).unwrap_or_default();
        self.json.get_or_init(serialise)
    }
}

#[derive(Debug)]
struct Recent {
    events: VecDeque<Arc<FeedEvent>>,
    resolved: VecDeque<Arc<Event>>,
    sender: broadcast::Sender<Arc<FeedEvent>>,
}

/// Where events pass on their way to streams. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Feed {
    recent: Arc<Mutex<Recent>>,
    places: Arc<Semaphore>,
}

impl Default for Feed {
    fn default() -> Self {
        Self {
            recent: Arc::new(Mutex::new(Recent {
                events: VecDeque::new(),
                resolved: VecDeque::new(),
                sender: broadcast::Sender::new(KEPT),
            })),
            places: Arc::new(Semaphore::new(FOLLOWERS)),
        }
    }
}

impl EventSink for Feed {
    fn offer(&mut self, event: &AnyEvent) {
        let mut recent = self.lock();
        if let AnyEvent::Conflict(conflict) = event
            && event.change() == Change::Resolved
        {
            push(&mut recent.resolved, Arc::clone(conflict), HISTORY);
        }
        let event = Arc::new(FeedEvent {
            event: event.clone(),
            json: OnceLock::new(),
        });
        push(&mut recent.events, Arc::clone(&event), KEPT);
        // It fails if there is no follower.
        let _ = recent.sender.send(event);
    }
}

fn push<T>(queue: &mut VecDeque<T>, item: T, bound: usize) {
    if queue.len() == bound {
        queue.pop_front();
    }
    queue.push_back(item);
}

/// One who follows.
#[derive(Debug)]
pub(super) struct Follower {
    /// What happened since the event it knows.
    pub(super) missed: Vec<Arc<FeedEvent>>,
    /// Nothing is missing between the event it knows and those in `missed`.
    pub(super) resumed: bool,
    /// What happens from now on.
    pub(super) receiver: broadcast::Receiver<Arc<FeedEvent>>,
    _place: OwnedSemaphorePermit,
}

impl Feed {
    fn lock(&self) -> MutexGuard<'_, Recent> {
        // Nothing panics while it is held.
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to follow, after the event of this id; `None` where there are too many already.
    pub(super) fn follow(&self, last_id: Option<&str>) -> Option<Follower> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let recent = self.lock();
        let known = last_id.and_then(|id| recent.events.iter().position(|k| k.id() == id));
        Some(Follower {
            missed: known
                .map(|at| recent.events.iter().skip(at + 1).cloned().collect())
                .unwrap_or_default(),
            resumed: known.is_some(),
            receiver: recent.sender.subscribe(),
            _place: place,
        })
    }

    /// The conflicts resolved last, the newest first.
    pub(super) fn resolved(&self) -> Vec<Arc<Event>> {
        self.lock().resolved.iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use super::*;
    use crate::{
        engine::{Confidence, Conflict, ConflictId, ConflictKind, Timestamp, Vlan},
        event::EventMaker,
        pods::PodAnswer,
    };

    fn events(count: usize) -> Vec<AnyEvent> {
        let conflict = Conflict {
            id: ConflictId(1),
            address: [10, 0, 0, 1].into(),
            vlan: Vlan::default(),
            kind: ConflictKind::Duplicate,
            confidence: Confidence::Observed,
            raised_at: Timestamp(1),
            updated_at: Timestamp(1),
            resolved_at: None,
            decided_at: Timestamp(1),
            traffic_goes_to: None,
            claimants: Vec::new(),
            claimants_omitted: 0,
        };
        let mut maker = EventMaker::new("node".to_owned(), 7);
        (0..count)
            .map(|_| {
                let event = maker.event(Change::Resolved, &conflict, |_| {
                    PodAnswer::Unknown("test".into())
                });
                event.into()
            })
            .collect()
    }

    #[test]
    fn one_who_comes_back_misses_nothing_and_gets_nothing_twice() {
        let mut feed = Feed::default();
        let events = events(5);
        for event in &events[..3] {
            feed.offer(event);
        }
        let mut follower = feed.follow(Some(events[0].id())).unwrap();
        assert!(follower.resumed);
        let missed: Vec<_> = follower.missed.iter().map(|k| k.id().to_owned()).collect();
        assert_eq!(missed, [events[1].id(), events[2].id()]);
        feed.offer(&events[3]);
        assert_eq!(follower.receiver.try_recv().unwrap().id(), events[3].id());
        let stranger = feed.follow(Some("unknown")).unwrap();
        assert!(!stranger.resumed && stranger.missed.is_empty());
    }

    #[test]
    fn followers_history_and_kept_events_are_bounded() {
        let mut feed = Feed::default();
        let followers: Vec<_> = (0..FOLLOWERS).map(|_| feed.follow(None).unwrap()).collect();
        assert!(feed.follow(None).is_none());
        for event in &events(KEPT * 2) {
            feed.offer(event);
        }
        assert_eq!(feed.resolved().len(), HISTORY);
        assert_eq!(feed.lock().events.len(), KEPT);
        let mut slow = followers.into_iter().next().unwrap();
        assert!(matches!(
            slow.receiver.try_recv(),
            Err(broadcast::error::TryRecvError::Lagged(_))
        ));
        assert!(feed.follow(None).is_some());
    }
}
