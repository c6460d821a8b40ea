//! Decides what is sent to one receiver when.
//!
//! Invariants: at most [`AT_ONCE`] requests at a time, and one at a time to a receiver that has failed [`PATIENCE`] times
//! without a success between; a failed event holds back its own conflict alone, until its wait is over; `Retry-After`
//! holds back everything; after 410 nothing is sent until the agent starts again, and what waits stays stored within the
//! outbox's bound. An event is given up when an attempt fails and it is older than the settings say: one that waited
//! because the agent was away is tried at least once more.

use std::{collections::HashMap, future::Future, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::{Id, JoinSet, spawn_blocking},
    time::{Instant, sleep_until},
};
use tracing::{debug, error, info, warn};

use crate::{
    event::AnyEvent,
    health::Part,
    sinks::{
        outbox::{
            SinkQueue,
            queue::{Idle, SendJob},
        },
        retry::Backoff,
        settings::RetrySettings,
    },
};

/// Requests at a time.
const AT_ONCE: usize = 8;
/// Failures without a success between, after which the receiver is taken to be down.
const PATIENCE: u32 = 3;

/// What came of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The receiver has it.
    Delivered,
    /// The receiver wants nothing, ever (410).
    Gone,
    /// It may have it or not.
    Failed {
        /// The wait it asks for before anything else is sent.
        wait: Option<Duration>,
        /// What happened, without secrets.
        why: String,
    },
}

/// Attempts to deliver an event.
pub trait DeliveryTarget: Send + Sync + 'static {
    /// Tries once.
    fn attempt(&self, event: AnyEvent) -> impl Future<Output = DeliveryOutcome> + Send;
}

/// How a request ended.
enum RequestOutcome {
    DeliveryOutcome(DeliveryOutcome),
    /// The event's text could not be read from the store.
    Unread(String),
    /// The store does not know the event.
    Unknown,
}

/// Sends one sink's events.
#[derive(Debug)]
pub struct Sender<A> {
    sink_queue: Arc<SinkQueue>,
    target: Arc<A>,
    give_up_after: Duration,
    backoff: Backoff,
    random: fastrand::Rng,
    /// Without a success between.
    failures: u32,
    pauses: u32,
    /// An event was given up, and none was delivered since.
    giving_up: bool,
    paused_until: Option<Instant>,
    /// As the receiver asked.
    asked_until: Option<Instant>,
    gone: bool,
    running: HashMap<Id, SendJob>,
    health: Part,
}

impl<A: DeliveryTarget> Sender<A> {
    /// A sender from `sink_queue` to `target`. `random` decides the jitter; `health` shows how the receiver is.
    pub fn new(
        sink_queue: Arc<SinkQueue>,
        target: Arc<A>,
        settings: RetrySettings,
        random: fastrand::Rng,
        health: Part,
    ) -> Self {
        health.works("nothing was to be sent yet");
        Self {
            sink_queue,
            target,
            give_up_after: settings.give_up_after,
            backoff: Backoff {
                first: settings.first,
                longest: settings.longest,
            },
            random,
            failures: 0,
            pauses: 0,
            giving_up: false,
            paused_until: None,
            asked_until: None,
            gone: false,
            running: HashMap::new(),
            health,
        }
    }

