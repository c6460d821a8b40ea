//! The records of open conflicts, and when they and those of anomalies are valid.
//!
//! Table `state.about`: `format` (of the records, also those of anomalies), `world` (the boot and the network namespace they belong to), `clock`
//! (nanoseconds from the monotonic clock's zero to the wall clock's, so that a restart shows the same times).
//! Table `state.conflicts`: a JSON document for each open conflict, by its id.

use std::{collections::HashSet, fs, os::unix::fs::MetadataExt as _};

use detector_engine::{AnomalyId, Bounds, ConflictId, OpenConflict};
use redb::{
    ReadableTable as _, ReadableTableMetadata as _, TableDefinition, TableError, TableHandle,
    WriteTransaction,
};
use tracing::{info, warn};

use super::{WriteRequest, anomalies};
use crate::{
    persist::store::StoreError,
    process::{clock, node},
};

/// To be changed whenever an earlier agent would misread the records, or this one those of an earlier agent.
pub(super) const FORMAT: &str = "1";

pub(super) const ABOUT: TableDefinition<'_, &str, &str> = TableDefinition::new("state.about");
pub(super) const CONFLICTS: TableDefinition<'_, u128, &[u8]> =
    TableDefinition::new("state.conflicts");
/// Where records of another format are moved, like those of anomalies. One set is kept; nothing here reads it.
const ASIDE: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("state.conflicts-aside");

/// The scope in which monotonic times and interface indices are valid: this boot and this network namespace.
pub(super) fn world() -> std::io::Result<String> {
    let boot = node::boot_id()?;
    let namespace = fs::metadata("/proc/self/ns/net")?.ino();
    Ok(format!("{boot} net:[{namespace}]"))
}

/// Prepares the tables for records of this world and returns those they have.
pub(super) fn prepare(
    write: &WriteTransaction,
    world: &str,
) -> Result<Vec<OpenConflict>, StoreError> {
    let mut about = write.open_table(ABOUT)?;
    let get = |key| -> Result<Option<String>, StoreError> {
        Ok(about.get(key)?.map(|value| value.value().to_owned()))
    };
    let (format, of, clock) = (get("format")?, get("world")?, get("clock")?);
    let known = format.as_deref() == Some(FORMAT);
    if known {
        // All anomalies in one record, as earlier versions wrote them.
        write.delete_table(TableDefinition::<&str, &[u8]>::new("state.anomalies"))?;
    }
    if let Some(format) = format.filter(|_| !known) {
        move_aside(write, CONFLICTS, ASIDE)?;
        move_aside(write, anomalies::TABLE, anomalies::ASIDE)?;
        warn!(
            "the state in --state-dir has format {format}, written by another version of the agent, and this version reads format {FORMAT} only: it was moved to the tables state.conflicts-aside and state.anomalies-aside, and what is still open is raised again"
        );
    } else if known && of.as_deref() == Some(world) {
        if let Some(offset) = clock.and_then(|offset| offset.parse().ok()) {
            clock::resume(offset);
        }
        return read(write);
    }
    let past = write.open_table(CONFLICTS)?.len()?;
    write.delete_table(CONFLICTS)?;
    write.delete_table(anomalies::TABLE)?;
    if past > 0 {
        info!(
            dropped = past,
            "dropped open conflicts of another boot or network namespace: their devices are gone"
        );
    }
    about.insert("format", FORMAT)?;
    about.insert("world", world)?;
    about.insert("clock", clock::offset().to_string().as_str())?;
    drop(about);
    write.open_table(CONFLICTS)?;
    Ok(Vec::new())
}

fn move_aside(
    write: &WriteTransaction,
    table: impl TableHandle,
    aside: impl TableHandle + Copy,
) -> Result<(), StoreError> {
    write.delete_table(aside)?;
    match write.rename_table(table, aside) {
        Ok(()) | Err(TableError::TableDoesNotExist(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn read(write: &WriteTransaction) -> Result<Vec<OpenConflict>, StoreError> {
    let table = write.open_table(CONFLICTS)?;
    let mut conflicts = Vec::new();
    let mut undecodable = 0;
    for entry in table.iter()?.take(Bounds::default().all_open_conflicts()) {
        let (id, record) = entry?;
        match serde_json::from_slice::<OpenConflict>(record.value()) {
            Ok(record) if record.conflict.id == ConflictId(id.value()) => conflicts.push(record),
            _ => undecodable += 1,
        }
    }
    if undecodable > 0 {
        warn!(
            undecodable,
            "dropped open conflicts of --state-dir that cannot be decoded"
        );
    }
    Ok(conflicts)
}

/// Writes changes; `full_list` has the ids of the full list being received, if any. Returns the number of
/// open conflicts.
pub(super) fn write(
    write: &WriteTransaction,
    batch: &[WriteRequest],
    full_list: &mut Option<HashSet<u128>>,
) -> Result<u64, StoreError> {
    let mut table = write.open_table(CONFLICTS)?;
    let mut anomalies = write.open_table(anomalies::TABLE)?;
    for request in batch {
        match request {
            WriteRequest::PutConflict(record) => {
                let id = record.conflict.id.0;
                // Plain data always serialises.
                let text = serde_json::to_vec(record).unwrap_or_default();
                table.insert(id, text.as_slice())?;
                if let Some(ids) = full_list {
                    ids.insert(id);
                }
            }
            WriteRequest::RemoveConflict(ConflictId(id)) => {
                table.remove(id)?;
            }
            WriteRequest::BeginFullList => *full_list = Some(HashSet::new()),
            WriteRequest::EndFullList => {
                if let Some(ids) = full_list.take() {
                    table.retain(|id, _| ids.contains(&id))?;
                    anomalies.retain(|id, _| ids.contains(&id))?;
                }
            }
            WriteRequest::PutAnomaly(anomaly) => {
                let id = anomaly.id.0;
                anomalies.insert(id, anomalies::encode(anomaly).as_slice())?;
                // The ids of conflicts and anomalies differ.
                if let Some(ids) = full_list {
                    ids.insert(id);
                }
            }
            WriteRequest::RemoveAnomaly(AnomalyId(id)) => {
                anomalies.remove(id)?;
            }
            // The last events have a table of their own.
            WriteRequest::Event(_) => {}
        }
    }
    Ok(table.len()?)
}
