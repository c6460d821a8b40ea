//! The structured part of the file: `webhooks:` and `alertmanagers:`.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use hyper::Uri;
use serde::Deserialize;
use serde_yaml_ng::Value;

use super::fields::{Fields, list};
use crate::{
    engine::Confidence,
    event::{ContractName as _, SubjectKind},
    sinks::filter::Filter,
};

/// Where events are sent besides the event lines.
#[derive(Clone, Debug, Default)]
pub struct Sinks {
    /// Each gets every event that passes its filter, at least once.
    pub webhooks: Vec<WebhookSettings>,
    /// Each gets all active conflicts, over and over.
    pub alertmanagers: Vec<AlertmanagerSettings>,
}

/// Where a URL stands: in the file, or, where it is a secret itself, in a file of its own.
#[derive(Clone, Debug)]
pub enum UrlSource {
    /// Given.
    Given(Uri),
    /// In this file.
    File(PathBuf),
}

/// How to reach an HTTP server.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its URL.
    pub url: UrlSource,
    /// Certificates (PEM) to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Certificate chain (PEM) to show.
    pub client_cert_file: Option<PathBuf>,
    /// Its private key (PEM).
    pub client_key_file: Option<PathBuf>,
    /// Headers, each with the file that holds its value.
    pub header_files: BTreeMap<String, PathBuf>,
    /// Longest time of one request, from connecting to the answer's head.
    pub timeout: Duration,
}

/// What a webhook's body looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// The event itself.
    #[default]
    Cloudevents,
    /// A message for a Slack incoming webhook.
    Slack,
    /// An event for PagerDuty's Events API v2.
    Pagerduty,
}

/// When to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetrySettings {
    /// Wait after the first failure; doubles from there.
    pub first: Duration,
    /// Longest wait.
    pub longest: Duration,
    /// Age from which an event whose attempt fails is given up.
    pub give_up_after: Duration,
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(900),
            give_up_after: Duration::from_secs(24 * 3600),
        }
    }
}

/// One webhook.
#[derive(Clone, Debug)]
pub struct WebhookSettings {
    /// Its name in metrics, logs and the outbox.
    pub name: String,
    /// Where it is.
    pub endpoint: Endpoint,
    /// The body's form.
    pub format: Format,
    /// Files with a signing secret each; all of them sign.
    pub secret_files: Vec<PathBuf>,
    /// File with PagerDuty's routing key.
    pub routing_key_file: Option<PathBuf>,
    /// Which events it gets.
    pub only: Filter,
    /// When to try again.
    pub retry: RetrySettings,
}

/// One Alertmanager.
#[derive(Clone, Debug)]
pub struct AlertmanagerSettings {
    /// Its name in metrics and logs.
    pub name: String,
    /// Where it is, without `/api/v2/alerts`.
    pub endpoint: Endpoint,
    /// How often it is told of everything that is active; an alert that it does not hear of for four times as long is
    /// over.
    pub resend_every: Duration,
    /// Labels put on every alert, such as the cluster's name.
    pub labels: BTreeMap<String, String>,
    /// Which conflicts it gets.
    pub only: Filter,
}

/// As often as Prometheus tells an alert again.
const RESEND_EVERY: Duration = Duration::from_secs(60);
/// Longest name of a sink.
const NAME: usize = 63;
/// Names that the metrics use themselves.
const RESERVED: [&str; 3] = ["lines", "outbox", "state"];
/// Labels that the alerts set themselves.
pub const ALERT_LABELS: [&str; 6] = ["alertname", "address", "node", "kind", "vlan", "inner_vlan"];

/// Sections of the file that are no flags.
pub const SECTIONS: [&str; 2] = ["webhooks", "alertmanagers"];

impl Sinks {
    /// Reads one section; what is wrong with it goes to `errors`.
    pub fn read(&mut self, section: &str, value: &Value, errors: &mut Vec<String>) {
        if section == "webhooks" {
            self.webhooks = list(section, value, errors, webhook);
        } else {
            self.alertmanagers = list(section, value, errors, alertmanager);
        }
    }

    /// Looks at what only all sections together can tell.
    pub fn check(&self, errors: &mut Vec<String>) {
        let webhooks = self.webhooks.iter().map(|w| w.name.as_str());
        let alertmanagers = self.alertmanagers.iter().map(|a| a.name.as_str());
        let mut seen = std::collections::BTreeSet::new();
        for name in webhooks.chain(alertmanagers) {
            if !seen.insert(name) {
                errors.push(format!(
                    "two sinks are named `{name}`; give each webhook and alertmanager a name of its own"
                ));
            }
        }
    }
}

fn webhook(fields: &mut Fields<'_>) -> Option<WebhookSettings> {
    let name = name(fields);
    let format = fields.take("format").unwrap_or_default();
    let default = (format == Format::Pagerduty)
        .then(|| Uri::from_static("https://events.pagerduty.com/v2/enqueue"));
    let endpoint = endpoint(fields, default);
    let routing_key_file = fields.take("routing-key-file");
    match (format, &routing_key_file) {
        (Format::Pagerduty, None) => fields.refuse(
            "routing-key-file",
            &"is missing; the format pagerduty needs the file with the integration's routing key",
        ),
        (Format::Cloudevents | Format::Slack, Some(_)) => {
            fields.refuse("routing-key-file", &"only belongs to the format pagerduty")
        }
        _ => {}
    }
    Some(WebhookSettings {
        format,
        secret_files: fields.take("secret-files").unwrap_or_default(),
        routing_key_file,
        only: fields.nested("only", only).unwrap_or_default(),
        retry: fields.nested("retry", retry).unwrap_or_default(),
        name: name?,
        endpoint: endpoint?,
    })
}

