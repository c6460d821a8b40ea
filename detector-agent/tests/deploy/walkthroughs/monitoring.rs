//! Prometheus with the rules, and Alertmanager with the example of `deploy/prometheus`.

use detector_testkit::{Netns, Receiver, alertmanager::Alertmanager, prometheus::Prometheus};
use serde_yaml_ng::Value;

use super::{messages::Way, site::Site};
use crate::{
    dashboards::queries::{fast_rules, prometheus_configuration},
    tools::{deploy, documents, read},
};

/// A running Prometheus and Alertmanager.
pub(super) struct Monitoring<'n> {
    _prometheus: Prometheus<'n>,
    _alertmanager: Alertmanager<'n>,
}

fn yaml(text: &str) -> Value {
    serde_yaml_ng::from_str(text).unwrap()
}

/// `deploy/prometheus/alertmanager.yaml` with a receiver for each cluster, in seconds instead of minutes.
fn alertmanager_configuration(sites: &[Site<'_>], alerts: &Receiver) -> String {
    let mut file = documents(&read("deploy/prometheus/alertmanager.yaml")).remove(0);
    file["templates"] = yaml(&format!(
        "['{}']",
        deploy("prometheus/alertmanager.tmpl").display()
    ));
    file["route"]["group_wait"] = yaml("8s");
    file["route"]["group_interval"] = yaml("15s");
    let receivers = file["receivers"].as_sequence_mut().unwrap();
    let default = receivers
        .iter()
        .find(|receiver| receiver["name"] == "default");
    let default = default.unwrap().clone();
    for site in sites {
        let mut receiver = default.clone();
        receiver["name"] = yaml(site.cluster());
        let slack = receiver["slack_configs"][0].as_mapping_mut().unwrap();
        slack.remove("api_url_file").unwrap();
        let url = format!(
            "http://{}{}/{}",
            alerts.address(),
            Way::Alertmanager.path(),
            site.cluster()
        );
        slack.insert("api_url".into(), url.into());
        receivers.push(receiver);
    }
    let without_url = |receiver: &mut Value| {
        if receiver["name"] == "default" {
            receiver.as_mapping_mut().unwrap().remove("slack_configs");
        }
    };
    receivers.iter_mut().for_each(without_url);
    let routes = file["route"]["routes"].as_sequence_mut().unwrap();
    for site in sites {
        let cluster = site.cluster();
        routes.push(yaml(&format!(
            "{{receiver: {cluster}, matchers: ['cluster=\"{cluster}\"']}}"
        )));
    }
    serde_yaml_ng::to_string(&file).unwrap()
}

impl<'n> Monitoring<'n> {
    pub(super) fn start(netns: &'n Netns, sites: &[Site<'_>], alerts: &Receiver) -> Self {
        let configuration = alertmanager_configuration(sites, alerts);
        let alertmanager = Alertmanager::start(netns, &configuration).unwrap();
        let targets = sites.iter().map(|site| {
            format!(
                "{{targets: ['{}'], labels: {{cluster: {}, node: {}}}}}",
                site.target(),
                site.cluster(),
                Site::NODE
            )
        });
        let targets = targets.collect::<Vec<_>>().join(", ");
        let alerting = format!(
            "{{alertmanagers: [{{static_configs: [{{targets: ['{}']}}]}}]}}",
            Alertmanager::ADDRESS
        );
        let configuration = prometheus_configuration(&format!("[{targets}]"), &alerting);
        // The agent knows the cause before the alert fires, as with a minute.
        let rules = fast_rules().replace(" for: 1s", " for: 4s");
        let rules = [("rules.yaml", &*rules)];
        Self {
            _prometheus: Prometheus::start_with(netns, &configuration, &rules).unwrap(),
            _alertmanager: alertmanager,
        }
    }
}
