//! Schedules the deliveries to one receiver.
//!
//! Invariants: at most [`CONCURRENCY`] requests at a time, and one at a time to a receiver that has failed
//! [`FAILURES_UNTIL_DOWN`] times in a row; a failed event delays only the later events of its own subject; one that the
//! receiver rejects does not count as a failure of the receiver, and is tried again late; messages to people are sent one
//! at a time; `Retry-After` delays everything; after 410 nothing is sent until the agent is restarted, and events stay queued within the outbox's
//! bound. An event is given up when an attempt fails and it is older than the settings allow: one that waited while the
//! agent was down is attempted at least once more.

use std::{collections::HashMap, future::Future, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::{Id, JoinSet, spawn_blocking},
    time::Instant,
};
use tracing::{debug, error, info, warn};

use crate::{
    health::Part,
    process::{clock, log_budget::LogBudget, timer::sleep_until_some},
    sinks::{
        message::Message,
        outbox::{
            SinkQueue,
            queue::{Idle, SendJob, SendMember},
        },
        retry::RetryPolicy,
        settings::RetrySettings,
    },
};

/// The most requests at a time.
const CONCURRENCY: usize = 8;
/// Failures in a row after which the receiver counts as down.
const FAILURES_UNTIL_DOWN: u32 = 3;
/// Rejected events in a row after which the receiver is shown as failed.
const REJECTIONS_UNTIL_FAILED: u32 = 3;
/// The longest wait of a rejected event, in longest waits of one that failed; the first is one of them.
const LONGEST_REJECTED_WAIT: u32 = 4;

/// The outcome of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The receiver accepted it.
    Delivered,
    /// The receiver wants no more events (410).
    Gone,
    /// The receiver refuses this event, whenever it is sent.
    Rejected {
        /// The wait the receiver requests before this event is sent again.
        wait: Option<Duration>,
        /// The reason, without secrets.
        why: String,
    },
    /// The receiver may or may not have it.
    Failed {
        /// The wait the receiver requests before anything else is sent.
        wait: Option<Duration>,
        /// The reason, without secrets.
        why: String,
    },
}

/// Delivers events to a receiver.
pub trait DeliveryTarget: Send + Sync + 'static {
    /// Makes one attempt.
    fn attempt(&self, message: Message) -> impl Future<Output = DeliveryOutcome> + Send;
}

/// How a request ended.
enum RequestOutcome {
    /// The message with this id was sent.
    Sent(String, DeliveryOutcome),
    /// Its events could not be read from the store.
    Unread(String),
    /// The store has none of its events.
    Unknown,
}

/// Sends one sink's events.
#[derive(Debug)]
pub struct Sender<A> {
    sink_queue: Arc<SinkQueue>,
    target: Arc<A>,
    give_up_after: Duration,
    retry_policy: RetryPolicy,
    rejected_policy: RetryPolicy,
    random: fastrand::Rng,
    /// Failures since the last success.
    failures: u32,
    /// Events rejected since the last success.
    rejections: u32,
    /// Why an event was rejected last.
    rejection: String,
    log_budget: LogBudget,
    pauses: u32,
    /// An event was given up, and none was delivered since.
    giving_up: bool,
    paused_until: Option<Instant>,
    /// As requested by `Retry-After`.
    retry_after_until: Option<Instant>,
    gone: bool,
    running: HashMap<Id, SendJob>,
    health: Part,
}

impl<A: DeliveryTarget> Sender<A> {
    /// A sender from `sink_queue` to `target`; `random` is for the jitter.
    pub fn new(
        sink_queue: Arc<SinkQueue>,
        target: Arc<A>,
        settings: RetrySettings,
        random: fastrand::Rng,
        health: Part,
    ) -> Self {
        health.works("nothing to send yet");
        Self {
            sink_queue,
            target,
            give_up_after: settings.give_up_after,
            retry_policy: RetryPolicy {
                first: settings.first,
                longest: settings.longest,
            },
            rejected_policy: RetryPolicy {
                first: settings.longest,
                longest: settings.longest.saturating_mul(LONGEST_REJECTED_WAIT),
            },
            random,
            failures: 0,
            rejections: 0,
            rejection: String::new(),
            log_budget: LogBudget::new(),
            pauses: 0,
            giving_up: false,
            paused_until: None,
            retry_after_until: None,
            gone: false,
            running: HashMap::new(),
            health,
        }
    }

