//! The Kubernetes Events that a conflict or an anomaly calls for. Pure.

use ::kube::runtime::events::EventType;
use detector_engine::AnomalyKind;
use detector_event::{
    AnomalyData, AnyEvent, ClaimantData, ConflictData, DiagnosisData, Pod, clean,
    summary::{anomaly_subject, enumeration, pod_name, resolve_reason, scoped_address},
};
use k8s_openapi::api::core::v1::ObjectReference;

/// The longest message, in bytes.
const MESSAGE: usize = 1024;
/// Claimants named in a message; the others are counted.
const NAMED: usize = 8;
/// The longest `about`, in bytes.
const ABOUT: usize = 128;
/// The longest name of a pod with Events, in bytes: the recorder appends 17 to it, and a name has at most 253.
const POD_NAME: usize = 236;

/// One Event on one object.
#[derive(Clone, Debug)]
pub(super) struct ObjectEvent {
    /// What it is on: a pod, or the Node.
    pub(super) regarding: ObjectReference,
    /// Another pod that has to do with it.
    pub(super) related: Option<ObjectReference>,
    /// `Warning` or `Normal`.
    pub(super) event_type: EventType,
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// The address, with its network and VLAN.
    pub(super) about: String,
}

/// What a conflict or an anomaly calls for in one state.
#[derive(Debug)]
pub(super) struct ObjectEvents {
    /// One for each pod that is known.
    pub(super) on_pods: Vec<ObjectEvent>,
    /// If there is no such pod.
    pub(super) on_node: ObjectEvent,
    /// More pods may become known, or the cause.
    pub(super) is_incomplete: bool,
}

/// The reasons of Events about something, while it is active and once it is resolved.
type Reasons = [&'static str; 2];

impl ObjectEvent {
    /// The object, as a key.
    pub(super) fn object(&self) -> String {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        let object = &self.regarding;
        [
            part(&object.kind),
            part(&object.namespace),
            part(&object.name),
            part(&object.uid),
        ]
        .join("/")
    }

    pub(super) fn is_on_node(&self) -> bool {
        self.regarding.namespace.is_none()
    }

    /// The key of its rate: Events on a Node about one kind of finding do not displace those about another.
    pub(super) fn rate_key(&self) -> String {
        let mut key = self.object();
        if self.is_on_node() {
            key += self.reason;
        }
        key
    }
}

impl ObjectEvents {
    pub(super) fn of(event: &AnyEvent) -> Self {
        let mut events = match event {
            AnyEvent::Conflict(event) => Self::of_conflict(&event.data),
            AnyEvent::Anomaly(event) => Self::of_anomaly(&event.data),
        };
        events.is_incomplete |= event.awaits_diagnosis();
        events
    }

    fn of_conflict(data: &ConflictData) -> Self {
        let resolved = data.is_resolved();
        let about = truncated(scoped_address(data), ABOUT);
        let object_event = |regarding, related, message: String| ObjectEvent {
            regarding,
            related,
            event_type: event_type(resolved, EventType::Warning),
            reason: reason(resolved, ["IPConflict", "IPConflictResolved"]),
            message: truncated(clean(&message).into_owned(), MESSAGE),
            about: about.clone(),
        };
        let listed: Vec<_> = data
            .claimants
            .iter()
            .filter(|c| resolved || c.left.is_none())
            .collect();
        let on_pods = listed.iter().enumerate().filter_map(|(position, own)| {
            let others = || {
                let others = listed.iter().enumerate();
                others.filter(move |(other, _)| *other != position)
            };
            let related = others().find_map(|(_, other)| reference(other.pod.as_deref()?));
            let message = if resolved {
                let (device, node) = (&own.device, &data.node);
                format!("{about} on {device} is no longer in conflict on node {node}")
            } else {
                let others = names(others().map(|(_, other)| *other), data.claimants_omitted);
                format!(
                    "{about} on {} is also claimed by {others} {}",
                    own.device,
                    details(data, Some(own))
                )
            };
            Some(object_event(
                reference(own.pod.as_deref()?)?,
                related,
                message,
            ))
        });
        let message = if resolved {
            format!("{about} is no longer in conflict on node {}", data.node)
        } else {
            let claimants = names(listed.iter().copied(), data.claimants_omitted);
            format!("{about} is claimed by {claimants} {}", details(data, None))
        };
        let related = listed.iter().find_map(|c| reference(c.pod.as_deref()?));
        Self {
            on_pods: on_pods.collect(),
            on_node: object_event(node_reference(&data.node), related, message),
            is_incomplete: listed
                .iter()
                .any(|c| c.pod.as_deref().and_then(reference).is_none() && !c.is_node),
        }
    }

    fn of_anomaly(data: &AnomalyData) -> Self {
        let resolved = data.is_resolved();
        let (active, reasons): (_, Reasons) = match data.kind {
            AnomalyKind::IpamDrift => (EventType::Warning, ["IPAMDrift", "IPAMDriftResolved"]),
            // It needs no action.
            AnomalyKind::IpamLeak => (EventType::Normal, ["IPAMLeak", "IPAMLeakResolved"]),
            AnomalyKind::GatewayUnresolved => (
                EventType::Warning,
                ["GatewayUnresolved", "GatewayUnresolvedEnded"],
            ),
            AnomalyKind::RouteAstray => {
                (EventType::Warning, ["RouteAstray", "RouteAstrayResolved"])
            }
            AnomalyKind::AddressUnusable => (
                EventType::Warning,
                ["AddressUnusable", "AddressUnusableResolved"],
            ),
            AnomalyKind::AddressSweep => {
                (EventType::Warning, ["AddressSweep", "AddressSweepEnded"])
            }
            AnomalyKind::PodCidrOverlap => (
                EventType::Warning,
                ["PodCIDROverlap", "PodCIDROverlapResolved"],
            ),
            AnomalyKind::RogueRouter => (EventType::Warning, ["RogueRouter", "RogueRouterEnded"]),
            AnomalyKind::MacDuplicate => {
                (EventType::Warning, ["MACDuplicate", "MACDuplicateResolved"])
            }
            AnomalyKind::MacMoved => (EventType::Warning, ["MACMoved", "MACMovedResolved"]),
        };
        let text = if resolved {
            format!("{} on node {}", resolve_reason(data), data.node)
        } else {
            format!(
                "{}; anomaly {}{}",
                data.detail,
                data.anomaly_id,
                cause(data.diagnosis.as_deref())
            )
        };
        let pod = data.pod.as_deref();
        let on_object = |regarding: ObjectReference, related, message: String| ObjectEvent {
            regarding,
            related,
            event_type: event_type(resolved, active),
            reason: reason(resolved, reasons),
            message: truncated(clean(&message).into_owned(), MESSAGE),
            about: data.address.to_string(),
        };
        let subject = anomaly_subject(data);
        let message = format!("{subject}: {text}");
        let on_node = on_object(node_reference(&data.node), pod.and_then(reference), message);
        let message = match data.kind {
            // It is about many addresses.
            AnomalyKind::AddressSweep => text,
            _ if resolved => format!("{}: {text}", data.address),
            _ => text,
        };
        let regarding = pod.and_then(reference);
        Self {
            is_incomplete: regarding.is_none() && data.device.is_some(),
            on_pods: Vec::from_iter(regarding.map(|pod| on_object(pod, None, message))),
            on_node,
        }
    }
}

fn event_type(resolved: bool, active: EventType) -> EventType {
    if resolved { EventType::Normal } else { active }
}

fn reason(resolved: bool, [active, ended]: Reasons) -> &'static str {
    if resolved { ended } else { active }
}

