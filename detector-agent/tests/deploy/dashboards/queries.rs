//! A real Prometheus that scrapes a real agent with a real conflict answers every query of the dashboards.

use std::{fs, path::Path};

use anyhow::Context as _;
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Node, Pod, PodSpec, Receiver, prometheus::Prometheus, until,
};
use serde_json::{Value, json};

use super::{annotations, columns, dashboards, list, queries, values_of};
use crate::{
    AGENT,
    host_local::HostLocal,
    rules::rules,
    tools::{documents, read},
};

/// The address in conflict.
const ADDRESS: &str = "10.244.2.10";
/// The values of the labels `cluster` and `node` that the scrape job sets.
const CHOSEN: (&str, &str) = ("east", "testkit");

/// The expression for a choice of clusters and nodes, with the other variables as for "All" in Grafana.
pub(super) fn substitute_variables(expression: &str, (cluster, node): (&str, &str)) -> String {
    let query = expression
        .replace("$__rate_interval", "10m")
        .replace("$__range", "10m")
        .replace("$cluster", cluster)
        .replace("$node", node)
        .replace("$address", ".*");
    assert!(!query.contains('$'), "unknown variable: {query}");
    query
}

/// `detector-agent run` with this configuration file.
pub(crate) fn agent_command(config: &Path) -> AgentCommand {
    AgentCommand::run(AGENT).arg("--config").arg(config)
}

/// An agent with these arguments and settings, and a Prometheus that has scraped it.
fn start<'n>(node: &'n Node, arguments: &[&str], settings: &str) -> (Agent, Prometheus<'n>) {
    let config = tempfile::NamedTempFile::new().unwrap();
    fs::write(config.path(), settings).unwrap();
    let command = agent_command(config.path()).args(arguments.iter().copied());
    let agent = Agent::start_ready(node, &command).unwrap();
    (agent, start_prometheus(node))
}

/// A Prometheus with the rules, in seconds instead of minutes, that has scraped the agent.
pub(crate) fn start_prometheus(node: &Node) -> Prometheus<'_> {
    let target = "[{targets: ['127.0.0.1:9842'], labels: {cluster: east, node: testkit}}]";
    let configuration = prometheus_configuration(target, "{}");
    let rules = [("rules.yaml", &*fast_rules())];
    let prometheus = Prometheus::start_with(node, &configuration, &rules).unwrap();
    // An increase is seen only from a first sample on.
    prometheus
        .wait("ipconflict_conflicts_raised_total == 0", |series| {
            !series.is_empty()
        })
        .unwrap();
    prometheus
}

/// The rules, in seconds instead of minutes.
pub(crate) fn fast_rules() -> String {
    read("deploy/prometheus/rules.yaml")
        .replace("for: 1m", "for: 1s")
        .replace("for: 30s", "for: 1s")
        .replace("for: 2m", "for: 2s")
        .replace("for: 1h", "for: 1s")
        .replace("interval: 1m", "interval: 1s")
}

/// Two pods with [`ADDRESS`].
fn raise_conflict(node: &Node, agent: &Agent) -> Vec<Pod> {
    let specs = ["vetha", "vethb"].map(|device| PodSpec::new(device).address("10.244.2.10/24"));
    let pods = node.add_pods(&specs).unwrap();
    agent.wait_raised(ADDRESS).unwrap();
    pods
}

/// Waits until the query has a result, which has to have these labels and be a number.
fn wait_for_data(
    prometheus: &Prometheus<'_>,
    place: &str,
    query: &str,
    legend: &str,
) -> anyhow::Result<Value> {
    until(DEADLINE, format_args!("the result of {query}"), || {
        let series = prometheus.query(query)?;
        let (labels, value) = series
            .into_iter()
            .next()
            .with_context(|| format!("{place}: {query}: no data"))?;
        anyhow::ensure!(!value.is_nan(), "{place}: {query}: no number");
        for label in in_braces(legend) {
            // An unknown pod has no name to show, and an untagged claim no VLAN.
            let known =
                labels.get(label).is_some() || ["namespace", "pod", "vlan"].contains(&label);
            anyhow::ensure!(known, "{place}: {labels} has no {label}");
        }
        Ok(labels)
    })
}