    /// Sends until `stop` becomes true, and then what can be sent without waiting. The caller sets the deadline.
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
                () = sleep_until_some(wake) => {}
                changed = stop.changed(), if !stopping => {
                    // An error means that the other end is gone.
                    stopping = changed.is_err() || *stop.borrow();
                }
            }
        }
    }

    /// Starts the requests that may be sent now; returns when the next one may be.
    fn begin(&mut self, requests: &mut JoinSet<RequestOutcome>) -> Option<Instant> {
        if self.gone {
            return None;
        }
        loop {
            let is_window = self.running.values().any(|job| job.is_window);
            let at_once = if self.failures < FAILURES_UNTIL_DOWN && !is_window {
                CONCURRENCY
            } else {
                1
            };
            if requests.len() >= at_once {
                return None;
            }
            let now = Instant::now();
            if let Some(until) = self.paused_until.max(self.retry_after_until) {
                if until > now {
                    return Some(until);
                }
                self.paused_until = None;
                self.retry_after_until = None;
            }
            match self.sink_queue.take(now) {
                Ok(job) if job.is_superseded => self.sink_queue.superseded(&job),
                Ok(job) => {
                    let (sink_queue, target) =
                        (Arc::clone(&self.sink_queue), Arc::clone(&self.target));
                    let request = requests.spawn(send(sink_queue, target, job.clone()));
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
            RequestOutcome::Sent(_, DeliveryOutcome::Delivered) => {
                if self.failures >= FAILURES_UNTIL_DOWN {
                    info!(sink, "receiver accepts events again");
                }
                self.failures = 0;
                self.rejections = 0;
                self.giving_up = false;
                self.pauses = 0;
                self.paused_until = None;
                self.sink_queue.delivered(&job);
                self.report_accepting();
            }
            RequestOutcome::Sent(_, DeliveryOutcome::Gone) => {
                if !self.gone {
                    warn!(
                        sink,
                        "receiver answered 410 Gone, sending is disabled until the agent restarts; fix the receiver and restart, or remove it from the configuration. Queued events stay stored"
                    );
                    self.sink_queue.count("disabled", 1);
                }
                self.gone = true;
                self.health
                    .failed("answered 410 Gone: nothing is sent until the agent restarts");
                self.sink_queue.put_back(&job);
            }
            RequestOutcome::Sent(event, DeliveryOutcome::Rejected { wait, why }) => {
                self.rejected(&job, &event, wait, why);
            }
            RequestOutcome::Sent(_, DeliveryOutcome::Failed { wait, why }) => {
                self.failed(&job, wait, &why)
            }
            RequestOutcome::Unread(why) => self.failed(&job, None, &why),
            RequestOutcome::Unknown => {
                self.sink_queue.given_up(&job, &job.members, "unreadable");
            }
        }
    }

    fn failed(&mut self, job: &SendJob, wait: Option<Duration>, why: &str) {
        let sink = self.sink_queue.name();
        if self.failures == 0 {
            warn!(sink, "cannot deliver an event, retrying: {why}");
        } else {
            debug!(sink, failures = self.failures, "cannot deliver: {why}");
        }
        let now = Instant::now();
        self.failures = self.failures.saturating_add(1);
        if self.failures < FAILURES_UNTIL_DOWN {
            self.health.degraded(format!("retrying an event: {why}"));
        } else {
            self.health.failed(format!("accepts no events: {why}"));
        }
        let requested = wait.map(|wait| now + wait);
        let own = now
            + self
                .retry_policy
                .wait(job.failures.saturating_add(1), &mut self.random);
        if self.failures >= FAILURES_UNTIL_DOWN && self.paused_until.is_none() {
            self.pauses = self.pauses.saturating_add(1);
            self.paused_until = Some(now + self.retry_policy.wait(self.pauses, &mut self.random));
        }
        self.retry_after_until = self.retry_after_until.max(requested);
        let remaining = self.give_up(job, why);
        self.sink_queue
            .failed(&remaining, requested.map_or(own, |at| at.max(own)));
    }

    fn rejected(&mut self, job: &SendJob, event: &str, wait: Option<Duration>, why: String) {
        let sink = self.sink_queue.name();
        if job.was_rejected || !self.log_budget.take(clock::now()) {
            debug!(sink, event, "event rejected: {why}");
        } else {
            warn!(
                sink,
                event,
                "event not accepted: {why}; it is tried again from time to time, and others are sent; correct the receiver, or the URL and format of the webhook"
            );
        }
        self.rejections += u32::from(!job.was_rejected);
        self.rejection = why;
        let members = self.give_up(job, &self.rejection.clone());
        if !members.is_empty() {
            let job = SendJob {
                members,
                ..job.clone()
            };
            let own = self
                .rejected_policy
                .wait(job.failures.saturating_add(1), &mut self.random);
            let wait = own.max(wait.unwrap_or_default());
            self.sink_queue.rejected(&job, Instant::now() + wait);
        }
        // A receiver that is down is shown as such.
        if self.failures == 0 {
            self.report_accepting();
        }
    }

    /// Reports that the receiver accepts events, except those that it rejects.
    fn report_accepting(&self) {
        let parked = self.sink_queue.parked();
        let why = &self.rejection;
        if self.rejections >= REJECTIONS_UNTIL_FAILED {
            self.health.failed(format!("rejects events: {why}"));
        } else if parked > 0 {
            let events = if parked == 1 { "event" } else { "events" };
            self.health.degraded(format!(
                "{parked} {events} not accepted and tried again later ({why}); others are sent"
            ));
        } else {
            self.health.works("accepts events");
        }
    }

    /// Gives up the events of a message that are too old; returns the others.
    fn give_up(&mut self, job: &SendJob, why: &str) -> Vec<SendMember> {
        let sink = self.sink_queue.name();
        let is_too_old = |member: &SendMember| member.age >= self.give_up_after;
        let (old, remaining): (Vec<_>, Vec<_>) = job.members.iter().cloned().partition(is_too_old);
        if let Some(oldest) = old.first() {
            let age = humantime::format_duration(Duration::from_secs(oldest.age.as_secs()));
            // Logged once: thousands may follow for a receiver that was down for long.
            if std::mem::replace(&mut self.giving_up, true) {
                debug!(sink, "gave up another event after {age}");
            } else {
                warn!(
                    sink,
                    "gave up an event that could not be delivered for {age}; others of that age follow: {why}"
                );
            }
            self.sink_queue.given_up(job, &old, "given_up");
        }
        remaining
    }
}

async fn send<A: DeliveryTarget>(
    sink_queue: Arc<SinkQueue>,
    target: Arc<A>,
    job: SendJob,
) -> RequestOutcome {
    let is_cached = job.members.iter().all(|member| member.event.is_some());
    let read = move || sink_queue.read(&job);
    // Reading from the disk blocks.
    let read = match is_cached {
        true => Ok(read()),
        false => spawn_blocking(read).await,
    };
    match read {
        Ok(Ok(Some(message))) => {
            let id = message.id.clone();
            RequestOutcome::Sent(id, target.attempt(message).await)
        }
        Ok(Ok(None)) => RequestOutcome::Unknown,
        Ok(Err(error)) => RequestOutcome::Unread(error.to_string()),
        Err(error) => RequestOutcome::Unread(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
