//! Kubernetes Events about conflicts and anomalies, shown by `kubectl describe` and by event exporters.
//!
//! A conflict has an Event on each of its pods, an anomaly one on its pod, and what has no known pod has one on the Node;
//! a second one follows at the end. An Event waits up to two seconds for the names of other pods, and is corrected if
//! they become known later. A repetition within 6 minutes increments the `count` of the existing Event.
//! An Event's name follows from what it is about, so after a restart the server refuses to create it again.
//!
//! Of an address sweep, the pod that sweeps gets an Event, and the other pods of its conflicts get none.
//!
//! Invariants: offering an event never waits; the queue, what waits for names or for the server, the remembered Events and the rate
//! per object are bounded; what is not posted is counted.

mod ledger;
mod notices;
mod pending;
mod poster;
mod spam_filter;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use detector_event::{AnyEvent, counted};
use tokio::{sync::mpsc, time::Instant};
use tracing::{info, warn};

use self::{
    ledger::{Ledger, Request},
    pending::{Pending, Waiting},
    poster::EventPoster,
    spam_filter::SpamFilter,
};
use crate::{
    health::Part,
    kube_client::KubeClient,
    metrics::Metrics,
    process::{clock, log_budget::LogBudget, timer::sleep_until_some},
    sinks::{EventSink, client::PostFailure},
};

/// The sink's name in metrics.
const SINK: &str = "kubernetes";
/// The most events that wait for the server.
const QUEUE: usize = 1024;

/// The sink for Kubernetes Events.
#[derive(Debug)]
pub struct KubeEvents {
    queue: mpsc::Sender<AnyEvent>,
    metrics: Arc<Metrics>,
}

impl KubeEvents {
    /// The sink, and the task that posts its events. `instance` identifies this agent (the node's name).
    pub fn new(
        kube: KubeClient,
        instance: String,
        metrics: Arc<Metrics>,
        health: Part,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (queue, queued) = mpsc::channel(QUEUE);
        let sink = Self {
            queue,
            metrics: Arc::clone(&metrics),
        };
        health.works("nothing to post yet");
        let posting = Posting {
            poster: EventPoster::new(kube, instance),
            ledger: Ledger::default(),
            spam_filter: SpamFilter::default(),
            pending: Pending::default(),
            is_failing: false,
            log_budget: LogBudget::new(),
            metrics,
            health,
        };
        (sink, posting.run(queued))
    }
}

impl EventSink for KubeEvents {
    fn offer(&mut self, event: &AnyEvent) {
        if self.queue.try_send(event.clone()).is_err() {
            self.metrics.count_deliveries(SINK, "dropped", 1);
        }
    }

    fn show(&mut self, event: &AnyEvent) {
        self.offer(event);
    }
}

/// The task that posts.
struct Posting {
    poster: EventPoster,
    ledger: Ledger,
    spam_filter: SpamFilter,
    pending: Pending,
    is_failing: bool,
    log_budget: LogBudget,
    metrics: Arc<Metrics>,
    health: Part,
}

impl Posting {
    async fn run(mut self, mut queued: mpsc::Receiver<AnyEvent>) {
        loop {
            let requests = tokio::select! {
                event = queued.recv() => match event {
                    Some(event) => self.ledger.apply(&event, Instant::now()),
                    None => return,
                },
                () = sleep_until_some(self.ledger.next_due()) => Vec::new(),
                () = sleep_until_some(self.pending.next_due(Instant::now())) => Vec::new(),
            };
            self.accept(requests);
            // A queue that is never empty delays nothing that is due.
            let due = self.ledger.take_due(Instant::now());
            self.accept(due);
            if let Some(next) = self.pending.take_due(Instant::now()) {
                self.post(next).await;
            }
        }
    }

    /// Keeps these until they are posted; the end of something whose beginning is not is left out.
    fn accept(&mut self, requests: Vec<Request>) {
        let mut left_out = Vec::new();
        for request in requests {
            if left_out.contains(&request.key()) {
                continue;
            }
            let rate_key = request.notice.rate_key();
            let outcome = if !self.spam_filter.take_token(&rate_key, Instant::now()) {
                "limited"
            } else if !self.pending.push(request.clone()) {
                "dropped"
            } else {
                self.ledger.posted(&request, Instant::now());
                continue;
            };
            self.count(outcome);
            self.ledger.held_back(&request);
            left_out.push(request.key());
        }
    }

    async fn post(&mut self, next: Waiting) {
        match self.poster.post(&next.request).await {
            Ok(()) => {
                self.pending.answered();
                self.count("delivered");
                self.health.works("posts events on pods and the node");
                if std::mem::take(&mut self.is_failing) {
                    info!("Kubernetes events are posted again");
                }
            }
            Err(PostFailure::Rejected(why)) => {
                self.pending.answered();
                self.count("rejected");
                self.give_up(&next.request, &why);
            }
            Err(PostFailure::Failed(why)) => {
                self.count("failed");
                if !std::mem::replace(&mut self.is_failing, true) {
                    warn!("cannot post Kubernetes events, trying again: {why}");
                }
                if let Some(request) = self.pending.failed(next, Instant::now()) {
                    self.count("given_up");
                    self.give_up(&request, &why);
                }
                let waiting = counted(self.pending.len(), "event waits", "events wait");
                self.health.failed(format!("{why}; {waiting}"));
            }
        }
    }

    /// This one will not be posted, nor what follows on it.
    fn give_up(&mut self, request: &Request, why: &str) {
        self.ledger.held_back(request);
        let followers = self.pending.remove_followers(request);
        self.metrics
            .count_deliveries(SINK, "dropped", followers as u64);
        if self.log_budget.take(clock::now()) {
            let object = request.notice.object();
            warn!(
                object,
                "Kubernetes event not accepted, others are posted: {why}"
            );
        }
        self.health
            .degraded(format!("an event was not accepted: {why}"));
    }

    fn count(&self, outcome: &'static str) {
        self.metrics.count_deliveries(SINK, outcome, 1);
    }
}
