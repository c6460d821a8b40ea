//! Which Kubernetes events follow from a conflict's event. Pure.

use std::collections::{HashMap, HashSet, VecDeque};

use ::kube::runtime::events::{Event as ApiEvent, EventType};
use k8s_openapi::api::core::v1::ObjectReference;

use crate::{
    engine::ConflictId,
    event::{ClaimantData, ConflictData, summary::scoped_address},
    pods::Pod,
};

/// The most conflicts whose notified pods are remembered.
const CONFLICTS: usize = 4096;
/// The longest note, in bytes.
const NOTE: usize = 1024;

/// One event to be posted.
#[derive(Debug)]
pub(super) struct PodEvent {
    /// The pod that the event is on.
    pub(super) regarding: ObjectReference,
    related: Option<ObjectReference>,
    resolved: bool,
    note: String,
}

impl PodEvent {
    /// The pod as the key of the spam filter.
    pub(super) fn key(&self) -> String {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        let pod = &self.regarding;
        [part(&pod.namespace), part(&pod.name), part(&pod.uid)].join("/")
    }

    /// The event for the recorder.
    pub(super) fn event(&self) -> ApiEvent {
        let (type_, reason) = if self.resolved {
            (EventType::Normal, "IPConflictResolved")
        } else {
            (EventType::Warning, "IPConflict")
        };
        ApiEvent {
            type_,
            reason: reason.to_owned(),
            note: Some(self.note.clone()),
            action: "Observed".to_owned(),
            secondary: self.related.clone(),
        }
    }
}

/// The pods that have an event of each conflict.
#[derive(Debug, Default)]
pub(super) struct NotifiedPods {
    by_conflict: HashMap<ConflictId, HashSet<String>>,
    order: VecDeque<ConflictId>,
}

impl NotifiedPods {
    /// The events to post for this state of a conflict.
    pub(super) fn pod_events(&mut self, data: &ConflictData) -> Vec<PodEvent> {
        let resolved = data.is_resolved();
        let notified = if resolved {
            self.order.retain(|id| *id != data.conflict_id);
            self.by_conflict
                .remove(&data.conflict_id)
                .unwrap_or_default()
        } else {
            self.pods_of(data.conflict_id).clone()
        };
        let mut pod_events = Vec::new();
        for (position, claimant) in data.claimants.iter().enumerate() {
            // Without its uid, the pod does not show the event.
            let Some(regarding) = claimant.pod.as_deref().and_then(reference) else {
                continue;
            };
            let uid = regarding.uid.clone().unwrap_or_default();
            if notified.contains(&uid) != resolved || (!resolved && claimant.left.is_some()) {
                continue;
            }
            if !resolved {
                self.pods_of(data.conflict_id).insert(uid);
            }
            let others = || {
                let others = data.claimants.iter().enumerate();
                others.filter(move |(other, _)| *other != position)
            };
            pod_events.push(PodEvent {
                regarding,
                related: others().find_map(|(_, other)| reference(other.pod.as_deref()?)),
                resolved,
                note: note(data, claimant, others().map(|(_, other)| other), resolved),
            });
        }
        pod_events
    }

    fn pods_of(&mut self, conflict: ConflictId) -> &mut HashSet<String> {
        if !self.by_conflict.contains_key(&conflict) {
            self.order.push_back(conflict);
            if self.order.len() > CONFLICTS
                && let Some(oldest) = self.order.pop_front()
            {
                self.by_conflict.remove(&oldest);
            }
        }
        self.by_conflict.entry(conflict).or_default()
    }
}

fn reference(pod: &Pod) -> Option<ObjectReference> {
    Some(ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()?),
        ..ObjectReference::default()
    })
}

