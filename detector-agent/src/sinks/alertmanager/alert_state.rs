//! The alerts of one Alertmanager. Pure, so that it is tested without time or network.
//!
//! Invariants: an alert whose labels change (because its kind does) is resolved under the old ones; a resolved alert is
//! sent for [`RESEND_RESOLVED`], as in Prometheus, so that an Alertmanager that was down gets it; both are bounded.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use detector_event::{AnyEvent, SubjectId, WallTime};
use tokio::time::Instant;

use super::alert::{Alert, AlertSettings};
use crate::sinks::filter::Filter;

/// How long a resolved alert is sent.
pub(super) const RESEND_RESOLVED: Duration = Duration::from_secs(900);
/// The most active alerts, and the most resolved ones.
const BOUND: usize = 16_384;

#[derive(Debug)]
struct ActiveAlert {
    event: AnyEvent,
    /// As it was sent last.
    sent: Option<Alert>,
    /// Whether it changed since.
    has_changes: bool,
}

#[derive(Debug)]
struct ResolvedAlert {
    at: Instant,
    alert: Alert,
    has_changes: bool,
}

/// The alerts of one Alertmanager.
#[derive(Debug)]
pub(super) struct AlertState {
    filter: Filter,
    settings: AlertSettings,
    active: HashMap<SubjectId, ActiveAlert>,
    /// By labels: an alert raised again under the same labels is not resolved.
    resolved: HashMap<BTreeMap<String, String>, ResolvedAlert>,
    /// Whether there is something to send before the next full send.
    pub(super) has_changes: bool,
}

impl AlertState {
    pub(super) fn new(filter: Filter, settings: AlertSettings) -> Self {
        Self {
            filter,
            settings,
            active: HashMap::new(),
            resolved: HashMap::new(),
            has_changes: false,
        }
    }

    /// A conflict or an anomaly changed.
    pub(super) fn take(&mut self, event: &AnyEvent, now: Instant, wall: WallTime) {
        let id = event.subject_id();
        if event.is_resolved() {
            if let Some(entry) = self.active.remove(&id) {
                self.end(entry, Some(event), now, wall);
            }
            return;
        }
        let count = self.active.len();
        match self.active.get_mut(&id) {
            Some(entry) => {
                entry.event = event.clone();
                entry.has_changes = true;
            }
            None if count < BOUND => {
                let entry = ActiveAlert {
                    event: event.clone(),
                    sent: None,
                    has_changes: true,
                };
                self.active.insert(id, entry);
            }
            None => return,
        }
        self.has_changes = true;
    }

    /// Everything that is active; any other active alert is resolved.
    pub(super) fn catch_up(&mut self, events: &[AnyEvent], now: Instant, wall: WallTime) {
        let gone: Vec<_> = self
            .active
            .keys()
            .filter(|id| !events.iter().any(|e| e.subject_id() == **id))
            .copied()
            .collect();
        for id in gone {
            if let Some(entry) = self.active.remove(&id) {
                self.end(entry, None, now, wall);
            }
        }
        for event in events {
            self.take(event, now, wall);
        }
    }

