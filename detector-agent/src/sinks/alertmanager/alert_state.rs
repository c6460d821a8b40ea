//! Which alerts stand, as one Alertmanager is told: pure, so that its rules are tested without time or network.
//!
//! Invariants: an alert whose labels change (the kind did) is ended under the old ones; an ended one is told for
//! [`TOLD_AFTER_END`], as Prometheus does, so that an Alertmanager that was away learns of it; both are bounded.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use super::alert::Alert;
use crate::{
    clock::WallTime,
    event::{AnyEvent, SubjectId},
    sinks::filter::Filter,
};

/// An ended alert is told for so long.
pub(super) const TOLD_AFTER_END: Duration = Duration::from_secs(900);
/// Active ones and ended ones, each, at most.
const BOUND: usize = 16_384;

#[derive(Debug)]
struct Standing {
    event: AnyEvent,
    /// As it was told last; `None` where it was not yet.
    told: Option<Alert>,
    /// It changed since.
    news: bool,
}

#[derive(Debug)]
struct Ended {
    at: Instant,
    alert: Alert,
    news: bool,
}

/// The alerts of one Alertmanager.
#[derive(Debug)]
pub(super) struct AlertState {
    filter: Filter,
    extra: BTreeMap<String, String>,
    /// An active alert that is not told again for so long is over.
    lapse: Duration,
    active: HashMap<SubjectId, Standing>,
    /// By labels: what is raised again under the same ones is not over.
    ended: HashMap<BTreeMap<String, String>, Ended>,
    /// Something is to be told now, not only at the next turn.
    pub(super) news: bool,
}

impl AlertState {
    pub(super) fn new(filter: Filter, extra: BTreeMap<String, String>, lapse: Duration) -> Self {
        Self {
            filter,
            extra,
            lapse,
            active: HashMap::new(),
            ended: HashMap::new(),
            news: false,
        }
    }

    /// A conflict changed.
    pub(super) fn take(&mut self, event: &AnyEvent, now: Instant, wall: WallTime) {
        let id = event.subject_id();
        if event.is_resolved() {
            if let Some(standing) = self.active.remove(&id) {
                self.end(standing, Some(event), now, wall);
            }
            return;
        }
        let standing = self.active.len();
        match self.active.get_mut(&id) {
            Some(standing) => {
                standing.event = event.clone();
                standing.news = true;
            }
            None if standing < BOUND => {
                let standing = Standing {
                    event: event.clone(),
                    told: None,
                    news: true,
                };
                self.active.insert(id, standing);
            }
            None => return,
        }
        self.news = true;
    }

    /// All that is active; what else is known is over.
    pub(super) fn catch_up(&mut self, events: &[AnyEvent], now: Instant, wall: WallTime) {
        let over: Vec<_> = self
            .active
            .keys()
            .filter(|id| !events.iter().any(|e| e.subject_id() == **id))
            .copied()
            .collect();
        for id in over {
            if let Some(standing) = self.active.remove(&id) {
                self.end(standing, None, now, wall);
            }
        }
        for event in events {
            self.take(event, now, wall);
        }
    }

    /// What is to be told at this moment (what changed, or everything), and when a conflict that must last longer is due.
    pub(super) fn alerts(
        &mut self,
        everything: bool,
        now: Instant,
        wall: WallTime,
    ) -> (Vec<Alert>, Option<Duration>) {
        self.news = false;
        self.ended
            .retain(|_, ended| now.saturating_duration_since(ended.at) < TOLD_AFTER_END);
        let mut due: Option<Duration> = None;
        let mut moved = Vec::new();
        let mut alerts = Vec::new();
        for standing in self.active.values_mut() {
            if standing.told.is_none() {
                if !self.filter.accepts(&standing.event) {
                    continue;
                }
                let left = self.filter.time_left(&standing.event, wall);
                if !left.is_zero() {
                    due = Some(due.map_or(left, |other| other.min(left)));
                    continue;
                }
            }
            if !everything && !standing.news {
                continue;
            }
            standing.news = false;
            let alert = Alert::new(&standing.event, &self.extra, wall, self.lapse);
            self.ended.remove(&alert.labels);
            if let Some(before) = standing.told.replace(alert.clone())
                && before.labels != alert.labels
            {
                moved.push(before);
            }
            alerts.push(alert);
        }
        for before in moved {
            // Another conflict may stand under the same labels by now.
            if !alerts.iter().any(|alert| alert.labels == before.labels) {
                self.remember(before.ended(wall), now);
            }
        }
        for ended in self.ended.values_mut() {
            if everything || ended.news {
                ended.news = false;
                alerts.push(ended.alert.clone());
            }
        }
        (alerts, due)
    }

    /// How many conflicts stand.
    pub(super) fn active(&self) -> usize {
        self.active.len()
    }

