//! The configurations for the OpenTelemetry Collector, which is not run, and the mappings for a SIEM.

use std::{collections::BTreeSet, fs, process::Command};

use serde_json::Value as Json;
use serde_yaml_ng::Value;

use crate::{
    docs::quoted,
    tools::{deploy, documents, read, stdout},
};

fn configuration(name: &str) -> Value {
    documents(&read(deploy("opentelemetry").join(name))).remove(0)
}

/// The names in a list or the keys of a map.
fn names(value: &Value) -> BTreeSet<&str> {
    let list = value.as_sequence().into_iter().flatten();
    let keys = value.as_mapping().into_iter().flat_map(|map| map.keys());
    list.chain(keys)
        .map(|name| name.as_str().unwrap())
        .collect()
}

/// The examples in docs/events.md, which satisfy the contract: one conflict and one anomaly.
fn events() -> Vec<Json> {
    let page = read("docs/events.md");
    let blocks = page.split("```json\n").skip(1);
    let events = blocks.map(|block| block.split("```").next().unwrap());
    events
        .map(|event| serde_json::from_str(event).unwrap())
        .collect()
}

#[test]
fn pipelines_use_what_is_defined() {
    for name in ["node.yaml", "cluster.yaml"] {
        let configuration = configuration(name);
        for kind in ["receivers", "processors", "exporters"] {
            let pipelines = configuration["service"]["pipelines"].as_mapping().unwrap();
            let used: BTreeSet<_> = pipelines
                .values()
                .flat_map(|pipeline| names(&pipeline[kind]))
                .collect();
            assert_eq!(used, names(&configuration[kind]), "{name}: {kind}");
        }
    }
}

#[test]
fn operators_read_fields_of_an_event_and_know_all_types() {
    let configuration = configuration("node.yaml");
    let operators = configuration["receivers"]["filelog"]["operators"].as_sequence();
    let parser = operators.unwrap().iter();
    let mut parser = parser.filter(|operator| operator["type"] == "json_parser");
    let parser = parser.next().unwrap();
    for event in events() {
        for part in ["timestamp", "severity"] {
            let field = parser[part]["parse_from"].as_str().unwrap();
            let field = field.strip_prefix("body.").unwrap();
            assert!(event[field].is_string(), "{field}");
        }
        // The layout in Go's reference time.
        let layout = parser["timestamp"]["layout"].as_str().unwrap();
        let shape = |time: &str| time.replace(|c: char| c.is_ascii_digit(), "0");
        let time = event["time"].as_str().unwrap();
        assert_eq!(shape(time), shape(&layout.replace("Z07:00", "Z")));
    }
    let mapping = parser["severity"]["mapping"].as_mapping().unwrap();
    let mapped: BTreeSet<_> = mapping
        .values()
        .flat_map(|types| match types.as_str() {
            Some(one) => BTreeSet::from([one]),
            None => names(types),
        })
        .collect();
    let page = read("docs/events.md");
    let rows = page
        .lines()
        .filter(|row| row.starts_with("| `io.ipconflict."));
    let documented: BTreeSet<_> = rows.map(|row| row.split('`').nth(1).unwrap()).collect();
    assert_eq!(mapped, documented);
}

#[test]
fn scrape_configuration_is_one_of_prometheus() {
    let configuration = configuration("node.yaml");
    let scrape = serde_yaml_ng::to_string(&configuration["receivers"]["prometheus"]["config"]);
    let scrape = scrape
        .unwrap()
        .replace("${env:NODE_IP}", "192.0.2.7")
        .replace("${env:NODE_NAME}", "worker-7");
    assert!(!scrape.contains('$'), "{scrape}");
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), scrape).unwrap();
    stdout(
        Command::new("promtool")
            .args(["check", "config"])
            .arg(file.path()),
    );
}

#[test]
fn mapped_fields_are_those_of_an_event() {
    let page = read("docs/integrations.md");
    let (_, table) = page.split_once("\n| event |").unwrap();
    let rows = table.lines().skip(2).take_while(|row| row.starts_with('|'));
    let fields: BTreeSet<_> = rows
        .filter_map(|row| row.split('|').nth(1))
        .flat_map(quoted)
        .filter(|field| !field.starts_with('.'))
        .collect();
    assert!(fields.len() > 20, "{fields:?}");
    let events = events();
    let reference = read("docs/events.md");
    for field in fields {
        let pointer = format!("/{}", field.replace("[]", "/0").replace('.', "/"));
        let is_shown = events.iter().any(|event| event.pointer(&pointer).is_some());
        // Of objects that the examples have not, and of the end.
        let name = field.rsplit('.').next().unwrap();
        let is_documented = reference.contains(&format!("\n| `{name}`"));
        assert!(is_shown || is_documented, "{field}");
    }
}
