//! The documents: what they say can be tested is.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use clap::{Arg, CommandFactory as _};
use detector_agent::cli::Cli;
use detector_testkit::{Agent, AgentCommand, Node, contract::violations, http::Client};

use crate::tools::{assert_current, deploy, root};

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");

/// README and everything in docs/.
fn documents() -> Vec<PathBuf> {
    let mut found = vec![root().join("README.md")];
    for folder in ["docs", "docs/runbooks"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "md") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn the_configuration_reference_is_what_the_code_says() {
    let mut text = "# Configuration

Every setting is a flag, an environment variable, and a key in the YAML file given with `--config`; a flag wins over the
environment, the environment over the file. A key that is not known or a value that is wrong is an error that names it; all
errors of the file are reported at once. One file serves all commands.

This page is written from the code.
"
    .to_owned();
    let command = Cli::command();
    for name in ["run", "check", "watch", "cleanup"] {
        let subcommand = command.find_subcommand(name).unwrap();
        let about = subcommand.get_about().unwrap();
        write!(text, "\n## `detector-agent {name}`\n\n{about}\n\n").unwrap();
        text += "| flag, key | environment | default | what it is |\n| --- | --- | --- | --- |\n";
        for argument in subcommand.get_arguments() {
            if !argument.is_hide_set() {
                row(&mut text, argument);
            }
        }
    }
    text += FILE;
    assert_current(&root().join("docs/configuration.md"), &text);
}

/// What the code cannot say by itself.
const FILE: &str = "
## A file

```yaml
events: \"-\"
log-format: json
allow: [10.0.0.10, 10.0.1.0/28]
exclude-interfaces: [\"tap-test*\"]
claim-ttl: 5m
export-claims: true

webhooks:
- {name: ops, url: 'https://hooks.example.org/ip', secret-files: [/etc/ip-conflict-detector/secrets/ops/key]}
- {name: chat, format: slack, url-file: /etc/ip-conflict-detector/secrets/slack/url, only: {min-duration: 30s}}
alertmanagers:
- {name: am-0, url: 'http://alertmanager-0:9093', labels: {cluster: east}}
```

`webhooks` and `alertmanagers` stand in the file only; the [README](../README.md#webhooks-and-alertmanagers) has all of their fields. With the
chart, `secrets` mounts a Secret's keys under /etc/ip-conflict-detector/secrets.
";

fn row(text: &mut String, argument: &Arg) {
    let Some(long) = argument.get_long() else {
        return;
    };
    let values: Vec<_> = argument
        .get_possible_values()
        .iter()
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    let switch = values == ["`true`", "`false`"];
    let name = match argument.get_value_names() {
        Some(names) if argument.get_action().takes_values() && !switch => {
            format!("`--{long}` {}", names[0].replace('|', "\\|"))
        }
        _ => format!("`--{long}`"),
    };
    let environment = argument
        .get_env()
        .map_or_else(String::new, |name| format!("`{}`", name.to_string_lossy()));
    let default: Vec<_> = argument
        .get_default_values()
        .iter()
        .map(|value| format!("`{}`", value.to_string_lossy()))
        .collect();
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let help = help
        .replace('\n', " ")
        .replace('|', "\\|")
        .replace('<', "&lt;");
    let values = if values.is_empty() || switch {
        String::new()
    } else {
        format!("; one of {}", values.join(", "))
    };
    writeln!(
        text,
        "| {name} | {environment} | {} | {}{values} |",
        default.join(", "),
        help.trim(),
    )
    .unwrap();
}

#[test]
fn the_file_that_the_reference_shows_is_taken() {
    let text = FILE.split("```yaml\n").nth(1).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text.split("```").next().unwrap()).unwrap();
    let arguments = ["detector-agent", "run", "--config"].map(std::ffi::OsString::from);
    let arguments = arguments.into_iter().chain([file.path().into()]);
    detector_agent::config::parse(arguments).unwrap();
}

#[test]
fn the_metrics_reference_names_what_the_agent_exposes_and_nothing_else() {
    let page = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let documented: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    // The names that the agent's own test holds it to.
    let source = include_str!("../../src/metrics/mod.rs");
    let (_, contract) = source.split_once("const CONTRACT").unwrap();
    let (contract, _) = contract.split_once("];").unwrap();
    let promised: BTreeSet<&str> = contract
        .lines()
        .filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next())
        .collect();
    assert!(promised.len() > 20, "{promised:?}");
    for name in &promised {
        assert!(
            documented.contains(name),
            "{name} is not in docs/metrics.md"
        );
    }
    let node = Node::new("docs").unwrap();
    let command = AgentCommand::run(AGENT).arg("--export-claims");
    let _agent = Agent::start_ready(&node, &command).unwrap();
    let exposed = Client::new(&node, "http://127.0.0.1:9842")
        .get("/metrics")
        .unwrap()
        .body;
    let mut shown = BTreeSet::new();
    for line in exposed.lines() {
        let Some((family, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        let end = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let name = format!("{family}{end}");
        assert!(
            documented.contains(name.as_str()),
            "{name} is not in docs/metrics.md"
        );
        shown.insert(name);
    }
    for name in documented {
        assert!(
            promised.contains(name) || shown.contains(name),
            "{name} is documented, and the agent has no such metric"
        );
    }
}

#[test]
fn every_event_that_is_shown_keeps_the_contract() {
    let mut shown = 0;
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for block in text.split("```json\n").skip(1) {
            let block = block.split("```").next().unwrap();
            let event: serde_json::Value =
                serde_json::from_str(block).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert_eq!(violations(&event), [""; 0], "{}", path.display());
            shown += 1;
        }
    }
    assert!(shown >= 2, "{shown}");
}

#[test]
fn the_bounds_that_are_told_are_those_of_the_code() {
    let page = fs::read_to_string(root().join("docs/limits.md")).unwrap();
    let bounds = detector_agent::engine::Settings::default().bounds;
    for (what, bound) in [
        ("claims of one device by frames", bounds.claims_per_device),
        ("devices", bounds.links),
        (
            "neighbour entries, forwarding entries",
            bounds.kernel_entries,
        ),
        ("conflicts open at once", bounds.open_conflicts),
        (
            "claimants listed in one conflict",
            bounds.claimants_per_conflict,
        ),
    ] {
        let line = page.lines().find(|line| {
            line.starts_with(&format!("| {what}")) && line.contains(|c: char| c.is_ascii_digit())
        });
        let line = line.unwrap_or_else(|| panic!("{what}"));
        let number: String = line.chars().filter(char::is_ascii_digit).collect();
        assert_eq!(number, bound.to_string(), "{line}");
    }
}

/// Links between documents, and files of the checkout that they name.
#[test]
fn what_the_documents_point_to_is_there() {
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        let folder = path.parent().unwrap();
        for link in text.split("](").skip(1) {
            let target = link.split(')').next().unwrap();
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() {
                path.clone()
            } else {
                folder.join(file)
            };
            assert!(file.exists(), "{}: {target}", path.display());
            if !anchor.is_empty() {
                assert!(
                    headings(&file).contains(anchor),
                    "{}: {target}",
                    path.display()
                );
            }
        }
        for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || "/-_.".contains(c))) {
            let word = word.trim_end_matches('.');
            if word.starts_with("deploy/") {
                assert!(root().join(word).exists(), "{}: {word}", path.display());
            }
        }
    }
}

/// The anchors of a document, as the forges make them.
fn headings(path: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            heading
                .chars()
                .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-')
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

#[test]
fn every_file_of_the_deployment_is_spoken_of() {
    let text: String = documents()
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    for entry in fs::read_dir(deploy("")).unwrap() {
        let name = format!("deploy/{}", entry.unwrap().file_name().to_str().unwrap());
        assert!(text.contains(&name), "{name}");
    }
}