    /// Sends until `stop` says true, and then what may still be sent at once. The caller sets the deadline.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let sink_queue = Arc::clone(&self.sink_queue);
        let mut requests = JoinSet::new();
        let mut stopping = *stop.borrow();
        loop {
            let wake = self.begin(&mut requests);
            if stopping && requests.is_empty() && (self.gone || !sink_queue.has_successors()) {
                return;
            }
            tokio::select! {
                Some(ended) = requests.join_next_with_id() => match ended {
                    Ok((id, ended)) => self.end(id, ended),
                    Err(error) => {
                        error!(sink = sink_queue.name(), "an attempt panicked; please report this as a bug: {error}");
                        self.end(error.id(), RequestOutcome::Unread("the attempt panicked".to_owned()));
                    }
                },
                () = sink_queue.changed() => {}
                () = until(wake) => {}
                changed = stop.changed(), if !stopping => {
                    // Where nobody can say stop any more, it is time to.
                    stopping = changed.is_err() || *stop.borrow();
                }
            }
        }
    }

    /// Begins what may be sent now; gives when there is more.
    fn begin(&mut self, requests: &mut JoinSet<RequestOutcome>) -> Option<Instant> {
        if self.gone {
            return None;
        }
        loop {
            let at_once = if self.failures < PATIENCE { AT_ONCE } else { 1 };
            if requests.len() >= at_once {
                return None;
            }
            let now = Instant::now();
            if let Some(until) = self.paused_until.max(self.asked_until) {
                if until > now {
                    return Some(until);
                }
                self.paused_until = None;
                self.asked_until = None;
            }
            match self.sink_queue.take(now) {
                Ok(job) => {
                    let (sink_queue, target) =
                        (Arc::clone(&self.sink_queue), Arc::clone(&self.target));
                    let (seq, event) = (job.seq, job.event.clone());
                    let request = requests.spawn(send(sink_queue, target, seq, event));
                    self.running.insert(request.id(), job);
                }
                Err(Idle::Until(at)) => return Some(at),
                Err(Idle::Empty) => return None,
            }
        }
    }

    fn end(&mut self, id: Id, ended: RequestOutcome) {
        let Some(job) = self.running.remove(&id) else {
            return;
        };
        let sink = self.sink_queue.name();
        match ended {
            RequestOutcome::DeliveryOutcome(DeliveryOutcome::Delivered) => {
                if self.failures >= PATIENCE {
                    info!(sink, "the receiver takes events again");
                }
                self.failures = 0;
                self.giving_up = false;
                self.pauses = 0;
                self.paused_until = None;
                self.health.works("takes events");
                self.sink_queue.delivered(job.seq);
            }
            RequestOutcome::DeliveryOutcome(DeliveryOutcome::Gone) => {
                if !self.gone {
                    warn!(
                        sink,
                        "the receiver answered 410 Gone: nothing more is sent to it until the agent starts again. Take it out of the configuration, or mend it and restart; what waits for it stays stored"
                    );
                    self.sink_queue.count("disabled", 1);
                }
                self.gone = true;
                self.health
                    .failed("answered 410 Gone: nothing is sent until the agent starts again");
                self.sink_queue.put_back(job.seq);
            }
            RequestOutcome::DeliveryOutcome(DeliveryOutcome::Failed { wait, why }) => {
                self.failed(&job, wait, &why)
            }
            RequestOutcome::Unread(why) => self.failed(&job, None, &why),
            RequestOutcome::Unknown => self.sink_queue.given_up(job.seq, "unreadable"),
        }
    }

    fn failed(&mut self, job: &SendJob, wait: Option<Duration>, why: &str) {
        let sink = self.sink_queue.name();
        if self.failures == 0 {
            warn!(
                sink,
                "an event could not be delivered and is tried again: {why}"
            );
        } else {
            debug!(sink, failures = self.failures, "not delivered: {why}");
        }
        let now = Instant::now();
        self.failures = self.failures.saturating_add(1);
        if self.failures < PATIENCE {
            self.health
                .degraded(format!("an event is tried again: {why}"));
        } else {
            self.health.failed(format!("takes no events: {why}"));
        }
        let asked = wait.map(|wait| now + wait);
        let own = now
            + self
                .backoff
                .wait(job.failures.saturating_add(1), &mut self.random);
        if self.failures >= PATIENCE && self.paused_until.is_none() {
            self.pauses = self.pauses.saturating_add(1);
            self.paused_until = Some(now + self.backoff.wait(self.pauses, &mut self.random));
        }
        self.asked_until = self.asked_until.max(asked);
        if job.age >= self.give_up_after {
            let age = humantime::format_duration(Duration::from_secs(job.age.as_secs()));
            // Of a receiver that was away for long, thousands may follow.
            if std::mem::replace(&mut self.giving_up, true) {
                debug!(sink, "gave up another event after {age}");
            } else {
                warn!(
                    sink,
                    "gave up an event that could not be delivered for {age}, and gives up what grows as old: {why}"
                );
            }
            self.sink_queue.given_up(job.seq, "given_up");
        } else {
            self.sink_queue
                .failed(job.seq, asked.map_or(own, |at| at.max(own)));
        }
    }
}

async fn send<A: DeliveryTarget>(
    sink_queue: Arc<SinkQueue>,
    target: Arc<A>,
    seq: u64,
    kept: Option<AnyEvent>,
) -> RequestOutcome {
    let event = match kept {
        Some(event) => event,
        // From the disk, and not on the thread that serves everything else.
        None => match spawn_blocking(move || sink_queue.read(seq)).await {
            Ok(Ok(Some(event))) => event,
            Ok(Ok(None)) => return RequestOutcome::Unknown,
            Ok(Err(error)) => return RequestOutcome::Unread(error.to_string()),
            Err(error) => return RequestOutcome::Unread(error.to_string()),
        },
    };
    RequestOutcome::DeliveryOutcome(target.attempt(event).await)
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
