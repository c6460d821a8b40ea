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
use detector_engine::{AnomalyKind, ConflictKind, diagnosis::Cause};
use detector_event::{MAX_PRIMARY_ADDRESSES, Via};
use detector_testkit::{Agent, AgentCommand, Node, contract::violations, http::TestClient};

use crate::{
    AGENT,
    tools::{assert_current, deploy, root},
};

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
fn configuration_reference_matches_the_code() {
    let mut text = "# Configuration

Use this page to look up a setting, and to configure [webhooks and Alertmanagers](#webhooks-and-alertmanagers).
The tables are generated from the code.

Every setting is a flag, an environment variable, and a key in the YAML file given with `--config`.
A flag takes precedence over the environment, and the environment over the file.
An unknown key or an invalid value is an error that names it and its line, with a similar key if there is one; all errors of the file are reported at once.
One file serves all commands.

`detector-agent completions SHELL` writes completions for bash, zsh, fish, elvish or PowerShell to stdout, and `detector-agent man DIR` writes the manual pages, for packages to install.
"
    .to_owned();
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
    text += FILE;
    assert_current(&root().join("docs/configuration.md"), &text);
}

/// The part of the page that is not generated.
const FILE: &str = "
## A file

```yaml
events: \"-\"
log-format: json
allow: [10.0.0.10, 10.0.1.0/28]
exclude-interfaces: [\"tap-test*\"]
claim-ttl: 5m
export-claims: true
state-dir: /var/lib/ip-conflict-detector  # keeps open conflicts and undelivered events

webhooks:
- name: ops                               # in metrics, logs and /readyz
  url: https://hooks.example.org/ip       # or url-file, if the URL is a secret
  secret-files: [/etc/ip-conflict-detector/new, /etc/ip-conflict-detector/old]
  header-files: {Authorization: /etc/ip-conflict-detector/token}
  ca-file: /etc/ssl/private-ca.pem        # instead of the system's authorities
  client-cert-file: /etc/ip-conflict-detector/client.pem
  client-key-file: /etc/ip-conflict-detector/client.key
  timeout: 15s
  only:                                   # all of these must match; each is optional
    kinds: [duplicate, host]
    namespaces: [shop]
    confidence: certain
    min-duration: 30s
  retry: {first: 1s, longest: 15m, give-up-after: 24h}
- {name: chat, format: slack, url-file: /etc/ip-conflict-detector/slack-url}
- {name: pager, format: pagerduty, routing-key-file: /etc/ip-conflict-detector/pagerduty-key}

alertmanagers:                            # list every one of a cluster, as for Prometheus
- {name: am-0, url: 'http://alertmanager-0:9093', labels: {cluster: east}, resend-every: 1m}
- name: am-1
  url: http://alertmanager-1:9093
  labels: {cluster: east}
  kind-labels: {ipam_drift: {team: network, severity: info}}
```

## Webhooks and Alertmanagers

`webhooks` and `alertmanagers` can only be set in the file.
Secrets are in files of their own, which are read again before each request, so that a rotation needs no restart.
If a file of a sink is missing or unusable at the start, that sink is disabled, and everything else runs: the log, /readyz and `ipconflict_deliveries_total{outcome=\"unusable\"}` show it, its events wait, and it is enabled within seconds once the file can be used.
With the chart, `secrets` mounts the keys of a Secret under /etc/ip-conflict-detector/secrets.

| key | of | default | meaning |
| --- | --- | --- | --- |
| `name` | both | required | a-z, 0-9 and `-`; shown in metrics, logs and /readyz |
| `url`, `url-file` | both | required (PagerDuty's API for `pagerduty`) | the URL, or a file that contains it; for an Alertmanager without `/api/v2/alerts` |
| `ca-file` | both | the system's authorities | certificates (PEM) to trust |
| `client-cert-file`, `client-key-file` | both | none | client certificate chain and its private key (PEM) |
| `header-files` | both | none | request headers, each with the file that contains its value |
| `timeout` | both | `15s` | longest time of one request |
| `only.kinds` | both | all but `ipam_leak` | kinds of conflicts and anomalies |
| `only.namespaces` | both | all | Kubernetes namespaces, of which at least one named pod must be |
| `only.confidence` | both | `observed` | `certain` restricts conflicts to those |
| `only.min-duration` | both | `0s` | how long the conflict or anomaly must have lasted |
| `format` | webhooks | `cloudevents` | `cloudevents`, `slack` or `pagerduty`; the last two get [one message for each ten seconds](events.md#messages-to-people) |
| `secret-files` | webhooks | none | signing secrets (`whsec_` and base64); each adds a signature |
| `routing-key-file` | webhooks | | the integration's routing key, for `pagerduty` |
| `retry.first`, `retry.longest` | webhooks | `1s`, `15m` | wait after the first failure, which doubles, and the longest wait |
| `retry.give-up-after` | webhooks | `24h` | age at which an event whose attempt fails is given up |
| `labels` | Alertmanagers | none | labels added to every alert; `severity` among them replaces the agent's |
| `kind-labels.KIND` | Alertmanagers | none | the same for the alerts of one kind, such as `ipam_drift`; they take precedence |
| `resend-every` | Alertmanagers | `1m` | how often every active alert is sent again; it ends four times that long after the last time |

A webhook receives each `raised` and each `resolved` event at least once, the events of one conflict in order, with the same `webhook-id` on every attempt, signed as [Standard Webhooks](https://www.standardwebhooks.com) specifies.
With `state-dir` an event is on disk before it is sent, and is removed after a 2xx answer; without it, undelivered events are lost when the agent ends.
Requests go through a proxy if the environment names one (`HTTP_PROXY`, `HTTPS_PROXY`, and `NO_PROXY` for receivers that are reached directly, such as an Alertmanager in the cluster); with the chart, set them in `extraEnv`.
`Retry-After` is obeyed, redirects are not followed, and after a 410 nothing more is sent until the agent restarts.
[`ipconflict_deliveries_total`](metrics.md#delivery-outcomes), `ipconflict_outbox_pending`, `ipconflict_outbox_parked` and /readyz show the state of each sink.

### Rejected events

A receiver that answers 400, 413 or 422 refuses this one event, so it is parked while all others are sent: the log names it once, and it is tried again after `retry.longest`, then after up to four times that, until it is accepted or older than `give-up-after`; and once at each start of the agent.
An update takes the place of a rejected update or `raised` event and is sent at once, as `raised` if the receiver knows nothing of the conflict yet; the end of the conflict waits.
A message about several findings is divided until the rejected one is alone.
A request with several alerts that an Alertmanager rejects is split until the refused alert is alone; that one is tried again after 15 minutes, then after up to an hour, and at once when it changes.

### Alerts

The alerts are those of the Prometheus rules in `deploy/prometheus`, so that you can use either or both: names, severities, runbooks and labels are the same, and an Alertmanager that gets an alert from both shows and notifies it once.

| `alertname` | `severity` | kind | labels that identify it |
| --- | --- | --- | --- |
| `IPAddressConflict` | `critical` | `duplicate`, `host`, `flapping` | `node`, `kind`, `address`, `network`, `vlan` if there is one (`outer.inner` with two tags) |
| `IPAMDrift` | `warning` | `ipam_drift` | `node`, `kind`, `address`, `device`, `vlan` if there is one |
| `PodGatewayUnresolved` | `warning` | `gateway_unresolved` | `node`, `kind`, `address`, `device`, `vlan` if there is one |
| `PodRouteAstray` | `warning` | `route_astray` | `node`, `kind`, `address`, `device` |
| `PodAddressUnusable` | `warning` | `address_unusable` | `node`, `kind`, `address`, `device` |
| `PodAddressSweep` | `critical` | `address_sweep` | `node`, `kind`, `address`, `device` |
| `PodRogueRouter` | `critical` | `rogue_router` | `node`, `kind`, `address`, `device`, `vlan` if there is one |
| `PodCIDROverlap` | `critical` | `pod_cidr_overlap` | `node`, `kind`, `address` |
| `PodMACDuplicate` | `critical` | `mac_duplicate` | `node`, `kind`, `address`, `device` |
| `PodMACMoved` | `critical` | `mac_moved` | `node`, `kind`, `address`, `device` |
| `IPAMLeak` | `info` | `ipam_leak` | `node`, `kind`, `address`; from the agent only if `only.kinds` lists it |

The annotations `summary`, `description` and `runbook_url` name the pods, what happens to traffic, the cause if it is known, and the next step; `diagnosis` is the [cause](events.md#causes), an annotation and no label, because it becomes known later and labels identify an alert; `generatorURL` is the node's status page with `status-page-url`.

For both to be one alert, Prometheus must know the node by the same name (`node`, as `deploy/prometheus/scrape.yaml` and the chart's PodMonitor set it), and `labels` must repeat what Prometheus adds: its `external_labels`, without those that `alert_relabel_configs` drop.
A severity or a label that you change in the rules (with the chart `prometheusRule.severities` and `alertLabels`) has to be changed here, too (`kind-labels`, `labels`).
These differ all the same: all alerts of Prometheus with `metrics-detail: false` or beyond the bound of the series, because those are one for each node.
The rules wait a minute, that for a leak an hour and that for a sweep not at all; the agent sends each alert at once, or after `only.min-duration`.

## State

With `state-dir` open conflicts and anomalies are kept in one file, `state.redb`.
The next agent continues with them, also after SIGKILL: each keeps its ID and is not raised again, and what ended meanwhile is resolved at the start ([rule 13](detection-rules.md#restart)).
After a reboot they are dropped, because their devices are gone.
A version that cannot read the format of the file, as after a rollback over a change of it, logs that, moves the records to tables that are kept aside in the file, and raises again what is still open.
If the directory cannot be written, or the disk is full, the log, /readyz and `ipconflict_deliveries_total{sink=\"state\"}` show it, detection continues, and everything open is written once there is room.
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
fn example_configuration_file_is_valid() {
    let text = FILE.split("```yaml\n").nth(1).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text.split("```").next().unwrap()).unwrap();
    let arguments = ["detector-agent", "run", "--config"].map(std::ffi::OsString::from);
    let arguments = arguments.into_iter().chain([file.path().into()]);
    detector_agent::config::parse(arguments).unwrap();
}

#[test]
fn metrics_reference_lists_exactly_the_exposed_metrics() {
    let page = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let documented: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        // The other tables explain label values.
        .filter(|name| name.starts_with("ipconflict_") || name.starts_with("process_"))
        .collect();
    // The names that the agent's own test checks.
    let source = include_str!("../../src/metrics/tests.rs");
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
    let exposed = TestClient::new(&node, "http://127.0.0.1:9842")
        .get("/metrics")
        .unwrap()
        .body;
    let mut shown = BTreeSet::new();
    let explained = quoted(&page);
    for line in exposed.lines() {
        for label in ["kind", "reason", "via", "outcome"] {
            let value = (line.split_once(&format!("{label}=\"")))
                .and_then(|(_, rest)| rest.split('"').next());
            assert!(
                value.is_none_or(|value| explained.contains(value)),
                "docs/metrics.md does not explain {line}"
            );
        }
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

/// The text in backticks.
fn quoted(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The values in the first column of the table in a section of docs/metrics.md.
fn table_values<'p>(page: &'p str, section: &str) -> BTreeSet<&'p str> {
    let (_, rest) = page.split_once(&format!("\n## {section}\n")).unwrap();
    let rest = rest.split("\n## ").next().unwrap();
    rest.lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(quoted)
        .collect()
}

/// The values that a line of docs/metrics.md lists after its first colon.
fn line_values<'p>(page: &'p str, begin: &str) -> BTreeSet<&'p str> {
    let line = page.lines().find(|line| line.starts_with(begin)).unwrap();
    quoted(line.split_once(": ").unwrap().1)
}

#[test]
fn metrics_reference_lists_exactly_the_label_values() {
    let page = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    for (documented, values) in [
        (
            line_values(&page, "`kind` of a conflict"),
            ConflictKind::ALL.map(ConflictKind::name).to_vec(),
        ),
        (
            line_values(&page, "`kind` of an anomaly"),
            AnomalyKind::ALL.map(AnomalyKind::name).to_vec(),
        ),
        (
            line_values(&page, "`cause` of a diagnosis"),
            Cause::ALL.map(Cause::name).to_vec(),
        ),
        (
            table_values(&page, "Observation kinds"),
            labels::observation_kinds(),
        ),
        (table_values(&page, "Drop reasons"), labels::drop_reasons()),
        (
            table_values(&page, "Reject reasons"),
            labels::reject_reasons(),
        ),
        (
            table_values(&page, "Resync reasons"),
            labels::RESYNC_REASONS.to_vec(),
        ),
        (
            line_values(&page, "`via` of"),
            Via::ALL.map(Via::name).to_vec(),
        ),
        (
            table_values(&page, "Lookup outcomes"),
            labels::LOOKUP_OUTCOMES.to_vec(),
        ),
        (
            line_values(&page, "`verb` of"),
            labels::FLEET_VERBS.to_vec(),
        ),
        (
            table_values(&page, "Fleet outcomes"),
            labels::FLEET_OUTCOMES.to_vec(),
        ),
        (
            table_values(&page, "Delivery outcomes"),
            labels::DELIVERY_OUTCOMES.to_vec(),
        ),
    ] {
        assert_eq!(documented, values.into_iter().collect());
    }
}

#[test]
fn every_example_event_satisfies_the_contract() {
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
fn documented_bounds_match_the_code() {
    let page = fs::read_to_string(root().join("docs/limits.md")).unwrap();
    let bounds = detector_engine::Settings::default().bounds;
    let budget = |budget: Budget| {
        let burst = budget.window_ns / budget.interval_ns;
        [burst, budget.per_second()].map(|n| usize::try_from(n).unwrap())
    };
    let changes = [bounds.address_changes, bounds.contested_address_changes].map(budget);
    let rows: [(&str, &[usize]); 10] = [
        (
            "changes of the addresses of one device",
            changes.as_flattened(),
        ),
        (
            "claims of one device by frames",
            &[bounds.claims_per_device],
        ),
        (
            "addresses in the namespaces of devices beyond that",
            &[bounds.overflow_addresses],
        ),
        ("devices", &[bounds.links]),
        (
            "neighbour entries, forwarding entries",
            &[bounds.kernel_entries],
        ),
        (
            "conflicts open at once",
            &[
                bounds.open_conflicts,
                bounds.conflicts_per_device,
                bounds.all_open_conflicts(),
            ],
        ),
        (
            "anomalies open at once",
            &[bounds.open_conflicts, bounds.anomalies_per_device],
        ),
        (
            "claimants listed in one conflict",
            &[bounds.claimants_per_conflict],
        ),
        ("primary addresses of one pod", &[MAX_PRIMARY_ADDRESSES]),
        ("further addresses of one device", &[MAX_LOOKUPS]),
    ];
    for (what, bounds) in rows {
        let line = page.lines().find(|line| {
            line.starts_with(&format!("| {what}")) && line.contains(|c: char| c.is_ascii_digit())
        });
        let line = line.unwrap_or_else(|| panic!("{what}"));
        let number: String = line.chars().filter(char::is_ascii_digit).collect();
        let documented: String = bounds.iter().map(ToString::to_string).collect();
        assert_eq!(number, documented, "{line}");
    }
}

/// Links between documents, and files of the repository that they name.
#[test]
fn link_targets_and_named_files_exist() {
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

/// The anchors of a document: those that forges generate for headings, and explicit ones.
fn headings(path: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(path).unwrap();
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

#[test]
fn every_deployment_file_is_mentioned() {
    let text: String = documents()
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    for entry in fs::read_dir(deploy("")).unwrap() {
        let name = format!("deploy/{}", entry.unwrap().file_name().to_str().unwrap());
        assert!(text.contains(&name), "{name}");
    }
}
