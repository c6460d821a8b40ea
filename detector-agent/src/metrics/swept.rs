//! `ipconflict_conflicts_swept`: how many active conflicts are part of an address sweep, which stands for them in alerts.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use detector_engine::ConflictId;
use detector_event::ConflictData;
use prometheus_client::metrics::{family::Family, gauge::Gauge};

use super::KindAndScope;

/// The gauge, and the conflicts that it counts: at most as many as may be open.
#[derive(Debug, Default)]
pub(super) struct SweptConflicts {
    pub(super) gauge: Family<KindAndScope, Gauge>,
    labels: Mutex<HashMap<ConflictId, KindAndScope>>,
}

impl SweptConflicts {
    pub(super) fn update(&self, data: &ConflictData) {
        let labels = (data.sweep.is_some() && !data.is_resolved())
            .then(|| KindAndScope::new(data.kind, data.scope));
        // A panic while it was held leaves a count that is at worst wrong by one.
        let mut swept = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match labels {
            Some(labels) => swept.insert(data.conflict_id, labels),
            None => swept.remove(&data.conflict_id),
        };
        if let Some(before) = before {
            self.gauge.get_or_create(&before).dec();
        }
        if let Some(labels) = labels {
            self.gauge.get_or_create(&labels).inc();
        }
    }
}
