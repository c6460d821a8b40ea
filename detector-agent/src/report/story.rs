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

    /// Whether both tell the same of their story, whenever they were made.
    #[must_use]
    pub fn tells_the_same(&self, other: &Self) -> bool {
        let (one, other) = (&self.data, &other.data);
        let claimant =
            |c: &ClaimantData| (c.device.clone(), c.ifindex, c.left.clone(), c.pod.clone());
        one.kind == other.kind
            && one.confidence == other.confidence
            && one.traffic_goes_to == other.traffic_goes_to
            && one.claimants_omitted == other.claimants_omitted
            && one
                .claimants
                .iter()
                .map(claimant)
                .eq(other.claimants.iter().map(claimant))
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
