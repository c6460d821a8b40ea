//! The records of the journal in the database of `--state-dir`.
//!
//! Table `fleet.about`: `format` (of the records) and `node` (whose they are). Table `fleet.memories`: a JSON document for each subject,
//! by its text.

use detector_fleet::Memory;
use redb::{ReadableTable as _, TableDefinition, WriteTransaction};
use tracing::{info, warn};

use super::Changes;
use crate::persist::store::{Store, StoreError};

/// To be changed whenever an earlier agent would misread the records, or this one those of an earlier agent.
const FORMAT: &str = "1";
/// The most records that are read.
const RECORDS: usize = 1 << 16;

const ABOUT: TableDefinition<'_, &str, &str> = TableDefinition::new("fleet.about");
const MEMORIES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("fleet.memories");

/// What is stored for this node.
pub(super) fn read(store: &Store, node: &str) -> Result<Vec<Memory>, StoreError> {
    store.in_transaction(|write| {
        prepare(write, node)?;
        let mut memories = Vec::new();
        let mut undecodable = 0_usize;
        for entry in write.open_table(MEMORIES)?.iter()?.take(RECORDS) {
            match serde_json::from_slice(entry?.1.value()) {
                Ok(memory) => memories.push(memory),
                Err(_) => undecodable += 1,
            }
        }
        if undecodable > 0 {
            warn!(
                undecodable,
                "ignored records of registered addresses in --state-dir that cannot be decoded"
            );
        }
        Ok(memories)
    })
}

pub(super) fn write(store: &Store, node: &str, changes: &Changes) -> Result<(), StoreError> {
    store.in_transaction(|write| {
        prepare(write, node)?;
        let mut memories = write.open_table(MEMORIES)?;
        for (subject, record) in changes {
            let key = subject.to_string();
            match record {
                Some(record) => drop(memories.insert(key.as_str(), record.as_slice())?),
                None => drop(memories.remove(key.as_str())?),
            }
        }
        Ok(())
    })
}

/// Drops the records of another node or of another format.
fn prepare(write: &WriteTransaction, node: &str) -> Result<(), StoreError> {
    let mut about = write.open_table(ABOUT)?;
    let get = |key| -> Result<Option<String>, StoreError> {
        Ok(about.get(key)?.map(|value| value.value().to_owned()))
    };
    let (format, of) = (get("format")?, get("node")?);
    if format.as_deref() == Some(FORMAT) && of.as_deref() == Some(node) {
        return Ok(());
    }
    if let Some(of) = of {
        let format = format.unwrap_or_default();
        info!(
            of,
            format, "dropped the records of registered addresses of another node or format"
        );
    }
    write.delete_table(MEMORIES)?;
    about.insert("format", FORMAT)?;
    about.insert("node", node)?;
    Ok(())
}

/// As if an agent of another version had written the records.
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub(super) fn set_format(store: &Store, format: &str) {
    store
        .in_transaction(|write| {
            write.open_table(ABOUT)?.insert("format", format)?;
            Ok(())
        })
        .unwrap();
}
