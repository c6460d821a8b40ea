//! What a message about anomalies of one kind contains.

use detector_engine::{AnomalyCause, AnomalyKind};
use detector_event::{
    AnomalyData, SubjectKind,
    guidance::anomaly_effect,
    next_step::anomaly_next_step,
    summary::{anomaly_line, anomaly_subject, anomaly_title, enumeration, resolve_reason},
};

use super::{Facts, Notice, anomaly_group::AnomalyGroup};

/// A group of anomalies in one message.
pub(super) struct AnomalyFacts<'m> {
    pub(super) group: &'m AnomalyGroup,
    pub(super) of: &'m Facts<'m>,
}

impl AnomalyFacts<'_> {
    pub(super) fn notice(&self) -> Notice {
        let Self { group, of } = self;
        let data = &group.shown;
        let kind = SubjectKind::Anomaly(data.kind);
        let is_resolved = of.is_resolved();
        let (effect, next_step) = if is_resolved {
            (String::new(), String::new())
        } else if of.count == 1 {
            (anomaly_effect(data).into_owned(), anomaly_next_step(data))
        } else {
            (effect(data).to_owned(), next_step(data, of.node))
        };
        let more = of.count.saturating_sub(group.subjects.len());
        let list = enumeration(group.subjects.clone(), more);
        let cause = group.cause().filter(|_| !is_resolved);
        let repair = cause.as_ref().and_then(|cause| cause.next_step(of.count));
        Notice {
            change: of.change,
            severity: kind.severity(),
            kind,
            title: anomaly_title(data.kind),
            finding: self.finding(),
            effect,
            cause: cause.map_or_else(String::new, |cause| cause.text(of.count)),
            next_step: repair.unwrap_or(next_step),
            changed: of.changed.clone(),
            list: list.filter(|_| of.count > 1).into_iter().collect(),
            context: format!("{} · {}", data.kind.name(), of.since()),
            node: of.node.to_owned(),
            subject: of.subject,
        }
    }

    fn finding(&self) -> String {
        let Self { group, of } = self;
        let data = &group.shown;
        match (of.is_resolved(), of.count) {
            (false, 1) => anomaly_line(data),
            (false, count) => finding(data.kind, count, &of.place),
            (true, 1) => {
                let reason = resolve_reason(data);
                format!("{} on {}: {reason}", anomaly_subject(data), of.place)
            }
            (true, count) => {
                let lasted = of.lasted();
                format!("{count} findings on {} are over after {lasted}", of.place)
            }
        }
    }
}

/// What several anomalies of this kind are, in a clause.
fn finding(kind: AnomalyKind, count: usize, node: &str) -> String {
    match kind {
        AnomalyKind::IpamDrift => {
            format!("{count} addresses of pods on {node} do not match the allocations of IPAM")
        }
        AnomalyKind::IpamLeak => format!("{count} allocated addresses are not in use on {node}"),
        AnomalyKind::GatewayUnresolved => {
            format!("pods on {node} ask for their gateways again and again, {count} in all")
        }
        AnomalyKind::RouteAstray => {
            format!("the routes of {node} for {count} addresses do not lead to their pods")
        }
        AnomalyKind::AddressUnusable => {
            format!("{count} addresses of pods on {node} failed duplicate address detection")
        }
        AnomalyKind::AddressSweep => format!("{count} pods on {node} claim addresses of others"),
        AnomalyKind::PodCidrOverlap => {
            format!("{count} ranges of {node} are ranges of other nodes as well")
        }
        AnomalyKind::RogueRouter => format!("{count} pods on {node} send router advertisements"),
        AnomalyKind::MacDuplicate => {
            format!("{count} MAC addresses on {node} are those of several pods each")
        }
        AnomalyKind::MacMoved => {
            format!("the MAC addresses of {count} pods on {node} were learned on other ports")
        }
    }
}

/// What several anomalies of the kind of this one do to traffic, in one sentence.
fn effect(data: &AnomalyData) -> &'static str {
    match data.kind {
        AnomalyKind::IpamDrift if data.cause == AnomalyCause::OwnedByAnother => {
            "Where both pods have the address, only one of them receives its traffic."
        }
        AnomalyKind::IpamDrift => {
            "Traffic is not affected yet; the next pods may get the addresses."
        }
        AnomalyKind::IpamLeak => "Traffic is not affected.",
        AnomalyKind::GatewayUnresolved => {
            "Pods whose gateway does not answer reach nothing outside their own subnets."
        }
        AnomalyKind::RouteAstray => {
            "The node's traffic for these addresses does not reach the pods."
        }
        AnomalyKind::AddressUnusable => "The pods neither use the addresses nor answer for them.",
        AnomalyKind::AddressSweep => "The pods may receive traffic for these addresses.",
        AnomalyKind::PodCidrOverlap => "Pods of these nodes get the same addresses.",
        AnomalyKind::RogueRouter => {
            "Pods on the same links may send their IPv6 traffic to these pods."
        }
        AnomalyKind::MacDuplicate | AnomalyKind::MacMoved => "These pods lose packets.",
    }
}

/// The next step for several anomalies of the kind of this one, in one sentence.
fn next_step(data: &AnomalyData, node: &str) -> String {
    match data.kind {
        AnomalyKind::IpamDrift if data.cause == AnomalyCause::OwnedByAnother => {
            "For addresses in conflict, follow the next step of the conflict. Recreate the other pods, and find out whether they assigned the addresses to themselves.".to_owned()
        }
        AnomalyKind::IpamDrift => format!(
            "Keep new pods off the node (kubectl cordon {node}), then restore the allocations or recreate the pods."
        ),
        AnomalyKind::IpamLeak => {
            "Nothing is broken; release the addresses in IPAM if the pool runs short.".to_owned()
        }
        AnomalyKind::GatewayUnresolved => format!(
            "Check whether the gateways answer (the runbook shows how). If not, restart the network plugin on {node}, then delete the pods for which that does not help."
        ),
        AnomalyKind::RouteAstray => format!(
            "Restart the network plugin on {node}, then delete the pods for which that does not help."
        ),
        AnomalyKind::AddressUnusable => {
            "Delete these pods, so that their addresses are added again.".to_owned()
        }
        AnomalyKind::AddressSweep => {
            "Check whether these pods are meant to answer for the addresses (VIPs, proxies); otherwise cut them off or delete them.".to_owned()
        }
        AnomalyKind::RogueRouter => {
            "Check whether these pods are meant to be routers; otherwise cut them off or delete them.".to_owned()
        }
        AnomalyKind::PodCidrOverlap => {
            "Keep new pods off all but one of these nodes (kubectl cordon), and find out what assigned the ranges twice.".to_owned()
        }
        AnomalyKind::MacDuplicate => {
            "Find out which pods their network plugin gave these MAC addresses, and recreate the others.".to_owned()
        }
        AnomalyKind::MacMoved => {
            "Find out what sends with these MAC addresses on the other ports; deleting the pods does not help.".to_owned()
        }
    }
}
