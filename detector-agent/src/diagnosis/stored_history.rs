//! What a diagnosis needs of pools from before the agent's start, in `state.redb`.
//!
//! Both tables are written as a whole. What was not written yet is lost with a SIGKILL: a release is then still noticed at the next
//! start, without its time.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use detector_engine::diagnosis::{RemovedItem, UnixTime};
use detector_event::WallTime;
use redb::{ReadableTable as _, TableDefinition};
use tracing::debug;

use super::{
    files::unix,
    history::{Memory, PoolHistory, SeenAllocation, SeenRemoval},
};
use crate::persist::store::{Store, StoreError};

/// Time between two writes of changes.
const PERIOD: Duration = Duration::from_mins(1);
/// The same without changes: allocations count as last seen when they were written.
const REFRESH: Duration = Duration::from_mins(10);
/// Most allocations that are stored.
const MAX_ALLOCATIONS: usize = 65_536;
/// After this time, an allocation that was not seen again is forgotten.
const MAX_AGE: Duration = Duration::from_hours(24);

/// The owners, and when it was last seen in nanoseconds since the epoch.
type Allocated = (Option<&'static str>, Option<&'static str>, u64);
/// By place and address.
const ALLOCATIONS: TableDefinition<'_, (&str, &str), Allocated> =
    TableDefinition::new("state.pool-allocations");
/// Place, address (none of the directory), owner, when it was last seen, and when it went.
type Removed = (
    &'static str,
    Option<&'static str>,
    Option<&'static str>,
    u64,
    Option<u64>,
);
/// Oldest first.
const REMOVALS: TableDefinition<'_, u64, Removed> = TableDefinition::new("state.pool-removals");

/// Keeps a history in a store, if there is one.
#[derive(Debug)]
pub(super) struct StoredHistory {
    history: Arc<PoolHistory>,
    store: Option<Arc<Store>>,
    /// `None` before the store was read.
    next: Option<Instant>,
    written_at: Option<Instant>,
}

impl StoredHistory {
    /// Not kept yet.
    pub(super) fn new(history: Arc<PoolHistory>) -> Self {
        Self {
            history,
            store: None,
            next: None,
            written_at: None,
        }
    }

    pub(super) fn stored(self, store: Option<Arc<Store>>) -> Self {
        Self { store, ..self }
    }

    /// When [`Self::keep`] is to be called next; `None`: never.
    pub(super) fn due(&self) -> Option<Instant> {
        self.store.as_ref()?;
        Some(self.next.unwrap_or_else(Instant::now))
    }

    /// Reads the store the first time, and writes what changed when that is due.
    pub(super) fn keep(&mut self) {
        let Some(store) = &self.store else {
            return;
        };
        let now = Instant::now();
        match self.next {
            None => {
                match read(store) {
                    Ok(memory) => self.history.continue_from(memory),
                    Err(error) => not_kept(&error),
                }
                self.next = Some(now + PERIOD);
            }
            Some(next) if next <= now => self.write(),
            Some(_) => {}
        }
    }

    /// Writes what changed.
    pub(super) fn write(&mut self) {
        let Some(store) = self.store.as_ref().filter(|_| self.next.is_some()) else {
            return;
        };
        let now = Instant::now();
        self.next = Some(now + PERIOD);
        let is_old = self.written_at.is_none_or(|at| at + REFRESH <= now);
        if let Some(memory) = self.history.take_changed(is_old) {
            self.written_at = Some(now);
            write(store, &memory).unwrap_or_else(|error| not_kept(&error));
        }
    }
}

fn not_kept(error: &StoreError) {
    debug!(%error, "what was seen of IPAM pools is not kept");
}

