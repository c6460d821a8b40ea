//! How each part of the agent is: what feeds it (sources) and what it feeds (sinks), for `/readyz` and the status page.
//!
//! A part says so itself, through its [`Part`]; nothing here asks, waits or decides.

mod sources;

use std::{
    borrow::Cow,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    clock::{self, Moment, WallTime},
    engine::Timestamp,
};

pub use sources::{Situation, SourceHealth};

/// Detection says at least this often that it lives; beyond it, it is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// Parts at most: the built-in ones and the configured sinks.
const PARTS: usize = 256;

/// Which side of detection a part stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Detection learns from it.
    Source,
    /// It names the pods; without it conflicts are seen all the same.
    Names,
    /// Its books are compared with the live addresses; without it conflicts are seen all the same.
    Ipam,
    /// It takes the events.
    Sink,
}

/// How a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Not there yet.
    Starting,
    /// As it should be.
    Works,
    /// It works, but not all of it.
    Degraded,
    /// It does not work.
    Failed,
    /// Switched off by the settings.
    Off,
}

/// One part as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartReport {
    /// What a person calls it.
    pub name: String,
    /// Which side it stands on.
    pub role: Role,
    /// How it is.
    pub state: State,
    /// One sentence about it.
    pub detail: String,
    /// Since when it is in this state, RFC 3339.
    pub since: WallTime,
}

#[derive(Debug)]
struct Inner {
    name: String,
    role: Role,
    now: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    state: State,
    detail: Cow<'static, str>,
    since: Timestamp,
}

/// One part's way to say how it is. Cheap to clone; from any thread, never waits.
#[derive(Clone, Debug)]
pub struct Part(Arc<Inner>);

impl Part {
    /// Says how it is now.
    pub fn set(&self, state: State, detail: impl Into<Cow<'static, str>>) {
        // Nothing panics while it is held.
        let mut now = self.0.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.state != state {
            now.state = state;
            now.since = clock::now();
        }
        now.detail = detail.into();
    }

    /// It works.
    pub fn works(&self, detail: impl Into<Cow<'static, str>>) {
        self.set(State::Works, detail);
    }

    /// Some of it works.
    pub fn degraded(&self, detail: impl Into<Cow<'static, str>>) {
        self.set(State::Degraded, detail);
    }

    /// It does not work.
    pub fn failed(&self, detail: impl Into<Cow<'static, str>>) {
        self.set(State::Failed, detail);
    }

    /// The settings leave it out.
    pub fn off(&self, detail: impl Into<Cow<'static, str>>) {
        self.set(State::Off, detail);
    }
}

/// All parts, and the sign of life of the detection thread. Cheap to share.
#[derive(Debug)]
pub struct Health {
    parts: Mutex<Vec<Part>>,
    /// Monotonic nanoseconds.
    alive_at: AtomicU64,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            parts: Mutex::default(),
            alive_at: AtomicU64::new(clock::now().0),
        }
    }
}

impl Health {
    /// A new part, which is starting. Those beyond the bound are not shown.
    pub fn part(&self, role: Role, name: impl Into<String>) -> Part {
        let part = Part(Arc::new(Inner {
            name: name.into(),
            role,
            now: Mutex::new(Now {
                state: State::Starting,
                detail: Cow::Borrowed("starting"),
                since: clock::now(),
            }),
        }));
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if parts.len() < PARTS {
            parts.push(part.clone());
        }
        part
    }

    /// Detection lives.
    pub fn beat(&self, now: Timestamp) {
        self.alive_at.store(now.0, Ordering::Relaxed);
    }

    /// How long detection gave no sign of life, where that is too long.
    #[must_use]
    pub fn stuck_for(&self) -> Option<Duration> {
        let silent = clock::now().since(Timestamp(self.alive_at.load(Ordering::Relaxed)));
        (silent > STUCK_AFTER).then_some(silent)
    }

    /// Every part as it is now, in the order they were made.
    #[must_use]
    pub fn report(&self) -> Vec<PartReport> {
        let moment = Moment::now();
        let parts = self
            .parts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        parts
            .iter()
            .map(|part| {
                let now = part.0.now.lock().unwrap_or_else(PoisonError::into_inner);
                PartReport {
                    name: part.0.name.clone(),
                    role: part.0.role,
                    state: now.state,
                    detail: now.detail.clone().into_owned(),
                    since: moment.wall_at(now.since),
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_shown_as_it_said_last_and_its_state_keeps_its_time() {
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
    fn detection_is_stuck_only_after_a_long_silence() {
        let health = Health::default();
        assert_eq!(health.stuck_for(), None);
        health.beat(Timestamp(0));
        // The machine has run for longer than that.
        assert!(health.stuck_for().is_some());
    }
}
