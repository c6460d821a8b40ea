//! Resync of the kernel's tables: when everything is read, what was read last, and when the start is done.
//!
//! A reading is wanted at the start and after every loss. [`Observation::SnapshotStarted`] is stepped before the worker is
//! asked, so that the engine knows what was said live while it was under way.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tracing::{info, warn};

use super::EventLoop;
use crate::{
    clock,
    engine::{Observation, SnapshotScope, SnapshotToken, TimedObservation, Timestamp},
    metrics::Reason,
    observe::{netlink::Omitted, worker::Job},
};

/// Least time between two readings of everything.
const PAUSE: Duration = Duration::from_secs(1);
/// Losses that the log tells of at once, and then one in so long: a pod may be the cause of one each second. The metrics
/// count all.
const TOLD_AT_ONCE: u32 = 60;
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Says how far the start has come; shared with the endpoints.
#[derive(Debug, Default)]
pub struct Readiness {
    ready: AtomicBool,
}

impl Readiness {
    /// The programs are attached and the first snapshot is merged.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    fn set(&self) {
        self.ready.store(true, Ordering::Release);
    }
}

/// Which readings of everything are wanted, under way and done.
#[derive(Debug)]
pub(super) struct Resync {
    last_token: u64,
    /// Why the next one is wanted.
    pub(super) wanted: Option<&'static str>,
    /// The one under way. Resync of one device besides it are the engine's business alone.
    pub(super) under_way: Option<SnapshotToken>,
    begun_at: Timestamp,
    /// How many more may be told of now, and when that was counted.
    tellable: (u32, Timestamp),
    /// The first is merged.
    pub(super) first_done: bool,
    /// One is being merged in this moment: devices that it brings are read already.
    pub(super) merging: bool,
}

impl Resync {
    /// Nothing is read yet, and everything wanted.
    pub(super) fn new() -> Self {
        Self {
            last_token: 0,
            wanted: Some("start"),
            under_way: None,
            begun_at: Timestamp(0),
            tellable: (TOLD_AT_ONCE, Timestamp(0)),
            first_done: false,
            merging: false,
        }
    }

    /// Asks for one, unless one is wanted already.
    pub(super) fn want(&mut self, reason: &'static str) {
        self.wanted.get_or_insert(reason);
    }

    /// Why one is to begin now: where one is wanted, none is under way and the last is not too young.
    fn due(&mut self, now: Timestamp) -> Option<&'static str> {
        let too_young = self.first_done && now.since(self.begun_at) < PAUSE;
        if self.under_way.is_some() || too_young {
            return None;
        }
        self.wanted.take()
    }

    /// Whether the log is to tell of one now.
    fn may_be_told(&mut self, now: Timestamp) -> bool {
        let (left, counted) = &mut self.tellable;
        let earned = now.since(*counted).as_secs() / TOLD_EVERY.as_secs();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            *left = left.saturating_add(earned).min(TOLD_AT_ONCE);
            *counted = now;
        }
        let may = *left > 0;
        *left = left.saturating_sub(1);
        may
    }
}

impl EventLoop {
    /// Tells the engine that a reading begins, of everything or of one device.
    pub(super) fn begin_reading(&mut self) -> SnapshotToken {
        self.readings.last_token += 1;
        let token = SnapshotToken(self.readings.last_token);
        let begun = TimedObservation {
            at: clock::now(),
            observation: Observation::SnapshotStarted(token),
        };
        self.parts.engine.step(begun.at, begun, &mut self.effects);
        token
    }

    /// Has everything read where that is due.
    pub(super) fn read_all_where_due(&mut self, now: Timestamp) {
        let Some(reason) = self.readings.due(now) else {
            return;
        };
        self.parts
            .metrics
            .resyncs
            .get_or_create(&Reason { reason })
            .inc();
        if self.readings.first_done && self.readings.may_be_told(now) {
            warn!(reason, "something was missed; reading the whole state anew");
        }
        self.readings.begun_at = now;
        let token = self.begin_reading();
        self.readings.under_way = Some(token);
        self.ask(Job::ReadNode(token));
    }

    /// Takes a reading, of everything or of one device, or that it failed.
    pub(super) fn merge(&mut self, reading: TimedObservation, omitted: Omitted) {
        let of_everything = match &reading.observation {
            Observation::Snapshot(token, SnapshotScope::Node, _)
            | Observation::SnapshotFailed(token) => self.readings.under_way == Some(*token),
            _ => false,
        };
        let failed = matches!(reading.observation, Observation::SnapshotFailed(_));
        if of_everything {
            self.readings.under_way = None;
        }
        self.readings.merging = of_everything;
        self.step(reading);
        self.readings.merging = false;
        if omitted.over_bound > 0 {
            self.lost("bound", omitted.over_bound);
        }
        if failed {
            self.readings.want("read_failed");
        } else if of_everything && !self.readings.first_done {
            self.readings.first_done = true;
            self.warn_of_patterns_without_device();
            self.go_on();
        }
        self.perhaps_ready();
    }

    /// The first reading of everything is merged: what an earlier agent left open and is still there goes on.
    fn go_on(&mut self) {
        let Some(persistence) = &mut self.parts.persistence else {
            return;
        };
        persistence.request_full_list();
        let now = clock::now();
        for conflict in self.parts.engine.conflicts(now) {
            self.parts.reporter.show(&conflict);
        }
    }

    fn warn_of_patterns_without_device(&self) {
        let devices = self.parts.engine.devices();
        for pattern in self
            .parts
            .selector
            .unmatched(devices.iter().map(|d| d.name.as_str()))
        {
            warn!(
                "no device matches --interfaces {pattern} now; devices that appear later and match will be watched"
            );
        }
    }

    /// Ready is who has merged the first reading and attached to every device of it.
    pub(super) fn perhaps_ready(&mut self) {
        let ready = &self.parts.readiness;
        if self.readings.first_done && self.attaching == 0 && !ready.is_ready() {
            ready.set();
            let devices = self.parts.engine.devices().len();
            info!(devices, "ready: watching {devices} pod devices");
            self.next_housekeeping = Timestamp(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_begins_where_wanted_and_not_before_the_last_is_done_and_old_enough() {
        let mut readings = Resync::new();
        let start = Timestamp(1);
        assert_eq!(readings.due(start), Some("start"));
        assert_eq!(readings.due(start), None, "nobody wants another");
        readings.under_way = Some(SnapshotToken(1));
        readings.begun_at = start;
        readings.want("ring_full");
        readings.want("netlink_overrun");
        assert_eq!(readings.due(start + PAUSE), None, "one is under way");
        readings.under_way = None;
        readings.first_done = true;
        assert_eq!(readings.due(start), None, "the last is too young");
        assert_eq!(readings.due(start + PAUSE), Some("ring_full"));
    }

    #[test]
    fn losses_without_end_are_told_at_first_and_then_once_a_minute() {
        let mut readings = Resync::new();
        let hour = (0..3600).map(|second| Timestamp(1) + Duration::from_secs(second));
        let told = hour.filter(|now| readings.may_be_told(*now)).count();
        assert!((60..=120).contains(&told), "{told}");
    }
}
