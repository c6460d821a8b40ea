//! The last event of each open conflict and anomaly, from which its entry in the history is completed when it ends.
//!
//! Table `state.last-events`: the event as JSON, by the id of its subject. An event whose subject has no record any more ended unseen:
//! while the agent was down, with the boot, or because its end was lost.

use detector_engine::{AnomalyKind, ConflictScope};
use detector_event::{AnyEvent, Change, WallTime};
use redb::{ReadableTable as _, TableDefinition, WriteTransaction};

use super::{
    WriteRequest, anomalies,
    conflicts::CONFLICTS,
    history::{decode, encode},
};
use crate::persist::store::StoreError;

const TABLE: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("state.last-events");

/// Stores the events of a batch. Returns what the history has to store: what ended, and what is raised again.
pub(super) fn write(
    write: &WriteTransaction,
    batch: &[WriteRequest],
) -> Result<Vec<AnyEvent>, StoreError> {
    let mut changes = Vec::new();
    let mut table = write.open_table(TABLE)?;
    let events = batch.iter().filter_map(|request| match request {
        WriteRequest::Event(event) => Some(event),
        _ => None,
    });
    for event in events {
        let id = u128::from(event.subject_id());
        let mut event = event.clone();
        let before = table.get(id)?.and_then(|before| decode(before.value()));
        if let Some(before) = before {
            event.complete_from(&before);
        }
        if event.is_resolved() {
            table.remove(id)?;
            changes.push(event);
            continue;
        }
        if has_record(&event)
            && let Some(text) = encode(&event)
        {
            table.insert(id, text.as_slice())?;
        }
        if is_raised_again(&event) {
            changes.push(event);
        }
    }
    Ok(changes)
}

/// Removes the events whose subjects are not open any more, and returns them as resolved now.
pub(super) fn take_ended(write: &WriteTransaction) -> Result<Vec<AnyEvent>, StoreError> {
    let conflicts = write.open_table(CONFLICTS)?;
    let anomalies = write.open_table(anomalies::TABLE)?;
    let mut table = write.open_table(TABLE)?;
    let mut ended = Vec::new();
    for entry in table.iter()? {
        let (id, event) = entry?;
        let id = id.value();
        if conflicts.get(id)?.is_none() && anomalies.get(id)?.is_none() {
            ended.push((id, decode(event.value())));
        }
    }
    for (id, _) in &ended {
        table.remove(id)?;
    }
    let now = WallTime::now();
    let events = ended.into_iter().filter_map(|(_, event)| event);
    let resolved = events.map(|event| event.resolved_unseen(event.id().to_owned(), now));
    Ok(resolved.collect())
}

/// Whether the subject has a record here while it is open. The registry of the cluster has those of others.
fn has_record(event: &AnyEvent) -> bool {
    match event {
        AnyEvent::Conflict(event) => event.data.scope == ConflictScope::Node,
        AnyEvent::Anomaly(event) => event.data.kind != AnomalyKind::PodCidrOverlap,
    }
}

/// Whether it is active again under the id with which it ended.
fn is_raised_again(event: &AnyEvent) -> bool {
    match event {
        AnyEvent::Conflict(conflict) => {
            event.change() == Change::Raised && conflict.data.repeats > 0
        }
        AnyEvent::Anomaly(_) => false,
    }
}
