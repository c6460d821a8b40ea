//! The requests that wait to be posted. Pure.
//!
//! Those that have not been tried go first, in order. One that failed is tried again after those that failed before it, so that it delays
//! no others; what follows on the same object about the same subject stays behind it. In each lane the next attempt waits longer after
//! each failure, until anything succeeds. While nothing does the server is away, and everything waits for it; what fails again and again
//! while others succeed is given up.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::ledger::{Key, Request};
use crate::sinks::retry::RetryPolicy;

/// The most requests that wait.
pub(super) const MAX_PENDING: usize = 1024;
/// How often one may fail while others succeed.
const ATTEMPTS: u32 = 12;
const PAUSES: RetryPolicy = RetryPolicy {
    first: Duration::from_millis(250),
    longest: Duration::from_secs(10),
};

/// The requests that wait.
#[derive(Debug, Default)]
pub(super) struct Pending {
    fresh: Lane,
    failed: Lane,
    /// Requests that the server has answered.
    answers: u64,
    random: fastrand::Rng,
}

#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<Waiting>,
    /// No attempt before.
    not_before: Option<Instant>,
    /// Failures since the last answer.
    failures: u32,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: Request,
    /// When it failed last, how many had been answered; `None` if it has not been tried.
    failed_at: Option<u64>,
    /// How often it failed after others had been answered.
    failures: u32,
}

impl Lane {
    fn next_due(&self, now: Instant) -> Option<Instant> {
        let due = self.not_before.unwrap_or(now);
        (!self.queue.is_empty()).then_some(due)
    }

    fn take_due(&mut self, now: Instant) -> Option<Waiting> {
        let is_due = self.next_due(now).is_some_and(|due| due <= now);
        is_due.then(|| self.queue.pop_front()).flatten()
    }

    fn has(&self, key: &Key) -> bool {
        self.queue.iter().any(|other| other.request.key() == *key)
    }
}

impl Pending {
    /// Adds a request; `false` if there is no room.
    pub(super) fn push(&mut self, request: Request) -> bool {
        let has_room = self.len() < MAX_PENDING;
        if has_room {
            let lane = if self.failed.has(&request.key()) {
                &mut self.failed
            } else {
                &mut self.fresh
            };
            lane.queue.push_back(Waiting {
                request,
                failed_at: None,
                failures: 0,
            });
        }
        has_room
    }

    pub(super) fn len(&self) -> usize {
        self.fresh.queue.len() + self.failed.queue.len()
    }

    /// When the next one is to be posted.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let lanes = [self.fresh.next_due(now), self.failed.next_due(now)];
        lanes.into_iter().flatten().min()
    }

    /// The next one, if it is to be posted now.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Waiting> {
        let fresh = self.fresh.take_due(now);
        fresh.or_else(|| self.failed.take_due(now))
    }

    /// The server has accepted or rejected one: nothing waits any longer.
    pub(super) fn answered(&mut self) {
        self.answers += 1;
        for lane in [&mut self.fresh, &mut self.failed] {
            (lane.failures, lane.not_before) = (0, None);
        }
    }

    /// This one could not be posted. Returns it if it is given up.
    pub(super) fn failed(&mut self, mut waiting: Waiting, now: Instant) -> Option<Request> {
        let lane = match waiting.failed_at {
            None => &mut self.fresh,
            Some(_) => &mut self.failed,
        };
        lane.failures = lane.failures.saturating_add(1);
        lane.not_before = Some(now + PAUSES.wait(lane.failures, &mut self.random));
        let others_were_answered = waiting.failed_at.is_some_and(|at| at < self.answers);
        waiting.failures += u32::from(others_were_answered);
        if waiting.failures >= ATTEMPTS {
            return Some(waiting.request);
        }
        waiting.failed_at = Some(self.answers);
        let key = waiting.request.key();
        let mut moved = VecDeque::from([waiting]);
        for lane in [&mut self.failed, &mut self.fresh] {
            let (followers, others) = std::mem::take(&mut lane.queue)
                .into_iter()
                .partition::<VecDeque<_>, _>(|other| other.request.key() == key);
            lane.queue = others;
            moved.extend(followers);
        }
        self.failed.queue.extend(moved);
        None
    }

    /// Removes what follows on a request that will not be posted. Returns how many.
    pub(super) fn remove_followers(&mut self, of: &Request) -> usize {
        let before = self.len();
        let key = of.key();
        for lane in [&mut self.fresh, &mut self.failed] {
            lane.queue.retain(|other| other.request.key() != key);
        }
        before - self.len()
    }
}
