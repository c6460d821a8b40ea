//! What is open. What changes about it are the effects.

pub(crate) mod anomaly;
pub(crate) mod conflict_limit;
pub(crate) mod counts;
pub(crate) mod lifecycle;
pub(crate) mod moves;
pub(crate) mod repeats;
pub(crate) mod tracked_conflict;

use crate::model::{AnomalyEffect, Effect, Timestamp};

/// One step of the engine.
#[derive(Debug)]
pub(crate) struct Step<'e> {
    /// When it is.
    pub(crate) now: Timestamp,
    /// The timestamp of the observation that causes it.
    pub(crate) at: Timestamp,
    /// What follows from it.
    pub(crate) effects: &'e mut Vec<Effect>,
}

impl Step<'_> {
    /// The same for what time alone causes.
    pub(crate) fn by_time(&mut self) -> Step<'_> {
        Step {
            now: self.now,
            at: self.now,
            effects: self.effects,
        }
    }

    pub(crate) fn report_anomaly(&mut self, effect: AnomalyEffect) {
        self.effects.push(Effect::Anomaly(effect));
    }
}
