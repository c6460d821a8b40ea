//! What a person needs to judge a conflict or an anomaly: how urgent it is, its alert, its runbook and what it does to traffic.
//!
//! The one source for chats, pagers, alerts and pages. A test compares the alerts with deploy/prometheus/rules.yaml.

use std::{borrow::Cow, str::FromStr, sync::OnceLock};

use detector_engine::{AnomalyCause, AnomalyKind, diagnosis::Cause};

use super::{AnomalyData, ContractName, SubjectId, SubjectKind, counted};
use crate::Role;

/// Where the runbooks are published.
const RUNBOOKS: &str = "https://github.com/ipconflict/ip-conflict-detector/blob/main/docs/runbooks";

/// The directory that this process was configured with.
static RUNBOOK_URL: OnceLock<String> = OnceLock::new();

/// The URL of the directory with the runbooks.
#[must_use]
pub fn runbooks() -> &'static str {
    RUNBOOK_URL.get().map_or(RUNBOOKS, String::as_str)
}

/// How urgent something is: the same in the log, in events, on the page, in messages and in alerts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is broken and nothing will be.
    Info,
    /// Something will break, or does for one pod. Also of an event that an earlier version stored.
    #[default]
    Warning,
    /// Pods lose traffic, or receive that of others.
    Critical,
}

impl ContractName for Severity {
    const ALL: &'static [Self] = &[Self::Info, Self::Warning, Self::Critical];

    fn contract_name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
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

    /// How urgent it is. It does not depend on the confidence, which metrics do not show.
    #[must_use]
    pub fn severity(self) -> Severity {
        match self {
            // A sweep stands for conflicts. Addresses of several pods are about to be given out twice. A rogue router takes the
            // traffic of a whole link, and a MAC address on two ports costs two pods their packets.
            Self::Conflict(_)
            | Self::Anomaly(
                AnomalyKind::AddressSweep
                | AnomalyKind::PodCidrOverlap
                | AnomalyKind::RogueRouter
                | AnomalyKind::MacDuplicate
                | AnomalyKind::MacMoved,
            ) => Severity::Critical,
            Self::Anomaly(AnomalyKind::IpamLeak) => Severity::Info,
            Self::Anomaly(_) => Severity::Warning,
        }
    }

    /// The URL of its runbook.
    #[must_use]
    pub fn runbook_url(self) -> String {
        match self {
            // Part of each event: joining takes half as many instructions as formatting.
            Self::Conflict(kind) => {
                [runbooks(), "/", self.alert_name(), ".md#", kind.name()].concat()
            }
            Self::Anomaly(_) => format!("{}/{}.md", runbooks(), self.alert_name()),
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
    format!("{}/Causes.md#{}", runbooks(), cause.name())
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
    Some(format!("{}/{alert}.md", runbooks()))
}

/// Whether pods lose traffic by anomalies of this kind, or may.
#[must_use]
pub fn costs_traffic(kind: AnomalyKind) -> bool {
    !matches!(kind, AnomalyKind::IpamDrift | AnomalyKind::IpamLeak)
}

/// What an anomaly does to traffic, in one sentence.
#[must_use]
pub fn anomaly_effect(data: &AnomalyData) -> Cow<'static, str> {
    let text = match data.kind {
        AnomalyKind::IpamDrift if data.cause == AnomalyCause::OwnedByAnother => {
            "If both pods have the address, only one of them receives its traffic."
        }
        AnomalyKind::IpamDrift => "Traffic is not affected yet; the next pod may get the address.",
        AnomalyKind::IpamLeak => "Traffic is not affected.",
        AnomalyKind::GatewayUnresolved => {
            "If the gateway does not answer, the pod reaches nothing outside its own subnet."
        }
        AnomalyKind::RouteAstray => "The node's traffic for the address does not reach the pod.",
        AnomalyKind::AddressSweep => return sweep_effect(data),
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
    };
    text.into()
}

/// Where the node's traffic for the addresses of a sweep goes, as far as that is known.
fn sweep_effect(data: &AnomalyData) -> Cow<'static, str> {
    let count = data.contested.unwrap_or_default();
    match (data.diverted, data.kept) {
        (Some(diverted), _) if diverted > 0 => format!(
            "The node's traffic for {diverted} of these {} goes to the pod.",
            counted(count, "address", "addresses")
        )
        .into(),
        (_, Some(kept)) if kept >= count => {
            "The node's traffic for these addresses still goes to the victims.".into()
        }
        _ => "None of the node's traffic for these addresses is known to go to the pod.".into(),
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

    /// The page of a node, with only this conflict or anomaly.
    #[must_use]
    pub fn of_finding(&self, node: &str, id: SubjectId) -> String {
        let page = self.of_node(node);
        let separator = if page.contains('?') { '&' } else { '?' };
        format!("{page}{separator}id={id}")
    }
}

impl FromStr for StatusPageUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let url = Self(text.to_owned());
        let expected =
            "expected an http or https URL such as https://ipconflict.example.org/{node}/";
        is_web_url(&url.of_node("node"))
            .then_some(url)
            .ok_or(expected)
    }
}

/// The URL of the directory with the runbooks, for a network without the Internet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunbookUrl(String);

impl RunbookUrl {
    /// Has all links of this process lead there. To be called once, before any of them is made.
    pub fn set(&self) {
        // A second call has no effect.
        let _ = RUNBOOK_URL.set(self.0.clone());
    }
}

impl FromStr for RunbookUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let url = text.trim_end_matches('/').to_owned();
        let expected = "expected an http or https URL such as https://wiki.example.org/runbooks";
        is_web_url(&url).then_some(Self(url)).ok_or(expected)
    }
}

fn is_web_url(text: &str) -> bool {
    text.parse().is_ok_and(|uri: http::Uri| {
        let has_host = uri.host().is_some_and(|host| !host.is_empty());
        matches!(uri.scheme_str(), Some("http" | "https")) && has_host
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use detector_engine::ConflictKind;

    use super::*;

    #[test]
    fn what_costs_traffic_is_at_least_a_warning() {
        for kind in AnomalyKind::ALL {
            let severity = SubjectKind::Anomaly(kind).severity();
            assert!(
                !costs_traffic(kind) || severity >= Severity::Warning,
                "{kind:?}"
            );
        }
        assert_eq!(
            SubjectKind::Conflict(ConflictKind::Duplicate).severity(),
            Severity::Critical
        );
    }

    #[test]
    fn effect_of_a_sweep_is_what_was_measured() {
        let mut sweep = crate::samples::sweep("10.0.0.1").data;
        let effects = [
            (0, 4, "still goes to the victims"),
            (3, 1, "for 3 of these 4 addresses goes to the pod"),
            (0, 3, "None of the"),
        ];
        for (diverted, kept, expected) in effects {
            (sweep.diverted, sweep.kept) = (Some(diverted), Some(kept));
            let effect = anomaly_effect(&sweep);
            assert!(effect.contains(expected), "{effect}");
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
        let id = crate::samples::subject_id("1");
        let page = url.of_finding("n1", id);
        assert_eq!(page, format!("https://ip.example.org/n1/?id={id}"));
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
