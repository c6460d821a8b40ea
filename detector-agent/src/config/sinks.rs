//! Reads the sections `webhooks:` and `alertmanagers:` of the configuration file.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    time::Duration,
};

use detector_engine::Confidence;
use detector_event::{ContractName as _, SubjectKind};
use hyper::Uri;
use serde_yaml_ng::Value;

use super::{
    errors::Errors,
    fields::{Fields, read_list},
};
use crate::{
    cli::{LONGEST, parse_duration_within},
    sinks::{
        filter::Filter,
        settings::{
            ALERT_LABELS, AlertLabels, AlertmanagerSettings, Endpoint, Format, RetrySettings,
            SinkSettings, UrlSource, WebhookSettings, parse_url,
        },
    },
};

/// Top-level keys of the file that are not flags.
pub(super) const SECTIONS: [&str; 2] = ["webhooks", "alertmanagers"];

/// Default interval at which active alerts are sent again; Prometheus repeats alerts as often.
const RESEND_EVERY: Duration = Duration::from_secs(60);
/// Longest name of a sink, in bytes.
const MAX_NAME: usize = 63;
/// Names that the agent's own sinks have in metrics.
const RESERVED: [&str; 4] = ["kubernetes", "lines", "outbox", "state"];

/// Reads one of [`SECTIONS`] into `sinks`, and adds what is wrong with it to `errors`. `names` are those of all sinks.
pub(super) fn read_section(
    sinks: &mut SinkSettings,
    names: &mut BTreeSet<String>,
    section: &str,
    value: &Value,
    errors: &mut Errors,
) {
    if section == "webhooks" {
        sinks.webhooks = read_list(section, value, errors, |fields| webhook(fields, names));
    } else {
        sinks.alertmanagers =
            read_list(section, value, errors, |fields| alertmanager(fields, names));
    }
}

fn webhook(fields: &mut Fields<'_>, names: &mut BTreeSet<String>) -> Option<WebhookSettings> {
    let name = name(fields, names);
    let format = fields.take("format").unwrap_or_default();
    let default = (format == Format::Pagerduty)
        .then(|| Uri::from_static("https://events.pagerduty.com/v2/enqueue"));
    let endpoint = endpoint(fields, default);
    let routing_key_file = fields.take("routing-key-file");
    match (format, &routing_key_file) {
        (Format::Pagerduty, None) => fields.add_missing(
            "routing-key-file",
            &"is missing; the format pagerduty needs the file with the integration's routing key",
        ),
        (Format::Cloudevents | Format::Slack, Some(_)) if !fields.is_invalid("format") => fields
            .add_error(
                "routing-key-file",
                &"is supported only with the format pagerduty",
            ),
        _ => {}
    }
    Some(WebhookSettings {
        format,
        secret_files: fields.take("secret-files").unwrap_or_default(),
        routing_key_file,
        only: fields.nested("only", filter).unwrap_or_default(),
        retry: fields.nested("retry", retry).unwrap_or_default(),
        name: name?,
        endpoint: endpoint?,
    })
}

fn alertmanager(
    fields: &mut Fields<'_>,
    names: &mut BTreeSet<String>,
) -> Option<AlertmanagerSettings> {
    let name = name(fields, names);
    let endpoint = endpoint(fields, None);
    let labels = AlertLabels {
        all: fields.take("labels").unwrap_or_default(),
        by_kind: fields
            .nested("kind-labels", kind_labels)
            .unwrap_or_default(),
    };
    check_labels(fields, "labels", &labels.all);
    let resend_every = duration(fields, "resend-every", Duration::from_secs(1));
    Some(AlertmanagerSettings {
        labels,
        resend_every: resend_every.unwrap_or(RESEND_EVERY),
        only: fields.nested("only", filter).unwrap_or_default(),
        name: name?,
        endpoint: endpoint?,
    })
}

fn kind_labels(fields: &mut Fields<'_>) -> HashMap<SubjectKind, BTreeMap<String, String>> {
    let mut by_kind = HashMap::new();
    for kind in SubjectKind::ALL {
        let name = kind.contract_name();
        if let Some(labels) = fields.take(name) {
            check_labels(fields, name, &labels);
            by_kind.insert(*kind, labels);
        }
    }
    by_kind
}

fn check_labels(fields: &mut Fields<'_>, key: &str, labels: &BTreeMap<String, String>) {
    for label in labels.keys() {
        let reason = if ALERT_LABELS.contains(&label.as_str()) {
            "identifies the alert and is set by the agent; choose another name"
        } else if is_label_name(label) {
            continue;
        } else {
            "is not a valid label name; use letters, digits and _"
        };
        fields.add_error(&format!("{key}.{label}"), &reason);
    }
}

