//! The next step for a person who finds a conflict or an anomaly. The one source for events, messages, the status page, `check` and
//! `watch`.
//!
//! The texts contain names of pods and devices, which are untrusted.

use serde::{Deserialize, Serialize};

use super::{
    AnomalyData, ClaimantData, ConflictData, NewestBy, SubjectKind,
    summary::{claimant, enumeration, pod_name},
};
use crate::engine::{AnomalyKind, Confidence, ConflictKind, ConflictScope};

/// Claimants named in a sentence; the others are counted.
const NAMED: usize = 4;

/// What to do about something that is active, and where to read on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guidance {
    /// The next step, in a sentence or two.
    pub next_step: String,
    /// The URL of the runbook.
    pub runbook_url: String,
}

impl Guidance {
    /// For a conflict; `None` once it is resolved.
    #[must_use]
    pub fn of_conflict(data: &ConflictData) -> Option<Self> {
        if data.is_resolved() {
            return None;
        }
        if data.sweep.is_some() {
            return Some(Self {
                next_step: "Decide about the pod of the address sweep, not about each address."
                    .to_owned(),
                runbook_url: SubjectKind::Anomaly(AnomalyKind::AddressSweep).runbook_url(),
            });
        }
        let mut newest = data.present().filter_map(|c| Some((c, c.newest()?)));
        let situation = ConflictSituation {
            kind: data.kind,
            confidence: data.confidence,
            has_many_addresses: false,
            pods: names(data.scope, data.present().filter(|c| c.pod.is_some())),
            contesters: names(data.scope, data.contesters()),
            newest: newest
                .next()
                .map(|(newest, by)| (pod_of(data.scope, newest), by)),
        };
        Some(Self {
            next_step: situation.next_step(),
            runbook_url: SubjectKind::Conflict(data.kind).runbook_url(),
        })
    }

    /// For an anomaly; `None` once it is resolved.
    #[must_use]
    pub fn of_anomaly(data: &AnomalyData) -> Option<Self> {
        (!data.is_resolved()).then(|| Self {
            next_step: anomaly_next_step(data),
            runbook_url: SubjectKind::Anomaly(data.kind).runbook_url(),
        })
    }
}

fn names<'c>(
    scope: ConflictScope,
    claimants: impl Iterator<Item = &'c ClaimantData>,
) -> Option<String> {
    let mut names: Vec<String> = claimants.map(|c| claimant(scope, c)).collect();
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    enumeration(names, more)
}

fn pod_of(scope: ConflictScope, data: &ClaimantData) -> String {
    match data.pod {
        Some(_) => claimant(scope, data),
        None => unknown_pod_of(&data.device),
    }
}

/// The pod of a device, if only the device is known.
#[must_use]
pub fn unknown_pod_of(device: &str) -> String {
    format!("the pod of {device}")
}

/// What the next step for conflicts of the same claimants depends on.
#[derive(Debug)]
pub struct ConflictSituation {
    /// Their kind.
    pub kind: ConflictKind,
    /// How certain the evidence is.
    pub confidence: Confidence,
    /// Whether there is more than one conflict.
    pub has_many_addresses: bool,
    /// The claimants whose pod is known.
    pub pods: Option<String>,
    /// The claimants that contest an address which another one has.
    pub contesters: Option<String>,
    /// The pod of the newest claimant, and how that is known.
    pub newest: Option<(String, NewestBy)>,
}

