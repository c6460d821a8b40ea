//! The alert for a conflict or an anomaly (Alertmanager API v2).
//!
//! Labels identify an alert, so only what does not change during a conflict's life is a label. Pods may become known
//! later, so they are annotations.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::{
    clock::WallTime,
    event::{
        AnomalyData, AnyEvent, ConflictData,
        summary::{anomaly_line, claimants, conflict_line},
    },
};

/// One alert as it is posted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Alert {
    pub(super) labels: BTreeMap<String, String>,
    annotations: BTreeMap<&'static str, String>,
    starts_at: WallTime,
    /// When it was resolved; of an active one, when it expires unless it is sent again.
    pub(super) ends_at: WallTime,
}

impl Alert {
    /// The alert for `event`, with the configured labels. An active one expires after `expire_after` unless it is sent
    /// again, as when the agent is gone.
    pub(super) fn new(
        event: &AnyEvent,
        extra: &BTreeMap<String, String>,
        now: WallTime,
        expire_after: Duration,
    ) -> Self {
        let (labels, annotations) = match event {
            AnyEvent::Conflict(event) => (labels(&event.data, extra), annotations(&event.data)),
            AnyEvent::Anomaly(event) => (
                anomaly_labels(&event.data, extra),
                anomaly_annotations(&event.data),
            ),
        };
        Self {
            labels,
            annotations,
            starts_at: event.raised_at(),
            ends_at: event
                .resolved_at()
                .unwrap_or_else(|| now.after(expire_after)),
        }
    }

    /// Whether `other` is the same alert with the same content; when it expires does not matter.
    pub(super) fn has_content_of(&self, other: &Self) -> bool {
        (&self.labels, &self.annotations, self.starts_at)
            == (&other.labels, &other.annotations, other.starts_at)
    }

    /// The same alert resolved at `now`.
    pub(super) fn resolved(mut self, now: WallTime) -> Self {
        self.ends_at = now;
        self
    }
}

fn labels(data: &ConflictData, extra: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut labels = extra.clone();
    let mut put = |name: &str, value: String| labels.insert(name.to_owned(), value);
    put("alertname", "IPConflict".to_owned());
    put("address", data.address.to_string());
    put("network", data.network.to_string());
    put("node", data.node.clone());
    put("kind", data.kind.name().to_owned());
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
    put("address", data.address.to_string());
    put("node", data.node.clone());
    put("kind", data.kind.name().to_owned());
    if let Some(vlan) = data.vlan {
        put("vlan", vlan.to_string());
    }
    // Two pods may fail to resolve the same gateway.
    if let Some(device) = &data.device {
        put("device", device.clone());
    }
    labels
}

fn anomaly_annotations(data: &AnomalyData) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("summary", anomaly_line(data)),
        ("cause", data.cause.name().to_owned()),
        ("anomaly_id", data.anomaly_id.to_string()),
    ])
}

fn annotations(data: &ConflictData) -> BTreeMap<&'static str, String> {
    let mut annotations = BTreeMap::from([
        ("summary", conflict_line(data)),
        ("claimants", claimants(data)),
        ("confidence", data.confidence.name().to_owned()),
        ("conflict_id", data.conflict_id.to_string()),
    ]);
    if let Some(device) = &data.traffic_goes_to {
        annotations.insert("traffic_goes_to", device.clone());
    }
    annotations
}
