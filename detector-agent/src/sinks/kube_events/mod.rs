//! Kubernetes Events about conflicts and anomalies, shown by `kubectl describe` and by event exporters.
//!
//! A conflict has an Event on each of its pods, an anomaly one on its pod, and what has no known pod has one on the Node;
//! a second one follows at the end. An Event waits up to two seconds for the names of other pods and for the cause. A repetition within 6 minutes is
//! counted in the existing Event. After a restart nothing is posted about what an earlier agent has reported, except its end.
//!
//! Of an address sweep, the pod that sweeps gets an Event, and the other pods of its conflicts get none.
//!
//! Each Event is posted by a task of its own, and again after a delay until the server has answered, for at most [`GIVE_UP_AFTER`]. New
//! Events and those that failed have different turns, so one that fails, or hangs, is not in the way of others.
//!
//! Invariants: offering an event never waits; Events on one object about one subject stay in order; the queue, what waits for names or
//! for the server, the remembered Events and the rate per object are bounded; what is not posted is counted.

mod ledger;
mod object_events;
mod poster;
mod spam_filter;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use detector_event::{AnyEvent, counted};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{Instant, sleep},
};
use tracing::{info, warn};

use self::{
    ledger::{Key, Ledger, Request},
    poster::EventPoster,
    spam_filter::SpamFilter,
};
use crate::{
    health::Part,
    kube_client::KubeClient,
    metrics::Metrics,
    process::{clock, log_budget::LogBudget, timer::sleep_until_some},
    sinks::{EventSink, client::PostFailure, retry::RetryPolicy},
};

/// The sink's name in metrics.
const SINK: &str = "kubernetes";
/// The most events that wait to be read by the task, and the most Events that wait for the server.
const QUEUE: usize = 1024;
/// How long an Event is tried: as long as a server keeps one.
const GIVE_UP_AFTER: Duration = Duration::from_secs(3600);
/// The delays between attempts.
const DELAYS: RetryPolicy = RetryPolicy {
    first: Duration::from_millis(250),
    longest: Duration::from_secs(10),
};
/// How many Events that were not tried are posted at a time: some may hang.
const FIRST_TURNS: usize = 16;
/// The same of those that failed.
const RETRY_TURNS: usize = 4;
/// How long one that failed again keeps its turn, which bounds the attempts during an outage.
const PAUSE: Duration = Duration::from_secs(1);

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
            lanes: HashMap::new(),
            attempts: JoinSet::new(),
            first_turns: Arc::new(Semaphore::new(FIRST_TURNS)),
            retry_turns: Arc::new(Semaphore::new(RETRY_TURNS)),
            random: fastrand::Rng::new(),
            is_failing: false,
            log_budget: LogBudget::new(),
            metrics,
            health,
        };
        (sink, posting.run(queued))
    }
}

impl EventSink for KubeEvents {
    fn on_event(&mut self, event: &AnyEvent) {
        if self.queue.try_send(event.clone()).is_err() {
            self.metrics.count_deliveries(SINK, "dropped", 1);
        }
    }

    fn on_current_state(&mut self, event: &AnyEvent) {
        self.on_event(event);
    }
}

/// The task that posts.
struct Posting {
    poster: EventPoster,
    ledger: Ledger,
    spam_filter: SpamFilter,
    /// What waits behind an Event on the same object about the same subject that is being posted.
    lanes: HashMap<Key, VecDeque<Request>>,
    /// The attempts to post, one for each lane.
    attempts: JoinSet<PostAttempt>,
    first_turns: Arc<Semaphore>,
    retry_turns: Arc<Semaphore>,
    random: fastrand::Rng,
    is_failing: bool,
    log_budget: LogBudget,
    metrics: Arc<Metrics>,
    health: Part,
}

