//! The tables of the history.
//!
//! Table `history.events`: the last event of each entry as JSON, by its end (microseconds since the Unix epoch) and its id.
//! Table `history.ids`: the end by the id.

use std::cmp::Reverse;

use detector_event::AnyEvent;
use redb::{
    Database, ReadTransaction, ReadableDatabase as _, ReadableTable as _,
    ReadableTableMetadata as _, TableDefinition, TableError,
};

use super::{EndedKey, RECENT, Stored, is_conflict};
use crate::persist::store::StoreError;

const EVENTS: TableDefinition<'_, (u64, u128), &[u8]> = TableDefinition::new("history.events");
const IDS: TableDefinition<'_, u128, u64> = TableDefinition::new("history.ids");

/// The largest stored event in bytes; a real one is far below, since its lists are bounded.
const MAX_ENTRY: usize = 256 << 10;

/// An event as it is stored here and while its subject is open; `None` if it is too large.
pub(in crate::persist) fn encode(event: &AnyEvent) -> Option<Vec<u8>> {
    let text = serde_json::to_vec(event).ok();
    text.filter(|text| text.len() <= MAX_ENTRY)
}

/// A stored event; `None` if it cannot be decoded, for example one of a newer version.
pub(in crate::persist) fn decode(bytes: &[u8]) -> Option<AnyEvent> {
    serde_json::from_slice(bytes).ok()
}

impl Stored {
    /// Reads in one transaction.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&ReadTransaction) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.store.access(|database| read(&database.begin_read()?))
    }

    /// Stores what ended and removes what is raised again and what is beyond the bounds. An end that was assumed before is replaced by
    /// the one that was seen, which is completed from it. Returns how many are too large.
    pub(super) fn write<'e>(
        &self,
        events: impl Iterator<Item = &'e mut AnyEvent>,
    ) -> Result<u64, StoreError> {
        self.store
            .access(|database| self.transact(database, events))
    }

    fn transact<'e>(
        &self,
        database: &Database,
        events: impl Iterator<Item = &'e mut AnyEvent>,
    ) -> Result<u64, StoreError> {
        let write = database.begin_write()?;
        let mut table = write.open_table(EVENTS)?;
        let mut ids = write.open_table(IDS)?;
        let mut too_large = 0;
        for event in events {
            let id = event.subject_id().into();
            if let Some(ended_at) = ids.remove(id)?
                && let Some(before) = table.remove((ended_at.value(), id))?
                && let Some(before) = decode(before.value())
            {
                event.complete_from(&before);
            }
            let Some(key) = EndedKey::of(event) else {
                continue;
            };
            match encode(event) {
                Some(text) => {
                    table.insert((key.ended_at.0, id), text.as_slice())?;
                    ids.insert(id, key.ended_at.0)?;
                }
                None => too_large += 1,
            }
        }
        let (room, oldest) = (self.bounds.entries as u64, self.oldest());
        loop {
            let first = table.first()?.map(|(key, _)| key.value());
            let has_room = table.len()? <= room;
            let Some((ended_at, id)) =
                first.filter(|(ended_at, _)| !has_room || *ended_at < oldest)
            else {
                break;
            };
            table.remove((ended_at, id))?;
            ids.remove(id)?;
        }
        drop((table, ids));
        write.commit()?;
        Ok(too_large)
    }
}

/// The keys of all entries, in no order.
pub(super) fn keys(read: &ReadTransaction) -> Result<Vec<EndedKey>, StoreError> {
    let Some(ids) = existing(read.open_table(IDS))? else {
        return Ok(Vec::new());
    };
    let entries = ids.iter()?.map(|entry| {
        let (id, ended_at) = entry?;
        Ok(EndedKey {
            ended_at: Reverse(ended_at.value()),
            id: id.value(),
        })
    });
    entries.collect()
}

/// The key of an entry.
pub(super) fn key(read: &ReadTransaction, id: u128) -> Result<Option<EndedKey>, StoreError> {
    let Some(ids) = existing(read.open_table(IDS))? else {
        return Ok(None);
    };
    let ended_at = ids.get(id)?.map(|ended_at| Reverse(ended_at.value()));
    Ok(ended_at.map(|ended_at| EndedKey { ended_at, id }))
}

/// An entry. One that cannot be decoded is left out.
pub(super) fn event(read: &ReadTransaction, key: EndedKey) -> Result<Option<AnyEvent>, StoreError> {
    let Some(table) = existing(read.open_table(EVENTS))? else {
        return Ok(None);
    };
    let entry = table.get((key.ended_at.0, key.id))?;
    let event = entry.and_then(|entry| decode(entry.value()));
    Ok(event.filter(|event| EndedKey::of(event) == Some(key)))
}

/// The newest entries of each kind that are kept in memory, oldest first.
pub(super) fn recent(read: &ReadTransaction) -> Result<Vec<AnyEvent>, StoreError> {
    /// The most entries that are looked at.
    const LOOKED_AT: usize = 20 * RECENT;
    let Some(table) = existing(read.open_table(EVENTS))? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    let mut counts = [0; 2];
    for entry in table.iter()?.rev().take(LOOKED_AT) {
        let Some(event) = decode(entry?.1.value()) else {
            continue;
        };
        let count = &mut counts[usize::from(is_conflict(&event))];
        if *count < RECENT {
            *count += 1;
            found.push(event);
        }
        if counts == [RECENT; 2] {
            break;
        }
    }
    found.reverse();
    Ok(found)
}

/// A table that nothing was written to does not exist.
fn existing<T>(table: Result<T, TableError>) -> Result<Option<T>, StoreError> {
    match table {
        Ok(table) => Ok(Some(table)),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
