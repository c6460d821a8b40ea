//! The records of open anomalies.
//!
//! Table `state.open-anomalies`: a JSON document for each, by its id. They are valid with the records of conflicts.

use std::{net::IpAddr, sync::Arc};

use detector_engine::{
    Anomaly, AnomalyCause, AnomalyId, AnomalyKind, Bounds, Claimant, Contested, Ipam, PoolSource,
    Timestamp, Vlan,
};
use detector_event::names;
use redb::{ReadableTable as _, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::persist::store::StoreError;

pub(super) const TABLE: TableDefinition<'_, u128, &[u8]> =
    TableDefinition::new("state.open-anomalies");
/// Where records of another format are moved.
pub(super) const ASIDE: TableDefinition<'_, u128, &[u8]> =
    TableDefinition::new("state.anomalies-aside");

/// One open anomaly.
#[derive(Debug, Serialize, Deserialize)]
struct AnomalyRecord {
    id: AnomalyId,
    #[serde(with = "names::name")]
    kind: AnomalyKind,
    #[serde(with = "names::name")]
    cause: AnomalyCause,
    address: IpAddr,
    vlan: Vlan,
    holder: Option<Claimant>,
    also_on: Vec<String>,
    source: Option<SourceRecord>,
    owner: Option<Arc<str>>,
    detail: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    contested: Option<Contested>,
    raised_at: Timestamp,
    decided_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reported_latency_us: Option<u64>,
    #[serde(default)]
    reported_diagnosis: u64,
}

/// The IPAM, its network and the directory, file or resource.
#[derive(Debug, Serialize, Deserialize)]
struct SourceRecord(#[serde(with = "names::name")] Ipam, String, String);

impl From<Anomaly> for AnomalyRecord {
    fn from(anomaly: Anomaly) -> Self {
        let source = |s: Arc<PoolSource>| SourceRecord(s.ipam, s.network.clone(), s.place.clone());
        Self {
            id: anomaly.id,
            kind: anomaly.kind,
            cause: anomaly.cause,
            address: anomaly.address,
            vlan: anomaly.vlan,
            holder: anomaly.holder,
            also_on: anomaly.also_on,
            source: anomaly.source.map(source),
            owner: anomaly.owner,
            detail: anomaly.detail,
            contested: anomaly.contested,
            raised_at: anomaly.raised_at,
            decided_at: anomaly.decided_at,
            reported_latency_us: anomaly.reported_latency_us,
            reported_diagnosis: anomaly.reported_diagnosis,
        }
    }
}

impl From<AnomalyRecord> for Anomaly {
    fn from(record: AnomalyRecord) -> Self {
        let source = |SourceRecord(ipam, network, place)| {
            Arc::new(PoolSource {
                ipam,
                network,
                place,
            })
        };
        Self {
            id: record.id,
            kind: record.kind,
            cause: record.cause,
            address: record.address,
            vlan: record.vlan,
            holder: record.holder,
            also_on: record.also_on,
            source: record.source.map(source),
            owner: record.owner,
            detail: record.detail,
            contested: record.contested,
            // The registry of the cluster has it.
            overlap: None,
            raised_at: record.raised_at,
            decided_at: record.decided_at,
            reported_latency_us: record.reported_latency_us,
            reported_diagnosis: record.reported_diagnosis,
            resolved_at: None,
            resolve_reason: None,
        }
    }
}

/// An anomaly as it is stored.
pub(super) fn encode(anomaly: &Anomaly) -> Vec<u8> {
    // Plain data always serialises.
    serde_json::to_vec(&AnomalyRecord::from(anomaly.clone())).unwrap_or_default()
}

/// A stored anomaly; `None` if it cannot be decoded, for example one of a newer version.
pub(super) fn decode(bytes: &[u8]) -> Option<Anomaly> {
    let record = serde_json::from_slice::<AnomalyRecord>(bytes);
    record.ok().map(Into::into)
}

/// The stored anomalies, once the tables are prepared.
pub(super) fn read(write: &WriteTransaction) -> Result<Vec<Anomaly>, StoreError> {
    let table = write.open_table(TABLE)?;
    let mut list = Vec::new();
    let mut undecodable = 0;
    for entry in table.iter()?.take(Bounds::default().open_conflicts) {
        let (id, record) = entry?;
        match decode(record.value()).filter(|anomaly| anomaly.id.0 == id.value()) {
            Some(anomaly) => list.push(anomaly),
            None => undecodable += 1,
        }
    }
    if undecodable > 0 {
        warn!(
            undecodable,
            "dropped open anomalies of --state-dir that cannot be decoded"
        );
    }
    Ok(list)
}
