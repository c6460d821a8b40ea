//! Which pod is to be told what of a conflict. Pure.

use std::collections::{HashMap, HashSet, VecDeque};

use ::kube::runtime::events::{Event as ApiEvent, EventType};
use k8s_openapi::api::core::v1::ObjectReference;

use crate::{
    engine::ConflictId,
    event::{ClaimantData, ConflictData},
    pods::Pod,
};

/// Conflicts whose told pods are remembered.
const CONFLICTS: usize = 4096;
/// Longest a note may be, in bytes.
const NOTE: usize = 1024;

/// One event to be posted.
#[derive(Debug)]
pub(super) struct Notice {
    /// The pod that is told.
    pub(super) regarding: ObjectReference,
    related: Option<ObjectReference>,
    resolved: bool,
    note: String,
}

impl Notice {
    /// The pod, as a key.
    pub(super) fn key(&self) -> String {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        let pod = &self.regarding;
        [part(&pod.namespace), part(&pod.name), part(&pod.uid)].join("/")
    }

    /// As the recorder takes it.
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

/// Which pods were told of which conflict.
#[derive(Debug, Default)]
pub(super) struct NotifiedPods {
    by_conflict: HashMap<ConflictId, HashSet<String>>,
    order: VecDeque<ConflictId>,
}

impl NotifiedPods {
    /// What is to be posted after this event.
    pub(super) fn notices(&mut self, data: &ConflictData) -> Vec<Notice> {
        let resolved = data.is_resolved();
        let told = if resolved {
            self.order.retain(|id| *id != data.conflict_id);
            self.by_conflict
                .remove(&data.conflict_id)
                .unwrap_or_default()
        } else {
            self.remember(data.conflict_id).clone()
        };
        let mut notices = Vec::new();
        for (position, claimant) in data.claimants.iter().enumerate() {
            // An event without the uid is shown on no pod.
            let Some(regarding) = claimant.pod.as_deref().and_then(reference) else {
                continue;
            };
            let uid = regarding.uid.clone().unwrap_or_default();
            if told.contains(&uid) != resolved || (!resolved && claimant.left.is_some()) {
                continue;
            }
            if !resolved {
                self.remember(data.conflict_id).insert(uid);
            }
            let others = || {
                let others = data.claimants.iter().enumerate();
                others.filter(move |(other, _)| *other != position)
            };
            notices.push(Notice {
                regarding,
                related: others().find_map(|(_, other)| reference(other.pod.as_deref()?)),
                resolved,
                note: note(data, claimant, others().map(|(_, other)| other), resolved),
            });
        }
        notices
    }

    fn remember(&mut self, conflict: ConflictId) -> &mut HashSet<String> {
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
    let address = &data.address;
    let device = &own.device;
    if resolved {
        return format!(
            "{address} on {device} is no longer claimed twice on node {}",
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
        None => "no route of the node leads to either".to_owned(),
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

    fn told_on(notices: &[Notice]) -> Vec<(&str, Option<&str>, bool)> {
        notices
            .iter()
            .map(|notice| {
                let related = notice.related.as_ref().and_then(|pod| pod.name.as_deref());
                (
                    notice.regarding.name.as_deref().unwrap(),
                    related,
                    notice.resolved,
                )
            })
            .collect()
    }

    #[test]
    fn each_pod_is_told_once_as_soon_as_it_is_known_and_again_at_the_end() {
        let mut told = NotifiedPods::default();
        let half = [claimant("vetha", Some("a")), claimant("vethb", None)];
        let whole = [claimant("vetha", Some("a")), claimant("vethb", Some("b"))];
        assert_eq!(
            told_on(&told.notices(&conflict("active", &half))),
            [("a", None, false)]
        );
        assert_eq!(
            told_on(&told.notices(&conflict("active", &whole))),
            [("b", Some("a"), false)]
        );
        assert_eq!(told_on(&told.notices(&conflict("active", &whole))), []);
        assert_eq!(
            told_on(&told.notices(&conflict("resolved", &whole))),
            [("a", Some("b"), true), ("b", Some("a"), true)]
        );
        assert!(told.by_conflict.is_empty() && told.order.is_empty());
    }

    #[test]
    fn the_note_names_the_other_pod_and_who_gets_the_traffic_and_is_never_too_long() {
        let mut told = NotifiedPods::default();
        let mut claimants = vec![claimant("vetha", Some("a")), claimant("vethb", Some("b"))];
        let notes: Vec<_> = told
            .notices(&conflict("active", &claimants))
            .into_iter()
            .map(|notice| notice.note)
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
        let mut told = NotifiedPods::default();
        let notices = told.notices(&conflict("active", &claimants));
        assert!(notices.iter().all(|notice| notice.note.len() <= NOTE));
    }

    #[test]
    fn memory_of_conflicts_is_bounded() {
        let mut told = NotifiedPods::default();
        for id in 0..CONFLICTS as u128 + 10 {
            told.remember(ConflictId(id));
        }
        assert!(told.by_conflict.len() <= CONFLICTS && told.order.len() <= CONFLICTS);
    }
}
