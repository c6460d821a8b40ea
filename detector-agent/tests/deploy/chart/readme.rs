//! The chart's README, generated from its metadata and the comments of values.yaml.

use std::fmt::Write as _;

use serde_yaml_ng::Value;

use crate::{
    manifests::KUBERNETES,
    tools::{CHART, assert_current, deploy, documents, read},
};

/// Values that are passed on as they are, so their keys have no description here.
const PASSED_ON: [&str; 10] = [
    "affinity",
    "config",
    "dashboards.labels",
    "extraEnv",
    "nodeSelector",
    "podAnnotations",
    "podLabels",
    "resources",
    "tolerations",
    "updateStrategy",
];

#[test]
fn readme_lists_every_value() {
    let chart = deploy(CHART);
    let metadata = documents(&read(chart.join("Chart.yaml"))).remove(0);
    let text = read(chart.join("values.yaml"));
    let defaults = documents(&text).remove(0);
    let mut readme = format!(
        "# {}\n\n{}.\n\nHow to install it, and what to do afterwards, is in [docs/install.md](../../../docs/install.md).\n\n",
        metadata["name"].as_str().unwrap(),
        metadata["description"].as_str().unwrap(),
    );
    readme += "This page is generated from `Chart.yaml`, `values.yaml` and `platforms/`.\n\n";
    let needed = metadata["kubeVersion"].as_str().unwrap();
    let [oldest, newest] = KUBERNETES.map(|version| version.trim_end_matches(".0"));
    writeln!(
        readme,
        "It needs Kubernetes {}, and has not been run in such a version yet: the tests install it in Kubernetes 1.20.2, \
         without that check, because no newer API server is available to them.\nFor each version from {oldest} to {newest} they render it and validate every object against the schemas of that version.",
        needed.trim_end_matches("-0"),
    )
    .unwrap();
    readme += "\n## Platforms\n\nAdd the file of your platform with `--values`; several can be combined.\n\n";
    readme += "| file | platform | status |\n| --- | --- | --- |\n";
    for (name, head) in super::platforms::heads() {
        writeln!(
            readme,
            "| `platforms/{name}.yaml` | {} | {} |",
            head.platform, head.status
        )
        .unwrap();
    }
    readme += "\n## Values\n\n| value | default | meaning |\n| --- | --- | --- |\n";
    for (key, comment) in commented_keys(&text) {
        let default = key.split('.').fold(&defaults, |value, key| &value[key]);
        let is_group = default.as_mapping().is_some_and(|map| !map.is_empty())
            && !PASSED_ON.contains(&key.as_str());
        if is_group && comment.is_empty() {
            continue;
        }
        assert!(!comment.is_empty(), "values.yaml: {key} has no comment");
        let default = if is_group {
            String::new()
        } else {
            code_cell(default)
        };
        writeln!(
            readme,
            "| `{key}` | {default} | {} |",
            comment.replace('|', "\\|").replace('<', "&lt;")
        )
        .unwrap();
    }
    assert_current(&chart.join("README.md"), &readme);
}

/// What editors and Artifact Hub show.
#[test]
fn schema_describes_every_value() {
    let file = deploy(CHART).join("values.schema.json");
    let mut schema: serde_json::Value = serde_json::from_str(&read(&file)).unwrap();
    for (key, comment) in commented_keys(&read(deploy(CHART).join("values.yaml"))) {
        let path: String = key
            .split('.')
            .flat_map(|part| ["/properties/", part])
            .collect();
        let entry = schema.pointer_mut(&path);
        let entry = entry.unwrap_or_else(|| panic!("{key} is not in the schema"));
        if !comment.is_empty() {
            entry["description"] = comment.into();
        }
    }
    let text = serde_json::to_string_pretty(&schema).unwrap();
    assert_current(&file, &format!("{text}\n"));
}

fn code_cell(value: &Value) -> String {
    format!(
        "`{}`",
        serde_json::to_string(value).unwrap().replace('|', "\\|")
    )
}

/// The keys of a YAML file in block style, each with the comment before it. Keys below those that are passed on are left
/// out.
fn commented_keys(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut parents: Vec<&str> = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    for line in text.lines() {
        let content = line.trim_start();
        if let Some(words) = content.strip_prefix("# ") {
            comment.push(words);
        } else if let Some((key, _)) = content.split_once(':') {
            parents.truncate((line.len() - content.len()) / 2);
            parents.push(key);
            let path = parents.join(".");
            let is_inner = PASSED_ON.iter().any(|outer| {
                path.strip_prefix(outer)
                    .is_some_and(|rest| rest.starts_with('.'))
            });
            if !is_inner {
                found.push((path, comment.join(" ")));
            }
            comment.clear();
        } else {
            // A paragraph of its own.
            comment.clear();
        }
    }
    found
}
