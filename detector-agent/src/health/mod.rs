//! Health of each part of the agent, its sources and its sinks, for `/readyz` and the status page.
//!
//! A part reports its own state through its [`Part`]; nothing here polls, waits or decides.

mod sources;

use std::{
    borrow::Cow,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use detector_engine::Timestamp;
use detector_event::{PartReport, Role, State};

use crate::process::clock;

pub use sources::{Situation, SourceHealth};

/// The event loop beats every second; without a beat for this long it is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// Parts at most, configured sinks included.
const MAX_PARTS: usize = 256;

#[derive(Debug)]
struct Inner {
    name: String,
    role: Role,
    current: Mutex<CurrentState>,
}

#[derive(Debug)]
struct CurrentState {
    state: State,
    detail: Cow<'static, str>,
    since: Timestamp,
}

/// A part's handle to report its state. Cheap to clone; usable from any thread; never blocks.
#[derive(Clone, Debug)]
pub struct Part(Arc<Inner>);

impl Part {
    /// Reports the current state.
    pub fn set(&self, state: State, detail: impl Into<Cow<'static, str>>) {
        // No code panics while holding the lock.
        let mut now = self
            .0
            .current
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if now.state != state {
            now.state = state;
            now.since = clock::now();
        }
        now.detail = detail.into();
    }

    /// Reports [`State::Works`].
    pub fn works(&self, detail: impl Into<Cow<'static, str>>) {
        self.set(State::Works, detail);
    }

    /// Reports [`State::Degraded`].
    pub fn degraded(&self, detail: impl Into<Cow<'static, str>>) {
        self.set(State::Degraded, detail);
    }

    /// Reports [`State::Failed`].
    pub fn failed(&self, detail: impl Into<Cow<'static, str>>) {
        self.set(State::Failed, detail);
    }

    /// Reports [`State::Off`].
    pub fn off(&self, detail: impl Into<Cow<'static, str>>) {
        self.set(State::Off, detail);
    }
}

/// All parts, and the heartbeat of the event loop.
#[derive(Debug)]
pub struct Health {
    parts: Mutex<Vec<Part>>,
    /// Monotonic nanoseconds.
    alive_at: AtomicU64,
    /// Pod devices on the node; `UNKNOWN` until the first snapshot.
    devices: AtomicUsize,
}

/// The number of devices before it is known.
const UNKNOWN: usize = usize::MAX;

impl Default for Health {
    fn default() -> Self {
        Self {
            parts: Mutex::default(),
            alive_at: AtomicU64::new(clock::now().0),
            devices: AtomicUsize::new(UNKNOWN),
        }
    }
}

impl Health {
    /// Registers a part in state [`State::Starting`]. Parts beyond the bound are not shown.
    pub fn part(&self, role: Role, name: impl Into<String>) -> Part {
        let part = Part(Arc::new(Inner {
            name: name.into(),
            role,
            current: Mutex::new(CurrentState {
                state: State::Starting,
                detail: Cow::Borrowed("starting"),
                since: clock::now(),
            }),
        }));
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if parts.len() < MAX_PARTS {
            parts.push(part.clone());
        }
        part
    }

    /// Records a heartbeat of the event loop.
    pub fn beat(&self, now: Timestamp) {
        self.alive_at.store(now.0, Ordering::Relaxed);
    }

    /// Records the number of pod devices.
    fn set_devices(&self, devices: usize) {
        self.devices.store(devices, Ordering::Relaxed);
    }

    /// The number of pod devices, once the first snapshot is merged; it follows within a second.
    #[must_use]
    pub fn devices(&self) -> Option<usize> {
        let devices = self.devices.load(Ordering::Relaxed);
        (devices != UNKNOWN).then_some(devices)
    }

    /// Time since the last heartbeat, if the event loop counts as stuck.
    #[must_use]
    pub fn stuck_for(&self) -> Option<Duration> {
        let silent = clock::now().since(Timestamp(self.alive_at.load(Ordering::Relaxed)));
        (silent > STUCK_AFTER).then_some(silent)
    }

    /// Every part's current state, in order of registration.
    #[must_use]
    pub fn report(&self) -> Vec<PartReport> {
        let moment = clock::moment();
        let parts = self
            .parts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        parts
            .iter()
            .map(|part| {
                let now = part
                    .0
                    .current
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                PartReport {
                    name: part.0.name.clone(),
                    role: part.0.role,
                    state: now.state,
                    detail: now.detail.clone().into_owned(),
                    since: moment.wall_at(now.since),
                    runbook_url: None,
                }
                .with_runbook()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_shows_its_last_detail_and_keeps_its_time() {
        let health = Health::default();
        let part = health.part(Role::Source, "netlink");
        assert_eq!(
            health.report().first().map(|p| p.state),
            Some(State::Starting)
        );
        part.works("listening");
        let first = health.report();
        part.works("still listening");
        let second = health.report();
        assert_eq!(
            second.first().map(|p| p.detail.as_str()),
            Some("still listening")
        );
        let second_of = |reports: &[PartReport]| reports.first().map(|p| p.since.as_second());
        assert_eq!(second_of(&first), second_of(&second));
    }

    #[test]
    fn the_event_loop_is_stuck_only_after_a_long_silence() {
        let health = Health::default();
        assert_eq!(health.stuck_for(), None);
        health.beat(Timestamp(0));
        // The machine has run for longer than that.
        assert!(health.stuck_for().is_some());
    }
}
