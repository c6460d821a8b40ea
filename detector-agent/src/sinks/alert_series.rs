//! `ipconflict_alert_info`: the texts of the alert for each active conflict and anomaly, so that an alert of the Prometheus
//! rules has the texts of the agent's own alert. The texts are made when they are scraped, not when an event is reported.

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

use super::{EventSink, alertmanager::alert_texts};
use crate::metrics::{AddressLabel, AddressLabels, INFO_SERIES};

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
pub struct AlertSeries(Arc<Mutex<HashMap<SubjectId, AnyEvent>>>);

impl EventSink for AlertSeries {
    /// A conflict that a sweep stands for has no alert.
    fn on_event(&mut self, event: &AnyEvent) {
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

    fn on_current_state(&mut self, state: &AnyEvent) {
        self.on_event(state);
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

#[cfg(test)]
mod tests {
    use detector_engine::AnomalyId;
    use detector_event::{WallTime, samples};

    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn alert_has_the_texts_of_the_agents_own_alert() {
        let mut series = AlertSeries::default();
        let metrics = Metrics::new().with_collector(series.clone());
        let alerts = || {
            let text = metrics.encode(None).unwrap_or_default();
            let lines = text.lines();
            let lines = lines.filter(|line| line.starts_with("ipconflict_alert_info{"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        series.on_event(&samples::raised("10.0.0.1").into());
        let conflict = alerts().concat();
        assert_eq!(conflict.matches("ipconflict_alert_info{").count(), 1);
        for text in [
            r#"{kind="duplicate",address="10.0.0.1",network="node",vlan="",device="","#,
            r#"summary="10.0.0.1 is claimed by "#,
            r#" Confidence: "#,
        ] {
            assert!(conflict.contains(text), "{conflict}");
        }
        let mut swept = samples::raised("10.0.0.1");
        swept.data.sweep = Some(AnomalyId(7));
        series.on_event(&swept.into());
        assert!(alerts().is_empty(), "{:?}", alerts());
        let drift = AnyEvent::from(samples::drift("10.0.0.1"));
        series.on_event(&drift);
        let found = alerts();
        let labels = r#"kind="ipam_drift",address="10.0.0.1",network="",vlan="",device="veth-a","#;
        assert!(found.len() == 1 && found[0].contains(labels), "{found:?}");
        series.on_event(&drift.resolved_unseen("end".to_owned(), WallTime::now()));
        assert!(alerts().is_empty(), "{:?}", alerts());
    }
}
