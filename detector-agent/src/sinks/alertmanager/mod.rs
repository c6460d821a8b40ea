//! Alertmanagers: each is told of all active conflicts, at once when one changes and every minute (`resend-every`) besides.
//!
//! Unlike webhooks this is a state, not a queue: what could not be told is told at the next turn, so nothing is stored.
//! Each Alertmanager has a task of its own; one that is down costs the others nothing. They deduplicate among themselves,
//! so every one of a cluster is given, as for Prometheus. While the agent is away its alerts lapse after
//! [`LAPSE`] times that, and the next agent raises what still stands.

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
    client::{HttpClient, RequestError},
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

/// An alert that was not told again for so many turns is over, as with Prometheus.
const LAPSE: u32 = 4;
/// Alerts of one request, as Prometheus sends them.
const CHUNK: usize = 64;
/// Changes that wait to be taken up.
const CHANGES: usize = 1024;
/// Waits after failures.
const RETRY: RetryPolicy = RetryPolicy {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(30),
};

#[derive(Debug)]
enum Change {
    Event(AnyEvent),
    Active(Vec<AnyEvent>),
}

/// The detection thread's side of one Alertmanager.
#[derive(Debug)]
pub struct AlertSink {
    changes: mpsc::Sender<Change>,
    behind: Arc<AtomicBool>,
    dropped: Counter,
}

impl EventSink for AlertSink {
    fn offer(&mut self, event: &AnyEvent) {
        if self.changes.try_send(Change::Event(event.clone())).is_err() {
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
            .try_send(Change::Active(active.to_vec()))
            .is_ok()
        {
            self.behind.store(false, Ordering::Release);
        }
    }
}

/// Tells one Alertmanager.
#[derive(Debug)]
pub struct Alertmanager {
    name: String,
    client: HttpClient,
    /// How often everything is told.
    every: Duration,
    board: AlertState,
    changes: mpsc::Receiver<Change>,
    metrics: Arc<Metrics>,
    failures: u32,
    random: fastrand::Rng,
    health: Part,
}

impl Alertmanager {
    /// The task's state and the sink that feeds it; `health` shows how the Alertmanager is.
    ///
    /// # Errors
    /// Where its files cannot be used.
    pub fn new(
        settings: &AlertmanagerSettings,
        metrics: &Arc<Metrics>,
        health: Part,
    ) -> Result<(Self, AlertSink), RequestError> {
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
            every: settings.resend_every,
            board: AlertState::new(
                settings.only.clone(),
                settings.labels.clone(),
                settings.resend_every.saturating_mul(LAPSE),
            ),
            changes,
            metrics: Arc::clone(metrics),
            failures: 0,
            random: fastrand::Rng::new(),
            health,
        };
        task.health.works("nothing was to be told yet");
        Ok((task, sink))
    }

    /// Tells until `stop` says true, then what is new once more. The caller sets the deadline.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut turn = Instant::now() + self.every;
        loop {
            tokio::select! {
                change = self.changes.recv() => match change {
                    Some(change) => self.take(change),
                    None => return,
                },
                () = sleep_until(turn) => {}
                _ = stop.changed() => {
                    self.take_all();
                    if self.board.news {
                        self.tell(false).await;
                    }
                    return;
                }
            }
            self.take_all();
            let now = Instant::now();
            // After a failure nobody knows what has been told: it waits for its turn, which then tells everything.
            if now >= turn || (self.board.news && self.failures == 0) {
                let next = self.tell(now >= turn || self.failures > 0).await;
                let now = Instant::now();
                if self.failures > 0 {
                    turn = now + RETRY.wait(self.failures, &mut self.random);
                } else {
                    let full = if now >= turn { now + self.every } else { turn };
                    turn = next.map_or(full, |due| full.min(now + due));
                }
            }
        }
    }

    fn take_all(&mut self) {
        while let Ok(change) = self.changes.try_recv() {
            self.take(change);
        }
    }

    fn take(&mut self, change: Change) {
        let (now, wall) = (Instant::now(), WallTime::now());
        match change {
            Change::Event(event) => self.board.take(&event, now, wall),
            Change::Active(events) => self.board.catch_up(&events, now, wall),
        }
        let labels = Sink {
            sink: self.name.clone(),
        };
        let active = i64::try_from(self.board.active()).unwrap_or(i64::MAX);
        self.metrics.pending.get_or_create(&labels).set(active);
    }

    /// Posts what is to be told; gives when more will be.
    async fn tell(&mut self, everything: bool) -> Option<Duration> {
        let (alerts, due) = self
            .board
            .alerts(everything, Instant::now(), WallTime::now());
        for chunk in alerts.chunks(CHUNK) {
            match self.post(chunk).await {
                Ok(()) => self.count("delivered", chunk.len()),
                Err(why) => {
                    if self.failures == 0 {
                        warn!(
                            sink = self.name,
                            "alerts could not be delivered and are tried again: {why}"
                        );
                    } else {
                        debug!(sink = self.name, "not delivered: {why}");
                    }
                    self.health.failed(format!("takes no alerts: {why}"));
                    self.failures = self.failures.saturating_add(1);
                    self.count("failed", alerts.len());
                    return due;
                }
            }
        }
        if self.failures > 0 {
            info!(sink = self.name, "the Alertmanager takes alerts again");
        }
        self.failures = 0;
        if !alerts.is_empty() {
            self.health.works("takes alerts");
        }
        due
    }

    async fn post(&self, alerts: &[Alert]) -> Result<(), String> {
        let body = serde_json::to_vec(alerts).map_err(|e| e.to_string())?;
        let answer = self
            .client
            .post("application/json", HeaderMap::new(), Bytes::from(body))
            .await
            .map_err(|e| e.to_string())?;
        if answer.status.is_success() {
            Ok(())
        } else {
            Err(format!("it answered {}", answer.status))
        }
    }

    fn count(&self, outcome: &'static str, alerts: usize) {
        self.metrics
            .count_deliveries(&self.name, outcome, alerts as u64);
    }
}
