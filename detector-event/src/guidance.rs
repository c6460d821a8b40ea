//! What a person needs to judge a conflict or an anomaly: how urgent it is, its alert, its runbook and what it does to traffic.
//!
//! The one source for chats, pagers, alerts and pages. A test compares the alerts with deploy/prometheus/rules.yaml.

use std::str::FromStr;

use detector_engine::{AnomalyCause, AnomalyKind, Confidence, ConflictKind, diagnosis::Cause};

use super::{AnomalyData, SubjectKind};
use crate::Role;

/// Where the documentation is published.
const DOCS: &str = "https://github.com/ipconflict/ip-conflict-detector/blob/main/docs";

/// How urgent something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is broken and nothing will be.
    Info,
    /// Something will break, or does for one pod.
    Warning,
    /// A pod probably receives traffic of others.
    Error,
    /// Pods certainly lose traffic.
    Critical,
}

impl Severity {
    /// The severity of a conflict or, without `confidence`, of an anomaly.
    #[must_use]
    pub fn of(kind: SubjectKind, confidence: Option<Confidence>) -> Self {
        match kind {
            // An address of the node concerns every pod on it.
            SubjectKind::Conflict(ConflictKind::Host) => Self::Critical,
            SubjectKind::Conflict(_) if confidence == Some(Confidence::Certain) => Self::Critical,
            // A sweep stands for conflicts, each of which would be an error.
            // Addresses of several pods are about to be given out twice.
            // A rogue router takes the traffic of a whole link.
            SubjectKind::Conflict(_)
            // A MAC address on two ports costs two pods their packets.
            | SubjectKind::Anomaly(
                AnomalyKind::AddressSweep
                | AnomalyKind::PodCidrOverlap
                | AnomalyKind::RogueRouter
                | AnomalyKind::MacDuplicate
                | AnomalyKind::MacMoved,
            ) => Self::Error,
            SubjectKind::Anomaly(AnomalyKind::IpamLeak) => Self::Info,
            SubjectKind::Anomaly(_) => Self::Warning,
        }
    }

    /// Its name in PagerDuty.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
        }
    }
}

impl SubjectKind {
    /// The `alertname` of its alerts.
    #[must_use]
    pub fn alert_name(self) -> &'static str {
        match self {
            Self::Conflict(_) => "IPAddressConflict",
            Self::Anomaly(AnomalyKind::IpamDrift) => "IPAMDrift",
            Self::Anomaly(AnomalyKind::IpamLeak) => "IPAMLeak",
            Self::Anomaly(AnomalyKind::GatewayUnresolved) => "PodGatewayUnresolved",
            Self::Anomaly(AnomalyKind::RouteAstray) => "PodRouteAstray",
            Self::Anomaly(AnomalyKind::AddressSweep) => "PodAddressSweep",
            Self::Anomaly(AnomalyKind::PodCidrOverlap) => "PodCIDROverlap",
            Self::Anomaly(AnomalyKind::RogueRouter) => "PodRogueRouter",
            Self::Anomaly(AnomalyKind::MacDuplicate) => "PodMACDuplicate",
            Self::Anomaly(AnomalyKind::MacMoved) => "PodMACMoved",
            Self::Anomaly(AnomalyKind::AddressUnusable) => "PodAddressUnusable",
        }
    }

    /// The label `severity` of its alerts. It does not depend on the confidence, which metrics do not show.
    #[must_use]
    pub fn alert_severity(self) -> &'static str {
        match Severity::of(self, None) {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error | Severity::Critical => "critical",
        }
    }

    /// The URL of its runbook.
    #[must_use]
    pub fn runbook_url(self) -> String {
        match self {
            Self::Conflict(kind) => {
                let name = self.alert_name();
                format!("{DOCS}/runbooks/{name}.md#{}", kind.name())
            }
            Self::Anomaly(_) => format!("{DOCS}/runbooks/{}.md", self.alert_name()),
        }
    }

    /// What its runbook is called in a link.
    #[must_use]
    pub fn runbook_title(self) -> String {
        format!("Runbook {}", self.alert_name())
    }
}

/// The URL of what the runbook says about a cause.
#[must_use]
pub fn cause_url(cause: Cause) -> String {
    format!("{DOCS}/runbooks/Causes.md#{}", cause.name())
}

