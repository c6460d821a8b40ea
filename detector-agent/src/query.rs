//! Questions about the present state, which the detection thread answers between two of its rounds.

use std::net::IpAddr;

use tokio::sync::oneshot;

use crate::detect::{Anomaly, AnomalyId, Claim, Conflict};

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
    Claims(Vec<IpAddr>, oneshot::Sender<Vec<Claim>>),
}