    /// Ends what was told as active, as far as it was told.
    fn end(&mut self, standing: Standing, last: Option<&AnyEvent>, now: Instant, wall: WallTime) {
        let Some(told) = standing.told else { return };
        let alert = match last {
            Some(event) if event.kind() == standing.event.kind() => {
                Alert::new(event, &self.extra, wall, self.lapse)
            }
            _ => told.ended(wall),
        };
        self.remember(alert, now);
        self.news = true;
    }

    fn remember(&mut self, alert: Alert, now: Instant) {
        if self.ended.len() < BOUND {
            let ended = Ended {
                at: now,
                alert,
                news: true,
            };
            self.ended.insert(ended.alert.labels.clone(), ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{Confidence, ConflictKind},
        event::samples,
    };

    fn board(filter: Filter) -> AlertState {
        AlertState::new(
            filter,
            BTreeMap::from([("cluster".to_owned(), "east".to_owned())]),
            Duration::from_secs(240),
        )
    }

    fn wall() -> WallTime {
        WallTime::now()
    }

    fn is_active(alert: &Alert) -> bool {
        alert.ends_at > wall()
    }

    #[test]
    fn only_what_changed_is_told_at_once_and_everything_at_its_turn() {
        let mut board = board(Filter::default());
        let now = Instant::now();
        board.take(&samples::raised("10.0.0.1").into(), now, wall());
        assert!(board.news);
        let (alerts, _) = board.alerts(false, now, wall());
        assert_eq!(alerts.len(), 1);
        assert!(is_active(&alerts[0]));
        assert_eq!(alerts[0].labels["cluster"], "east");
        assert_eq!(alerts[0].labels["alertname"], "IPConflict");
        board.take(&samples::raised("10.0.0.2").into(), now, wall());
        assert_eq!(board.alerts(false, now, wall()).0.len(), 1);
        assert_eq!(board.alerts(false, now, wall()).0.len(), 0);
        assert_eq!(board.alerts(true, now, wall()).0.len(), 2);
    }

    #[test]
    fn an_end_is_told_for_a_quarter_of_an_hour_under_the_same_labels() {
        let mut board = board(Filter::default());
        let now = Instant::now();
        board.take(&samples::raised("10.0.0.1").into(), now, wall());
        let (raised, _) = board.alerts(false, now, wall());
        board.take(&samples::resolved("10.0.0.1").into(), now, wall());
        let (resolved, _) = board.alerts(false, now, wall());
        assert_eq!(raised[0].labels, resolved[0].labels);
        assert!(!is_active(&resolved[0]));
        assert_eq!(board.alerts(true, now, wall()).0.len(), 1);
        let later = now + TOLD_AFTER_END;
        assert_eq!(board.alerts(true, later, wall()).0.len(), 0);
    }

    #[test]
    fn a_kind_that_changes_ends_the_alert_under_the_old_labels() {
        let mut board = board(Filter::default());
        let now = Instant::now();
        board.take(&samples::raised("10.0.0.1").into(), now, wall());
        let (before, _) = board.alerts(false, now, wall());
        let mut event = samples::raised("10.0.0.1");
        event.data.kind = ConflictKind::Host;
        board.take(&event.clone().into(), now, wall());
        let (after, _) = board.alerts(false, now, wall());
        let [new, old] = &after[..] else {
            unreachable!("{after:?}")
        };
        assert_eq!(new.labels["kind"], "host");
        assert!(is_active(new));
        assert_eq!(old.labels, before[0].labels);
        assert!(!is_active(old));
    }

    #[test]
    fn what_is_no_longer_active_after_a_gap_is_ended() {
        let mut board = board(Filter::default());
        let now = Instant::now();
        board.take(&samples::raised("10.0.0.1").into(), now, wall());
        board.alerts(false, now, wall());
        let other = AnyEvent::from(samples::raised("10.0.0.2"));
        board.catch_up(&[other], now, wall());
        let (alerts, _) = board.alerts(true, now, wall());
        let mut states: Vec<_> = alerts
            .iter()
            .map(|a| (a.labels["address"].as_str(), is_active(a)))
            .collect();
        states.sort_unstable();
        assert_eq!(states, [("10.0.0.1", false), ("10.0.0.2", true)]);
    }

    #[test]
    fn what_the_filter_turns_away_is_not_told_and_neither_is_its_end() {
        let mut board = board(Filter {
            confidence: Confidence::Certain,
            min_duration: Duration::from_secs(3600),
            ..Filter::default()
        });
        let now = Instant::now();
        let mut young = samples::raised("10.0.0.1");
        young.data.raised_at = wall();
        board.take(&young.clone().into(), now, wall());
        let mut observed = samples::raised("10.0.0.2");
        observed.data.confidence = Confidence::Observed;
        board.take(&observed.clone().into(), now, wall());
        let (alerts, due) = board.alerts(true, now, wall());
        assert_eq!(alerts, []);
        assert!(
            due.is_some_and(|d| d > Duration::from_secs(3500)),
            "{due:?}"
        );
        board.take(&samples::resolved("10.0.0.1").into(), now, wall());
        assert_eq!(board.alerts(true, now, wall()).0, []);
    }
}
