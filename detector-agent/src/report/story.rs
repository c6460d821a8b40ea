//! What the outbox and the senders ask of an event, whatever it tells of.
//!
//! A *story* is what one conflict's events tell together: it has an id, a beginning and an end. Whoever adds another
//! kind of it (an anomaly) answers the questions here; its words are in `summary.rs`, `webhook/format.rs` and
//! `alertmanager/alert.rs`.

use super::event::{Change, ClaimantData, Event};

impl Event {
    /// What the event is a part of. A sink gets the events of one story in order.
    #[must_use]
    pub fn story(&self) -> &str {
        &self.data.conflict_id
    }

    /// What it says happened.
    #[must_use]
    pub fn change(&self) -> Change {
        match self.event_type.rsplit('.').next() {
            Some("raised") => Change::Raised,
            Some("resolved") => Change::Resolved,
            _ => Change::Updated,
        }
    }

    /// Whether its story is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.data.state == "resolved"
    }

    /// The same event as told to a sink that knows less or more: the first it hears of a story is that it was raised.
    #[must_use]
    pub fn told_as(&self, change: Change) -> Self {
        let stem = self
            .event_type
            .rsplit_once('.')
            .map_or("", |(stem, _)| stem);
        Self {
            event_type: format!("{stem}.{}", change.name()),
            ..self.clone()
        }
    }

    /// Whether `newer` tells nothing that this one does not. A pod that is not known (any more, or yet) is no news: after
    /// a start all of them are unknown for a moment.
    #[must_use]
    pub fn says_all_of(&self, newer: &Self) -> bool {
        let (one, other) = (&self.data, &newer.data);
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

    /// The end of a story that nobody saw: it ended while the agent was away, or its last event was lost on the way.
    #[must_use]
    pub fn ended_unseen(&self, id: String, now: jiff::Timestamp) -> Self {
        let now = now.round(jiff::Unit::Microsecond).unwrap_or(now);
        let now = format!("{now:.6}");
        let mut event = self.told_as(Change::Resolved);
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
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples;

    #[test]
    fn a_pod_that_is_not_known_yet_is_no_news_and_one_that_became_known_is() {
        let known = samples::raised("10.0.0.1");
        let mut unknown = known.clone();
        unknown.data.claimants[0].pod = None;
        assert!(known.says_all_of(&known));
        assert!(known.says_all_of(&unknown));
        assert!(!unknown.says_all_of(&known));
    }

    #[test]
    fn another_claimant_is_news() {
        let known = samples::raised("10.0.0.1");
        let mut more = known.clone();
        let mut third = more.data.claimants[0].clone();
        third.ifindex += 100;
        more.data.claimants.push(third);
        assert!(!known.says_all_of(&more));
        assert!(!more.says_all_of(&known));
    }

    #[test]
    fn an_end_that_nobody_saw_is_told_under_the_same_story() {
        let known = samples::raised("10.0.0.1");
        let end = known.ended_unseen("other".to_owned(), jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(end.story(), known.story());
        assert_eq!(end.change(), Change::Resolved);
        assert!(end.is_over() && !known.is_over());
        assert!(end.data.claimants.iter().all(|c| c.left.is_some()));
    }
}