fn note<'c>(
    data: &ConflictData,
    own: &ClaimantData,
    others: impl Iterator<Item = &'c ClaimantData>,
    resolved: bool,
) -> String {
    let address = scoped_address(data);
    let device = &own.device;
    if resolved {
        return format!(
            "{address} on {device} is no longer in conflict on node {}",
            data.node
        );
    }
    let others: Vec<String> = others
        .filter(|other| other.left.is_none())
        .map(|other| match &other.pod {
            Some(pod) => format!("{}/{} on {}", pod.namespace, pod.name, other.device),
            None => format!("an unknown pod on {}", other.device),
        })
        .collect();
    let traffic = match &data.traffic_goes_to {
        Some(winner) if winner == device => "the node sends its traffic to this pod".to_owned(),
        Some(winner) => format!("the node sends its traffic to {winner}"),
        None => "the node has no route to either".to_owned(),
    };
    let mut note = format!(
        "{address} on {device} is also claimed by {} ({}); {traffic}; conflict {}",
        others.join(", "),
        data.confidence.name(),
        data.conflict_id
    );
    let mut end = NOTE;
    while !note.is_char_boundary(end.min(note.len())) {
        end -= 1;
    }
    note.truncate(end);
    note
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::{Value, json};

    use super::*;
    use crate::engine::Network;

    const TIME: &str = "2026-01-02T03:04:05.000000Z";

    fn claimant(device: &str, pod: Option<&str>) -> Value {
        let pod = pod.map(|name| {
            json!({"namespace": "shop", "name": name, "uid": format!("uid-{name}"), "container_id": null, "via": "cri"})
        });
        json!({"device": device, "ifindex": 1, "mac": null, "master": null, "since": TIME, "pod": pod,
            "pod_unknown_because": null, "evidence": []})
    }

    fn conflict(state: &str, claimants: &[Value]) -> ConflictData {
        serde_json::from_value(json!({"conflict_id": "c1", "node": "n1", "address": "10.244.2.10", "vlan": null,
            "kind": "duplicate", "confidence": "certain", "state": state, "raised_at": TIME, "updated_at": TIME,
            "resolved_at": null, "latency_us": 1, "traffic_goes_to": "vetha", "claimants": claimants}))
        .unwrap()
    }

    fn summaries(pod_events: &[PodEvent]) -> Vec<(&str, Option<&str>, bool)> {
        pod_events
            .iter()
            .map(|pod_event| {
                let related = pod_event
                    .related
                    .as_ref()
                    .and_then(|pod| pod.name.as_deref());
                (
                    pod_event.regarding.name.as_deref().unwrap(),
                    related,
                    pod_event.resolved,
                )
            })
            .collect()
    }

    #[test]
    fn each_pod_gets_one_event_when_known_and_one_when_resolved() {
        let mut notified = NotifiedPods::default();
        let one_known = [claimant("vetha", Some("a")), claimant("vethb", None)];
        let both = [claimant("vetha", Some("a")), claimant("vethb", Some("b"))];
        assert_eq!(
            summaries(&notified.pod_events(&conflict("active", &one_known))),
            [("a", None, false)]
        );
        assert_eq!(
            summaries(&notified.pod_events(&conflict("active", &both))),
            [("b", Some("a"), false)]
        );
        assert_eq!(
            summaries(&notified.pod_events(&conflict("active", &both))),
            []
        );
        assert_eq!(
            summaries(&notified.pod_events(&conflict("resolved", &both))),
            [("a", Some("b"), true), ("b", Some("a"), true)]
        );
        assert!(notified.by_conflict.is_empty() && notified.order.is_empty());
    }

    #[test]
    fn the_note_names_a_network_other_than_the_nodes() {
        let mut conflict = conflict("active", &[claimant("vetha", Some("a"))]);
        conflict.network = Network::Vrf("red".to_owned());
        let pod_events = NotifiedPods::default().pod_events(&conflict);
        let note = &pod_events[0].note;
        assert!(
            note.starts_with("10.244.2.10 (vrf:red) on vetha is also claimed by"),
            "{note}"
        );
    }

    #[test]
    fn the_note_names_the_other_pod_and_the_traffic_receiver() {
        let mut notified = NotifiedPods::default();
        let mut claimants = vec![claimant("vetha", Some("a")), claimant("vethb", Some("b"))];
        let notes: Vec<_> = notified
            .pod_events(&conflict("active", &claimants))
            .into_iter()
            .map(|pod_event| pod_event.note)
            .collect();
        assert!(
            notes[0].contains("shop/b on vethb") && notes[0].contains("to this pod"),
            "{notes:?}"
        );
        assert!(
            notes[1].contains("shop/a on vetha") && notes[1].contains("to vetha"),
            "{notes:?}"
        );
        claimants.extend((0..60).map(|n| claimant(&format!("vethü{n}"), Some(&"ü".repeat(40)))));
        let mut notified = NotifiedPods::default();
        let pod_events = notified.pod_events(&conflict("active", &claimants));
        assert!(
            pod_events
                .iter()
                .all(|pod_event| pod_event.note.len() <= NOTE)
        );
    }

    #[test]
    fn the_number_of_remembered_conflicts_is_bounded() {
        let mut notified = NotifiedPods::default();
        for id in 0..CONFLICTS as u128 + 10 {
            notified.pods_of(ConflictId(id));
        }
        assert!(notified.by_conflict.len() <= CONFLICTS && notified.order.len() <= CONFLICTS);
    }
}
