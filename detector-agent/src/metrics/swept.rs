//! `ipconflict_conflicts_swept`: how many active conflicts are part of an address sweep, which stands for them in alerts.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use prometheus_client::metrics::{family::Family, gauge::Gauge};

use super::Kind;
use crate::{
    engine::{ConflictId, ConflictKind},
    event::ConflictData,
};

/// The gauge, and the conflicts that it counts: at most as many as may be open.
#[derive(Debug, Default)]
pub(super) struct SweptConflicts {
    pub(super) gauge: Family<Kind, Gauge>,
    kinds: Mutex<HashMap<ConflictId, ConflictKind>>,
}

impl SweptConflicts {
    pub(super) fn update(&self, data: &ConflictData) {
        let kind = (data.sweep.is_some() && !data.is_resolved()).then_some(data.kind);
        // A panic while it was held leaves a count that is at worst wrong by one.
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match kind {
            Some(kind) => kinds.insert(data.conflict_id, kind),
            None => kinds.remove(&data.conflict_id),
        };
        if let Some(before) = before {
            self.gauge.get_or_create(&before.into()).dec();
        }
        if let Some(kind) = kind {
            self.gauge.get_or_create(&kind.into()).inc();
        }
    }
}
