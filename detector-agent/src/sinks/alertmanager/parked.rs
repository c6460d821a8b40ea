//! Alerts that the Alertmanager rejects. Each waits alone, so that the others of its request are delivered.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use detector_event::WallTime;
use tokio::time::Instant;

use super::alert::Alert;
use crate::sinks::retry::RetryPolicy;

/// Waits until a rejected alert is part of a full send again.
const RETRY: RetryPolicy = RetryPolicy {
    first: Duration::from_secs(900),
    longest: Duration::from_secs(3600),
};

#[derive(Debug)]
struct ParkedAlert {
    alert: Alert,
    is_active: bool,
    until: Instant,
    rejections: u32,
}

impl ParkedAlert {
    fn is_changed(&self, alert: &Alert, wall: WallTime) -> bool {
        self.is_active != (alert.ends_at > wall) || !self.alert.has_content_of(alert)
    }
}

/// The rejected alerts, by their labels; no more than there are alerts to send.
#[derive(Debug, Default)]
pub(super) struct ParkedAlerts(HashMap<BTreeMap<String, String>, ParkedAlert>);

impl ParkedAlerts {
    /// Removes the parked ones from `alerts`, except those that are due or have changed since. With `everything`, `alerts`
    /// are all there are, and others are forgotten.
    pub(super) fn remove_from(
        &mut self,
        alerts: &mut Vec<Alert>,
        everything: bool,
        now: Instant,
        wall: WallTime,
    ) {
        if everything {
            let present: HashSet<_> = alerts.iter().map(|alert| &alert.labels).collect();
            self.0.retain(|labels, _| present.contains(labels));
        }
        alerts.retain(|alert| {
            self.0
                .get(&alert.labels)
                .is_none_or(|parked| parked.until <= now || parked.is_changed(alert, wall))
        });
    }

    /// Parks a rejected alert; `false` if it was rejected before with the same content.
    pub(super) fn park(
        &mut self,
        alert: &Alert,
        now: Instant,
        wall: WallTime,
        random: &mut fastrand::Rng,
    ) -> bool {
        let before = self.0.remove(&alert.labels);
        let before = before.filter(|parked| !parked.is_changed(alert, wall));
        let rejections = before.as_ref().map_or(1, |parked| parked.rejections + 1);
        let parked = ParkedAlert {
            alert: alert.clone(),
            is_active: alert.ends_at > wall,
            until: now + RETRY.wait(rejections, random),
            rejections,
        };
        self.0.insert(alert.labels.clone(), parked);
        before.is_none()
    }

    /// The alerts were accepted.
    pub(super) fn accepted(&mut self, alerts: &[Alert]) {
        for alert in alerts {
            self.0.remove(&alert.labels);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use detector_event::samples;

    use super::*;
    use crate::sinks::alertmanager::alert::AlertSettings;

    const HOUR: Duration = Duration::from_secs(3600);

    fn alert(wall: WallTime) -> Alert {
        let event = samples::raised("10.0.0.1").into();
        let settings = AlertSettings {
            expire_after: Duration::from_secs(240),
            ..AlertSettings::default()
        };
        Alert::new(&event, &settings, wall)
    }

    #[test]
    fn a_rejected_alert_is_left_out_until_it_is_due_or_changes() {
        let (now, wall) = (Instant::now(), WallTime::now());
        let mut random = fastrand::Rng::with_seed(1);
        let mut parked = ParkedAlerts::default();
        assert!(parked.park(&alert(wall), now, wall, &mut random));
        let mut left = |alert: &Alert, now| {
            let mut alerts = vec![alert.clone()];
            parked.remove_from(&mut alerts, false, now, wall);
            alerts.len()
        };
        // Sent again a minute later, it only expires later.
        let again = alert(wall.after(Duration::from_secs(60)));
        assert_eq!(left(&again, now), 0);
        assert_eq!(left(&again.clone().resolved(wall), now), 1);
        assert_eq!(left(&again, now + HOUR), 1);
        assert!(!parked.park(&again, now + HOUR, wall, &mut random));
        parked.accepted(std::slice::from_ref(&again));
        assert_eq!(parked.len(), 0);
    }

    #[test]
    fn an_alert_that_is_gone_is_forgotten() {
        let (now, wall) = (Instant::now(), WallTime::now());
        let mut parked = ParkedAlerts::default();
        parked.park(&alert(wall), now, wall, &mut fastrand::Rng::with_seed(1));
        parked.remove_from(&mut Vec::new(), false, now, wall);
        assert_eq!(parked.len(), 1);
        parked.remove_from(&mut Vec::new(), true, now, wall);
        assert_eq!(parked.len(), 0);
    }
}
