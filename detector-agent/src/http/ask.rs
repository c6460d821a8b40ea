//! Questions to the detection thread, one at a time whoever asks: it is never more than one small answer away from the
//! next observation.

use std::{net::IpAddr, time::Duration};

use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};

use crate::{
    engine::{Anomaly, AnomalyId, Conflict, ListedClaim},
    event_loop::{Inbox, Message, Query},
};

/// An answer takes microseconds; where it takes this long, detection has other troubles.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AskError {
    /// It has ended.
    #[error("detection has ended")]
    Ended,
    /// It did not answer in time.
    #[error("detection did not answer within five seconds")]
    Late,
}

/// The way to ask.
#[derive(Debug)]
pub(super) struct Ask {
    inbox: Inbox,
    turn: Semaphore,
}

impl Ask {
    pub(super) fn new(inbox: Inbox) -> Self {
        Self {
            inbox,
            turn: Semaphore::new(1),
        }
    }

    /// The addresses with an open conflict, the one raised first at the front.
    pub(super) async fn conflict_addresses(&self) -> Result<Vec<IpAddr>, AskError> {
        self.ask(Query::ConflictAddresses).await
    }

    /// The open conflicts of these addresses.
    pub(super) async fn conflicts(&self, addresses: &[IpAddr]) -> Result<Vec<Conflict>, AskError> {
        self.ask(|reply| Query::Conflicts(addresses.to_vec(), reply))
            .await
    }

    /// The open anomalies, the one raised first at the front.
    pub(super) async fn anomaly_ids(&self) -> Result<Vec<AnomalyId>, AskError> {
        self.ask(Query::AnomalyIds).await
    }

    /// These anomalies, as far as they are open.
    pub(super) async fn anomalies(&self, ids: &[AnomalyId]) -> Result<Vec<Anomaly>, AskError> {
        self.ask(|reply| Query::Anomalies(ids.to_vec(), reply))
            .await
    }

    /// Every address something is known of, in order.
    pub(super) async fn addresses(&self) -> Result<Vec<IpAddr>, AskError> {
        let mut addresses = self.ask(Query::Addresses).await?;
        addresses.sort_unstable();
        Ok(addresses)
    }

    /// The claims of these addresses.
    pub(super) async fn claims(&self, addresses: &[IpAddr]) -> Result<Vec<ListedClaim>, AskError> {
        self.ask(|reply| Query::Claims(addresses.to_vec(), reply))
            .await
    }

    async fn ask<T>(&self, query: impl FnOnce(oneshot::Sender<T>) -> Query) -> Result<T, AskError> {
        let asked = async {
            // The semaphore is never closed.
            let _turn = self.turn.acquire().await;
            let (reply, answer) = oneshot::channel();
            if !self.inbox.send(Message::Query(query(reply))) {
                return Err(AskError::Ended);
            }
            answer.await.map_err(|_| AskError::Ended)
        };
        timeout(PATIENCE, asked)
            .await
            .unwrap_or(Err(AskError::Late))
    }
}
