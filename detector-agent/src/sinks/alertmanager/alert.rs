//! What an Alertmanager is told of a conflict or an anomaly (API v2).
//!
//! Labels are what an alert is known by: only what does not change over a conflict's life stands there. Pods come and
//! go, so they are annotations.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::event::{
    AnomalyData, ConflictData,
    any_event::AnyEvent,
    summary::{anomaly_line, claimants, line},
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
    /// The alert that tells what `event` does, with labels that the operator adds. Where it is not told again for as long as
    /// `lapse`, it is over: the agent is gone.
    pub(super) fn new(
        event: &AnyEvent,
        extra: &BTreeMap<String, String>,
        now: jiff::Timestamp,
        lapse: Duration,
    ) -> Self {
        let ends_at = event.resolved_at().map(str::to_owned);
        let (labels, annotations) = match event {
            AnyEvent::Conflict(event) => (labels(&event.data, extra), annotations(&event.data)),
            AnyEvent::Anomaly(event) => (
                anomaly_labels(&event.data, extra),
                about_anomaly(&event.data),
            ),
        };
        Self {
            labels,
            annotations,
            starts_at: event.raised_at().to_owned(),
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

fn anomaly_labels(
    data: &AnomalyData,
    extra: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut labels = extra.clone();
    let mut put = |name: &str, value: String| labels.insert(name.to_owned(), value);
    put("alertname", "IPAnomaly".to_owned());
    put("address", data.address.clone());
    put("node", data.node.clone());
    put("kind", data.kind.clone());
    if let Some(vlan) = data.vlan {
        put("vlan", vlan.to_string());
    }
    // Two pods may ask in vain for one gateway.
    if let Some(device) = &data.device {
        put("device", device.clone());
    }
    labels
}

fn about_anomaly(data: &AnomalyData) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("summary", anomaly_line(data)),
        ("cause", data.cause.clone()),
        ("anomaly_id", data.anomaly_id.clone()),
    ])
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
