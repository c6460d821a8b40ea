//! What is part of a conflict: that IPAM considers its address free or another pod's, and that the route for it leads to only one of
//! the pods. People who have the conflict get neither its raise nor its end, unless it outlasts the conflict. The Prometheus rules
//! and the example for Alertmanager do the same.

use std::{net::IpAddr, time::Duration};

use detector_engine::AnomalyKind;
use detector_event::{AnyEvent, SubjectKind};
use redb::ReadableTable as _;

use super::{Batch, OpenRecord};
use crate::persist::store::StoreError;

/// What lasts for this long after its conflict is reported on its own.
pub(in crate::sinks::outbox) const OUTLASTS: Duration = Duration::from_secs(60);

fn is_conflict(event: &AnyEvent) -> bool {
    matches!(event, AnyEvent::Conflict(_))
}

/// Whether it is part of a conflict about its address, if there is one.
fn is_consequence(event: &AnyEvent) -> bool {
    [AnomalyKind::IpamDrift, AnomalyKind::RouteAstray]
        .map(SubjectKind::Anomaly)
        .contains(&event.kind())
}

impl Batch<'_, '_> {
    /// Whether the people behind this sink have a conflict that the subject is part of.
    pub(super) fn is_part_of_conflict(
        &self,
        sink: usize,
        event: &AnyEvent,
    ) -> Result<bool, StoreError> {
        let spec = &self.store.sinks[sink];
        if spec.window.is_none() || !is_consequence(event) {
            return Ok(false);
        }
        let mut open = self.open_with(event.address())?.into_iter();
        Ok(
            open.any(|other| {
                is_conflict(&other.event) && other.notified_sinks.contains(&spec.name)
            }),
        )
    }

    /// Takes back what is part of this conflict and was not sent to the people behind the sink, who get the conflict.
    pub(super) fn cover_consequences(
        &mut self,
        sink: usize,
        conflict: &AnyEvent,
    ) -> Result<(), StoreError> {
        let spec = &self.store.sinks[sink];
        if spec.window.is_none() || !is_conflict(conflict) {
            return Ok(());
        }
        for mut record in self.open_with(conflict.address())? {
            let subject = record.event.subject_id();
            if is_consequence(&record.event)
                && record.notified_sinks.contains(&spec.name)
                && self.retract(sink, subject)?
            {
                record.notified_sinks.remove(&spec.name);
                record.covered_sinks.insert(spec.name.clone());
                self.put(subject, &record)?;
            }
        }
        Ok(())
    }

    /// The conflict is over: a sink that got it gets what outlasts it.
    pub(super) fn delay_consequences(&mut self, conflict: &AnyEvent) -> Result<(), StoreError> {
        if !is_conflict(conflict) {
            return Ok(());
        }
        for record in self.open_with(conflict.address())? {
            if record.covered_sinks.is_empty() {
                continue;
            }
            let subject = record.event.subject_id();
            self.end_delays(subject);
            for (sink, wait) in self.store.pending_sinks(&record, self.now) {
                self.delay(wait, sink, subject);
            }
        }
        Ok(())
    }

    pub(super) fn note_address(&mut self, event: &AnyEvent) -> Result<(), StoreError> {
        if is_conflict(event) || is_consequence(event) {
            let (address, id) = (event.address().to_string(), event.subject_id().to_string());
            self.addresses.insert((address.as_str(), id.as_str()), ())?;
        }
        Ok(())
    }

    pub(super) fn forget_address(&mut self, event: &AnyEvent) -> Result<(), StoreError> {
        let (address, id) = (event.address().to_string(), event.subject_id().to_string());
        self.addresses.remove((address.as_str(), id.as_str()))?;
        Ok(())
    }

    /// The open conflicts about an address, and what may be part of one.
    fn open_with(&self, address: IpAddr) -> Result<Vec<OpenRecord>, StoreError> {
        let address = address.to_string();
        let mut open = Vec::new();
        for item in self.addresses.range((address.as_str(), "")..)? {
            let (key, _) = item?;
            let (other, id) = key.value();
            if other != address {
                break;
            }
            let record = self.open.get(id)?;
            open.extend(record.and_then(|record| serde_json::from_slice(record.value()).ok()));
        }
        Ok(open)
    }
}
