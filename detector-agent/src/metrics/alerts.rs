//! `ipconflict_alert_info`: the texts of the alert for each active conflict and anomaly, so that an alert of the Prometheus
//! rules says what the agent's own says. The texts are made when they are scraped, not when an event is reported.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use detector_event::{AnyEvent, ContractName as _, SubjectId, clean};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use super::{AddressLabel, AddressLabels, INFO_SERIES};
use crate::sinks::alertmanager::alert_texts;

/// The labels that identify an alert on a node, and its texts. Of anomalies `network` is empty, of conflicts `device`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AlertInfo {
    kind: &'static str,
    address: AddressLabel,
    network: String,
    vlan: String,
    device: String,
    summary: String,
    description: String,
}

/// The last event of each conflict and anomaly that has an alert, [`INFO_SERIES`] at most; of what is beyond, the rules
/// have texts of their own.
#[derive(Clone, Debug, Default)]
pub(super) struct AlertSeries(Arc<Mutex<HashMap<SubjectId, AnyEvent>>>);

impl AlertSeries {
    /// Takes note of the state in an event. A conflict that a sweep stands for has no alert.
    pub(super) fn update(&self, event: &AnyEvent) {
        let has_alert = match event {
            AnyEvent::Conflict(event) => event.data.sweep.is_none() && !event.data.is_resolved(),
            AnyEvent::Anomaly(event) => !event.data.is_resolved(),
        };
        let id = event.subject_id();
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !has_alert {
            events.remove(&id);
        } else if events.len() < INFO_SERIES || events.contains_key(&id) {
            events.insert(id, event.clone());
        }
    }
}

impl AlertInfo {
    fn new(event: &AnyEvent) -> Self {
        let [summary, description] = alert_texts(event);
        let kind = event.kind().contract_name();
        match event {
            AnyEvent::Conflict(event) => {
                let data = &event.data;
                let vlan = (data.vlan, data.inner_vlan);
                let AddressLabels {
                    address,
                    network,
                    vlan,
                } = AddressLabels::new(data.address, &data.network, vlan);
                Self {
                    kind,
                    address,
                    network,
                    vlan,
                    device: String::new(),
                    summary,
                    description,
                }
            }
            AnyEvent::Anomaly(event) => Self {
                kind,
                address: event.data.address.into(),
                network: String::new(),
                vlan: event.data.vlan.map(|v| v.to_string()).unwrap_or_default(),
                device: clean(event.data.device.as_deref().unwrap_or_default()).into_owned(),
                summary,
                description,
            },
        }
    }
}

impl Collector for AlertSeries {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Encoding must not delay an event, so the lock is held only to copy them.
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let events: Vec<_> = events.values().cloned().collect();
        let one = ConstGauge::new(1i64);
        let mut family = encoder.encode_descriptor(
            "alert_info",
            "Always 1, for each active conflict and anomaly that has an alert, with the texts of the alert.",
            None,
            MetricType::Gauge,
        )?;
        // Networks are distinguished by their names, which may be equal for a moment.
        let series: HashSet<_> = events.iter().map(AlertInfo::new).collect();
        for alert in &series {
            one.encode(family.encode_family(alert)?)?;
        }
        Ok(())
    }
}