/// The URL of the runbook for a part of the agent that does not work, if there is one.
#[must_use]
pub fn part_runbook_url(role: Role) -> Option<String> {
    let alert = match role {
        Role::Source => "IPConflictDetectorBlind",
        Role::Sink => "IPConflictSinkFailing",
        Role::Fleet => "IPConflictFleetBlind",
        Role::Names | Role::Ipam => return None,
    };
    Some(format!("{DOCS}/runbooks/{alert}.md"))
}

/// What an anomaly does to traffic, in one sentence.
#[must_use]
pub fn anomaly_effect(data: &AnomalyData) -> &'static str {
    match data.kind {
        AnomalyKind::IpamDrift if data.cause == AnomalyCause::OwnedByAnother => {
            "If both pods have the address, only one of them receives its traffic."
        }
        AnomalyKind::IpamDrift => "Traffic is not affected yet; the next pod may get the address.",
        AnomalyKind::IpamLeak => "Traffic is not affected.",
        AnomalyKind::GatewayUnresolved => {
            "If the gateway does not answer, the pod reaches nothing outside its own subnet."
        }
        AnomalyKind::RouteAstray => "The node's traffic for the address does not reach the pod.",
        AnomalyKind::AddressSweep => "The pod may receive the traffic of all these addresses.",
        AnomalyKind::AddressUnusable => "The pod neither uses the address nor answers for it.",
        AnomalyKind::PodCidrOverlap => {
            "Pods of these nodes get the same addresses, and the routes of the range lead to one of the nodes."
        }
        AnomalyKind::RogueRouter => {
            "Pods on the same link may send their IPv6 traffic to this pod, and form addresses from its prefixes."
        }
        AnomalyKind::MacDuplicate => {
            "These pods lose packets: the bridge delivers those of all to whichever sent last."
        }
        AnomalyKind::MacMoved => "Packets for the pod go to another port.",
    }
}

/// The URL of the status page, as people reach it; `{node}` in it stands for the node's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusPageUrl(String);

impl StatusPageUrl {
    /// The page of a node.
    #[must_use]
    pub fn of_node(&self, node: &str) -> String {
        self.0.replace("{node}", node)
    }
}

impl FromStr for StatusPageUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected =
            "expected an http or https URL such as https://ipconflict.example.org/{node}/";
        let url = Self(text.to_owned());
        let uri: http::Uri = url.of_node("node").parse().map_err(|_| expected)?;
        let has_host = uri.host().is_some_and(|host| !host.is_empty());
        if matches!(uri.scheme_str(), Some("http" | "https")) && has_host {
            Ok(url)
        } else {
            Err(expected)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use super::*;

    #[test]
    fn severity_follows_kind_and_confidence() {
        use Confidence::{Certain, Observed};
        let cases = [
            (ConflictKind::Duplicate, Certain, Severity::Critical),
            (ConflictKind::Duplicate, Observed, Severity::Error),
            (ConflictKind::Host, Observed, Severity::Critical),
            (ConflictKind::Flapping, Observed, Severity::Error),
        ];
        for (kind, confidence, expected) in cases {
            let kind = SubjectKind::Conflict(kind);
            assert_eq!(Severity::of(kind, Some(confidence)), expected, "{kind:?}");
        }
    }

    #[test]
    fn runbooks_of_parts_exist() {
        let runbooks = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/runbooks");
        for role in [Role::Source, Role::Sink, Role::Fleet] {
            let url = part_runbook_url(role).unwrap();
            let (_, file) = url.rsplit_once('/').unwrap();
            assert!(runbooks.join(file).exists(), "{url}");
        }
        assert_eq!(part_runbook_url(Role::Names), None);
    }

    #[test]
    fn status_page_url_names_the_node() {
        let url: StatusPageUrl = "https://ip.example.org/{node}/".parse().unwrap();
        assert_eq!(url.of_node("n1"), "https://ip.example.org/n1/");
        for wrong in [
            "ip.example.org",
            "ftp://x/",
            "javascript:alert(1)",
            "{node}",
        ] {
            assert!(wrong.parse::<StatusPageUrl>().is_err(), "{wrong}");
        }
    }
}
