//! The alert for a conflict or an anomaly (Alertmanager API v2).
//!
//! Labels identify an alert, so only what does not change during a conflict's life is a label. Pods may become known
//! later, so they are annotations. Names, severities and labels are those of deploy/prometheus/rules.yaml, so that an
//! Alertmanager that gets an alert from both has it once.

use std::{collections::BTreeMap, time::Duration};

use detector_event::{
    AnomalyData, AnyEvent, ConflictData, ContractName as _, SubjectKind, WallTime, clean,
    guidance::StatusPageUrl,
    summary::{anomaly_line, claimants, conflict_line, vlan_id},
};
use serde::Serialize;

use crate::sinks::{notice::Notice, settings::AlertLabels};

/// What all alerts of one Alertmanager have in common.
#[derive(Clone, Debug, Default)]
pub(super) struct AlertSettings {
    pub(super) labels: AlertLabels,
    pub(super) status_page: Option<StatusPageUrl>,
    /// An active alert that is not sent again for this long expires, as when the agent is gone.
    pub(super) expire_after: Duration,
}

/// One alert as it is posted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Alert {
    pub(super) labels: BTreeMap<String, String>,
    annotations: BTreeMap<&'static str, String>,
    starts_at: WallTime,
    /// When it was resolved; of an active one, when it expires unless it is sent again.
    pub(super) ends_at: WallTime,
    /// The status page with it.
    #[serde(rename = "generatorURL", skip_serializing_if = "Option::is_none")]
    generator_url: Option<String>,
}

impl Alert {
    /// The alert for `event`.
    pub(super) fn new(event: &AnyEvent, settings: &AlertSettings, now: WallTime) -> Self {
        let kind = event.kind();
        let (own, mut annotations, node, cluster) = match event {
            AnyEvent::Conflict(event) => {
                let data = &event.data;
                (labels(data), annotations(data), &data.node, &data.cluster)
            }
            AnyEvent::Anomaly(event) => {
                let data = &event.data;
                (
                    anomaly_labels(data),
                    anomaly_annotations(data),
                    &data.node,
                    &data.cluster,
                )
            }
        };
        annotations.insert("runbook_url", kind.runbook_url());
        let [summary, description] = alert_texts(event);
        annotations.insert("summary", summary);
        annotations.insert("description", description);
        // No label: it becomes known later, and labels identify the alert.
        if let Some(cause) = event.diagnosis().map(|diagnosis| diagnosis.cause) {
            annotations.insert("diagnosis", cause.name().to_owned());
        }
        let annotations = annotations
            .into_iter()
            .map(|(name, text)| (name, clean(&text).into_owned()))
            .collect();
        let mut labels = with_severity(&settings.labels, kind);
        if let Some(cluster) = cluster {
            labels
                .entry("cluster".to_owned())
                .or_insert_with(|| cluster.clone());
        }
        labels.extend(
            own.into_iter()
                .map(|(name, value)| (name.to_owned(), value)),
        );
        labels.insert("alertname".to_owned(), kind.alert_name().to_owned());
        labels.insert("kind".to_owned(), kind.contract_name().to_owned());
        labels.insert("node".to_owned(), node.to_string());
        let status_page = settings.status_page.as_ref();
        Self {
            labels,
            annotations,
            starts_at: event.raised_at(),
            ends_at: event
                .resolved_at()
                .unwrap_or_else(|| now.after(settings.expire_after)),
            generator_url: status_page.map(|url| url.of_finding(node, event.subject_id())),
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

/// The annotations `summary` and `description` of the alert for `event`, which are those of the Prometheus rules as well
/// (`ipconflict_alert_info`).
pub(in crate::sinks) fn alert_texts(event: &AnyEvent) -> [String; 2] {
    let notice = Notice::of_event(event);
    let mut description = vec![notice.effect, notice.cause, notice.next_step];
    let summary = match event {
        AnyEvent::Conflict(event) => {
            if !event.data.is_resolved() {
                description.push(format!("Confidence: {}.", event.data.confidence.name()));
            }
            conflict_line(&event.data)
        }
        AnyEvent::Anomaly(event) => anomaly_line(&event.data),
    };
    description.retain(|text| !text.is_empty());
    [summary, description.join(" ")].map(|text| clean(&text).into_owned())
}

/// The configured labels of a kind, which may include its severity.
fn with_severity(settings: &AlertLabels, kind: SubjectKind) -> BTreeMap<String, String> {
    let severity = kind.severity().contract_name().to_owned();
    let mut labels = BTreeMap::from([("severity".to_owned(), severity)]);
    labels.extend(settings.all.clone());
    labels.extend(settings.by_kind.get(&kind).cloned().unwrap_or_default());
    labels
}

fn labels(data: &ConflictData) -> BTreeMap<&'static str, String> {
    let mut labels = BTreeMap::from([
        ("address", data.address.to_string()),
        ("network", data.network.to_string()),
    ]);
    if let Some(vlan) = vlan_id(data.vlan, data.inner_vlan) {
        labels.insert("vlan", vlan);
    }
    labels
}

fn anomaly_labels(data: &AnomalyData) -> BTreeMap<&'static str, String> {
    let mut labels = BTreeMap::from([("address", data.address.to_string())]);
    if let Some(vlan) = data.vlan {
        labels.insert("vlan", vlan.to_string());
    }
    // Two pods may fail to resolve the same gateway.
    if let Some(device) = &data.device {
        labels.insert("device", clean(device).into_owned());
    }
    labels
}

fn anomaly_annotations(data: &AnomalyData) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("cause", data.cause.name().to_owned()),
        ("anomaly_id", data.anomaly_id.to_string()),
    ])
}

