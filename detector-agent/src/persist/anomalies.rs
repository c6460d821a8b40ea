//! The records of open anomalies.
//!
//! Table `state.anomalies`: under `world` the boot and the network namespace they belong to, under `open` all of them as
//! one JSON list.

use std::{net::IpAddr, sync::Arc};

use redb::{ReadableTable as _, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::{
    engine::{
        Anomaly, AnomalyCause, AnomalyId, AnomalyKind, Claimant, Contested, Ipam, PoolSource,
        Timestamp, Vlan,
    },
    event::names,
    persist::store::StoreError,
};

pub(super) const TABLE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("state.anomalies");
/// Where records of another format are moved.
pub(super) const ASIDE: TableDefinition<'_, &str, &[u8]> =
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
            resolved_at: None,
            resolve_reason: None,
        }
    }
}

/// The list as it is stored.
pub(super) fn encode(list: Vec<Anomaly>) -> Vec<u8> {
    let records: Vec<AnomalyRecord> = list.into_iter().map(Into::into).collect();
    // Plain data always serialises.
    serde_json::to_vec(&records).unwrap_or_default()
}

/// A stored list and how many of its records cannot be decoded, for example those of a newer version.
pub(super) fn decode(bytes: &[u8]) -> (Vec<Anomaly>, usize) {
    let Ok(records) = serde_json::from_slice::<Vec<serde_json::Value>>(bytes) else {
        return (Vec::new(), 1);
    };
    let count = records.len();
    let records = records.into_iter();
    let list: Vec<Anomaly> = records
        .filter_map(|record| serde_json::from_value::<AnomalyRecord>(record).ok())
        .map(Into::into)
        .collect();
    let undecodable = count - list.len();
    (list, undecodable)
}

/// The stored anomalies of this world.
pub(super) fn read(write: &WriteTransaction, world: &str) -> Result<Vec<Anomaly>, StoreError> {
    let table = write.open_table(TABLE)?;
    let of = table.get("world")?;
    if of.is_none_or(|of| of.value() != world.as_bytes()) {
        return Ok(Vec::new());
    }
    let Some(open) = table.get("open")? else {
        return Ok(Vec::new());
    };
    let (list, undecodable) = decode(open.value());
    if undecodable > 0 {
        warn!(
            undecodable,
            "dropped open anomalies of --state-dir that cannot be decoded"
        );
    }
    Ok(list)
}

/// Replaces the stored anomalies.
pub(super) fn write(
    write: &WriteTransaction,
    world: &str,
    list: Vec<Anomaly>,
) -> Result<(), StoreError> {
    let mut table = write.open_table(TABLE)?;
    table.insert("world", world.as_bytes())?;
    table.insert("open", encode(list).as_slice())?;
    Ok(())
}