fn read(store: &Store) -> Result<Memory, StoreError> {
    let now = unix(WallTime::now()).unwrap_or(UnixTime(u64::MAX));
    store.in_transaction(|write| {
        let mut memory = Memory::default();
        for entry in write.open_table(ALLOCATIONS)?.iter()? {
            let (key, value) = entry?;
            let ((place, address), (first, second, at)) = (key.value(), value.value());
            let Ok(address) = address.parse() else {
                continue;
            };
            let allocation = SeenAllocation {
                owners: [first, second].map(|owner| owner.map(Arc::from)),
                at: UnixTime(at),
            };
            if allocation.at + MAX_AGE >= now {
                let of_place = memory.allocations.entry(place.to_owned()).or_default();
                of_place.insert(address, allocation);
            }
        }
        for entry in write.open_table(REMOVALS)?.iter()? {
            let (_, value) = entry?;
            let (place, address, owner, seen, at) = value.value();
            let item = match address.map(str::parse) {
                None => RemovedItem::Directory,
                Some(Ok(address)) => RemovedItem::Reservation(address),
                Some(Err(_)) => continue,
            };
            memory.removals.push_back(SeenRemoval {
                place: place.to_owned(),
                item,
                owner: owner.map(Arc::from),
                seen: UnixTime(seen),
                at: at.map(UnixTime),
            });
        }
        Ok(memory)
    })
}

fn write(store: &Store, memory: &Memory) -> Result<(), StoreError> {
    store.in_transaction(|write| {
        write.delete_table(ALLOCATIONS)?;
        let mut table = write.open_table(ALLOCATIONS)?;
        let all = memory.allocations.iter();
        let all = all.flat_map(|(place, of_place)| of_place.iter().map(move |one| (place, one)));
        for (place, (address, allocation)) in all.take(MAX_ALLOCATIONS) {
            let [first, second] = &allocation.owners;
            let owners = (first.as_deref(), second.as_deref());
            let key = (place.as_str(), &*address.to_string());
            table.insert(key, (owners.0, owners.1, allocation.at.0))?;
        }
        write.delete_table(REMOVALS)?;
        let mut table = write.open_table(REMOVALS)?;
        for (number, removal) in (0..).zip(&memory.removals) {
            let address: Option<IpAddr> = match removal.item {
                RemovedItem::Reservation(address) => Some(address),
                RemovedItem::Directory | RemovedItem::Lock => None,
            };
            let address = address.map(|address| address.to_string());
            let (place, owner) = (removal.place.as_str(), removal.owner.as_deref());
            let times = (removal.seen.0, removal.at.map(|at| at.0));
            table.insert(number, (place, address.as_deref(), owner, times.0, times.1))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use super::*;

    #[test]
    fn memory_is_read_as_it_was_written() {
        let now = unix(WallTime::now()).unwrap();
        let long_ago = UnixTime(now.0 - 2 * 24 * 3_600_000_000_000);
        let address = |n: u8| IpAddr::from([10, 0, 0, n]);
        let allocation = |first: &str, second: Option<&str>, at| SeenAllocation {
            owners: [Some(first.into()), second.map(Into::into)],
            at,
        };
        let removal = |item, owner: Option<&str>, at| SeenRemoval {
            place: "blocks".to_owned(),
            item,
            owner: owner.map(Into::into),
            seen: UnixTime(now.0 - 1),
            at,
        };
        let mut memory = Memory::default();
        let blocks = memory.allocations.entry("blocks".to_owned()).or_default();
        blocks.insert(address(1), allocation("a", Some("b"), now));
        memory.removals = [
            removal(RemovedItem::Directory, None, Some(now)),
            removal(RemovedItem::Reservation(address(2)), Some("c"), None),
        ]
        .into();
        let expected = memory.clone();
        let blocks = memory.allocations.entry("blocks".to_owned()).or_default();
        blocks.insert(address(3), allocation("d", None, long_ago));
        let store = Store::in_memory();
        write(&store, &memory).unwrap();
        assert_eq!(read(&store).unwrap(), expected);
        write(&store, &Memory::default()).unwrap();
        assert_eq!(read(&store).unwrap(), Memory::default());
    }
}