impl ConflictSituation {
    /// What to do.
    #[must_use]
    pub fn next_step(&self) -> String {
        let them = if self.has_many_addresses {
            "them"
        } else {
            "it"
        };
        match (self.kind, self.confidence) {
            (ConflictKind::Host, _) => match &self.pods {
                Some(pods) => format!(
                    "Delete the pod first, whatever else is wrong: an address of the node serves every pod on it. Pods that claim {them}: {pods}."
                ),
                None => "Find the pod of the device (see the runbook) and delete it first: an address of the node serves every pod on it.".to_owned(),
            },
            (ConflictKind::Flapping, _) => {
                "Check the election between the holders (keepalived, kube-vip, MetalLB); deleting a pod does not help.".to_owned()
            }
            (ConflictKind::Duplicate, Confidence::Observed) => {
                let contesters = self.contesters.as_deref().unwrap_or("the pod");
                format!(
                    "Only ARP, NDP or the neighbour table shows the claim of {contesters}: check whether that pod is meant to answer for {them} (a VIP, a proxy); otherwise delete it."
                )
            }
            (ConflictKind::Duplicate, Confidence::Certain) => match &self.newest {
                Some((newest, by)) => format!(
                    "Delete {newest}, the newest claimant, {}; the controller of the pod creates it again with another address.",
                    by.text()
                ),
                None => "Delete the pod that came last: the runbook shows how to find out which one that is.".to_owned(),
            },
        }
    }
}

/// The next step for an anomaly.
#[must_use]
pub fn anomaly_next_step(data: &AnomalyData) -> String {
    let node = &data.node;
    let pod = match &data.pod {
        Some(pod) => format!("the pod {}", pod_name(pod)),
        None => "the pod".to_owned(),
    };
    match data.kind {
        AnomalyKind::IpamDrift => format!(
            "Keep new pods off the node (kubectl cordon {node}), then restore the allocation or recreate {pod}."
        ),
        AnomalyKind::IpamLeak => {
            "Nothing is broken; release the address in IPAM if the pool runs short.".to_owned()
        }
        AnomalyKind::GatewayUnresolved => format!(
            "Check whether the gateway answers {pod} (the runbook shows how). If it does not, delete the pod, so that the network plugin sets it up again; if several pods of the node are affected, restart the plugin first."
        ),
        AnomalyKind::RouteAstray => format!(
            "Delete {pod}, so that the network plugin creates its route again; if several pods of the node are affected, restart the plugin first."
        ),
        AnomalyKind::AddressSweep => format!(
            "Check whether {pod} is meant to answer for these addresses (a VIP, a proxy); otherwise cut it off or delete it."
        ),
        AnomalyKind::RogueRouter => format!(
            "Check whether {pod} is meant to be a router; if it is, allow {} (see the runbook). Otherwise cut it off or delete it.",
            data.address
        ),
        AnomalyKind::MacDuplicate => "Find out which of the pods its network plugin gave this MAC address (the runbook shows how), and recreate the others.".to_owned(),
        AnomalyKind::MacMoved => format!(
            "Find out what sends with this MAC address on the other port (the runbook shows how); deleting {pod} does not help, its packets are the ones that are lost."
        ),
        AnomalyKind::PodCidrOverlap => "Keep new pods off all but one of these nodes (kubectl cordon), and find out what assigned the range twice; the runbook shows how.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use super::*;
    use crate::event::samples;

    #[test]
    fn conflict_of_a_sweep_leads_to_the_sweep() {
        let mut data = samples::raised("10.0.0.1").data;
        data.sweep = Some(samples::sweep("10.0.0.1").data.anomaly_id);
        let guidance = Guidance::of_conflict(&data).unwrap();
        assert!(guidance.next_step.contains("address sweep"), "{guidance:?}");
        assert!(guidance.runbook_url.ends_with("/PodAddressSweep.md"));
    }

    #[test]
    fn newest_claimant_is_named() {
        let mut data = samples::raised("10.0.0.1").data;
        data.claimants[1].newest = true;
        data.claimants[1].newest_by = Some(NewestBy::FirstSight);
        let guidance = Guidance::of_conflict(&data).unwrap();
        let start = "Delete default/b (veth-b), the newest claimant, ";
        assert!(guidance.next_step.starts_with(start), "{guidance:?}");
        assert!(guidance.runbook_url.ends_with("#duplicate"));
        data.claimants[1].pod = None;
        let guidance = Guidance::of_conflict(&data).unwrap();
        let start = "Delete the pod of veth-b, the newest claimant, ";
        assert!(guidance.next_step.starts_with(start), "{guidance:?}");
    }

    #[test]
    fn resolved_needs_no_step() {
        assert_eq!(
            Guidance::of_conflict(&samples::resolved("10.0.0.1").data),
            None
        );
    }
}