    /// The alerts to send now (changed ones, or all), and when a conflict with a minimum duration is due.
    pub(super) fn alerts(
        &mut self,
        everything: bool,
        now: Instant,
        wall: WallTime,
    ) -> (Vec<Alert>, Option<Duration>) {
        self.has_changes = false;
        self.resolved
            .retain(|_, resolved| now.saturating_duration_since(resolved.at) < RESEND_RESOLVED);
        let mut due: Option<Duration> = None;
        let mut relabelled = Vec::new();
        let mut alerts = Vec::new();
        for entry in self.active.values_mut() {
            if entry.sent.is_none() {
                if !self.filter.accepts(&entry.event) {
                    continue;
                }
                let left = self.filter.time_left(&entry.event, wall);
                if !left.is_zero() {
                    due = Some(due.map_or(left, |other| other.min(left)));
                    continue;
                }
            }
            if !everything && !entry.has_changes {
                continue;
            }
            entry.has_changes = false;
            let alert = Alert::new(&entry.event, &self.settings, wall);
            self.resolved.remove(&alert.labels);
            if let Some(before) = entry.sent.replace(alert.clone())
                && before.labels != alert.labels
            {
                relabelled.push(before);
            }
            alerts.push(alert);
        }
        for before in relabelled {
            // Another conflict may have the same labels by now.
            if !alerts.iter().any(|alert| alert.labels == before.labels) {
                self.add_resolved(before.resolved(wall), now);
            }
        }
        for resolved in self.resolved.values_mut() {
            if everything || resolved.has_changes {
                resolved.has_changes = false;
                alerts.push(resolved.alert.clone());
            }
        }
        (alerts, due)
    }

    /// Resolves an alert if it was sent as active.
    fn end(&mut self, entry: ActiveAlert, last: Option<&AnyEvent>, now: Instant, wall: WallTime) {
        let Some(sent) = entry.sent else { return };
        let alert = match last {
            Some(event) if event.kind() == entry.event.kind() => {
                Alert::new(event, &self.settings, wall)
            }
            _ => sent.resolved(wall),
        };
        self.add_resolved(alert, now);
        self.has_changes = true;
    }

