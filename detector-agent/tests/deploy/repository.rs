//! What GitHub reads: workflows, forms, updates. `cargo xtask lint` checks the syntax of the workflows.

use std::{fs, path::PathBuf};

use serde_yaml_ng::Value;

use crate::tools::{documents, read, root};

fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// A tag can be moved to other code, a commit cannot.
#[test]
fn workflows_pin_actions_by_commit_and_grant_nothing_by_default() {
    for path in files(".github/workflows") {
        let text = read(&path);
        for line in text.lines() {
            let Some((_, action)) = line.split_once("uses: ") else {
                continue;
            };
            let (_, pin) = action.split_once('@').unwrap();
            let (commit, version) = pin.split_once(" # v").unwrap_or_else(|| panic!("{line}"));
            assert!(
                commit.len() == 40 && commit.chars().all(|c| c.is_ascii_hexdigit()),
                "{line}"
            );
            assert!(version.split('.').count() == 3, "{line}");
        }
        let workflow = documents(&text).remove(0);
        let granted = workflow["permissions"].as_mapping().map(|map| map.len());
        assert_eq!(granted, Some(0), "{}", path.display());
    }
}

/// A pull request runs the checks that a change has to pass, not a copy of them.
#[test]
fn pull_requests_run_the_checks() {
    let workflow = documents(&read(".github/workflows/ci.yaml")).remove(0);
    assert!(workflow["on"].get("pull_request").is_some());
    let steps = workflow["jobs"]["checks"]["steps"].as_sequence().unwrap();
    assert!(steps.iter().any(|step| step["run"] == ".ci/run"));
}

#[test]
fn issue_forms_have_the_required_fields() {
    let mut forms = 0;
    for path in files(".github/ISSUE_TEMPLATE") {
        let form = documents(&read(&path)).remove(0);
        if path.ends_with("config.yml") {
            continue;
        }
        forms += 1;
        for field in ["name", "description"] {
            assert!(form[field].is_string(), "{}: {field}", path.display());
        }
        for entry in form["body"].as_sequence().unwrap() {
            let known = ["input", "textarea"].map(Value::from);
            assert!(known.contains(&entry["type"]), "{entry:?}");
            assert!(entry["attributes"]["label"].is_string(), "{entry:?}");
        }
    }
    assert_eq!(forms, 3);
}

#[test]
fn updates_cover_crates_and_actions() {
    let updates = documents(&read(".github/dependabot.yml")).remove(0);
    let entries = updates["updates"].as_sequence().unwrap().iter();
    let ecosystems: Vec<_> = entries
        .map(|entry| entry["package-ecosystem"].as_str().unwrap())
        .collect();
    assert_eq!(ecosystems, ["cargo", "github-actions"]);
}
