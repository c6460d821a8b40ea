//! The embedded databases in `--state-dir`: a file with named tables for what is open or waits to be delivered, and one for what ended.
//!
//! Invariants: at most one [`Database`] of a file is open at a time; after an I/O error (a full disk) redb refuses further writes
//! until it is reopened: [`Store::access`] marks it as failed, as does a caller that keeps a handle with [`Store::failed`], and the
//! next [`Store::database`] reopens it once no other handle is left. Nothing here is called on the event loop's thread.

use std::{
    fmt,
    fs::{self, OpenOptions},
    os::unix::fs::OpenOptionsExt as _,
    panic::catch_unwind,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use redb::{
    Builder, Database, DatabaseError, StorageError, WriteTransaction, backends::InMemoryBackend,
};
use tracing::error;

/// The file of what is open and not delivered yet.
const FILE: &str = "state.redb";
/// The file of what ended.
const HISTORY_FILE: &str = "history.redb";
/// Size of the page cache in bytes; redb's default is a gigabyte. Queued events are read once, in order, so a larger
/// cache would only cost memory.
const CACHE: usize = 1 << 20;

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory or the file cannot be used.
    #[error(
        "cannot store state in {}: {source}; check that --state-dir is a writable directory and that no other agent uses it",
        .path.display()
    )]
    Open {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: Box<DatabaseError>,
    },
    /// Reading or writing failed.
    #[error("cannot read or write the state: {0}")]
    Database(Box<redb::Error>),
}

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> Self {
        Self::Database(Box::new(error.into()))
    }
}

type Open = Box<dyn Fn() -> Result<Database, StoreError> + Send + Sync>;

/// The database, opened on first use.
pub struct Store {
    open: Open,
    current: Mutex<Option<Arc<Database>>>,
    durable: bool,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("durable", &self.durable)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// A store in `directory`, which is created if it is missing. A damaged file is moved aside, so that the agent starts
    /// anyway.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn in_directory(directory: &Path) -> Result<Self, StoreError> {
        let store = Self::at(directory);
        store.database()?;
        Ok(store)
    }

    /// The same, opened on first use; a failure is retried at the next use.
    #[must_use]
    pub fn at(directory: &Path) -> Self {
        Self::file(directory.join(FILE))
    }

    /// The store of the history in `directory`, also opened on first use.
    #[must_use]
    pub fn history_at(directory: &Path) -> Self {
        Self::file(directory.join(HISTORY_FILE))
    }

    fn file(path: PathBuf) -> Self {
        Self::new(true, Box::new(move || open_file(&path)))
    }

    /// A store in memory, lost when the process ends.
    #[must_use]
    pub fn in_memory() -> Self {
        let create = || {
            let database = builder().create_with_backend(InMemoryBackend::new());
            database.map_err(|source| StoreError::Open {
                path: PathBuf::from("memory"),
                source: Box::new(source),
            })
        };
        Self::new(false, Box::new(create))
    }

    /// A store whose database is opened, and after a failure reopened, by `open`.
    pub fn new(durable: bool, open: Open) -> Self {
        Self {
            open,
            current: Mutex::default(),
            durable,
        }
    }

    /// Whether it survives the process.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.durable
    }

    /// The open database, to be held for one transaction only.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn database(&self) -> Result<Arc<Database>, StoreError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(database) = &*current {
            return Ok(Arc::clone(database));
        }
        let database = Arc::new((self.open)()?);
        *current = Some(Arc::clone(&database));
        Ok(database)
    }

    /// Uses the database; after an error it is reopened at the next use.
    ///
    /// # Errors
    /// It cannot be opened, or that of `access`.
    pub fn access<T>(
        &self,
        access: impl FnOnce(&Database) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let database = self.database()?;
        let result = access(&database);
        if result.is_err() {
            self.failed(database);
        }
        result
    }

    /// Runs `body` in a write transaction, which is committed unless it fails.
    ///
    /// # Errors
    /// As [`Store::access`].
    pub fn in_transaction<T>(
        &self,
        body: impl FnOnce(&WriteTransaction) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.access(|database| {
            let write = database.begin_write()?;
            let result = body(&write)?;
            write.commit()?;
            Ok(result)
        })
    }

    /// Marks `database` as failed: it is reopened at the next use.
    pub fn failed(&self, database: Arc<Database>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|c| Arc::ptr_eq(c, &database)) {
            *current = None;
        }
    }
}

/// The options with which every database is opened.
#[must_use]
pub fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE);
    builder
}

/// Whether the file is damaged, so that a retry is useless. It is so after a crash while it was created as well (redb then
/// reports "invalid data").
pub(crate) fn is_damaged(error: &DatabaseError) -> bool {
    match error {
        DatabaseError::Storage(StorageError::Corrupted(_)) => true,
        DatabaseError::Storage(StorageError::Io(error)) => {
            error.kind() == std::io::ErrorKind::InvalidData
        }
        _ => false,
    }
}

fn open_file(path: &Path) -> Result<Database, StoreError> {
    let wrong = |source: DatabaseError| StoreError::Open {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let io = |error: std::io::Error| wrong(error.into());
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(io)?;
    }
    let create = || {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        let mut database = builder().create_file(file)?;
        // Damage that is found later, in a transaction, makes redb panic.
        database.check_integrity()?;
        Ok(database)
    };
    let create = || {
        // Damage in a page that is read to open the file makes redb panic here as well.
        catch_unwind(create).unwrap_or_else(|_| {
            let what = "its pages are inconsistent".to_owned();
            Err(StorageError::Corrupted(what).into())
        })
    };
    match create() {
        Err(why) if is_damaged(&why) => {
            let aside =
                path.with_extension(format!("damaged-{}", jiff::Timestamp::now().as_second()));
            fs::rename(path, &aside).map_err(io)?;
            error!(
                "the state in {} is damaged ({why}); it was moved to {}, starting with an empty one",
                path.display(),
                aside.display()
            );
            create().map_err(wrong)
        }
        opened => opened.map_err(wrong),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use super::*;

    #[test]
    fn a_second_agent_on_the_same_directory_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let first = Store::in_directory(directory.path()).unwrap();
        let error = Store::in_directory(directory.path()).unwrap_err();
        assert!(error.to_string().contains("no other agent"), "{error}");
        drop(first);
        Store::in_directory(directory.path()).unwrap();
    }

    #[test]
    fn a_failed_database_is_reopened_once_it_is_released() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::in_directory(directory.path()).unwrap();
        let held = store.database().unwrap();
        let database = store.database().unwrap();
        store.failed(database);
        assert!(store.database().is_err(), "the old one is still open");
        drop(held);
        store.database().unwrap();
    }

    #[test]
    fn a_file_that_is_not_a_database_is_moved_aside() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE), vec![7; 100_000]).unwrap();
        Store::in_directory(directory.path()).unwrap();
        let names: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(names.iter().any(|n| n.contains("damaged")), "{names:?}");
    }
}
