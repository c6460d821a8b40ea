//! Alertmanagers: each gets all active conflicts and anomalies, changed ones at once and all every minute
//! (`resend-every`).
//!
//! Unlike for webhooks there is no queue: what could not be sent is part of the next full send, so nothing is stored. Each
//! Alertmanager has its own task; one that is down does not affect the others. They deduplicate among themselves, so
//! every member of a cluster should be configured, as in Prometheus. While the agent is down its alerts expire after
//! [`EXPIRE_AFTER`] intervals, and the next run sends what is still active.

mod alert;
mod alert_state;
mod parked;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use detector_event::{AnyEvent, WallTime, guidance::StatusPageUrl};
use hyper::header::HeaderMap;
use prometheus_client::metrics::counter::Counter;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};
use tracing::{debug, info, warn};

pub(super) use alert::alert_texts;

use super::{
    EventSink,
    client::{HttpClient, PostFailure},
    retry::RetryPolicy,
};
use crate::{
    health::Part,
    metrics::{Delivery, Metrics},
    process::{clock, log_budget::LogBudget},
    sinks::settings::AlertmanagerSettings,
};
use alert::{Alert, AlertSettings};
use alert_state::AlertState;
use parked::ParkedAlerts;

/// Intervals after which an alert that was not sent again expires, as in Prometheus.
const EXPIRE_AFTER: u32 = 4;
/// Alerts in one request, as in Prometheus.
const CHUNK: usize = 64;
/// Requests of one send that may be rejected; beyond, the Alertmanager counts as failing. One rejected alert among
/// [`CHUNK`] is found with seven.
const REJECTIONS: u32 = 64;
/// The most changes that wait for the task.
const CHANGES: usize = 1024;
/// Waits after failures.
const RETRY: RetryPolicy = RetryPolicy {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(30),
};

#[derive(Debug)]
enum AlertInput {
    Event(AnyEvent),
    Active(Vec<AnyEvent>),
}

/// One Alertmanager as a sink of the event loop.
#[derive(Debug)]
pub struct AlertSink {
    changes: mpsc::Sender<AlertInput>,
    behind: Arc<AtomicBool>,
    dropped: Counter,
}

impl EventSink for AlertSink {
    fn on_event(&mut self, event: &AnyEvent) {
        if self
            .changes
            .try_send(AlertInput::Event(event.clone()))
            .is_err()
        {
            self.dropped.inc();
            self.behind.store(true, Ordering::Release);
        }
    }

    fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Acquire) && self.changes.capacity() > CHANGES / 2
    }

    fn catch_up(&mut self, active: &[AnyEvent]) {
        if self
            .changes
            .try_send(AlertInput::Active(active.to_vec()))
            .is_ok()
        {
            self.behind.store(false, Ordering::Release);
        }
    }
}

/// The task that sends alerts to one Alertmanager.
#[derive(Debug)]
pub struct Alertmanager {
    name: String,
    client: Arc<HttpClient>,
    /// The interval at which everything is sent.
    interval: Duration,
    state: AlertState,
    parked: ParkedAlerts,
    log_budget: LogBudget,
    changes: mpsc::Receiver<AlertInput>,
    metrics: Arc<Metrics>,
    failures: u32,
    random: fastrand::Rng,
    health: Part,
}

impl Alertmanager {
    /// The task and the sink that feeds it; alerts link to the status page.
    pub fn new(
        settings: &AlertmanagerSettings,
        status_page: Option<StatusPageUrl>,
        metrics: &Arc<Metrics>,
        health: Part,
    ) -> (Self, AlertSink) {
        let client = HttpClient::new(settings.endpoint.clone(), "/api/v2/alerts");
        let (sender, changes) = mpsc::channel(CHANGES);
        let labels = Delivery::new(&settings.name, "dropped");
        let sink = AlertSink {
            changes: sender,
            behind: Arc::new(AtomicBool::new(true)),
            dropped: metrics.deliveries.get_or_create(&labels).clone(),
        };
        let task = Self {
            name: settings.name.clone(),
            client: Arc::new(client),
            interval: settings.resend_every,
            state: AlertState::new(
                settings.only.clone(),
                AlertSettings {
                    labels: settings.labels.clone(),
                    status_page,
                    expire_after: settings.resend_every.saturating_mul(EXPIRE_AFTER),
                },
            ),
            parked: ParkedAlerts::default(),
            log_budget: LogBudget::new(),
            changes,
            metrics: Arc::clone(metrics),
            failures: 0,
            random: fastrand::Rng::new(),
            health,
        };
        (task, sink)
    }

    /// Its HTTP client.
    pub(super) fn client(&self) -> Arc<HttpClient> {
        Arc::clone(&self.client)
    }

