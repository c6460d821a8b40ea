//! What stands in the store, and in which form.
//!
//! Table `state.about`: `format` (of the records), `world` (the boot and the network namespace they belong to), `clock`
//! (nanoseconds from the monotonic clock's zero to the wall clock's, so that a restart shows the same times).
//! Table `state.conflicts`: a JSON document for each open conflict, by its id.

use std::{collections::HashSet, fs, os::unix::fs::MetadataExt as _};

use redb::{
    ReadableTable as _, ReadableTableMetadata as _, TableDefinition, TableError, WriteTransaction,
};
use tracing::{info, warn};

use super::Change;
use crate::{
    clock,
    engine::{Bounds, ConflictId, OpenConflict},
    persist::store::StoreError,
};

/// Changes with every change of the records that an earlier agent would misread, or that misreads an earlier agent's.
pub(super) const FORMAT: &str = "1";

pub(super) const ABOUT: TableDefinition<'_, &str, &str> = TableDefinition::new("state.about");
pub(super) const CONFLICTS: TableDefinition<'_, u128, &[u8]> =
    TableDefinition::new("state.conflicts");
/// Where records of another format go. One set is kept; nothing here reads it.
const ASIDE: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("state.conflicts-aside");

/// Where and when monotonic times and interface indices mean the same: this boot, this network namespace.
pub(super) fn world() -> std::io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = fs::metadata("/proc/self/ns/net")?.ino();
    Ok(format!("{} net:[{namespace}]", boot.trim()))
}

/// Makes the store ready for this world's records and gives those it has.
pub(super) fn prepare(
    write: &WriteTransaction,
    world: &str,
) -> Result<Vec<OpenConflict>, StoreError> {
    let mut about = write.open_table(ABOUT)?;
    let said = |key| -> Result<Option<String>, StoreError> {
        Ok(about.get(key)?.map(|value| value.value().to_owned()))
    };
    let (format, of, clock) = (said("format")?, said("world")?, said("clock")?);
    let known = format.as_deref() == Some(FORMAT);
    if let Some(format) = format.filter(|_| !known) {
        write.delete_table(ASIDE)?;
        match write.rename_table(CONFLICTS, ASIDE) {
            Ok(()) | Err(TableError::TableDoesNotExist(_)) => {}
            Err(error) => return Err(error.into()),
        }
        warn!(
            "the open conflicts in --state-dir are of format {format}, which this agent does not know (it writes {FORMAT}); they were put aside and it begins anew"
        );
    } else if known && of.as_deref() == Some(world) {
        if let Some(offset) = clock.and_then(|offset| offset.parse().ok()) {
            clock::resume(offset);
        }
        return read(write);
    }
    let past = write.open_table(CONFLICTS)?.len()?;
    write.delete_table(CONFLICTS)?;
    if past > 0 {
        info!(
            "{past} conflicts that were open before the machine was started anew, or in another network namespace, are over: their devices are gone"
        );
    }
    about.insert("format", FORMAT)?;
    about.insert("world", world)?;
    about.insert("clock", clock::offset().to_string().as_str())?;
    drop(about);
    write.open_table(CONFLICTS)?;
    Ok(Vec::new())
}

fn read(write: &WriteTransaction) -> Result<Vec<OpenConflict>, StoreError> {
    let table = write.open_table(CONFLICTS)?;
    let mut kept = Vec::new();
    let mut unreadable = 0;
    for entry in table.iter()?.take(Bounds::default().open_conflicts) {
        let (id, record) = entry?;
        match serde_json::from_slice::<OpenConflict>(record.value()) {
            Ok(record) if record.conflict.id == ConflictId(id.value()) => kept.push(record),
            _ => unreadable += 1,
        }
    }
    if unreadable > 0 {
        warn!("{unreadable} open conflicts in --state-dir cannot be read; they are dropped");
    }
    Ok(kept)
}

/// Writes changes; `told` are the ids of the list that is being told, if one is. Gives how many conflicts are open.
pub(super) fn write(
    write: &WriteTransaction,
    changes: &[Change],
    told: &mut Option<HashSet<u128>>,
) -> Result<u64, StoreError> {
    let mut table = write.open_table(CONFLICTS)?;
    for change in changes {
        match change {
            Change::Keep(record) => {
                let id = record.conflict.id.0;
                // Plain data: it can always be written.
                let text = serde_json::to_vec(record).unwrap_or_default();
                table.insert(id, text.as_slice())?;
                if let Some(told) = told {
                    told.insert(id);
                }
            }
            Change::Drop(ConflictId(id)) => {
                table.remove(id)?;
            }
            Change::Begin => *told = Some(HashSet::new()),
            Change::End => {
                if let Some(told) = told.take() {
                    table.retain(|id, _| told.contains(&id))?;
                }
            }
        }
    }
    Ok(table.len()?)
}
