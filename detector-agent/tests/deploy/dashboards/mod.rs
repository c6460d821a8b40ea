//! The dashboards: every panel is complete, links lead to dashboards and variables that exist, and every query has data.
//! Grafana itself is not run.

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};

use crate::{
    docs::metric_names,
    tools::{deploy, read, root},
};

mod fleet;
pub(crate) mod queries;

fn dashboards() -> Vec<(String, Value)> {
    let mut found: Vec<_> = fs::read_dir(deploy("grafana"))
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let text = read(&path);
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, serde_json::from_str(&text).unwrap())
        })
        .collect();
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    assert_eq!(found.len(), 4);
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
        for (variable, expected) in variables[1..].iter().zip(["cluster", "node"]) {
            assert_eq!(variable["name"], expected, "{name}");
            assert_eq!(
                (&variable["multi"], &variable["includeAll"]),
                (&json!(true), &json!(true))
            );
            // Agents whose scrape job sets no such label stay visible.
            assert_eq!(variable["allValue"], ".*", "{name}");
        }
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
            if panel["type"] == "stat" || panel["type"] == "table" {
                let text = panel["fieldConfig"]["defaults"]["noValue"].as_str();
                assert!(text.is_some(), "{place} does not explain missing data");
            }
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

/// A line in each graph of what must not be there, in the colour of its severity.
#[test]
fn graphs_of_findings_have_a_threshold() {
    let colours = [
        ("conflicts_active", "red"),
        ("conflicts_raised_total", "red"),
        ("kind=\"pod_cidr_overlap\"", "red"),
        ("anomalies_active", "orange"),
        ("outbox_pending", "orange"),
    ];
    let mut count = 0;
    for (name, dashboard) in dashboards() {
        for panel in list(&dashboard["panels"]) {
            let expression = panel["targets"][0]["expr"].as_str().unwrap();
            let colour = colours.iter().find(|(part, _)| expression.contains(part));
            let Some((_, colour)) = colour.filter(|_| panel["type"] == "timeseries") else {
                continue;
            };
            let defaults = &panel["fieldConfig"]["defaults"];
            let step = &defaults["thresholds"]["steps"][1];
            assert_eq!(
                *step,
                json!({"color": colour, "value": 1}),
                "{name}: {panel}"
            );
            assert_eq!(defaults["custom"]["thresholdsStyle"]["mode"], "dashed");
            count += 1;
        }
    }
    assert_eq!(count, 8);
}

/// The expressions of the annotations, each with its place.
fn annotations() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (name, dashboard) in dashboards() {
        for annotation in list(&dashboard["annotations"]["list"]) {
            assert_eq!(annotation["datasource"]["uid"], "${datasource}", "{name}");
            let expression = annotation["target"]["expr"].as_str().unwrap().to_owned();
            found.push((format!("{name}: {}", annotation["name"]), expression));
        }
    }
    found
}

/// The series that a query variable takes its values from, and the label.
fn values_of(variable: &Value) -> (&str, &str) {
    let definition = variable["definition"].as_str().unwrap();
    assert_eq!(variable["query"]["query"], definition);
    let inner = definition.strip_prefix("label_values(").unwrap();
    inner.strip_suffix(')').unwrap().rsplit_once(", ").unwrap()
}

/// Names of the table's columns, as Grafana shows them, by label.
fn columns(panel: &Value) -> Option<&serde_json::Map<String, Value>> {
    let organize = panel.get("transformations")?.get(0)?;
    assert_eq!(organize["id"], "organize");
    organize["options"]["renameByName"].as_object()
}

#[test]
fn every_dashboard_marks_raised_conflicts() {
    let annotations = annotations();
    for (name, _) in dashboards() {
        let marks = annotations.iter().any(|(place, expression)| {
            place.starts_with(&format!("{name}: "))
                && expression.contains("increase(ipconflict_conflicts_raised_total{")
        });
        assert!(marks, "{name}");
    }
}

#[test]
fn every_address_column_links_to_the_dashboard_of_the_address() {
    let dashboards = dashboards();
    let mut linked = 0;
    for (name, dashboard) in &dashboards {
        for panel in list(&dashboard["panels"]) {
            let place = format!("{name}: {}", panel["title"]);
            let Some(columns) = columns(panel) else {
                continue;
            };
            let columns: BTreeSet<_> = columns.values().filter_map(Value::as_str).collect();
            let mut links = Vec::new();
            for change in list(&panel["fieldConfig"]["overrides"]) {
                assert_eq!(change["matcher"]["id"], "byName", "{place}");
                let column = change["matcher"]["options"].as_str().unwrap();
                assert!(columns.contains(column), "{place} has no column {column}");
                for property in list(&change["properties"]) {
                    assert_eq!(property["id"], "links", "{place}");
                    let found = list(&property["value"]).iter();
                    links.extend(found.map(|link| (column, link["url"].as_str().unwrap())));
                }
            }
            for (column, url) in &links {
                if let Some((_, path)) = url.split_once("/blob/main/") {
                    let file = path.split('#').next().unwrap();
                    assert!(root().join(file).exists(), "{place}: {url}");
                    continue;
                }
                let (uid, parameters) = url.strip_prefix("/d/").unwrap().split_once('?').unwrap();
                assert!(url.contains("&${cluster:queryparam}&"), "{place}: {url}");
                let target = dashboards.iter().find(|(_, d)| d["uid"] == uid);
                let (_, target) = target.unwrap_or_else(|| panic!("{place}: no {uid}"));
                let variables = list(&target["templating"]["list"]);
                let set: BTreeSet<_> = (parameters.split('&'))
                    .filter_map(|parameter| parameter.strip_prefix("var-")?.split('=').next())
                    .collect();
                for name in &set {
                    let exists = variables.iter().any(|variable| variable["name"] == *name);
                    assert!(exists, "{place}: {uid} has no variable {name}");
                }
                for field in parameters.split("${__data.fields.").skip(1) {
                    let field = field.split([':', '}']).next().unwrap();
                    assert!(columns.contains(field), "{place}: no column {field}");
                }
                if *column == "Address" {
                    assert_eq!(uid, "ipconflict-conflict", "{place}");
                    assert!(set.is_superset(&["address", "node", "datasource"].into()));
                }
            }
            if columns.contains("Address") {
                let has_link = links.iter().any(|(column, _)| *column == "Address");
                assert!(has_link, "{place}: the addresses have no link");
                linked += 1;
            }
        }
    }
    assert_eq!(linked, 7);
}

#[test]
fn every_metric_of_a_query_is_documented() {
    let page = read("docs/metrics.md");
    let mut expressions = annotations();
    for (place, target) in queries() {
        expressions.push((place, target["expr"].as_str().unwrap().to_owned()));
    }
    for (name, dashboard) in dashboards() {
        for variable in list(&dashboard["templating"]["list"]).iter().skip(1) {
            expressions.push((name.clone(), values_of(variable).0.to_owned()));
        }
    }
    for (place, expression) in expressions {
        let mut names = metric_names(&expression).peekable();
        assert!(
            names.peek().is_some()
                || ["up{job=", "ALERTS{"]
                    .iter()
                    .any(|name| expression.contains(name)),
            "{place}: {expression}"
        );
        for name in names {
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end))
                .unwrap_or(name);
            assert!(page.contains(&format!("`{family}`")), "{place}: {name}");
        }
    }
}
