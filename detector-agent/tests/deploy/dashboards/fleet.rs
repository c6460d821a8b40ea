//! The dashboards and rules of a cluster with 3,000 nodes, in a real Prometheus: no panel draws a line for each node, and
//! what concerns many nodes is one alert.
//!
//! How long the queries take is printed, and not asserted.

use std::{
    fmt::Write as _,
    fs,
    io::{BufWriter, Write as _},
    path::Path,
    process::Command,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use detector_agent::metrics::{Kind, Metrics, Reason, labels::observation_kinds};
use detector_testkit::{Node, prometheus::Prometheus};
use serde_json::Value;

use super::{annotations, dashboards, list, queries::substitute_variables, values_of};
use crate::tools::{read, stdout};

const NODES: u32 = 3_000;
/// Times at which each agent was scraped, and the seconds between two of them.
const SCRAPES: u32 = 6;
const INTERVAL: u64 = 120;
/// What a panel may show at most: lines of a graph and rows of a table.
const LINES: usize = 50;
const ROWS: usize = 221;

/// The address that two nodes claim.
const ON_TWO_NODES: &str = "10.99.0.1";
/// What panels show of the fleet that [`write_samples`] writes: the rows, and the highest value.
const ANSWERS: [(&str, usize, f64); 6] = [
    ("Nodes with a conflict", 1, 300.0),
    ("Active conflicts", 1, 1_200.0),
    ("Agents up", 1, 0.9),
    ("Addresses on several nodes", 1, 2.0),
    // 200 and a row that counts all: 300 nodes with six claimants and two anomalies each.
    ("Conflicts now", 201, 1_800.0),
    ("Anomalies now", 201, 600.0),
];

/// The samples that an agent exports: name, labels and value.
fn samples_of_an_agent() -> Vec<(String, String, f64)> {
    let metrics = Metrics::new();
    for reason in ["ring_full", "budget", "unknown_device"] {
        metrics
            .dropped
            .get_or_create(&Reason::dropped(reason))
            .inc();
    }
    metrics
        .resyncs
        .get_or_create(&Reason::resync("start"))
        .inc();
    for kind in observation_kinds() {
        let kind = Kind::observation(kind);
        metrics.observations.get_or_create(&kind).inc();
    }
    for sink in ["ops", "chat"] {
        metrics.count_deliveries(sink, "failed", 1);
        metrics.set_queue(sink, 3, 0);
    }
    let text = metrics.encode(None).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let labels = labels.trim_end_matches('}').to_owned();
            (name.to_owned(), labels, value.parse().unwrap())
        })
        .collect()
}

/// Writes what Prometheus has scraped from all agents until `end`, in the OpenMetrics text format. Of ten nodes one has
/// a conflict, one an agent that does not answer, and one an anomaly.
fn write_samples(path: &Path, end: u64) {
    let mut agent = samples_of_an_agent();
    agent.push(("up".to_owned(), String::new(), 1.0));
    let mut file = BufWriter::new(fs::File::create(path).unwrap());
    let mut text = String::new();
    for scrape in 0..SCRAPES {
        let time = end - u64::from(SCRAPES - 1 - scrape) * INTERVAL;
        for number in 0..NODES {
            text.clear();
            let id = format!("{}.{}", number / 250, number % 250);
            let target = format!(
                "cluster=\"east\",instance=\"10.0.{id}:9842\",job=\"ip-conflict-detector\",node=\"worker-{number}\""
            );
            if number % 10 == 2 {
                // What a recording rule added.
                let labels = format!("cluster=\"east\",node=\"worker-{number}\"");
                writeln!(text, "ipconflict:conflicts_active:sum{{{labels}}} 3 {time}").unwrap();
            }
            let mut sample = |name: &str, labels: &str, value: f64| {
                let comma = if labels.is_empty() { "" } else { "," };
                writeln!(text, "{name}{{{target}{comma}{labels}}} {value} {time}").unwrap();
            };
            let is_down = number % 10 == 1;
            for (name, labels, value) in &agent {
                let is_counter = ["_total", "_bucket", "_sum", "_count"]
                    .iter()
                    .any(|end| name.ends_with(end));
                let value = match name.as_str() {
                    "up" if is_down => 0.0,
                    "ipconflict_conflicts_active" if number % 10 == 2 => 1.0,
                    "ipconflict_anomalies_active" if number % 10 == 3 => 1.0,
                    _ if (name.contains("raised") || name.contains("latency"))
                        && number % 10 != 2 =>
                    {
                        *value
                    }
                    _ if is_counter => value + f64::from(scrape * (number % 7)),
                    _ => *value,
                };
                if !is_down || name == "up" {
                    sample(name, labels, value);
                }
            }
            let address = format!("address=\"10.{id}.10\"");
            if number % 10 == 2 {
                for device in ["vetha", "vethb"] {
                    for kind in ["duplicate", "host", "flapping"] {
                        let labels = format!(
                            "{address},network=\"node\",kind=\"{kind}\",device=\"{device}\""
                        );
                        sample("ipconflict_conflict_info", &labels, 1.0);
                    }
                }
            }
            if number % 10 == 3 {
                for kind in ["ipam_drift", "gateway_unresolved"] {
                    let labels = format!("{address},kind=\"{kind}\",device=\"vetha\"");
                    sample("ipconflict_anomaly_info", &labels, 1.0);
                }
            }
            for claim in 0..5 {
                let labels = format!("address=\"10.{id}.{claim}\",network=\"node\"");
                sample("ipconflict_claim_info", &labels, 1.0);
            }
            if [4, 5].contains(&number) {
                let labels = format!("address=\"{ON_TWO_NODES}\",network=\"node\"");
                sample("ipconflict_claim_info", &labels, 1.0);
            }
            file.write_all(text.as_bytes()).unwrap();
        }
    }
    file.write_all(b"# EOF\n").unwrap();
    file.flush().unwrap();
}