/// The sink's name, which is added to `names`.
fn name(fields: &mut Fields<'_>, names: &mut BTreeSet<String>) -> Option<String> {
    let Some(name) = fields.take::<String>("name") else {
        fields.add_missing(
            "name",
            &"is missing; every sink needs a name, which appears in metrics and logs",
        );
        return None;
    };
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_allowed) {
        fields.add_error(
            "name",
            &format!("`{name}` is not a valid name; use up to {MAX_NAME} of a-z, 0-9 and -"),
        );
        None
    } else if RESERVED.contains(&name.as_str()) {
        fields.add_error(
            "name",
            &format!("`{name}` is reserved by the agent; choose another name"),
        );
        None
    } else if !names.insert(name.clone()) {
        fields.add_error(
            "name",
            &format!(
                "two sinks are named `{name}`; give each webhook and alertmanager a name of its own"
            ),
        );
        None
    } else {
        Some(name)
    }
}

fn endpoint(fields: &mut Fields<'_>, default: Option<Uri>) -> Option<Endpoint> {
    let given = fields.parse("url", parse_url).map(UrlSource::Given);
    let file = fields.take("url-file").map(UrlSource::File);
    let url = match (given, file) {
        (Some(_), Some(_)) => {
            fields.add_error("url-file", &"conflicts with `url`; give only one of them");
            None
        }
        (given, file) => given.or(file).or(default.map(UrlSource::Given)),
    };
    if url.is_none() && !fields.is_invalid("url-file") {
        fields.add_missing(
            "url",
            &"is missing; give `url`, or `url-file` if the URL is a secret",
        );
    }
    let client_cert_file = fields.take("client-cert-file");
    let client_key_file = fields.take("client-key-file");
    if client_cert_file.is_some() != client_key_file.is_some() {
        fields.add_error(
            "client-cert-file",
            &"requires `client-key-file` and vice versa; give both or neither",
        );
    }
    let header_files: BTreeMap<String, PathBuf> = fields.take("header-files").unwrap_or_default();
    for header in header_files.keys() {
        if let Err(reason) = check_header_name(header) {
            fields.add_error(&format!("header-files.{header}"), &reason);
        }
    }
    let timeout = duration(fields, "timeout", Duration::from_millis(100));
    Some(Endpoint {
        ca_file: fields.take("ca-file"),
        client_cert_file,
        client_key_file,
        header_files,
        timeout: timeout.unwrap_or(Duration::from_secs(15)),
        url: url?,
    })
}

fn filter(fields: &mut Fields<'_>) -> Filter {
    let names: Vec<String> = fields.take("kinds").unwrap_or_default();
    let mut kinds = Vec::new();
    for name in &names {
        match SubjectKind::from_contract_name(name) {
            Some(kind) => kinds.push(kind),
            None => {
                let all: Vec<_> = SubjectKind::ALL.iter().map(|k| k.contract_name()).collect();
                let all = all.join(", ");
                fields.add_error(
                    "kinds",
                    &format!("`{name}` is not a kind; the kinds are {all}"),
                );
            }
        }
    }
    let confidence = fields.parse("confidence", |name| {
        Confidence::from_contract_name(name)
            .ok_or_else(|| format!("`{name}` is not a confidence; use observed or certain"))
    });
    Filter {
        kinds,
        namespaces: fields.take("namespaces").unwrap_or_default(),
        confidence: confidence.unwrap_or(Confidence::Observed),
        min_duration: duration(fields, "min-duration", Duration::ZERO).unwrap_or_default(),
    }
}

fn retry(fields: &mut Fields<'_>) -> RetrySettings {
    let default = RetrySettings::default();
    let least = Duration::from_millis(10);
    let retry = RetrySettings {
        first: duration(fields, "first", least).unwrap_or(default.first),
        longest: duration(fields, "longest", least).unwrap_or(default.longest),
        give_up_after: duration(fields, "give-up-after", least).unwrap_or(default.give_up_after),
    };
    if retry.longest < retry.first {
        fields.add_error("longest", &"is shorter than `first`");
    }
    retry
}

fn duration(fields: &mut Fields<'_>, key: &'static str, least: Duration) -> Option<Duration> {
    fields.parse(key, |text| parse_duration_within(text, least..=LONGEST))
}

fn check_header_name(name: &str) -> Result<(), &'static str> {
    let parsed: hyper::header::HeaderName =
        name.parse().map_err(|_| "is not a valid header name")?;
    let set_by_agent = [
        "content-length",
        "content-type",
        "transfer-encoding",
        "connection",
        "host",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
    ];
    if set_by_agent.contains(&parsed.as_str()) {
        return Err("is set by the agent");
    }
    Ok(())
}

fn is_label_name(name: &str) -> bool {
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(is_start) && name.chars().all(|c| is_start(c) || c.is_ascii_digit())
}
