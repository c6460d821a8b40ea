//! Reads of the history, one at a time: they wait for the disk, which the endpoints do not.

use std::{sync::Arc, time::Duration};

use detector_event::{AnyEvent, SubjectId};
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};
use tracing::debug;

use super::engine_client::QueryError;
use crate::persist::{
    history::{Ended, EndedKey, History},
    store::StoreError,
};

/// A read takes milliseconds; this long means that the disk does not answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the history for the clients of one thread.
#[derive(Debug)]
pub(super) struct HistoryReader {
    history: Arc<History>,
    one_at_a_time: Arc<Semaphore>,
}

impl HistoryReader {
    pub(super) fn new(history: Arc<History>) -> Self {
        Self {
            history,
            one_at_a_time: Arc::new(Semaphore::new(1)),
        }
    }

    /// The keys of all entries, newest first.
    pub(super) async fn keys(&self) -> Result<Vec<EndedKey>, QueryError> {
        self.read(History::keys).await
    }

    /// The entries of these keys.
    pub(super) async fn entries(&self, keys: Vec<EndedKey>) -> Result<Vec<Ended>, QueryError> {
        self.read(move |history| history.entries(&keys)).await
    }

    /// The entry of this id.
    pub(super) async fn find(&self, id: SubjectId) -> Result<Option<AnyEvent>, QueryError> {
        self.read(move |history| history.find(id)).await
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&History) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, QueryError> {
        let reading = async {
            // The semaphore is never closed. A read that hangs keeps the permit, so that no second one hangs with it.
            let permit = Arc::clone(&self.one_at_a_time).acquire_owned().await;
            let history = Arc::clone(&self.history);
            let task = spawn_blocking(move || {
                let _permit = permit;
                read(&history)
            });
            task.await
        };
        match timeout(TIMEOUT, reading).await {
            Ok(Ok(Ok(found))) => Ok(found),
            Ok(Ok(Err(problem))) => {
                debug!("cannot read the history: {problem}");
                Err(QueryError::History)
            }
            // It panicked, because the file is damaged, or takes too long.
            Ok(Err(_)) | Err(_) => Err(QueryError::History),
        }
    }
}