/// The expressions of panels, with the most series that each may return, and whether it is a graph.
fn expressions() -> Vec<(String, String, usize, bool)> {
    let mut found = Vec::new();
    for (name, dashboard) in dashboards() {
        for panel in list(&dashboard["panels"]) {
            let place = format!("{name}: {}", panel["title"]);
            let is_graph = ["timeseries", "state-timeline", "heatmap"]
                .contains(&panel["type"].as_str().unwrap());
            for target in list(&panel["targets"]) {
                let expression = target["expr"].as_str().unwrap().to_owned();
                assert_ne!(target["instant"], Value::Bool(is_graph), "{place}");
                let most = match panel["type"].as_str().unwrap() {
                    "stat" => 1,
                    "table" => ROWS,
                    _ => LINES,
                };
                found.push((place.clone(), expression, most, is_graph));
            }
        }
        for variable in list(&dashboard["templating"]["list"]).iter().skip(1) {
            let (series, label) = values_of(variable);
            let expression = format!("count by ({label}) ({series})");
            found.push((
                format!("{name}: ${label}"),
                expression,
                NODES as usize,
                false,
            ));
        }
    }
    for (place, expression) in annotations() {
        found.push((place, expression, LINES, true));
    }
    found
}

#[test]
fn three_thousand_nodes_are_neither_lines_nor_alerts() {
    let folder = tempfile::tempdir().unwrap();
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let (start, end) = (now - u64::from(SCRAPES - 1) * INTERVAL, now);
    let samples = folder.path().join("samples");
    write_samples(&samples, end);
    stdout(
        Command::new("promtool")
            .args(["tsdb", "create-blocks-from", "openmetrics", "--quiet"])
            .args([&samples, &folder.path().join("data")]),
    );
    fs::remove_file(samples).unwrap();
    let node = Node::new("fleet").unwrap();
    let rules = read("deploy/prometheus/rules.yaml");
    let configuration = "global: {evaluation_interval: 5s}\nrule_files: [rules.yaml]\n";
    let files = [("rules.yaml", rules.as_str())];
    let prometheus = Prometheus::start_in(&node, folder, configuration, &files).unwrap();
    // First, while the last scrape is not outdated.
    let overview = dashboards()
        .into_iter()
        .find(|(name, _)| name == "node-overview");
    let (_, overview) = overview.unwrap();
    for (title, rows, highest) in ANSWERS {
        let panel = list(&overview["panels"])
            .iter()
            .find(|panel| panel["title"] == title);
        let expression = panel.unwrap()["targets"][0]["expr"].as_str().unwrap();
        let query = substitute_variables(expression, (".*", ".*"));
        // The rules may not be evaluated yet.
        let is_true = |series: &[(Value, f64)]| {
            let found = series.iter().map(|(_, value)| *value).fold(0.0, f64::max);
            series.len() == rows && found == highest
        };
        let found = prometheus.wait(&query, is_true).unwrap();
        if title == "Addresses on several nodes" {
            assert_eq!(found[0].0["address"], ON_TWO_NODES);
        }
    }
    // What concerns 300 agents is one alert.
    for (alert, most) in [
        ("IPConflictDetectorDown", 1.0),
        ("IPConflictDetectorBlind", 1.0),
        ("IPConflictSinkFailing", 2.0),
    ] {
        let query = format!("count(ALERTS{{alertname=\"{alert}\"}})");
        let found = prometheus
            .wait(&query, |series| !series.is_empty())
            .unwrap();
        assert!(found[0].1 <= most, "{alert}: {found:?}");
    }
    let mut slowest = (Duration::ZERO, String::new());
    let mut wrong = Vec::new();
    for (place, expression, most, is_graph) in expressions() {
        let query = substitute_variables(&expression, (".*", ".*"));
        let began = Instant::now();
        let count = if is_graph {
            prometheus.query_range(&query, (start, end), 15).unwrap()
        } else {
            prometheus.query(&query).unwrap().len()
        };
        let took = began.elapsed();
        println!("{took:>10.1?} {count:>5} {place}");
        if count > most {
            wrong.push(format!("{place}: {count} of at most {most}: {query}"));
        }
        if took > slowest.0 {
            slowest = (took, place);
        }
    }
    println!("slowest: {slowest:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let took = prometheus
        .query("prometheus_rule_group_last_duration_seconds")
        .unwrap();
    println!("rules: {took:?}");
}
