//! What is known of the claimants of an address, or of the holder of an anomaly.

use std::net::IpAddr;

use detector_engine::{
    EvidenceDetail, EvidenceKind,
    diagnosis::{Assignment, ClaimantFacts, Controller, Known, PodFacts, Source},
};
use detector_event::{AnomalyData, ClaimantData, Pod, Via};

use super::{
    files::{not_checked, unix},
    sandboxes::Sandboxes,
};

/// A claimant of a conflict.
pub(super) fn of_conflict(
    claimant: &ClaimantData,
    pod: Option<&Pod>,
    address: IpAddr,
    sandboxes: &mut Sandboxes,
) -> ClaimantFacts {
    let because = claimant.pod_unknown_because.as_deref();
    ClaimantFacts {
        bridge: claimant.master.clone(),
        node: claimant.node.to_string(),
        assignment: assignment(claimant, address),
        evidence: claimant.evidence.iter().map(|e| e.kind).collect(),
        has_permanent_neighbour: claimant
            .evidence
            .iter()
            .any(|e| e.kind == EvidenceKind::Neighbour && e.kind.is_certain(e.detail.as_ref())),
        ..of_device(&claimant.device, pod, because, sandboxes)
    }
}

/// A claimant on another node, whose files and sandboxes are out of reach.
pub(super) fn on_other_node(
    claimant: &ClaimantData,
    pod: Option<&Pod>,
    address: IpAddr,
) -> ClaimantFacts {
    const OUT_OF_REACH: &str = "it is on another node";
    let device = format!("{} on {}", claimant.device, claimant.node);
    let what = |what: &str| format!("{what} {device}");
    ClaimantFacts {
        pod: match pod {
            Some(pod) => Known::Value(pod_facts(pod), source_of(pod)),
            None => not_checked(what("the pod of"), OUT_OF_REACH),
        },
        bridge: None,
        node: claimant.node.to_string(),
        sandbox: not_checked(what("the sandbox of"), OUT_OF_REACH),
        cni_results: not_checked(what("the CNI results of"), OUT_OF_REACH),
        assignment: match claimant
            .evidence
            .iter()
            .any(|e| e.kind == EvidenceKind::Address)
        {
            true => assignment(claimant, address),
            false => not_checked(what("the address in the namespace of"), OUT_OF_REACH),
        },
        allocated_addresses: not_checked(what("the allocations of"), OUT_OF_REACH),
        evidence: claimant.evidence.iter().map(|e| e.kind).collect(),
        has_permanent_neighbour: false,
        device,
    }
}

/// Leaves out what is recorded or seen of a claimant's addresses, because these may be in another network than the claim.
pub(super) fn leave_out_records(facts: &mut ClaimantFacts, why: &str) {
    let device = &facts.device;
    let what = |what: &str| format!("{what} {device}");
    facts.cni_results = not_checked(what("the CNI results of"), why);
    facts.allocated_addresses = not_checked(what("the allocations of"), why);
    facts.assignment = not_checked(what("the address in the namespace of"), why);
    if let Known::Value(sandbox, _) = &mut facts.sandbox {
        sandbox.addresses.clear();
    }
    if let Known::Value(pod, _) = &mut facts.pod {
        pod.addresses.clear();
    }
}

/// The pod that an anomaly is about.
pub(super) fn of_anomaly(
    data: &AnomalyData,
    pod: Option<&Pod>,
    device: &str,
    sandboxes: &mut Sandboxes,
) -> ClaimantFacts {
    let because = data.pod_unknown_because.as_deref();
    ClaimantFacts {
        node: data.node.to_string(),
        assignment: Known::Value(Assignment { since: None }, Source::Engine),
        evidence: vec![EvidenceKind::Address],
        ..of_device(device, pod, because, sandboxes)
    }
}

fn of_device(
    device: &str,
    pod: Option<&Pod>,
    because: Option<&str>,
    sandboxes: &mut Sandboxes,
) -> ClaimantFacts {
    const NO_POD: &str = "its pod is not known";
    let unknown = because.unwrap_or(NO_POD);
    ClaimantFacts {
        device: device.to_owned(),
        bridge: None,
        node: String::new(),
        pod: match pod {
            Some(pod) => Known::Value(pod_facts(pod), source_of(pod)),
            None => not_checked(format!("the pod of {device}"), unknown),
        },
        sandbox: match pod {
            Some(pod) => sandboxes.of(pod),
            None => not_checked(format!("the sandbox of {device}"), NO_POD),
        },
        cni_results: not_checked(format!("the CNI results of {device}"), NO_POD),
        assignment: not_checked(format!("the address in the namespace of {device}"), NO_POD),
        allocated_addresses: not_checked(format!("the allocations of {device}"), NO_POD),
        evidence: Vec::new(),
        has_permanent_neighbour: false,
    }
}

pub(super) fn source_of(pod: &Pod) -> Source {
    match pod.via {
        Via::Cri => Source::Cri,
        Via::Kube => Source::KubernetesObject(format!("pod {}/{}", pod.namespace, pod.name)),
        Via::CniCache => Source::File("the CNI result cache".to_owned()),
        Via::NameHash => Source::Netlink,
    }
}

fn pod_facts(pod: &Pod) -> PodFacts {
    let name = format!("{}/{}", pod.namespace, pod.name);
    let owner = pod.owner.as_ref();
    PodFacts {
        controller: owner.map(|owner| Controller {
            kind: owner.kind.clone(),
            name: owner.name.clone(),
        }),
        vip_label: vip_label(pod),
        is_running: !pod.terminating,
        addresses: match pod.via {
            // Otherwise they are the runtime's or the plugin's, which are facts of their own.
            Via::Kube if !pod.is_matched_by_address => pod.primary_addresses.clone(),
            _ => Vec::new(),
        },
        earlier_pod_ended: not_checked(
            format!("the end of earlier pods named {name}"),
            "it is not collected",
        ),
        name,
    }
}

/// A label that names software for virtual IPs, among those of --pod-labels.
fn vip_label(pod: &Pod) -> Option<String> {
    const SOFTWARE: [&str; 3] = ["keepalived", "kube-vip", "metallb"];
    let mut labels = pod.labels.iter();
    let label = labels.find(|(_, value)| SOFTWARE.iter().any(|name| value.contains(name)))?;
    Some(format!("{}={}", label.0, label.1))
}

fn assignment(claimant: &ClaimantData, address: IpAddr) -> Known<Assignment> {
    let mut evidence = claimant.evidence.iter();
    let assigned = evidence.find(|e| {
        let is_on_internal_interface = matches!(e.detail, Some(EvidenceDetail::OnInterface(_)));
        e.kind == EvidenceKind::Address && !is_on_internal_interface
    });
    if let Some(assigned) = assigned {
        let since = assigned.first_seen.and_then(unix);
        return Known::Value(Assignment { since }, Source::Engine);
    }
    // Its namespace shows the pod's addresses, and every claim was seen as it began.
    let was_watched = !claimant.own_stack
        && claimant.since.is_some()
        && claimant.evidence.iter().all(|e| e.first_seen.is_some());
    match was_watched {
        true => Known::Absent(Source::Engine),
        false => not_checked(
            format!("whether {} ever had {address} assigned", claimant.device),
            "its namespace was not watched all the time, or its stack is not the kernel's",
        ),
    }
}