    fn add_resolved(&mut self, alert: Alert, now: Instant) {
        if self.resolved.len() < BOUND {
            let resolved = ResolvedAlert {
                at: now,
                alert,
                has_changes: true,
            };
            self.resolved
                .insert(resolved.alert.labels.clone(), resolved);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use detector_engine::{Confidence, ConflictKind, Network};
    use detector_event::{Change, samples};

    use super::*;
    use crate::sinks::settings::AlertLabels;

    fn state(filter: Filter) -> AlertState {
        let cluster = ("cluster".to_owned(), "east".to_owned());
        let settings = AlertSettings {
            labels: AlertLabels {
                all: BTreeMap::from([cluster]),
                ..AlertLabels::default()
            },
            expire_after: Duration::from_secs(240),
            ..AlertSettings::default()
        };
        AlertState::new(filter, settings)
    }

    fn wall() -> WallTime {
        WallTime::now()
    }

    fn is_active(alert: &Alert) -> bool {
        alert.ends_at > wall()
    }

    #[test]
    fn changes_are_sent_at_once_and_everything_periodically() {
        let mut state = state(Filter::default());
        let now = Instant::now();
        state.take(&samples::raised("10.0.0.1").into(), now, wall());
        assert!(state.has_changes);
        let (alerts, _) = state.alerts(false, now, wall());
        assert_eq!(alerts.len(), 1);
        assert!(is_active(&alerts[0]));
        assert_eq!(alerts[0].labels["cluster"], "east");
        assert_eq!(alerts[0].labels["alertname"], "IPAddressConflict");
        state.take(&samples::raised("10.0.0.2").into(), now, wall());
        assert_eq!(state.alerts(false, now, wall()).0.len(), 1);
        assert_eq!(state.alerts(false, now, wall()).0.len(), 0);
        assert_eq!(state.alerts(true, now, wall()).0.len(), 2);
    }

    #[test]
    fn a_resolved_alert_is_sent_for_15_minutes_with_its_labels() {
        let mut state = state(Filter::default());
        let now = Instant::now();
        state.take(&samples::raised("10.0.0.1").into(), now, wall());
        let (raised, _) = state.alerts(false, now, wall());
        state.take(&samples::resolved("10.0.0.1").into(), now, wall());
        let (resolved, _) = state.alerts(false, now, wall());
        assert_eq!(raised[0].labels, resolved[0].labels);
        assert!(!is_active(&resolved[0]));
        assert_eq!(state.alerts(true, now, wall()).0.len(), 1);
        let later = now + RESEND_RESOLVED;
        assert_eq!(state.alerts(true, later, wall()).0.len(), 0);
    }

    #[test]
    fn a_changed_kind_resolves_the_alert_under_the_old_labels() {
        let mut state = state(Filter::default());
        let now = Instant::now();
        state.take(&samples::raised("10.0.0.1").into(), now, wall());
        let (before, _) = state.alerts(false, now, wall());
        let mut event = samples::raised("10.0.0.1");
        event.data.kind = ConflictKind::Host;
        state.take(&event.clone().into(), now, wall());
        let (after, _) = state.alerts(false, now, wall());
        let [new, old] = &after[..] else {
            unreachable!("{after:?}")
        };
        assert_eq!(new.labels["kind"], "host");
        assert!(is_active(new));
        assert_eq!(old.labels, before[0].labels);
        assert!(!is_active(old));
    }

    #[test]
    fn conflicts_of_one_address_elsewhere_have_alerts_of_their_own() {
        let elsewhere = |number: &str, network: Network, vlan| {
            let event = |change| {
                let mut event = samples::event(number, change, number, "10.0.0.1");
                (event.data.network, event.data.vlan) = (network.clone(), vlan);
                AnyEvent::from(event)
            };
            [event(Change::Raised), event(Change::Resolved)]
        };
        let events = [
            elsewhere("1", Network::Node, None),
            elsewhere("2", Network::Node, Some(7)),
            elsewhere("3", Network::Bridge("br1".to_owned()), None),
            elsewhere("4", Network::Bridge("br2".to_owned()), None),
        ];
        let mut state = state(Filter::default());
        let now = Instant::now();
        for [raised, _] in &events {
            state.take(raised, now, wall());
        }
        let (alerts, _) = state.alerts(true, now, wall());
        let labels: HashSet<_> = alerts.iter().map(|alert| &alert.labels).collect();
        assert_eq!(labels.len(), events.len(), "{alerts:?}");
        for (index, [_, resolved]) in events.iter().enumerate() {
            state.take(resolved, now, wall());
            let (alerts, _) = state.alerts(true, now, wall());
            let active = alerts.iter().filter(|alert| is_active(alert)).count();
            assert_eq!((alerts.len(), active), (4, 3 - index));
        }
    }

    #[test]
    fn an_alert_missing_after_a_gap_is_resolved() {
        let mut state = state(Filter::default());
        let now = Instant::now();
        state.take(&samples::raised("10.0.0.1").into(), now, wall());
        state.alerts(false, now, wall());
        let other = AnyEvent::from(samples::raised("10.0.0.2"));
        state.catch_up(&[other], now, wall());
        let (alerts, _) = state.alerts(true, now, wall());
        let mut states: Vec<_> = alerts
            .iter()
            .map(|a| (a.labels["address"].as_str(), is_active(a)))
            .collect();
        states.sort_unstable();
        assert_eq!(states, [("10.0.0.1", false), ("10.0.0.2", true)]);
    }

    #[test]
    fn a_rejected_conflict_is_sent_neither_active_nor_resolved() {
        let mut state = state(Filter {
            confidence: Confidence::Certain,
            min_duration: Duration::from_secs(3600),
            ..Filter::default()
        });
        let now = Instant::now();
        let mut young = samples::raised("10.0.0.1");
        young.data.raised_at = wall();
        state.take(&young.clone().into(), now, wall());
        let mut observed = samples::raised("10.0.0.2");
        observed.data.confidence = Confidence::Observed;
        state.take(&observed.clone().into(), now, wall());
        let (alerts, due) = state.alerts(true, now, wall());
        assert_eq!(alerts, []);
        assert!(
            due.is_some_and(|d| d > Duration::from_secs(3500)),
            "{due:?}"
        );
        state.take(&samples::resolved("10.0.0.1").into(), now, wall());
        assert_eq!(state.alerts(true, now, wall()).0, []);
    }
}
