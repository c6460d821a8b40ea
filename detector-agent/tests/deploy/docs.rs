//! Checks of the documentation against the code.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use clap::{Arg, CommandFactory as _};
use detector_agent::{cli::Cli, fleet::MAX_LOOKUPS, metrics::labels};
use detector_common::Budget;
use detector_engine::{AnomalyKind, ConflictKind};
use detector_event::{MAX_PRIMARY_ADDRESSES, Via};
use detector_testkit::contract::violations;

use crate::tools::{assert_current, deploy, read, root};

/// The page of the settings, and the lines around its generated part.
const CONFIGURATION: &str = "docs/configuration.md";
const GENERATED: [&str; 2] = [
    "<!-- Generated from the code: DEPLOY_UPDATE=1 cargo xtask test -- --test deploy configuration -->\n",
    "\n<!-- End of the generated part -->\n",
];

/// The documents at the top and everything in docs/.
fn documents() -> Vec<PathBuf> {
    let mut found = [
        "README.md",
        "ARCHITECTURE.md",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "MAINTAINERS.md",
        "SECURITY.md",
    ]
    .map(|name| root().join(name))
    .to_vec();
    for folder in ["docs", "docs/design", "docs/runbooks"] {
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
fn configuration_reference_matches_the_code() {
    let mut text = String::new();
    let command = Cli::command();
    for name in ["run", "check", "explain", "watch", "cleanup"] {
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
    let file = root().join(CONFIGURATION);
    let page = read(&file);
    let (head, rest) = page.split_once(GENERATED[0]).unwrap();
    let (_, tail) = rest.split_once(GENERATED[1]).unwrap();
    let [begin, end] = GENERATED;
    assert_current(&file, &format!("{head}{begin}{text}{end}{tail}"));
}

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
fn example_configuration_file_is_valid() {
    let page = read(CONFIGURATION);
    let text = page.split("```yaml\n").nth(1).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text.split("```").next().unwrap()).unwrap();
    let arguments = ["detector-agent", "run", "--config"].map(std::ffi::OsString::from);
    let arguments = arguments.into_iter().chain([file.path().into()]);
    detector_agent::config::parse(arguments).unwrap();
}

/// The text in backticks.
pub(crate) fn quoted(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The names of metrics in a text or an expression.
pub(crate) fn metric_names(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = text.split(move |c| !is_name(c));
    let prefixes = ["ipconflict_", "ipconflict:", "process_"];
    words.filter(move |word| prefixes.iter().any(|prefix| word.starts_with(prefix)))
}

#[test]
fn metrics_reference_lists_exactly_the_label_values() {
    let page = read("docs/metrics.md");
    // After the first colon of a line.
    let line = |begin: &str, values: &[&str]| {
        let line = page.lines().find(|line| line.starts_with(begin)).unwrap();
        let documented = quoted(line.split_once(": ").unwrap().1);
        assert_eq!(documented, values.iter().copied().collect(), "{begin}");
    };
    line("`kind` of a conflict", &ConflictKind::ALL.map(|k| k.name()));
    line("`kind` of an anomaly", &AnomalyKind::ALL.map(|k| k.name()));
    line("`via` of", &Via::ALL.map(Via::name));
    line("`verb` of", &labels::FLEET_VERBS);
    // In the first column of the table in a section.
    let table = |section: &str, values: &[&str]| {
        let (_, rest) = page.split_once(&format!("\n## {section}\n")).unwrap();
        let rest = rest.split("\n## ").next().unwrap();
        let rows = rest.lines().filter_map(|line| line.strip_prefix("| "));
        let first = rows.filter_map(|row| row.split(" | ").next());
        let documented: BTreeSet<_> = first.flat_map(quoted).collect();
        assert_eq!(documented, values.iter().copied().collect(), "{section}");
    };
    table("Observation kinds", &labels::observation_kinds());
    table("Drop reasons", &labels::drop_reasons());
    table("Reject reasons", &labels::reject_reasons());
    table("Resync reasons", &labels::RESYNC_REASONS);
    table("Lookup outcomes", &labels::LOOKUP_OUTCOMES);
    table("Fleet outcomes", &labels::FLEET_OUTCOMES);
    table("Delivery outcomes", &labels::DELIVERY_OUTCOMES);
}

#[test]
fn every_example_event_satisfies_the_contract() {
    let mut shown = 0;
    for path in documents() {
        let text = read(&path);
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
fn documented_bounds_match_the_code() {
    let page = read("docs/limits.md");
    let bounds = detector_engine::Settings::default().bounds;
    let budget = |budget: Budget| {
        let burst = budget.window_ns / budget.interval_ns;
        [burst, budget.per_second()].map(|n| usize::try_from(n).unwrap())
    };
    let changes = [bounds.address_changes, bounds.contested_address_changes].map(budget);
    let row = |what: &str, bounds: &[usize]| {
        let line = page.lines().find(|line| {
            line.starts_with(&format!("| {what}")) && line.contains(|c: char| c.is_ascii_digit())
        });
        let line = line.unwrap_or_else(|| panic!("{what}"));
        let number: String = line.chars().filter(char::is_ascii_digit).collect();
        let documented: String = bounds.iter().map(ToString::to_string).collect();
        assert_eq!(number, documented, "{line}");
    };
    let changes = changes.as_flattened();
    row("changes of the addresses of one device", changes);
    let claims = bounds.claims_per_device;
    row("claims of one device by frames", &[claims]);
    let namespaces = "addresses in the namespaces of devices beyond that";
    row(namespaces, &[bounds.overflow_addresses]);
    row("devices", &[bounds.links]);
    let entries = bounds.kernel_entries;
    row("neighbour entries, forwarding entries", &[entries]);
    let open = bounds.open_conflicts;
    let (of_device, all) = (bounds.conflicts_per_device, bounds.all_open_conflicts());
    row("conflicts open at once", &[open, of_device, all]);
    row(
        "anomalies open at once",
        &[open, bounds.anomalies_per_device],
    );
    let listed = bounds.claimants_per_conflict;
    row("claimants listed in one conflict", &[listed]);
    row("primary addresses of one pod", &[MAX_PRIMARY_ADDRESSES]);
    row("secondary addresses of one device", &[MAX_LOOKUPS]);
}

/// Links between documents, and files of the repository that they name.
#[test]
fn link_targets_and_named_files_exist() {
    for path in documents() {
        let text = read(&path);
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

/// The anchors of a document: those that forges generate for headings, and explicit ones.
fn headings(path: &Path) -> BTreeSet<String> {
    let text = read(path);
    let explicit = text.lines().filter_map(|line| {
        let id = line.strip_prefix("<a id=\"")?.strip_suffix("\"></a>")?;
        Some(id.to_owned())
    });
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
        .chain(explicit)
        .collect()
}

/// `cargo xtask bench` writes the figures of the page, but not those of the README.
#[test]
fn readme_states_measured_latencies() {
    let benchmarks = read("docs/benchmarks.md");
    let readme = read("README.md");
    for (percentile, text) in [
        ("p50", "half of 3,000 conflicts were reported within"),
        ("p99", "and 99 % within"),
    ] {
        let begin = format!("| frame sent to event line read, idle, {percentile} | ");
        let row = benchmarks
            .lines()
            .find_map(|line| line.strip_prefix(&begin));
        let measured = row.unwrap().split(" |").next().unwrap();
        assert!(readme.contains(&format!("{text} {measured}")), "{measured}");
    }
    assert!(benchmarks.contains(", 2 cores, "));
}

#[test]
fn every_deployment_file_is_mentioned() {
    let text: String = documents().iter().map(read).collect();
    for entry in fs::read_dir(deploy("")).unwrap() {
        let name = format!("deploy/{}", entry.unwrap().file_name().to_str().unwrap());
        assert!(text.contains(&name), "{name}");
    }
}
