//! What an Alertmanager is told of a conflict (API v2).
//!
//! Labels are what an alert is known by: only what does not change over a conflict's life stands there. Pods come and
//! go, so they are annotations.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::report::{
    event::ConflictData,
    summary::{claimants, line},
};

/// One alert as it is posted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Alert {
    pub(super) labels: BTreeMap<String, String>,
    annotations: BTreeMap<&'static str, String>,
    starts_at: String,
    /// When it is over; for an active one, when it is if nothing more is heard.
    pub(super) ends_at: String,
}

impl Alert {
    /// The alert that tells `data`, with labels that the operator adds. Where it is not told again for as long as
    /// `lapse`, it is over: the agent is gone.
    pub(super) fn new(
        data: &ConflictData,
        extra: &BTreeMap<String, String>,
        now: jiff::Timestamp,
        lapse: Duration,
    ) -> Self {
        let ends_at = data.resolved_at.clone();
        Self {
            labels: labels(data, extra),
            annotations: annotations(data),
            starts_at: data.raised_at.clone(),
            ends_at: ends_at.unwrap_or_else(|| after(now, lapse)),
        }
    }

    /// The same as ended at `now`.
    pub(super) fn ended(mut self, now: jiff::Timestamp) -> Self {
        self.ends_at = now.to_string();
        self
    }
}

fn after(now: jiff::Timestamp, wait: Duration) -> String {
    now.checked_add(wait).unwrap_or(now).to_string()
}

fn labels(data: &ConflictData, extra: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut labels = extra.clone();
    let mut put = |name: &str, value: String| labels.insert(name.to_owned(), value);
    put("alertname", "IPConflict".to_owned());
    put("address", data.address.clone());
    put("node", data.node.clone());
    put("kind", data.kind.clone());
    if let Some(vlan) = data.vlan {
        put("vlan", vlan.to_string());
    }
    if let Some(vlan) = data.inner_vlan {
        put("inner_vlan", vlan.to_string());
    }
    labels
}

fn annotations(data: &ConflictData) -> BTreeMap<&'static str, String> {
    let mut annotations = BTreeMap::from([
        ("summary", line(data)),
        ("claimants", claimants(data)),
        ("confidence", data.confidence.clone()),
        ("conflict_id", data.conflict_id.clone()),
    ]);
    if let Some(device) = &data.traffic_goes_to {
        annotations.insert("traffic_goes_to", device.clone());
    }
    annotations
}