fn alertmanager(fields: &mut Fields<'_>) -> Option<AlertmanagerSettings> {
    let name = name(fields);
    let endpoint = endpoint(fields, None);
    let labels: BTreeMap<String, String> = fields.take("labels").unwrap_or_default();
    for label in labels.keys() {
        if ALERT_LABELS.contains(&label.as_str()) {
            fields.refuse(
                &format!("labels.{label}"),
                &"is set by the alert itself; choose another name",
            );
        } else if !is_label(label) {
            fields.refuse(
                &format!("labels.{label}"),
                &"is no label name; use letters, digits and _",
            );
        }
    }
    let resend_every = time(fields, "resend-every", Duration::from_secs(1));
    Some(AlertmanagerSettings {
        labels,
        resend_every: resend_every.unwrap_or(RESEND_EVERY),
        only: fields.nested("only", only).unwrap_or_default(),
        name: name?,
        endpoint: endpoint?,
    })
}

fn name(fields: &mut Fields<'_>) -> Option<String> {
    let before = fields.take::<String>("name");
    let Some(name) = before else {
        fields.refuse(
            "name",
            &"is missing or wrong; every sink has a name, which metrics and logs show",
        );
        return None;
    };
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > NAME || !name.chars().all(fits) {
        fields.refuse(
            "name",
            &format!("`{name}` is no name; use up to {NAME} of a-z, 0-9 and -"),
        );
        None
    } else if RESERVED.contains(&name.as_str()) {
        fields.refuse(
            "name",
            &format!("`{name}` is the agent's own; choose another"),
        );
        None
    } else {
        Some(name)
    }
}

fn endpoint(fields: &mut Fields<'_>, default: Option<Uri>) -> Option<Endpoint> {
    let given = fields.parse("url", url).map(UrlSource::Given);
    let file = fields.take("url-file").map(UrlSource::File);
    let url = match (given, file) {
        (Some(_), Some(_)) => {
            fields.refuse("url-file", &"is given besides `url`; give one of them");
            None
        }
        (given, file) => given.or(file).or(default.map(UrlSource::Given)),
    };
    if url.is_none() {
        fields.refuse(
            "url",
            &"is missing or wrong; give `url`, or `url-file` where the URL is a secret",
        );
    }
    let client_cert_file = fields.take("client-cert-file");
    let client_key_file = fields.take("client-key-file");
    if client_cert_file.is_some() != client_key_file.is_some() {
        fields.refuse(
            "client-cert-file",
            &"goes together with `client-key-file`; give both or neither",
        );
    }
    let header_files: BTreeMap<String, PathBuf> = fields.take("header-files").unwrap_or_default();
    for header in header_files.keys() {
        if let Err(why) = header_name(header) {
            fields.refuse(&format!("header-files.{header}"), &why);
        }
    }
    let timeout = time(fields, "timeout", Duration::from_millis(100));
    Some(Endpoint {
        ca_file: fields.take("ca-file"),
        client_cert_file,
        client_key_file,
        header_files,
        timeout: timeout.unwrap_or(Duration::from_secs(15)),
        url: url?,
    })
}

fn only(fields: &mut Fields<'_>) -> Filter {
    let names: Vec<String> = fields.take("kinds").unwrap_or_default();
    let mut kinds = Vec::new();
    for name in &names {
        match SubjectKind::from_contract_name(name) {
            Some(kind) => kinds.push(kind),
            None => {
                let all: Vec<_> = SubjectKind::ALL.iter().map(|k| k.contract_name()).collect();
                let all = all.join(", ");
                fields.refuse(
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
        min_duration: time(fields, "min-duration", Duration::ZERO).unwrap_or_default(),
    }
}

fn retry(fields: &mut Fields<'_>) -> RetrySettings {
    let default = RetrySettings::default();
    let least = Duration::from_millis(10);
    let retry = RetrySettings {
        first: time(fields, "first", least).unwrap_or(default.first),
        longest: time(fields, "longest", least).unwrap_or(default.longest),
        give_up_after: time(fields, "give-up-after", least).unwrap_or(default.give_up_after),
    };
    if retry.longest < retry.first {
        fields.refuse("longest", &"is shorter than `first`");
    }
    retry
}

fn time(fields: &mut Fields<'_>, key: &'static str, least: Duration) -> Option<Duration> {
    fields.parse(key, |text| match humantime::parse_duration(text) {
        Ok(time) if time >= least => Ok(time),
        Ok(_) => Err(format!(
            "must be at least {}",
            humantime::format_duration(least)
        )),
        Err(_) => Err("expected a time such as 90s or 10m".to_owned()),
    })
}

/// Reads a URL that requests may go to.
///
/// # Errors
/// Where it is none; the message does not repeat it, for it may be a secret.
pub fn url(text: &str) -> Result<Uri, &'static str> {
    let uri: Uri = text
        .trim()
        .parse()
        .map_err(|_| "is no URL; give one such as https://example.org/hook")?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
        return Err("is no http or https URL with a host");
    }
    if uri.authority().is_some_and(|a| a.as_str().contains('@')) {
        return Err(
            "holds a password; put it into a file as an Authorization header, see `header-files`",
        );
    }
    Ok(uri)
}

fn header_name(name: &str) -> Result<(), &'static str> {
    let parsed: hyper::header::HeaderName = name.parse().map_err(|_| "is no header name")?;
    let ours = [
        "content-length",
        "content-type",
        "transfer-encoding",
        "connection",
        "host",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
    ];
    if ours.contains(&parsed.as_str()) {
        return Err("is set by the agent itself");
    }
    Ok(())
}

fn is_label(name: &str) -> bool {
    let start = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(start) && name.chars().all(|c| start(c) || c.is_ascii_digit())
}
