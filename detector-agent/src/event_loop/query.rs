//! Queries of the current state, answered between two rounds.

use std::net::IpAddr;

use detector_engine::{Anomaly, AnomalyId, Conflict, ConflictId, Engine, ListedClaim, Timestamp};
use tokio::sync::oneshot;

use super::FleetConflicts;
use crate::process::clock;

/// A query with the channel for its answer. Lists are queried by address, a few hundred at a time, so that no answer takes
/// long.
#[derive(Debug)]
pub enum Query {
    /// The open conflicts: when each was raised, and its address.
    ConflictIds(oneshot::Sender<Vec<(Timestamp, IpAddr, ConflictId)>>),
    /// The open conflicts of these addresses.
    Conflicts(Vec<IpAddr>, oneshot::Sender<Vec<Conflict>>),
    /// The open anomalies: when each was raised, and its address.
    AnomalyIds(oneshot::Sender<Vec<(Timestamp, IpAddr, AnomalyId)>>),
    /// Those of these anomalies that are open.
    Anomalies(Vec<AnomalyId>, oneshot::Sender<Vec<Anomaly>>),
    /// Every address that the engine has facts about.
    Addresses(oneshot::Sender<Vec<IpAddr>>),
    /// The claims of these addresses.
    Claims(Vec<IpAddr>, oneshot::Sender<Vec<ListedClaim>>),
}

impl Query {
    /// Answers. The receiver may be gone; then the answer is dropped.
    pub(super) fn answer(self, engine: &Engine, fleet: &FleetConflicts) {
        let now = clock::now();
        match self {
            Self::ConflictIds(reply) => {
                let mut ids = engine.view().conflict_ids();
                ids.extend(fleet.conflict_ids());
                drop(reply.send(ids));
            }
            Self::Conflicts(addresses, reply) => {
                let conflicts = addresses
                    .iter()
                    .flat_map(|a| engine.view().conflicts_of(*a, now));
                let conflicts = conflicts.chain(fleet.conflicts_of(&addresses));
                drop(reply.send(conflicts.collect()));
            }
            Self::AnomalyIds(reply) => {
                let mut ids = engine.view().anomaly_ids();
                ids.extend(fleet.overlap_ids());
                drop(reply.send(ids));
            }
            Self::Anomalies(ids, reply) => {
                let mut anomalies = engine.view().anomalies_of(&ids);
                anomalies.extend(fleet.overlaps_of(&ids));
                drop(reply.send(anomalies));
            }
            Self::Addresses(reply) => drop(reply.send(engine.view().addresses())),
            Self::Claims(addresses, reply) => {
                let claims = addresses
                    .iter()
                    .flat_map(|a| engine.view().claims_of(*a, now));
                drop(reply.send(claims.collect()));
            }
        }
    }
}