/// A request, and how the last attempt to post it ended.
struct PostAttempt {
    request: Request,
    began_at: Instant,
    failures: u32,
    result: Result<(), PostFailure>,
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
                Some(Ok(attempt)) = self.attempts.join_next() => {
                    self.finish(attempt);
                    Vec::new()
                }
            };
            self.accept(requests);
            // A queue that is never empty delays nothing that is due.
            let due = self.ledger.take_due(Instant::now());
            self.accept(due);
        }
    }

    /// Posts these; the end of something whose beginning is not posted is left out.
    fn accept(&mut self, requests: Vec<Request>) {
        let mut left_out = Vec::new();
        for request in requests {
            let key = request.key();
            if left_out.contains(&key) {
                continue;
            }
            let rate_key = request.object_event.rate_key();
            let outcome = if !self.spam_filter.take_token(&rate_key, Instant::now()) {
                "limited"
            } else if self.waiting() >= QUEUE {
                "dropped"
            } else {
                match self.lanes.entry(key) {
                    Entry::Occupied(mut lane) => lane.get_mut().push_back(request),
                    Entry::Vacant(lane) => {
                        lane.insert(VecDeque::new());
                        self.attempt(request, Instant::now(), 0);
                    }
                }
                continue;
            };
            self.count(outcome);
            self.ledger.held_back(&key);
            left_out.push(key);
        }
    }

    /// How many Events wait for the server.
    fn waiting(&self) -> usize {
        self.lanes.values().map(|behind| behind.len() + 1).sum()
    }

    fn attempt(&mut self, request: Request, began_at: Instant, failures: u32) {
        let poster = self.poster.clone();
        let is_retry = failures > 0;
        let turns = if is_retry {
            Arc::clone(&self.retry_turns)
        } else {
            Arc::clone(&self.first_turns)
        };
        let delay = is_retry.then(|| DELAYS.wait(failures, &mut self.random));
        self.attempts.spawn(async move {
            sleep(delay.unwrap_or_default()).await;
            // It is never closed.
            let _turn = turns.acquire().await;
            let result = poster.post(&request.object_event).await;
            if is_retry && matches!(result, Err(PostFailure::Failed(_))) {
                sleep(PAUSE).await;
            }
            PostAttempt {
                request,
                began_at,
                failures,
                result,
            }
        });
    }

    fn finish(&mut self, attempt: PostAttempt) {
        let PostAttempt {
            request,
            began_at,
            failures,
            result,
        } = attempt;
        match result {
            Ok(()) => {
                self.count("delivered");
                self.health.works("posts events on pods and the node");
                if std::mem::take(&mut self.is_failing) {
                    info!("Kubernetes events are posted again");
                }
                self.post_next(&request.key());
            }
            Err(PostFailure::Rejected(why)) => {
                self.count("rejected");
                self.give_up(&request, &why);
            }
            Err(PostFailure::Failed(why)) => {
                self.count("failed");
                if !self.is_failing && self.log_budget.take(clock::now()) {
                    self.is_failing = true;
                    warn!("cannot post Kubernetes events, trying again: {why}");
                }
                if began_at.elapsed() < GIVE_UP_AFTER {
                    self.attempt(request, began_at, failures.saturating_add(1));
                    let waiting = counted(self.waiting(), "event waits", "events wait");
                    self.health.failed(format!("{why}; {waiting}"));
                } else {
                    self.count("given_up");
                    self.give_up(&request, &why);
                }
            }
        }
    }

    /// Posts what waited behind an Event.
    fn post_next(&mut self, key: &Key) {
        let behind = self.lanes.get_mut(key);
        match behind.and_then(VecDeque::pop_front) {
            Some(next) => self.attempt(next, Instant::now(), 0),
            None => drop(self.lanes.remove(key)),
        }
    }

    /// This one will not be posted, nor what follows on it.
    fn give_up(&mut self, request: &Request, why: &str) {
        let key = request.key();
        self.ledger.held_back(&key);
        let followers = self.lanes.remove(&key).unwrap_or_default();
        self.metrics
            .count_deliveries(SINK, "dropped", followers.len() as u64);
        if self.log_budget.take(clock::now()) {
            warn!(
                object = key.1,
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
