//! The embedded database under `--state-dir`: one file, tables by name, shared by all that keep something over a
//! restart.
//!
//! Invariants: at most one [`Database`] is open at a time; after an I/O error (a full disk) redb refuses further writes
//! until it is opened anew, so whoever meets an error calls [`Store::failed`], lets go of its handle, and the next
//! [`Store::database`] opens it again once nobody holds the old one. Nothing here is called on the detection thread.

use std::{
    fmt,
    fs::{self, OpenOptions},
    os::unix::fs::OpenOptionsExt as _,
    panic::catch_unwind,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use redb::{Builder, Database, DatabaseError, StorageError, backends::InMemoryBackend};
use tracing::error;

/// The file in the directory.
const FILE: &str = "state.redb";
/// Pages kept in memory, bytes; redb's own default is a gigabyte. What waits for a receiver is read once, in order: with
/// more, the agent would only grow with whatever waited once.
const CACHE: usize = 1 << 20;

/// Why something could not be kept, or read back.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory or the file cannot be used.
    #[error(
        "cannot keep state in {}: {source}; check that --state-dir is a directory that the agent may write and that no other agent uses it",
        .path.display()
    )]
    Open {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: Box<DatabaseError>,
    },
    /// Reading or writing failed.
    #[error("the state cannot be read or written: {0}")]
    Database(Box<redb::Error>),
}

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> Self {
        Self::Database(Box::new(error.into()))
    }
}

type Open = Box<dyn Fn() -> Result<Database, StoreError> + Send + Sync>;

/// The database, opened when it is asked for.
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
    /// Keeps everything in `directory`, which is made where it is missing. A file that is damaged is put aside, so that
    /// the agent starts all the same.
    ///
    /// # Errors
    /// Where it cannot be opened.
    pub fn in_directory(directory: &Path) -> Result<Self, StoreError> {
        let store = Self::at(directory);
        store.database()?;
        Ok(store)
    }

    /// The same, opened when it is first asked for, and tried again each time until it can be opened.
    #[must_use]
    pub fn at(directory: &Path) -> Self {
        let path = directory.join(FILE);
        Self::new(true, Box::new(move || open_file(&path)))
    }

    /// Keeps everything in memory: it ends with the process.
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

    /// Opens the database by `open`, again after each failure.
    pub fn new(durable: bool, open: Open) -> Self {
        Self {
            open,
            current: Mutex::default(),
            durable,
        }
    }

    /// Whether it outlives the process.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.durable
    }

    /// The open database. Hold it for one transaction, not longer.
    ///
    /// # Errors
    /// Where it cannot be opened.
    pub fn database(&self) -> Result<Arc<Database>, StoreError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(database) = &*current {
            return Ok(Arc::clone(database));
        }
        let database = Arc::new((self.open)()?);
        *current = Some(Arc::clone(&database));
        Ok(database)
    }

    /// Says that `database` failed: it is opened anew when next asked for.
    pub fn failed(&self, database: Arc<Database>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|c| Arc::ptr_eq(c, &database)) {
            *current = None;
        }
    }
}

/// How every database of the agent is opened.
#[must_use]
pub fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE);
    builder
}

/// Whether there is no use in trying again with the same file: it is damaged, or a crash while it was made left it
/// unfinished (redb says "invalid data" then).
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
        // Damage that is met later, in the middle of a transaction, makes redb panic.
        database.check_integrity()?;
        Ok(database)
    };
    let create = || {
        // It makes redb panic here, too, where it stands in a page that is read to open the file at all.
        catch_unwind(create).unwrap_or_else(|_| {
            let what = "its pages do not fit together".to_owned();
            Err(StorageError::Corrupted(what).into())
        })
    };
    match create() {
        Err(why) if is_damaged(&why) => {
            let aside =
                path.with_extension(format!("damaged-{}", jiff::Timestamp::now().as_second()));
            fs::rename(path, &aside).map_err(io)?;
            error!(
                "the state in {} is damaged ({why}); it was put aside as {} and the agent begins anew",
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
    fn a_failed_database_is_opened_anew_once_nobody_holds_it() {
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
    fn a_file_that_is_no_database_is_put_aside() {
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
