//! Settings of the sinks. [`crate::config`] reads them from the configuration file.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    time::Duration,
};

use detector_event::{SubjectKind, guidance::StatusPageUrl};
use hyper::Uri;
use serde::Deserialize;

use super::{filter::Filter, outbox::Window};

/// Labels that identify an alert; those configured for an Alertmanager must not repeat them.
pub const ALERT_LABELS: [&str; 7] = [
    "alertname",
    "address",
    "network",
    "node",
    "kind",
    "vlan",
    "device",
];

/// Where events are sent in addition to the event lines.
#[derive(Clone, Debug, Default)]
pub struct SinkSettings {
    /// Each gets every event that passes its filter, at least once.
    pub webhooks: Vec<WebhookSettings>,
    /// Each gets all active conflicts, repeatedly.
    pub alertmanagers: Vec<AlertmanagerSettings>,
    /// Where people find the status page of a node.
    pub status_page_url: Option<StatusPageUrl>,
}

/// Where a URL comes from. A URL that is itself a secret is kept in a file of its own.
#[derive(Clone, Debug)]
pub enum UrlSource {
    /// From the configuration file.
    Given(Uri),
    /// From this file.
    File(PathBuf),
}

/// How to reach an HTTP server.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its URL.
    pub url: UrlSource,
    /// CA certificates (PEM) to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Client certificate chain (PEM).
    pub client_cert_file: Option<PathBuf>,
    /// Private key (PEM) of the client certificate.
    pub client_key_file: Option<PathBuf>,
    /// Request headers; each value is read from a file.
    pub header_files: BTreeMap<String, PathBuf>,
    /// Limit for one request, from connecting to the head of the response.
    pub timeout: Duration,
}

/// How long events are collected for one message to people.
const WINDOW: Duration = Duration::from_secs(10);

/// Body format of a webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// The event as structured CloudEvents JSON.
    #[default]
    Cloudevents,
    /// A message for a Slack incoming webhook.
    Slack,
    /// An event for PagerDuty's Events API v2.
    Pagerduty,
}

impl Format {
    /// How events become messages to people; `None` if the receiver gets each event.
    #[must_use]
    pub fn window(self) -> Option<Window> {
        let has_incidents = match self {
            Self::Cloudevents => return None,
            Self::Slack => false,
            Self::Pagerduty => true,
        };
        Some(Window {
            lasts: WINDOW,
            has_incidents,
        })
    }
}

/// When to retry a failed delivery, and when to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetrySettings {
    /// Wait after the first failure; each further failure doubles it.
    pub first: Duration,
    /// Longest wait.
    pub longest: Duration,
    /// Age at which an undelivered event is dropped after a failed attempt.
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

/// Settings of one webhook.
#[derive(Clone, Debug)]
pub struct WebhookSettings {
    /// Its name in metrics, logs and the outbox.
    pub name: String,
    /// Where requests go.
    pub endpoint: Endpoint,
    /// Format of the request body.
    pub format: Format,
    /// Files with one signing secret each; the request carries one signature per secret.
    pub secret_files: Vec<PathBuf>,
    /// File with PagerDuty's routing key.
    pub routing_key_file: Option<PathBuf>,
    /// Which events it gets.
    pub only: Filter,
    /// When to retry.
    pub retry: RetrySettings,
}

/// Settings of one Alertmanager.
#[derive(Clone, Debug)]
pub struct AlertmanagerSettings {
    /// Its name in metrics and logs.
    pub name: String,
    /// Its base URL, without `/api/v2/alerts`.
    pub endpoint: Endpoint,
    /// Interval at which all active alerts are sent again. Alertmanager resolves an alert that has not been repeated
    /// for four intervals.
    pub resend_every: Duration,
    /// Labels added to alerts.
    pub labels: AlertLabels,
    /// Which conflicts it gets.
    pub only: Filter,
}

/// Labels that are added to alerts; `severity` among them replaces the agent's.
#[derive(Clone, Debug, Default)]
pub struct AlertLabels {
    /// Of every alert, such as the cluster's name.
    pub all: BTreeMap<String, String>,
    /// Of the alerts of one kind; they take precedence.
    pub by_kind: HashMap<SubjectKind, BTreeMap<String, String>>,
}

/// Parses the URL of a sink.
///
/// # Errors
/// If it is not an http or https URL with a host, or contains credentials. The message does not repeat the URL, because it
/// may be a secret.
pub fn parse_url(text: &str) -> Result<Uri, &'static str> {
    let uri: Uri = text
        .trim()
        .parse()
        .map_err(|_| "is not a valid URL; give one such as https://example.org/hook")?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
        return Err("is not an http or https URL with a host");
    }
    if uri.authority().is_some_and(|a| a.as_str().contains('@')) {
        return Err(
            "contains a password; put it into a file as an Authorization header, see `header-files`",
        );
    }
    Ok(uri)
}
