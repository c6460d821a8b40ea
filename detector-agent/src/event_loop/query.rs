//! Questions about the present state, answered between two rounds.

use std::net::IpAddr;

use tokio::sync::oneshot;

use crate::{
    clock,
    engine::{Anomaly, AnomalyId, Conflict, Engine, ListedClaim},
};

/// A question. Lists are asked for by address, a few hundred at a time, so that no answer takes long.
#[derive(Debug)]
pub enum Query {
    /// The addresses with an open conflict, the one raised first at the front.
    ConflictAddresses(oneshot::Sender<Vec<IpAddr>>),
    /// The open conflicts of these addresses.
    Conflicts(Vec<IpAddr>, oneshot::Sender<Vec<Conflict>>),
    /// The open anomalies, the one raised first at the front.
    AnomalyIds(oneshot::Sender<Vec<AnomalyId>>),
    /// These anomalies, as far as they are open.
    Anomalies(Vec<AnomalyId>, oneshot::Sender<Vec<Anomaly>>),
    /// Every address something is known of.
    Addresses(oneshot::Sender<Vec<IpAddr>>),
    /// The claims of these addresses.
    Claims(Vec<IpAddr>, oneshot::Sender<Vec<ListedClaim>>),
}

impl Query {
    /// Answers; whoever asked may have gone, then nobody misses it.
    pub(super) fn answer(self, engine: &Engine) {
        let now = clock::now();
        match self {
            Self::ConflictAddresses(reply) => drop(reply.send(engine.conflict_addresses())),
            Self::Conflicts(addresses, reply) => {
                let conflicts = addresses.iter().flat_map(|a| engine.conflicts_of(*a, now));
                drop(reply.send(conflicts.collect()));
            }
            Self::AnomalyIds(reply) => drop(reply.send(engine.anomaly_ids())),
            Self::Anomalies(ids, reply) => drop(reply.send(engine.anomalies_of(&ids))),
            Self::Addresses(reply) => drop(reply.send(engine.addresses())),
            Self::Claims(addresses, reply) => {
                let claims = addresses.iter().flat_map(|a| engine.claims_of(*a, now));
                drop(reply.send(claims.collect()));
            }
        }
    }
}
