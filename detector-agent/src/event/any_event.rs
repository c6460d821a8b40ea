//! What the outbox and the senders ask of an event, whatever it tells of.
//!
//! A *story* is what the events of one conflict, or of one anomaly, tell together: it has an id, a beginning and an end.
//! Its words are in `summary.rs`, `webhook/format.rs` and `alertmanager/alert.rs`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{AnomalyEvent, Change, ClaimantData, Event};
use crate::pods::Pod;

/// An event about a conflict or about an anomaly. Cheap to clone; as JSON it is the event itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AnyEvent {
    /// About a conflict.
    Conflict(Arc<Event>),
    /// About an anomaly.
    Anomaly(Arc<AnomalyEvent>),
}

impl From<Event> for AnyEvent {
    fn from(event: Event) -> Self {
        Self::Conflict(Arc::new(event))
    }
}

impl From<AnomalyEvent> for AnyEvent {
    fn from(event: AnomalyEvent) -> Self {
        Self::Anomaly(Arc::new(event))
    }
}

impl AnyEvent {
    /// Unique among the node's events.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Conflict(event) => &event.id,
            Self::Anomaly(event) => &event.id,
        }
    }

    /// When it was made, RFC 3339.
    #[must_use]
    pub fn time(&self) -> &str {
        match self {
            Self::Conflict(event) => &event.time,
            Self::Anomaly(event) => &event.time,
        }
    }

    /// What the event is a part of. A sink gets the events of one story in order.
    #[must_use]
    pub fn subject_id(&self) -> &str {
        match self {
            Self::Conflict(event) => &event.data.conflict_id,
            Self::Anomaly(event) => &event.data.anomaly_id,
        }
    }

    /// The Contract's word for what kind of conflict or anomaly it is.
    #[must_use]
    pub fn kind(&self) -> &str {
        match self {
            Self::Conflict(event) => &event.data.kind,
            Self::Anomaly(event) => &event.data.kind,
        }
    }

    /// When its story began, RFC 3339.
    #[must_use]
    pub fn raised_at(&self) -> &str {
        match self {
            Self::Conflict(event) => &event.data.raised_at,
            Self::Anomaly(event) => &event.data.raised_at,
        }
    }

    /// When its story ended, RFC 3339.
    #[must_use]
    pub fn resolved_at(&self) -> Option<&str> {
        match self {
            Self::Conflict(event) => event.data.resolved_at.as_deref(),
            Self::Anomaly(event) => event.data.resolved_at.as_deref(),
        }
    }

    /// The pods it names.
    #[must_use]
    pub fn pods(&self) -> Vec<&Pod> {
        match self {
            Self::Conflict(event) => {
                let claimants = event.data.claimants.iter();
                claimants.filter_map(|c| c.pod.as_ref()).collect()
            }
            Self::Anomaly(event) => event.data.pod.iter().collect(),
        }
    }

    /// What it says happened.
    #[must_use]
    pub fn change(&self) -> Change {
        let event_type = match self {
            Self::Conflict(event) => &event.event_type,
            Self::Anomaly(event) => &event.event_type,
        };
        match event_type.rsplit('.').next() {
            Some("raised") => Change::Raised,
            Some("resolved") => Change::Resolved,
            _ => Change::Updated,
        }
    }

    /// Whether its story is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        match self {
            Self::Conflict(event) => event.data.state == "resolved",
            Self::Anomaly(event) => event.data.state == "resolved",
        }
    }

    /// The same event as told to a sink that knows less or more: the first it hears of a story is that it was raised.
    #[must_use]
    pub fn told_as(&self, change: Change) -> Self {
        match self {
            Self::Conflict(event) => Event {
                event_type: retyped(&event.event_type, change),
                ..(**event).clone()
            }
            .into(),
            Self::Anomaly(event) => AnomalyEvent {
                event_type: retyped(&event.event_type, change),
                ..(**event).clone()
            }
            .into(),
        }
    }

    /// Whether `newer` tells nothing that this one does not. A pod that is not known (any more, or yet) is no news: after
    /// a start all of them are unknown for a moment.
    #[must_use]
    pub fn supersedes(&self, newer: &Self) -> bool {
        match (self, newer) {
            (Self::Conflict(one), Self::Conflict(other)) => conflict_supersedes(one, other),
            (Self::Anomaly(one), Self::Anomaly(other)) => {
                let (one, other) = (&one.data, &other.data);
                one.kind == other.kind
                    && one.cause == other.cause
                    && one.device == other.device
                    && one.also_on == other.also_on
                    && (other.pod.is_none() || one.pod == other.pod)
            }
            _ => false,
        }
    }

    /// The end of a story that nobody saw: it ended while the agent was away, or its last event was lost on the way.
    #[must_use]
    pub fn ended_unseen(&self, id: String, now: jiff::Timestamp) -> Self {
        let now = format!("{now:.6}");
        match self {
            Self::Conflict(event) => {
                let mut event = (**event).clone();
                event.event_type = retyped(&event.event_type, Change::Resolved);
                event.id = id;
                event.time.clone_from(&now);
                event.data.state = "resolved".to_owned();
                event.data.updated_at.clone_from(&now);
                event.data.resolved_at = Some(now);
                event.data.latency_us = 0;
                event.data.traffic_goes_to = None;
                for claimant in &mut event.data.claimants {
                    claimant.left.get_or_insert_with(|| "expired".to_owned());
                }
                event.into()
            }
            Self::Anomaly(event) => {
                let mut event = (**event).clone();
                event.event_type = retyped(&event.event_type, Change::Resolved);
                event.id = id;
                event.time.clone_from(&now);
                event.data.state = "resolved".to_owned();
                event.data.resolved_at = Some(now);
                event.data.resolved_because = Some("unseen".to_owned());
                event.data.latency_us = 0;
                event.into()
            }
        }
    }
}

