//! The next step for a person who finds a conflict or an anomaly. The one source for events, messages, the status page, `check` and
//! `watch`.
//!
//! The texts contain names of pods and devices, which are untrusted: events contain the texts [cleaned](mod@clean).

use std::borrow::Cow;

use detector_engine::{AnomalyCause, AnomalyKind, Confidence, ConflictKind, ConflictScope};
use serde::{Deserialize, Serialize};

use super::{
    AnomalyData, ClaimantData, ConflictData, DiagnosisData, NewestBy, SubjectKind, clean,
    clean::cleaned,
    guidance::{anomaly_effect, cause_url},
    summary::{claimant, enumeration, pod_name},
};

/// Claimants named in a sentence; the others are counted.
const NAMED: usize = 4;

/// What to do about something that is active, and where to read on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Guidance {
    /// What an anomaly does to traffic, in a sentence; for people. Absent for a conflict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Cow<'static, str>>,
    /// The next step, in a sentence or two; for people.
    pub next_step: String,
    /// The URL of the runbook.
    #[cfg_attr(feature = "schema", schemars(url))]
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
                effect: None,
                next_step: "Decide about the pod of the address sweep, not about each address."
                    .to_owned(),
                runbook_url: SubjectKind::Anomaly(AnomalyKind::AddressSweep).runbook_url(),
            });
        }
        if let Some(guidance) = Self::of_cause(data.diagnosis.as_deref()) {
            return Some(guidance);
        }
        let scope = data.scope;
        let newest = data.newest();
        let of_right = |right| data.present().filter(move |c| c.rightful == Some(right));
        let others = || {
            data.present()
                .filter(|c| newest.is_some_and(|(newest, _)| !std::ptr::eq(newest, *c)))
        };
        let situation = ConflictSituation {
            node: &data.node,
            kind: data.kind,
            confidence: data.confidence,
            has_many_addresses: false,
            pods: &|| names(scope, data.present().filter(|c| c.pod.is_some())),
            suspects: &|| names(scope, data.suspects()),
            rights: data.rights(),
            rightful: &|| names(scope, of_right(true)),
            not_rightful: &|| names(scope, of_right(false)),
            newest: newest.map(|(newest, by)| (pod_of(scope, newest), by)),
            to_recreate: &|| names(scope, others().filter(|_| data.newest_takes_address())),
        };
        Some(Self {
            effect: None,
            next_step: cleaned(situation.next_step()),
            runbook_url: SubjectKind::Conflict(data.kind).runbook_url(),
        })
    }

    /// For an anomaly; `None` once it is resolved.
    #[must_use]
    pub fn of_anomaly(data: &AnomalyData) -> Option<Self> {
        if data.is_resolved() {
            return None;
        }
        let guidance = Self::of_cause(data.diagnosis.as_deref()).unwrap_or_else(|| Self {
            effect: None,
            next_step: cleaned(anomaly_next_step(data)),
            runbook_url: SubjectKind::Anomaly(data.kind).runbook_url(),
        });
        Some(Self {
            effect: Some(anomaly_effect(data)),
            ..guidance
        })
    }

    /// What repairs a known cause; `None` if it is not known.
    fn of_cause(diagnosis: Option<&DiagnosisData>) -> Option<Self> {
        let known = diagnosis.filter(|diagnosis| diagnosis.has_cause())?;
        Some(Self {
            effect: None,
            next_step: clean(&known.repair).into_owned(),
            runbook_url: cause_url(known.cause),
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

/// Which claimants are rightful, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Nothing that distinguishes them: all are alike.
    Equal,
    /// Some are, and some are not.
    Known,
    /// Some are not, and nothing is known about the others.
    Doubtful,
}

impl Rights {
    /// Combines what is known of each claimant.
    pub fn of(claimants: impl Iterator<Item = Option<bool>>) -> Self {
        let (mut yes, mut no, mut unknown) = (false, false, false);
        for rightful in claimants {
            match rightful {
                Some(true) => yes = true,
                Some(false) => no = true,
                None => unknown = true,
            }
        }
        match (yes, no, unknown) {
            (true, true, _) => Self::Known,
            (false, true, true) => Self::Doubtful,
            _ => Self::Equal,
        }
    }
}

/// Names of claimants, made only if the next step contains them; `None` if there are none.
pub type Names<'d> = &'d dyn Fn() -> Option<String>;

/// What the next step for conflicts of the same claimants depends on.
pub struct ConflictSituation<'d> {
    /// The node's name.
    pub node: &'d str,
    /// The kind of the conflicts.
    pub kind: ConflictKind,
    /// How certain the evidence is.
    pub confidence: Confidence,
    /// Whether there is more than one conflict.
    pub has_many_addresses: bool,
    /// The claimants whose pod is known.
    pub pods: Names<'d>,
    /// The claimants that contest an address which another one has, and could show more than they do.
    pub suspects: Names<'d>,
    /// Which claimants are rightful, as far as is known.
    pub rights: Rights,
    /// The claimants that are rightful.
    pub rightful: Names<'d>,
    /// The claimants that are known not to be rightful.
    pub not_rightful: Names<'d>,
    /// The pod of the newest claimant, and how that is known.
    pub newest: Option<(String, NewestBy)>,
    /// The other claimants, if the allocation or the route of the address goes with the newest.
    pub to_recreate: Names<'d>,
}

impl ConflictSituation<'_> {
    /// The next step, as one or two sentences.
    #[must_use]
    pub fn next_step(&self) -> String {
        let (them, the_address_was) = if self.has_many_addresses {
            ("them", "The addresses were")
        } else {
            ("it", "The address was")
        };
        let name = |names: Names<'_>, default: &str| names().unwrap_or_else(|| default.to_owned());
        let rightful = || name(self.rightful, "another pod");
        let not_rightful = || name(self.not_rightful, "the other pod");
        match (self.kind, self.confidence) {
            (ConflictKind::Host, _) => match (self.pods)() {
                Some(pods) => format!(
                    "Delete the pod first, whatever else is wrong: an address of the node serves every pod on it. Pods that claim {them}: {pods}."
                ),
                None => "Find the pod of the device (see the runbook) and delete it first: an address of the node serves every pod on it.".to_owned(),
            },
            (ConflictKind::Flapping, _) => {
                "Check the election between the holders (keepalived, kube-vip, MetalLB); deleting a pod does not help.".to_owned()
            }
            (ConflictKind::Duplicate, Confidence::Observed) if self.rights == Rights::Known => {
                let (rightful, not_rightful) = (rightful(), not_rightful());
                format!(
                    "{the_address_was} given to {rightful}: check whether {not_rightful} is meant to answer for {them} (a VIP, a proxy); otherwise delete {not_rightful}."
                )
            }
            (ConflictKind::Duplicate, Confidence::Certain) if self.rights == Rights::Known => {
                let (rightful, not_rightful) = (rightful(), not_rightful());
                format!(
                    "Delete {not_rightful}. {the_address_was} given to {rightful}; no record of the container runtime, the network plugin or IPAM gives {them} to {not_rightful}."
                )
            }
            (ConflictKind::Duplicate, _) if self.rights == Rights::Doubtful => format!(
                "No record of the container runtime, the network plugin or IPAM gives {them} to {not_rightful}: check whether that pod is meant to have {them} (a VIP, a proxy). If it is not, delete that pod, not the newest.",
                not_rightful = not_rightful()
            ),
            (ConflictKind::Duplicate, Confidence::Observed) => match (self.suspects)() {
                // Of nearly every conflict that only frames show. Not formatted, which takes five times as many instructions.
                Some(suspects) => [
                    "Only ARP, NDP or the neighbour table shows the claim of ",
                    &suspects,
                    ": check whether that pod is meant to answer for ",
                    them,
                    " (a VIP, a proxy); otherwise delete it.",
                ]
                .concat(),
                None => format!(
                    "What the agent saw does not decide between the pods: find out which of them was given {them} (status.podIPs, the record of the container runtime), and delete the other."
                ),
            },
            (ConflictKind::Duplicate, Confidence::Certain) => match (&self.newest, (self.to_recreate)()) {
                (Some((newest, by)), Some(others)) => format!(
                    "Keep new pods off the node (kubectl cordon {}), delete {newest}, the newest claimant, {}, and then recreate {others}: the allocation or the route of the address goes with the newest.",
                    self.node,
                    by.text()
                ),
                (Some((newest, by)), None) => format!(
                    "Delete {newest}, the newest claimant, {}; the controller of the pod creates it again with another address.",
                    by.text()
                ),
                (None, _) => "Delete the pod that came last: the runbook shows how to find out which one that is.".to_owned(),
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
        AnomalyKind::IpamDrift if data.cause == AnomalyCause::OwnedByAnother => format!(
            "If the address is in conflict, follow the next step of the conflict. Otherwise recreate {pod}, and find out whether it assigned the address to itself."
        ),
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
        AnomalyKind::AddressUnusable => format!(
            "Delete {pod}: Linux tries an address that failed duplicate address detection only if it is added again."
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

    use detector_engine::{EvidenceKind, diagnosis::Cause};

    use super::*;
    use crate::samples;

    #[test]
    fn conflict_of_a_sweep_leads_to_the_sweep() {
        let mut data = samples::raised("10.0.0.1").data;
        data.sweep = Some(samples::sweep("10.0.0.1").data.anomaly_id);
        let guidance = Guidance::of_conflict(&data).unwrap();
        assert!(guidance.next_step.contains("address sweep"), "{guidance:?}");
        assert!(guidance.runbook_url.ends_with("/PodAddressSweep.md"));
    }

    #[test]
    fn next_step_follows_from_a_known_cause() {
        let mut data = samples::raised("10.0.0.1").data;
        let unexplained = Guidance::of_conflict(&data).unwrap();
        data.diagnosis = Some(samples::diagnosis(Cause::Unknown, 1).into());
        assert_eq!(Guidance::of_conflict(&data).unwrap(), unexplained);
        let known = samples::diagnosis(Cause::IpamStateWiped, 9);
        data.diagnosis = Some(known.clone().into());
        let guidance = Guidance::of_conflict(&data).unwrap();
        assert_eq!(guidance.next_step, known.repair);
        let url = &guidance.runbook_url;
        assert!(
            url.ends_with("/runbooks/Causes.md#ipam_state_wiped"),
            "{url}"
        );
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

    /// A certain conflict of default/a (veth-a), which has the traffic, and default/b (veth-b), the newest.
    fn with_rights(a: Option<bool>, b: Option<bool>) -> ConflictData {
        let mut data = samples::raised("10.0.0.1").data;
        (data.claimants[0].rightful, data.claimants[1].rightful) = (a, b);
        data.claimants[1].newest = true;
        data.claimants[1].newest_by = Some(NewestBy::FirstSight);
        data
    }

    fn step(data: &ConflictData) -> String {
        Guidance::of_conflict(data).unwrap().next_step
    }

    #[test]
    fn rightful_outranks_newest() {
        let squatted = with_rights(Some(false), Some(true));
        let text = step(&squatted);
        assert!(text.starts_with("Delete default/a (veth-a). "), "{text}");
        assert!(text.contains("given to default/b (veth-b)"), "{text}");
        // The newest is the one without a right.
        let text = step(&with_rights(Some(true), Some(false)));
        assert!(text.starts_with("Delete default/b (veth-b). "), "{text}");
        // The pod of the newest is not known yet.
        let text = step(&with_rights(Some(false), None));
        assert!(!text.contains("veth-b"), "{text}");
        assert!(text.contains("IPAM gives it to default/a"), "{text}");
        for alike in [Some(true), Some(false), None] {
            let text = step(&with_rights(alike, alike));
            assert!(text.starts_with("Delete default/b (veth-b), the"), "{text}");
        }
    }

    #[test]
    fn rightful_claimant_seen_in_frames_is_not_blamed() {
        for evidence in [EvidenceKind::Arp, EvidenceKind::Address] {
            let mut data = with_rights(Some(false), Some(true));
            data.confidence = Confidence::Observed;
            data.claimants[1].evidence[0].kind = EvidenceKind::Arp;
            data.claimants[0].evidence[0].kind = evidence;
            let text = step(&data);
            let end = "otherwise delete default/a (veth-a).";
            assert!(text.ends_with(end), "{text}");
            let contesters = data.contesters().map(|c| c.device.as_str());
            assert_eq!(Vec::from_iter(contesters), ["veth-a"]);
        }
    }

    #[test]
    fn pod_that_can_show_frames_alone_is_not_blamed_for_them() {
        let mut data = with_rights(None, None);
        data.confidence = Confidence::Observed;
        data.claimants[1].evidence[0].kind = EvidenceKind::Arp;
        assert!(step(&data).contains("the claim of default/b (veth-b)"));
        data.claimants[1].own_stack = true;
        let text = step(&data);
        assert!(
            text.starts_with("What the agent saw does not decide"),
            "{text}"
        );
        // The other has other addresses, and only frames for this one.
        data.claimants[0].evidence[0].kind = EvidenceKind::Arp;
        let text = step(&data);
        assert!(text.contains("the claim of default/a (veth-a)"), "{text}");
    }

    #[test]
    fn survivors_are_recreated_if_the_newest_has_route_or_allocation() {
        let plain = with_rights(Some(true), Some(true));
        assert!(!step(&plain).contains("cordon"));
        let mut routed = plain.clone();
        routed.traffic_goes_to = Some("veth-b".to_owned());
        let mut allocated = plain.clone();
        allocated.claimants[1].allocated = Some(true);
        for data in [routed, allocated] {
            let text = step(&data);
            let start =
                "Keep new pods off the node (kubectl cordon node-1), delete default/b (veth-b)";
            assert!(text.starts_with(start), "{text}");
            assert!(text.contains("recreate default/a (veth-a)"), "{text}");
        }
    }

    #[test]
    fn resolved_needs_no_step() {
        assert_eq!(
            Guidance::of_conflict(&samples::resolved("10.0.0.1").data),
            None
        );
    }
}
