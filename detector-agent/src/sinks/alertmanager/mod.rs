//! Alertmanagers: each gets all active conflicts and anomalies, changed ones at once and all every minute
//! (`resend-every`).
//!
//! Unlike for webhooks there is no queue: what could not be sent is part of the next full send, so nothing is stored. Each
//! Alertmanager has its own task; one that is down does not affect the others. They deduplicate among themselves, so
//! every member of a cluster should be configured, as in Prometheus. While the agent is down its alerts expire after
//! [`EXPIRE_AFTER`] intervals, and the next run sends what is still active.

mod alert;
mod alert_state;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use hyper::header::HeaderMap;
use prometheus_client::metrics::counter::Counter;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};
use tracing::{debug, info, warn};

use super::{
    EventSink,
    client::{HttpClient, PostError},
    retry::RetryPolicy,
};
use crate::{
    clock::WallTime,
    event::AnyEvent,
    metrics::{Delivery, Metrics, Sink},
};
use crate::{health::Part, sinks::settings::AlertmanagerSettings};
use alert::Alert;
use alert_state::AlertState;

/// Intervals after which an alert that was not sent again expires, as in Prometheus.
const EXPIRE_AFTER: u32 = 4;
/// Alerts in one request, as in Prometheus.
const CHUNK: usize = 64;
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
    fn offer(&mut self, event: &AnyEvent) {
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
    client: HttpClient,
    /// The interval at which everything is sent.
    interval: Duration,
    state: AlertState,
    changes: mpsc::Receiver<AlertInput>,
    metrics: Arc<Metrics>,
    failures: u32,
    random: fastrand::Rng,
    health: Part,
}

impl Alertmanager {
    /// The task and the sink that feeds it.
    ///
    /// # Errors
    /// If its files cannot be used.
    pub fn new(
        settings: &AlertmanagerSettings,
        metrics: &Arc<Metrics>,
        health: Part,
    ) -> Result<(Self, AlertSink), PostError> {
        let client = HttpClient::new(settings.endpoint.clone(), "/api/v2/alerts");
        client.check()?;
        let (sender, changes) = mpsc::channel(CHANGES);
        let labels = Delivery {
            sink: settings.name.clone(),
            outcome: "dropped",
        };
        let sink = AlertSink {
            changes: sender,
            behind: Arc::new(AtomicBool::new(true)),
            dropped: metrics.deliveries.get_or_create(&labels).clone(),
        };
        let task = Self {
            name: settings.name.clone(),
            client,
            interval: settings.resend_every,
            state: AlertState::new(
                settings.only.clone(),
                settings.labels.clone(),
                settings.resend_every.saturating_mul(EXPIRE_AFTER),
            ),
            changes,
            metrics: Arc::clone(metrics),
            failures: 0,
            random: fastrand::Rng::new(),
            health,
        };
        task.health.works("nothing to send yet");
        Ok((task, sink))
    }

    /// Sends until `stop` becomes true, then the last changes. The caller sets the deadline.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
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
        let labels = Sink {
            sink: self.name.clone(),
        };
        let active = i64::try_from(self.state.active()).unwrap_or(i64::MAX);
        self.metrics.pending.get_or_create(&labels).set(active);
    }

    /// Posts what changed, or everything; returns when a delayed conflict is due.
    async fn send(&mut self, everything: bool) -> Option<Duration> {
        let (alerts, due) = self
            .state
            .alerts(everything, Instant::now(), WallTime::now());
        for chunk in alerts.chunks(CHUNK) {
            match self.post(chunk).await {
                Ok(()) => self.count("delivered", chunk.len()),
                Err(why) => {
                    if self.failures == 0 {
                        warn!(sink = self.name, "cannot deliver alerts, retrying: {why}");
                    } else {
                        debug!(sink = self.name, "cannot deliver alerts: {why}");
                    }
                    self.health.failed(format!("accepts no alerts: {why}"));
                    self.failures = self.failures.saturating_add(1);
                    self.count("failed", alerts.len());
                    return due;
                }
            }
        }
        if self.failures > 0 {
            info!(sink = self.name, "Alertmanager accepts alerts again");
        }
        self.failures = 0;
        if !alerts.is_empty() {
            self.health.works("accepts alerts");
        }
        due
    }

    async fn post(&self, alerts: &[Alert]) -> Result<(), String> {
        let body = serde_json::to_vec(alerts).map_err(|e| e.to_string())?;
        let response = self
            .client
            .post("application/json", HeaderMap::new(), Bytes::from(body))
            .await
            .map_err(|e| e.to_string())?;
        if response.status.is_success() {
            Ok(())
        } else {
            Err(format!("answered {}", response.status))
        }
    }

    fn count(&self, outcome: &'static str, alerts: usize) {
        self.metrics
            .count_deliveries(&self.name, outcome, alerts as u64);
    }
}
