//! The dashboards: every panel is complete, and a real Prometheus that scrapes a real agent with a real
//! conflict answers every query with data. Grafana itself is not run.

use std::{collections::BTreeSet, fs};

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Node, PodSpec, prometheus::Prometheus, until,
};
use serde_json::Value;

use crate::{
    AGENT,
    tools::{deploy, documents},
};

fn dashboards() -> Vec<(String, Value)> {
    let mut found: Vec<_> = fs::read_dir(deploy("grafana"))
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, serde_json::from_str(&text).unwrap())
        })
        .collect();
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    assert_eq!(found.len(), 3);
    found
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value}"))
}

/// Each query with its panel.
fn queries() -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for (name, dashboard) in dashboards() {
        for panel in list(&dashboard["panels"]) {
            for target in list(&panel["targets"]) {
                found.push((format!("{name}: {}", panel["title"]), target.clone()));
            }
        }
    }
    assert!(found.len() >= 30, "{}", found.len());
    found
}

#[test]
fn every_panel_has_description_unit_and_data_source() {
    let mut uids = BTreeSet::new();
    for (name, dashboard) in dashboards() {
        let uid = dashboard["uid"].as_str().unwrap();
        assert!(
            uid.starts_with("ipconflict-") && uid.len() <= 40,
            "{name}: {uid}"
        );
        assert!(uids.insert(uid.to_owned()), "{uid} twice");
        assert!(
            dashboard["description"]
                .as_str()
                .is_some_and(|text| text.ends_with('.'))
        );
        let variables = list(&dashboard["templating"]["list"]);
        assert_eq!(variables[0]["type"], "datasource", "{name}");
        assert_eq!(variables[0]["name"], "datasource", "{name}");
        let mut ids = BTreeSet::new();
        let mut taken = BTreeSet::new();
        for panel in list(&dashboard["panels"]) {
            let title = panel["title"].as_str().unwrap();
            let place = format!("{name}: {title}");
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{place}");
            let description = panel["description"].as_str().unwrap();
            assert!(
                description.len() > 20 && description.ends_with('.'),
                "{place}"
            );
            let unit = panel["fieldConfig"]["defaults"]["unit"].as_str();
            assert!(
                unit.is_some_and(|unit| !unit.is_empty()),
                "{place} has no unit"
            );
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{place}");
            let grid = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            assert!(grid("x") + grid("w") <= 24, "{place}");
            for x in grid("x")..grid("x") + grid("w") {
                for y in grid("y")..grid("y") + grid("h") {
                    assert!(taken.insert((x, y)), "{place} overlaps another panel");
                }
            }
            let targets = list(&panel["targets"]);
            let references: BTreeSet<_> = targets.iter().map(|t| t["refId"].as_str()).collect();
            assert_eq!(references.len(), targets.len(), "{place}");
            for target in targets {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{place}");
            }
        }
    }
}

/// The expression with its variables set as for "All" in Grafana.
fn substitute_variables(expression: &str) -> String {
    expression
        .replace("$__rate_interval", "1m")
        .replace("$instance", ".*")
        .replace("$address", ".*")
}

#[test]
fn every_panel_query_returns_data() {
    let node = Node::new("dashboards").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.yaml");
    // A webhook without a listener, so that its events stay pending.
    let settings = format!(
        "export-claims: true\nstate-dir: {}\nwebhooks: [{{name: ops, url: 'http://127.0.0.1:9/'}}]\n",
        folder.path().join("state").display()
    );
    fs::write(&config, settings).unwrap();
    let command = AgentCommand::run(AGENT).arg("--config").arg(&config);
    let agent = Agent::start_ready(&node, &command).unwrap();
    let rules = fs::read_to_string(deploy("prometheus/rules.yaml")).unwrap();
    let prometheus =
        Prometheus::start_with(&node, &configuration(), &[("rules.yaml", &rules)]).unwrap();
    let specs = ["vetha", "vethb"].map(|device| PodSpec::new(device).address("10.244.2.10/24"));
    let _pods = node.add_pods(&specs).unwrap();
    agent
        .wait_event(DEADLINE, |event| event.raises("10.244.2.10"))
        .unwrap();
    let mut empty = Vec::new();
    for (place, target) in queries() {
        let query = substitute_variables(target["expr"].as_str().unwrap());
        let legend = target["legendFormat"].as_str().unwrap();
        let outcome = until(DEADLINE, format_args!("the result of {query}"), || {
            let series = prometheus.query(&query)?;
            let Some((labels, value)) = series.first() else {
                anyhow::bail!("{place}: {query}: no data");
            };
            anyhow::ensure!(!value.is_nan(), "{place}: {query}: no number");
            for label in in_braces(legend) {
                // An unknown pod has no name to show, and an untagged claim no VLAN.
                let known = labels.get(label).is_some() || ["pod", "vlan"].contains(&label);
                anyhow::ensure!(known, "{place}: {labels} has no {label}");
            }
            Ok(())
        });
        if let Err(error) = outcome {
            empty.push(format!("{error:#}"));
        }
    }
    assert!(empty.is_empty(), "{}", empty.join("\n"));
    for (name, dashboard) in dashboards() {
        for variable in list(&dashboard["templating"]["list"]).iter().skip(1) {
            let definition = variable["definition"].as_str().unwrap();
            let inner = definition.strip_prefix("label_values(").unwrap();
            let (metric, label) = inner.trim_end_matches(')').split_once(", ").unwrap();
            let values = prometheus
                .query(&format!("count by ({label}) ({metric})"))
                .unwrap();
            assert!(!values.is_empty(), "{name}: {definition}");
        }
    }
    // The alert for the conflict fires under the installed rules.
    prometheus
        .wait(
            r#"ALERTS{alertname="IPAddressConflict",alertstate="firing",address="10.244.2.10"} == 1"#,
            |series| series.len() == 1,
        )
        .unwrap();
}

/// `deploy/prometheus/scrape.yaml` with one static agent instead of pod discovery.
fn configuration() -> String {
    let text = fs::read_to_string(deploy("prometheus/scrape.yaml")).unwrap();
    let mut file = documents(&text).remove(0);
    let job = &mut file["scrape_configs"][0];
    let job = job.as_mapping_mut().unwrap();
    assert_eq!(job["job_name"], "ip-conflict-detector");
    job.remove("kubernetes_sd_configs").unwrap();
    job.remove("relabel_configs").unwrap();
    let target = "[{targets: ['127.0.0.1:9842'], labels: {node: testkit}}]";
    job.insert(
        "static_configs".into(),
        serde_yaml_ng::from_str(target).unwrap(),
    );
    file["global"] =
        serde_yaml_ng::from_str("{scrape_interval: 1s, evaluation_interval: 1s}").unwrap();
    serde_yaml_ng::to_string(&file).unwrap()
}

/// The labels that a legend refers to.
fn in_braces(legend: &str) -> Vec<&str> {
    legend
        .split("{{")
        .skip(1)
        .filter_map(|rest| rest.split("}}").next())
        .collect()
}