fn retyped(event_type: &str, change: Change) -> String {
    let stem = event_type.rsplit_once('.').map_or("", |(stem, _)| stem);
    format!("{stem}.{}", change.name())
}

fn conflict_supersedes(one: &Event, other: &Event) -> bool {
    let (one, other) = (&one.data, &other.data);
    let same = |(one, other): (&ClaimantData, &ClaimantData)| {
        one.device == other.device
            && one.ifindex == other.ifindex
            && one.left == other.left
            && (other.pod.is_none() || one.pod == other.pod)
    };
    one.kind == other.kind
        && one.confidence == other.confidence
        && one.traffic_goes_to == other.traffic_goes_to
        && one.claimants_omitted == other.claimants_omitted
        && one.claimants.len() == other.claimants.len()
        && one.claimants.iter().zip(&other.claimants).all(same)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)] // a test that cannot set itself up fails

    use super::*;
    use crate::event::samples;

    #[test]
    fn a_pod_that_is_not_known_yet_is_no_news_and_one_that_became_known_is() {
        let known = samples::raised("10.0.0.1");
        let mut unknown = known.clone();
        unknown.data.claimants[0].pod = None;
        let (known, unknown) = (AnyEvent::from(known), AnyEvent::from(unknown));
        assert!(known.supersedes(&known));
        assert!(known.supersedes(&unknown));
        assert!(!unknown.supersedes(&known));
    }

    #[test]
    fn another_claimant_is_news() {
        let known = samples::raised("10.0.0.1");
        let mut more = known.clone();
        let mut third = more.data.claimants[0].clone();
        third.ifindex += 100;
        more.data.claimants.push(third);
        let (known, more) = (AnyEvent::from(known), AnyEvent::from(more));
        assert!(!known.supersedes(&more));
        assert!(!more.supersedes(&known));
    }

    #[test]
    fn an_end_that_nobody_saw_is_told_under_the_same_story() {
        for known in [
            AnyEvent::from(samples::raised("10.0.0.1")),
            AnyEvent::from(samples::drift("10.0.0.1")),
        ] {
            let end = known.ended_unseen("other".to_owned(), jiff::Timestamp::UNIX_EPOCH);
            assert_eq!(end.subject_id(), known.subject_id());
            assert_eq!(end.change(), Change::Resolved);
            assert!(end.is_over() && !known.is_over());
            assert_eq!(end.id(), "other");
            assert!(end.resolved_at().is_some());
        }
    }

    #[test]
    fn what_was_stored_is_read_back_as_what_it_was() {
        for event in [
            AnyEvent::from(samples::raised("10.0.0.1")),
            AnyEvent::from(samples::drift("10.0.0.1")),
        ] {
            let text = serde_json::to_string(&event).unwrap();
            assert_eq!(serde_json::from_str::<AnyEvent>(&text).unwrap(), event);
        }
    }
}
