//! Ended conflicts and anomalies, each as in its last event: the newest ones in memory, all of them in a file of their own in
//! `--state-dir`.
//!
//! Invariants: the number of entries, their age and the size of each are bounded; an entry is in the file before the record that it
//! was open is removed, so that it is in one of them after a SIGKILL; a finding that is raised again under its id is in the history
//! no more. A file of its own, because the start waits for what was open and for nothing else, and damage to one file costs the
//! other one nothing.

mod sink;
mod tables;
mod writer;

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fmt,
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use detector_event::{AnyEvent, Event, SubjectId, WallTime};

use super::store::{Store, StoreError};
pub use sink::HistorySink;
pub(super) use tables::{decode, encode};
pub(super) use writer::HistoryWriter;

/// The newest conflicts that are kept in memory, and as many anomalies.
const RECENT: usize = 50;

/// What the history keeps on disk.
#[derive(Clone, Copy, Debug)]
pub struct HistoryBounds {
    /// The most entries.
    pub entries: usize,
    /// The age at which an entry is removed.
    pub age: Duration,
}

/// The place of an entry: by its end, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndedKey {
    /// Microseconds since the Unix epoch.
    ended_at: Reverse<u64>,
    id: u128,
}

impl EndedKey {
    /// The key of a resolving event; `None` of any other.
    #[must_use]
    pub fn of(event: &AnyEvent) -> Option<Self> {
        let ended_at = event.resolved_at().filter(|_| event.is_resolved())?;
        Some(Self {
            ended_at: Reverse(micros(ended_at)),
            id: event.subject_id().into(),
        })
    }

    /// Whether it ended at or after `since`, and before `until`.
    #[must_use]
    pub fn is_within(&self, since: Option<WallTime>, until: Option<WallTime>) -> bool {
        let Reverse(ended_at) = self.ended_at;
        since.is_none_or(|since| micros(since) <= ended_at)
            && until.is_none_or(|until| ended_at < micros(until))
    }
}

impl fmt::Display for EndedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.ended_at.0, SubjectId::from(self.id))
    }
}

impl FromStr for EndedKey {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        let (ended_at, id) = text.split_once('_').ok_or(NotAKey)?;
        let id = SubjectId::try_from(id.to_owned()).map_err(|_| NotAKey)?;
        Ok(Self {
            ended_at: Reverse(ended_at.parse().map_err(|_| NotAKey)?),
            id: id.into(),
        })
    }
}

/// An entry: what ended, as in its last event.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its place.
    pub key: EndedKey,
    /// The event.
    pub event: AnyEvent,
}

/// The text is no key of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAKey;

fn micros(time: WallTime) -> u64 {
    u64::try_from(time.as_unix_nanos() / 1_000).unwrap_or(0)
}

/// The ended conflicts and anomalies, shared by all who show them. By default only the newest ones, in memory.
#[derive(Debug, Default)]
pub struct History {
    recent: Mutex<BTreeMap<EndedKey, AnyEvent>>,
    stored: Option<Stored>,
}

/// Where all of them are.
#[derive(Debug)]
struct Stored {
    store: Store,
    bounds: HistoryBounds,
}

impl History {
    /// A history in this store.
    #[must_use]
    pub fn stored(store: Store, bounds: HistoryBounds) -> Self {
        Self {
            recent: Mutex::default(),
            stored: Some(Stored { store, bounds }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<EndedKey, AnyEvent>> {
        // No code panics while holding the lock.
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what ended to the entries in memory; what is raised again leaves them.
    fn note(&self, event: &AnyEvent) {
        let mut recent = self.lock();
        let id = event.subject_id();
        recent.retain(|_, entry| entry.subject_id() != id);
        let Some(key) = EndedKey::of(event) else {
            return;
        };
        recent.insert(key, event.clone());
        let is_alike = |entry: &&AnyEvent| is_conflict(entry) == is_conflict(event);
        if recent.values().filter(is_alike).count() > RECENT {
            let oldest = recent.iter().rev().find(|(_, entry)| is_alike(entry));
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                recent.remove(&oldest);
            }
        }
    }

    /// The conflicts in memory, newest first: at most 50.
    #[must_use]
    pub fn recent_conflicts(&self) -> Vec<Arc<Event>> {
        let recent = self.lock();
        let conflicts = recent.values().filter_map(|entry| match entry {
            AnyEvent::Conflict(event) => Some(Arc::clone(event)),
            AnyEvent::Anomaly(_) => None,
        });
        conflicts.collect()
    }

    /// The keys of all entries, newest first. Waits for the disk, like the methods below.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn keys(&self) -> Result<Vec<EndedKey>, StoreError> {
        let mut keys = match &self.stored {
            Some(stored) => stored.read(tables::keys)?,
            None => Vec::new(),
        };
        let recent: Vec<_> = self.lock().keys().copied().collect();
        // An entry in memory may be newer than the stored one of the same id.
        keys.retain(|key| !recent.iter().any(|newer| newer.id == key.id));
        keys.extend(recent);
        keys.sort_unstable();
        if let Some(stored) = &self.stored {
            let oldest = stored.oldest();
            keys.retain(|key| key.ended_at.0 >= oldest);
        }
        Ok(keys)
    }

    /// The entries of these keys, without those that have gone meanwhile.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn entries(&self, keys: &[EndedKey]) -> Result<Vec<Ended>, StoreError> {
        let mut found: Vec<_> = {
            let recent = self.lock();
            keys.iter().map(|key| recent.get(key).cloned()).collect()
        };
        if let Some(stored) = &self.stored
            && found.iter().any(Option::is_none)
        {
            stored.read(|read| {
                for (key, event) in keys.iter().zip(&mut found) {
                    if event.is_none() {
                        *event = tables::event(read, *key)?;
                    }
                }
                Ok(())
            })?;
        }
        let entries = keys.iter().zip(found);
        let entries = entries.filter_map(|(key, event)| {
            Some(Ended {
                key: *key,
                event: event?,
            })
        });
        Ok(entries.collect())
    }

    /// The entry of this id.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn find(&self, id: SubjectId) -> Result<Option<AnyEvent>, StoreError> {
        let recent = self
            .lock()
            .values()
            .find(|entry| entry.subject_id() == id)
            .cloned();
        match (&self.stored, recent) {
            (Some(stored), None) => stored.read(|read| match tables::key(read, id.into())? {
                Some(key) if key.ended_at.0 >= stored.oldest() => tables::event(read, key),
                _ => Ok(None),
            }),
            (_, recent) => Ok(recent),
        }
    }
}

impl Stored {
    /// The end of the oldest entry that is kept.
    fn oldest(&self) -> u64 {
        let age = u64::try_from(self.bounds.age.as_micros()).unwrap_or(u64::MAX);
        micros(WallTime::now()).saturating_sub(age)
    }
}

fn is_conflict(event: &AnyEvent) -> bool {
    matches!(event, AnyEvent::Conflict(_))
}