#[test]
fn every_query_returns_data_of_the_chosen_nodes_only() {
    let node = Node::new("dashboards").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // No address is allocated, so those of the pods are anomalies.
    fs::create_dir(path("net.d")).unwrap();
    let _network = HostLocal::new(&path("net.d"), &["10.244.2.0/24"]);
    // A webhook without a listener, so that its events stay pending.
    let settings = json!({"export-claims": true, "state-dir": path("state"),
        "webhooks": [{"name": "ops", "url": "http://127.0.0.1:9/"}]});
    let plugins = format!("--cni-conf-dir={}", path("net.d").display());
    let (agent, prometheus) = start(&node, &["--ipam=auto", &plugins], &settings.to_string());
    let _pods = raise_conflict(&node, &agent);
    let mut wrong = Vec::new();
    let mut expect_data = |place: &str, expression: &str, legend: &str| {
        let query = substitute_variables(expression, CHOSEN);
        let labels = wait_for_data(&prometheus, place, &query, legend);
        // A zero here would read as good news of a node that is not looked at.
        for other in [(CHOSEN.0, "elsewhere"), ("elsewhere", CHOSEN.1)] {
            let query = substitute_variables(expression, other);
            let elsewhere = prometheus.query(&query).unwrap();
            if !elsewhere.is_empty() {
                wrong.push(format!("{place}: {query}: {elsewhere:?}"));
            }
        }
        labels.unwrap_or_else(|error| {
            wrong.push(format!("{error:#}"));
            Value::Null
        })
    };
    for (place, expression) in annotations() {
        expect_data(&place, &expression, "{{cluster}} {{node}} {{kind}}");
    }
    // One node: `three_thousand_nodes_are_neither_lines_nor_alerts` has several with one address.
    let needs_several_nodes = |place: &str| place.ends_with("\"Addresses on several nodes\"");
    for (place, target) in queries() {
        if needs_several_nodes(&place) {
            continue;
        }
        let legend = target["legendFormat"].as_str().unwrap();
        expect_data(&place, target["expr"].as_str().unwrap(), legend);
    }
    for (name, dashboard) in dashboards() {
        for panel in list(&dashboard["panels"]) {
            let Some(columns) = columns(panel) else {
                continue;
            };
            let place = format!("{name}: {}", panel["title"]);
            if needs_several_nodes(&place) {
                continue;
            }
            let expression = panel["targets"][0]["expr"].as_str().unwrap();
            let labels = expect_data(&place, expression, "");
            let hidden = &panel["transformations"][0]["options"]["excludeByName"];
            for label in labels
                .as_object()
                .into_iter()
                .flat_map(|labels| labels.keys())
            {
                let shown = columns.contains_key(label) || hidden[label] == true;
                assert!(shown, "{place}: {label} is neither shown nor hidden");
            }
        }
        for variable in list(&dashboard["templating"]["list"]).iter().skip(1) {
            let (series, label) = values_of(variable);
            let query = format!(
                "count by ({label}) ({})",
                substitute_variables(series, CHOSEN)
            );
            let legend = format!("{{{{{label}}}}}");
            wait_for_data(&prometheus, &name, &query, &legend).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The alert for the conflict fires under the installed rules.
    prometheus
        .wait(
            r#"ALERTS{alertname="IPAddressConflict",alertstate="firing",address="10.244.2.10"} == 1"#,
            |series| series.len() == 1,
        )
        .unwrap();
}

#[test]
fn conflicts_that_the_metrics_do_not_name_are_not_shown_as_none() {
    let node = Node::new("unnamed").unwrap();
    let (agent, prometheus) = start(&node, &["--metrics-detail=false"], "{}");
    let _pods = raise_conflict(&node, &agent);
    for metric in ["conflicts_active", "conflict_info_overflow"] {
        let query = format!("sum(ipconflict_{metric}) > 0");
        prometheus
            .wait(&query, |series| !series.is_empty())
            .unwrap();
    }
    let (mut tables, mut stats) = (0, 0);
    for (name, dashboard) in dashboards() {
        for panel in list(&dashboard["panels"]) {
            let expression = panel["targets"][0]["expr"].as_str().unwrap();
            let place = format!("{name}: {}", panel["title"]);
            let query = substitute_variables(expression, CHOSEN);
            let series = prometheus.query(&query).unwrap();
            let is_of_node = !expression.contains("scope=\"fleet\"");
            if expression.contains("ipconflict_conflicts_active") && is_of_node {
                // Loses nothing without the names.
                assert!(
                    series.iter().any(|(_, value)| *value >= 1.0),
                    "{place}: {series:?}"
                );
            } else if !expression.contains("conflict_info{") {
                continue;
            } else if columns(panel).is_some_and(|columns| columns.contains_key("pod")) {
                let (labels, claimants) = &series[0];
                let pod = labels["pod"].as_str().unwrap();
                assert!(pod.starts_with("not in the metrics"), "{place}: {labels}");
                assert_eq!(
                    (labels["node"].as_str(), *claimants),
                    (Some(CHOSEN.1), 2.0),
                    "{place}"
                );
                tables += 1;
            } else {
                assert!(series.is_empty(), "{place}: {series:?}");
                stats += usize::from(panel["type"] == "stat");
            }
        }
    }
    assert_eq!((tables, stats), (2, 2));
}

/// What an agent exports whose webhook accepts every event makes no sink a failing one.
#[test]
fn webhook_that_accepts_every_event_is_not_failing() {
    let node = Node::new("sinkrules").unwrap();
    let receiver = node.run_in(Receiver::start).unwrap();
    let settings = json!({"webhooks": [{"name": "ops", "url": receiver.url()}]});
    let (agent, prometheus) = start(&node, &[], &settings.to_string());
    let pods = raise_conflict(&node, &agent);
    let series = [("outbox", "stored"), ("ops", "delivered")].map(|(sink, outcome)| {
        format!("ipconflict_deliveries_total{{sink=\"{sink}\",outcome=\"{outcome}\"}}")
    });
    let wait_for = |query: &str| {
        prometheus.wait(query, |series| !series.is_empty()).unwrap();
    };
    // An increase is seen only from a first sample on.
    series.iter().for_each(|series| wait_for(series));
    for pod in &pods {
        pod.add_address("10.244.2.11/24").unwrap();
    }
    for series in &series {
        wait_for(&format!("increase({series}[15m]) > 0"));
    }
    let rule = (rules().into_iter())
        .find(|rule| rule["record"] == "ipconflict:sink_failing:info")
        .unwrap();
    let expression = rule["expr"].as_str().unwrap();
    assert_eq!(prometheus.query(expression).unwrap(), []);
}

/// `deploy/prometheus/scrape.yaml` with static targets instead of pod discovery, and where alerts are sent.
pub(crate) fn prometheus_configuration(targets: &str, alerting: &str) -> String {
    let text = read("deploy/prometheus/scrape.yaml");
    let mut file = documents(&text).remove(0);
    let job = &mut file["scrape_configs"][0];
    let job = job.as_mapping_mut().unwrap();
    assert_eq!(job["job_name"], "ip-conflict-detector");
    job.remove("kubernetes_sd_configs").unwrap();
    job.remove("relabel_configs").unwrap();
    job.insert(
        "static_configs".into(),
        serde_yaml_ng::from_str(targets).unwrap(),
    );
    file["alerting"] = serde_yaml_ng::from_str(alerting).unwrap();
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