fn annotations(data: &ConflictData) -> BTreeMap<&'static str, String> {
    let mut annotations = BTreeMap::from([
        ("claimants", claimants(data)),
        ("confidence", data.confidence.name().to_owned()),
        ("conflict_id", data.conflict_id.to_string()),
    ]);
    if let Some(device) = &data.traffic_goes_to {
        annotations.insert("traffic_goes_to", device.clone());
    }
    annotations
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use std::collections::HashMap;

    use detector_engine::{AnomalyKind, diagnosis::Cause};
    use detector_event::samples;
    use serde_json::{Value, json};

    use super::*;

    fn posted(event: impl Into<AnyEvent>, settings: &AlertSettings) -> Value {
        serde_json::to_value(Alert::new(&event.into(), settings, samples::time())).unwrap()
    }

    #[test]
    fn known_cause_is_told_without_changing_the_identity() {
        let settings = AlertSettings::default();
        let mut conflict = samples::raised("10.0.0.1");
        let before = posted(conflict.clone(), &settings);
        assert!(before["annotations"].get("diagnosis").is_none(), "{before}");
        conflict.data.diagnosis = Some(samples::diagnosis(Cause::IpamStateWiped, 9).into());
        let after = posted(conflict, &settings);
        assert_eq!(after["labels"], before["labels"]);
        assert_eq!(after["annotations"]["diagnosis"], "ipam_state_wiped");
        let description = after["annotations"]["description"].as_str().unwrap();
        assert!(
            description.contains(" The reservations were deleted. "),
            "{description}"
        );
    }

    #[test]
    fn labels_are_those_of_the_prometheus_rules() {
        let settings = AlertSettings::default();
        let mut conflict = samples::raised("10.0.0.1");
        let alert = posted(conflict.clone(), &settings);
        let mut expected = json!({
            "alertname": "IPAddressConflict", "severity": "critical", "node": "node-1",
            "address": "10.0.0.1", "network": "node", "kind": "duplicate",
        });
        assert_eq!(alert["labels"], expected);
        assert_eq!(
            alert["annotations"]["runbook_url"],
            "https://github.com/ipconflict/ip-conflict-detector/blob/main/docs/runbooks/IPAddressConflict.md#duplicate"
        );
        (conflict.data.vlan, conflict.data.inner_vlan) = (Some(100), Some(7));
        expected["vlan"] = "100.7".into();
        conflict.data.cluster = Some("east".to_owned());
        expected["cluster"] = "east".into();
        assert_eq!(posted(conflict, &settings)["labels"], expected);
        let drift = posted(samples::drift("10.0.0.1"), &settings);
        let expected = json!({
            "alertname": "IPAMDrift", "severity": "warning", "node": "node-1",
            "address": "10.0.0.1", "device": "veth-a", "kind": "ipam_drift",
        });
        assert_eq!(drift["labels"], expected);
        assert!(drift.get("generatorURL").is_none(), "{drift}");
    }

    #[test]
    fn description_has_the_effect_and_the_next_step() {
        let settings = AlertSettings::default();
        let alert = posted(samples::drift("10.0.0.1"), &settings);
        assert_eq!(
            alert["annotations"]["description"],
            "Traffic is not affected yet; the next pod may get the address. Keep new pods off the node (kubectl cordon node-1), then restore the allocation or recreate the pod default/a."
        );
        let resolved = posted(samples::resolved("10.0.0.1"), &settings);
        assert_eq!(resolved["annotations"]["description"], "");
    }

    #[test]
    fn labels_of_a_kind_take_precedence_and_never_change_the_identity() {
        let map = |labels: &[(&str, &str)]| -> BTreeMap<String, String> {
            let labels = labels.iter();
            labels
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                .collect()
        };
        let drift = SubjectKind::Anomaly(AnomalyKind::IpamDrift);
        let settings = AlertSettings {
            labels: AlertLabels {
                all: map(&[("cluster", "east"), ("team", "network")]),
                by_kind: HashMap::from([(drift, map(&[("team", "ipam"), ("severity", "page")]))]),
            },
            status_page: "https://ip.example.org/{node}/".parse().ok(),
            ..AlertSettings::default()
        };
        let alert = posted(samples::drift("10.0.0.1"), &settings);
        let labels = &alert["labels"];
        assert_eq!(labels["team"], "ipam");
        assert_eq!(labels["severity"], "page");
        assert_eq!(labels["cluster"], "east");
        let id = samples::subject_id("10.0.0.1");
        let page = format!("https://ip.example.org/node-1/?id={id}");
        assert_eq!(alert["generatorURL"], page);
        let conflict = posted(samples::raised("10.0.0.1"), &settings);
        assert_eq!(conflict["labels"]["team"], "network");
        assert_eq!(conflict["labels"]["severity"], "critical");
    }

    #[test]
    fn every_kind_has_an_alert() {
        for kind in SubjectKind::ALL {
            assert!(!kind.alert_name().is_empty());
        }
    }
}
