//! The alert rules: promtool accepts them, they fire only when they should, and each has a runbook.

use std::{fs, process::Command};

use detector_event::{ContractName as _, SubjectKind};
use serde_yaml_ng::Value;

use crate::{
    incidents,
    tools::{deploy, documents, output, read, render, root},
};

/// The rules of all groups.
fn rules_of(file: &Value) -> Vec<Value> {
    let groups = file["groups"].as_sequence().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_sequence().unwrap().clone());
    rules.collect()
}

/// The rules of the file.
pub(crate) fn rules() -> Vec<Value> {
    rules_of(&documents(&read("deploy/prometheus/rules.yaml"))[0])
}

fn alerts() -> Vec<Value> {
    rules()
        .into_iter()
        .filter(|rule| rule.get("alert").is_some())
        .collect()
}

#[test]
fn rules_are_valid_and_fire_only_when_they_should() {
    for verb in ["check", "test"] {
        let file = ["rules.yaml", "rules.test.yaml"][usize::from(verb == "test")];
        let printed = output(
            Command::new("promtool")
                .args([verb, "rules", file])
                .current_dir(deploy("prometheus")),
        );
        let text = [printed.stdout, printed.stderr].map(|t| String::from_utf8(t).unwrap());
        // Of duplicate rules it only warns.
        let is_good = printed.status.success() && !text.concat().contains("duplicate");
        assert!(is_good, "{text:?}");
    }
}

/// Tested with made-up series, and on what real agents export.
#[test]
fn every_alert_is_tested_and_has_a_runbook() {
    let tests = read("deploy/prometheus/rules.test.yaml");
    let tests_with_agents = include_str!("agent_alerts.rs");
    let mut used = Vec::new();
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        let fires = format!("alertname: {name}\n        exp_alerts:\n          - exp_labels");
        assert!(tests.contains(&fires), "{name} fires in no test");
        let is_awaited = format!("_firing(&prometheus, \"{name}\")");
        assert!(
            incidents::ALERTS.contains(&name) || tests_with_agents.contains(&is_awaited),
            "{name} fires on what agents export in no test"
        );
        let url = alert["annotations"]["runbook_url"].as_str().unwrap();
        let (_, path) = url.split_once("/blob/main/").unwrap();
        let path = path.split('#').next().unwrap();
        let text = read(path);
        assert!(text.contains(name), "{path} does not mention {name}");
        for key in ["summary", "description"] {
            assert!(
                alert["annotations"].get(key).is_some(),
                "{name} has no {key}"
            );
        }
        used.push(path.rsplit('/').next().unwrap().to_owned());
    }
    // The runbooks of the alerts link to it.
    used.push("Causes.md".to_owned());
    for entry in fs::read_dir(root().join("docs/runbooks")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(used.contains(&name), "no alert links to {name}");
    }
}

/// Each kind of conflict and anomaly has one rule, for the alert that the agent itself sends.
#[test]
fn agent_sends_the_alerts_of_the_rules() {
    let alerts = alerts();
    for kind in SubjectKind::ALL {
        let name = kind.alert_name();
        let of_kind: Vec<_> = (alerts.iter().filter(|alert| alert["alert"] == name)).collect();
        let [alert] = of_kind[..] else {
            panic!("{name}: {of_kind:?}")
        };
        assert_eq!(
            alert["labels"]["severity"],
            kind.severity().contract_name(),
            "{name}"
        );
        if let SubjectKind::Anomaly(kind) = kind {
            let expression = alert["expr"].as_str().unwrap();
            let selector = format!("kind=\"{}\"", kind.name());
            assert_eq!(expression.matches(&selector).count(), 2, "{expression}");
        }
        let url = alert["annotations"]["runbook_url"].as_str().unwrap();
        let url = url.replace("{{ $labels.kind }}", kind.contract_name());
        assert_eq!(url, kind.runbook_url());
        let (path, anchor) = url.split_once('#').unwrap_or((&url, ""));
        let (_, path) = path.split_once("/blob/main/").unwrap();
        let text = read(path);
        let target = format!("<a id=\"{anchor}\">");
        assert!(anchor.is_empty() || text.contains(&target), "{url}");
    }
}

/// Alerts of two clusters in one Prometheus stay apart.
#[test]
fn every_aggregation_keeps_the_cluster() {
    for rule in rules() {
        let expression = rule["expr"].as_str().unwrap();
        for part in [" by (", " on ("] {
            for labels in expression.split(part).skip(1) {
                assert!(labels.starts_with("cluster"), "{expression}");
            }
        }
    }
}

#[test]
fn severities_and_labels_are_values_of_the_chart() {
    let values = "{runbookUrl: 'https://wiki.example.org/r/', prometheusRule: {enabled: true, alertLabels: {team: network, severity: ticket},
        severities: {IPAddressConflict: page}, disabled: [IPAMLeak]}}";
    let rendered = render(values).unwrap();
    let object = &documents(&rendered["prometheusrule.yaml"])[0];
    let rendered = rules_of(&object["spec"]).into_iter();
    let (alerts, records): (Vec<_>, Vec<_>) =
        rendered.partition(|rule| rule.get("alert").is_some());
    assert_eq!(
        (records.len(), alerts.len()),
        (
            rules().len() - self::alerts().len(),
            self::alerts().len() - 1
        )
    );
    for record in records {
        assert!(record.get("labels").is_none(), "{record:?}");
    }
    for alert in alerts {
        let name = alert["alert"].as_str().unwrap();
        assert_ne!(name, "IPAMLeak");
        let severity = match name {
            "IPAddressConflict" => "page",
            _ => "ticket",
        };
        assert_eq!(alert["labels"]["severity"], severity, "{name}");
        assert_eq!(alert["labels"]["team"], "network", "{name}");
        let runbook = alert["annotations"]["runbook_url"].as_str().unwrap();
        let file = runbook.strip_prefix("https://wiki.example.org/r/");
        assert!(file.is_some_and(|file| !file.contains('/')), "{runbook}");
    }
}

#[test]
fn operator_object_has_the_same_rules() {
    let rendered = render("{prometheusRule: {enabled: true}}").unwrap();
    let object = &documents(&rendered["prometheusrule.yaml"])[0];
    let file = &documents(&read("deploy/prometheus/rules.yaml"))[0];
    assert_eq!(object["spec"], *file);
}