    /// Sends until `stop` becomes true, then the last changes. The caller sets the deadline.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        self.health.works("nothing to send yet");
        let mut next_full = Instant::now() + self.interval;
        loop {
            tokio::select! {
                change = self.changes.recv() => match change {
                    Some(change) => self.take(change),
                    None => return,
                },
                () = sleep_until(next_full) => {}
                _ = stop.changed() => {
                    self.take_all();
                    if self.state.has_changes {
                        self.send(false).await;
                    }
                    return;
                }
            }
            self.take_all();
            let now = Instant::now();
            // After a failure it is unknown what was received: the next full send repeats everything.
            if now >= next_full || (self.state.has_changes && self.failures == 0) {
                let next = self.send(now >= next_full || self.failures > 0).await;
                let now = Instant::now();
                if self.failures > 0 {
                    next_full = now + RETRY.wait(self.failures, &mut self.random);
                } else {
                    let full = if now >= next_full {
                        now + self.interval
                    } else {
                        next_full
                    };
                    next_full = next.map_or(full, |due| full.min(now + due));
                }
            }
        }
    }

    fn take_all(&mut self) {
        while let Ok(change) = self.changes.try_recv() {
            self.take(change);
        }
    }

    fn take(&mut self, change: AlertInput) {
        let (now, wall) = (Instant::now(), WallTime::now());
        match change {
            AlertInput::Event(event) => self.state.take(&event, now, wall),
            AlertInput::Active(events) => self.state.catch_up(&events, now, wall),
        }
    }

    /// Posts what changed, or everything; returns when a delayed conflict is due.
    async fn send(&mut self, everything: bool) -> Option<Duration> {
        let (now, wall) = (Instant::now(), WallTime::now());
        let (mut alerts, due) = self.state.alerts(everything, now, wall);
        self.parked.remove_from(&mut alerts, everything, now, wall);
        let mut parts: Vec<_> = alerts.chunks(CHUNK).rev().collect();
        let mut rejections = 0;
        while let Some(part) = parts.pop() {
            match self.post(part).await {
                Ok(()) => {
                    self.parked.accepted(part);
                    self.count("delivered", part.len());
                }
                Err(PostFailure::Rejected(why)) if rejections < REJECTIONS => {
                    rejections += 1;
                    match part {
                        [alert] => self.rejected(alert, &why),
                        _ => {
                            let (first, second) = part.split_at(part.len() / 2);
                            parts.extend([second, first]);
                        }
                    }
                }
                Err(PostFailure::Rejected(why) | PostFailure::Failed(why)) => {
                    let unsent = part.len() + parts.iter().map(|part| part.len()).sum::<usize>();
                    self.failed(unsent, &why);
                    return due;
                }
            }
        }
        if self.failures > 0 {
            info!(sink = self.name, "Alertmanager accepts alerts again");
        }
        self.failures = 0;
        let parked = self.parked.len();
        self.metrics.set_queue(&self.name, 0, parked);
        if parked > 0 {
            let alerts = if parked == 1 { "alert" } else { "alerts" };
            self.health.degraded(format!(
                "{parked} {alerts} not accepted and tried again later; others are sent"
            ));
        } else if !alerts.is_empty() {
            self.health.works("accepts alerts");
        }
        due
    }

    fn failed(&mut self, unsent: usize, why: &str) {
        if self.failures == 0 {
            warn!(sink = self.name, "cannot deliver alerts, retrying: {why}");
        } else {
            debug!(sink = self.name, "cannot deliver alerts: {why}");
        }
        self.health.failed(format!("accepts no alerts: {why}"));
        self.failures = self.failures.saturating_add(1);
        self.count("failed", unsent);
        self.metrics
            .set_queue(&self.name, unsent, self.parked.len());
    }

    fn rejected(&mut self, alert: &Alert, why: &str) {
        let (now, wall) = (Instant::now(), WallTime::now());
        let is_new = self.parked.park(alert, now, wall, &mut self.random);
        let address = alert.labels.get("address").map(String::as_str);
        if is_new && self.log_budget.take(clock::now()) {
            warn!(
                sink = self.name,
                address,
                "alert not accepted: {why}; it is tried again from time to time, and others are sent; check the labels configured for this Alertmanager"
            );
        } else {
            debug!(sink = self.name, address, "alert rejected: {why}");
        }
        self.count("rejected", 1);
    }

    async fn post(&self, alerts: &[Alert]) -> Result<(), PostFailure> {
        let body = serde_json::to_vec(alerts).map_err(|e| PostFailure::Rejected(e.to_string()))?;
        let response = self
            .client
            .post("application/json", HeaderMap::new(), Bytes::from(body))
            .await
            .map_err(|e| PostFailure::Failed(e.to_string()))?;
        let why = format!("answered {}", response.status);
        if response.status.is_success() {
            Ok(())
        } else if response.is_rejection() {
            Err(PostFailure::Rejected(why))
        } else {
            Err(PostFailure::Failed(why))
        }
    }

    fn count(&self, outcome: &'static str, alerts: usize) {
        self.metrics
            .count_deliveries(&self.name, outcome, alerts as u64);
    }
}
