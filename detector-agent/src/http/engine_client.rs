//! Queries to the event loop, one at a time across all clients: the loop is never more than one small answer away
//! from the next observation.

use std::{net::IpAddr, time::Duration};

use detector_engine::{Anomaly, AnomalyId, Conflict, ConflictId, ListedClaim, Timestamp};
use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};

use crate::event_loop::{EventLoopHandle, LoopMessage, Query};

/// An answer takes microseconds; this long means that the event loop is stuck.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Why a query has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QueryError {
    /// The event loop has ended.
    #[error("the event loop has ended")]
    Ended,
    /// No answer in time.
    #[error("the event loop did not answer within five seconds")]
    TimedOut,
    /// The history cannot be read, or not in time.
    #[error("the history in --state-dir cannot be read; the part `state` of /readyz may say why")]
    History,
}

/// Sends queries to the event loop.
#[derive(Debug)]
pub(super) struct EngineClient {
    inbox: EventLoopHandle,
    one_at_a_time: Semaphore,
}

impl EngineClient {
    pub(super) fn new(inbox: EventLoopHandle) -> Self {
        Self {
            inbox,
            one_at_a_time: Semaphore::new(1),
        }
    }

    /// The open conflicts, in the order they were raised.
    pub(super) async fn conflict_ids(
        &self,
    ) -> Result<Vec<(Timestamp, IpAddr, ConflictId)>, QueryError> {
        let mut ids = self.query(Query::ConflictIds).await?;
        ids.sort_unstable();
        Ok(ids)
    }

    /// The open conflicts of these addresses.
    pub(super) async fn conflicts(
        &self,
        addresses: &[IpAddr],
    ) -> Result<Vec<Conflict>, QueryError> {
        self.query(|reply| Query::Conflicts(addresses.to_vec(), reply))
            .await
    }

    /// The open anomalies, in the order they were raised.
    pub(super) async fn anomaly_ids(
        &self,
    ) -> Result<Vec<(Timestamp, IpAddr, AnomalyId)>, QueryError> {
        let mut ids = self.query(Query::AnomalyIds).await?;
        ids.sort_unstable();
        Ok(ids)
    }

    /// Those of these anomalies that are open.
    pub(super) async fn anomalies(&self, ids: &[AnomalyId]) -> Result<Vec<Anomaly>, QueryError> {
        self.query(|reply| Query::Anomalies(ids.to_vec(), reply))
            .await
    }

    /// Every address with facts, sorted.
    pub(super) async fn addresses(&self) -> Result<Vec<IpAddr>, QueryError> {
        let mut addresses = self.query(Query::Addresses).await?;
        addresses.sort_unstable();
        Ok(addresses)
    }

    /// The claims of these addresses.
    pub(super) async fn claims(
        &self,
        addresses: &[IpAddr],
    ) -> Result<Vec<ListedClaim>, QueryError> {
        self.query(|reply| Query::Claims(addresses.to_vec(), reply))
            .await
    }

    async fn query<T>(
        &self,
        query: impl FnOnce(oneshot::Sender<T>) -> Query,
    ) -> Result<T, QueryError> {
        let answered = async {
            // The semaphore is never closed.
            let _permit = self.one_at_a_time.acquire().await;
            let (reply, answer) = oneshot::channel();
            if !self.inbox.send(LoopMessage::Query(query(reply))) {
                return Err(QueryError::Ended);
            }
            answer.await.map_err(|_| QueryError::Ended)
        };
        timeout(TIMEOUT, answered)
            .await
            .unwrap_or(Err(QueryError::TimedOut))
    }
}
