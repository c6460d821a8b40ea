//! A sink's queue, as its sender uses it.

use std::{
    fmt,
    sync::{Arc, Mutex, mpsc},
};

use tokio::{sync::Notify, time::Instant};

use super::{
    batch::{FinishedMessage, OutboxInput},
    queue::{Idle, Queue, SendJob, SendMember, Window, locked},
    tables,
    worker::OutboxMessage,
};
use crate::{
    metrics::Metrics,
    persist::store::{Store, StoreError},
    sinks::message::Message,
};

/// One sink's events, in the order in which they may be sent.
pub struct SinkQueue {
    name: String,
    index: usize,
    pub(super) queue: Mutex<Queue>,
    changed: Notify,
    worker: mpsc::Sender<OutboxMessage>,
    store: Arc<Store>,
    metrics: Arc<Metrics>,
}

impl fmt::Debug for SinkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkQueue")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl SinkQueue {
    pub(super) fn new(
        name: String,
        index: usize,
        window: Option<Window>,
        worker: mpsc::Sender<OutboxMessage>,
        store: Arc<Store>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let sink_queue = Self {
            name,
            index,
            queue: Mutex::new(Queue::new(window)),
            changed: Notify::new(),
            worker,
            store,
            metrics,
        };
        sink_queue.notify();
        sink_queue
    }

    /// The sink's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the oldest message that may be sent at `now`; must be followed by [`SinkQueue::delivered`],
    /// [`SinkQueue::failed`], [`SinkQueue::rejected`], [`SinkQueue::superseded`], [`SinkQueue::given_up`] of each member, or
    /// [`SinkQueue::put_back`].
    ///
    /// # Errors
    /// If none may be sent: until when.
    pub fn take(&self, now: Instant) -> Result<SendJob, Idle> {
        let mut queue = locked(&self.queue);
        let raised = queue.raised_in_window(now);
        if !raised.is_empty() {
            // If the outbox thread has ended, the events stay stored and are sent after the next start.
            let input = OutboxInput::WindowOver(self.index, raised);
            let _ = self.worker.send(OutboxMessage::Input(input));
        }
        queue.take(now)
    }

    /// Returns when there may be another event to take.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Reads the message of a job, without events that are missing or cannot be decoded; `None` if it has no others. Waits
    /// for the disk.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn read(&self, job: &SendJob) -> Result<Option<Message>, StoreError> {
        let uncached = job.members.iter().filter(|member| member.event.is_none());
        let uncached: Vec<_> = uncached.map(|member| member.content).collect();
        let mut read = Vec::new();
        if !uncached.is_empty() {
            read = self
                .store
                .access(|database| tables::read_events(database, &self.name, &uncached))?;
        }
        let mut read = read.into_iter();
        let events = job.members.iter().filter_map(|member| match &member.event {
            Some(event) => Some(event.clone()),
            None => read.next().flatten(),
        });
        let events: Vec<_> = events.collect();
        if job.is_window {
            return Ok(Message::of_window(job.change, job.incident, events));
        }
        Ok(events.into_iter().next().map(Message::of_event))
    }

    /// The message was delivered.
    pub fn delivered(&self, job: &SendJob) {
        self.count("delivered", job.members.len() as u64);
        locked(&self.queue).accepted();
        self.finished(job, &job.members, false);
    }

    /// The message will not be sent: something later takes its place.
    pub fn superseded(&self, job: &SendJob) {
        self.count("superseded", job.members.len() as u64);
        self.finished(job, &job.members, true);
    }

    /// These members of the message will never be delivered; `outcome` says why in the metrics.
    pub fn given_up(&self, job: &SendJob, members: &[SendMember], outcome: &'static str) {
        self.count(outcome, members.len() as u64);
        self.finished(job, members, false);
    }

    /// An attempt failed; these members of the message may be sent again at `at`.
    pub fn failed(&self, members: &[SendMember], at: Instant) {
        self.count("failed", members.len() as u64);
        let mut queue = locked(&self.queue);
        for member in members {
            queue.failed(member.seq, at);
        }
    }

    /// The receiver rejected the message; it may be sent again at `at`.
    pub fn rejected(&self, job: &SendJob, at: Instant) {
        self.count("rejected", job.members.len() as u64);
        locked(&self.queue).rejected(job, at);
        self.update_metrics();
    }

    /// Returns the message as if it had not been taken.
    pub fn put_back(&self, job: &SendJob) {
        let mut queue = locked(&self.queue);
        for member in &job.members {
            queue.put_back(member.seq);
        }
    }

    /// Ends the wait for further events of the same window, because the agent stops.
    pub(super) fn close_window(&self) {
        locked(&self.queue).close_window();
        self.changed.notify_one();
    }

    /// The number of queued events.
    #[must_use]
    pub fn pending(&self) -> usize {
        locked(&self.queue).len()
    }

    /// The number of events that the receiver rejected, and of those that wait behind them.
    #[must_use]
    pub fn parked(&self) -> usize {
        locked(&self.queue).parked()
    }

    /// Whether an event waits only for the removal of the one before it.
    #[must_use]
    pub fn has_successors(&self) -> bool {
        locked(&self.queue).has_successors()
    }

    /// Counts the outcome of deliveries.
    pub fn count(&self, outcome: &'static str, events: u64) {
        self.metrics.count_deliveries(&self.name, outcome, events);
    }

    /// Wakes the sender and updates the metrics after the queue has changed.
    pub(super) fn notify(&self) {
        self.update_metrics();
        self.changed.notify_one();
    }

    fn update_metrics(&self) {
        let (all, parked) = {
            let queue = locked(&self.queue);
            (queue.len(), queue.parked())
        };
        self.metrics.set_queue(&self.name, all - parked, parked);
    }

    fn finished(&self, job: &SendJob, members: &[SendMember], is_superseded: bool) {
        let mut events = Vec::new();
        {
            let mut queue = locked(&self.queue);
            for member in members {
                queue.finished(member.seq);
                events.push((member.subject, member.seq));
                // A raise that was sent with the update behind it.
                if member.content != member.seq && !is_superseded {
                    events.push((member.subject, member.content));
                }
            }
        }
        let message = FinishedMessage {
            sink: self.index,
            events,
            change: job.change,
            is_superseded,
        };
        // If the outbox thread has ended, the events stay stored and are sent again after the next start.
        let input = OutboxInput::Finished(message);
        let _ = self.worker.send(OutboxMessage::Input(input));
    }
}