/// The pod as Kubernetes knows it, if it can have an Event. Without its uid, the pod would not show it.
fn reference(pod: &Pod) -> Option<ObjectReference> {
    (pod.name.len() <= POD_NAME).then_some(())?;
    Some(ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()?),
        ..ObjectReference::default()
    })
}

/// The Node as kubelet refers to it, with the name as uid; `kubectl describe node` shows Events of both forms.
fn node_reference(node: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        uid: Some(node.to_owned()),
        ..ObjectReference::default()
    }
}

/// `shop/a on vetha, an unknown pod on vethb and 2 more`.
fn names<'c>(claimants: impl Iterator<Item = &'c ClaimantData>, omitted: usize) -> String {
    let mut names: Vec<_> = claimants
        .map(|claimant| {
            let device = &claimant.device;
            match &claimant.pod {
                Some(pod) => format!("{} on {device}", pod_name(pod)),
                None if claimant.is_node => format!("the node ({}, {device})", claimant.node),
                None => format!("an unknown pod on {device}"),
            }
        })
        .collect();
    let more = names.len().saturating_sub(NAMED) + omitted;
    names.truncate(NAMED);
    enumeration(names, more).unwrap_or_else(|| "another device".to_owned())
}

/// The certainty, the receiver of the traffic, the conflict's id and its cause.
fn details(data: &ConflictData, own: Option<&ClaimantData>) -> String {
    let traffic = match (&data.traffic_goes_to, own) {
        (Some(winner), Some(own)) if *winner == own.device => {
            "the node sends its traffic to this pod".to_owned()
        }
        (Some(winner), _) => format!("the node sends its traffic to {winner}"),
        (None, _) => "the node has no route to either".to_owned(),
    };
    format!(
        "({}); {traffic}; conflict {}{}",
        data.confidence.name(),
        data.conflict_id,
        cause(data.diagnosis.as_deref())
    )
}

/// The cause, if it is known.
fn cause(diagnosis: Option<&DiagnosisData>) -> String {
    let text = diagnosis.and_then(DiagnosisData::cause_text);
    text.map_or_else(String::new, |text| format!("; cause: {text}"))
}

/// The first bytes of a text, at most `limit`, without a part of a character.
pub(super) fn truncated(mut text: String, limit: usize) -> String {
    text.truncate(text.floor_char_boundary(limit));
    text
}
