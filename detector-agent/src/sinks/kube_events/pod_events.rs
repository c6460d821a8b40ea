//! Which Kubernetes events follow from an event about a conflict or a sweep. Pure.

use std::collections::{HashMap, HashSet, VecDeque};

use ::kube::runtime::events::{Event as ApiEvent, EventType};
use k8s_openapi::api::core::v1::ObjectReference;

use crate::{
    event::{
        AnomalyData, ClaimantData, ConflictData, SubjectId,
        summary::{resolve_reason, scoped_address},
    },
    pods::Pod,
};

/// The most conflicts and sweeps whose notified pods are remembered.
const SUBJECTS: usize = 4096;
/// The longest note, in bytes.
const NOTE: usize = 1024;

/// One event to be posted.
#[derive(Debug)]
pub(super) struct PodEvent {
    /// The pod that the event is on.
    pub(super) regarding: ObjectReference,
    related: Option<ObjectReference>,
    resolved: bool,
    /// Of an active and of a resolved subject.
    reasons: [&'static str; 2],
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
        let [active, resolved] = self.reasons;
        let (type_, reason) = if self.resolved {
            (EventType::Normal, resolved)
        } else {
            (EventType::Warning, active)
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

/// The pods that have an event of each conflict or sweep.
#[derive(Debug, Default)]
pub(super) struct NotifiedPods {
    by_subject: HashMap<SubjectId, HashSet<String>>,
    order: VecDeque<SubjectId>,
}

impl NotifiedPods {
    /// The events to post for this state of a conflict.
    pub(super) fn pod_events(&mut self, data: &ConflictData) -> Vec<PodEvent> {
        let resolved = data.is_resolved();
        if data.sweep.is_some() && !resolved {
            // The pod that sweeps gets an event about all of them.
            return Vec::new();
        }
        let id = SubjectId::from(data.conflict_id);
        let notified = if resolved {
            self.remove(id)
        } else {
            self.pods_of(id).clone()
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
                self.pods_of(id).insert(uid);
            }
            let others = || {
                let others = data.claimants.iter().enumerate();
                others.filter(move |(other, _)| *other != position)
            };
            pod_events.push(PodEvent {
                regarding,
                related: others().find_map(|(_, other)| reference(other.pod.as_deref()?)),
                resolved,
                reasons: ["IPConflict", "IPConflictResolved"],
                note: note(data, claimant, others().map(|(_, other)| other), resolved),
            });
        }
        pod_events
    }

    /// The event to post for this state of a sweep, on the pod that sweeps.
    pub(super) fn sweep_event(&mut self, data: &AnomalyData) -> Option<PodEvent> {
        let resolved = data.is_resolved();
        let id = SubjectId::from(data.anomaly_id);
        let notified = if resolved {
            self.remove(id)
        } else {
            self.pods_of(id).clone()
        };
        let regarding = reference(data.pod.as_deref()?)?;
        let uid = regarding.uid.clone().unwrap_or_default();
        if notified.contains(&uid) != resolved {
            return None;
        }
        if !resolved {
            self.pods_of(id).insert(uid);
        }
        let note = if resolved {
            format!("{} on node {}", resolve_reason(data), data.node)
        } else {
            format!("{}; anomaly {}", data.detail, data.anomaly_id)
        };
        Some(PodEvent {
            regarding,
            related: None,
            resolved,
            reasons: ["AddressSweep", "AddressSweepEnded"],
            note: truncated(note),
        })
    }

    fn remove(&mut self, subject: SubjectId) -> HashSet<String> {
        self.order.retain(|id| *id != subject);
        self.by_subject.remove(&subject).unwrap_or_default()
    }

    fn pods_of(&mut self, subject: SubjectId) -> &mut HashSet<String> {
        if !self.by_subject.contains_key(&subject) {
            self.order.push_back(subject);
            if self.order.len() > SUBJECTS
                && let Some(oldest) = self.order.pop_front()
            {
                self.by_subject.remove(&oldest);
            }
        }
        self.by_subject.entry(subject).or_default()
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
    truncated(format!(
        "{address} on {device} is also claimed by {} ({}); {traffic}; conflict {}",
        others.join(", "),
        data.confidence.name(),
        data.conflict_id
    ))
}

fn truncated(mut note: String) -> String {
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
    use crate::{
        engine::{AnomalyId, ConflictId, Network},
        event::samples,
        pods::Via,
    };

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
        assert!(notified.by_subject.is_empty() && notified.order.is_empty());
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
    fn the_pod_that_sweeps_gets_the_event_and_its_victims_none() {
        let mut notified = NotifiedPods::default();
        let both = [claimant("vetha", Some("a")), claimant("vethb", Some("b"))];
        let mut swept = conflict("active", &both);
        swept.sweep = Some(AnomalyId(7));
        assert_eq!(summaries(&notified.pod_events(&swept)), []);
        swept.state = conflict("resolved", &both).state;
        assert_eq!(summaries(&notified.pod_events(&swept)), []);

        let mut sweep = samples::sweep("10.0.0.1").data;
        let mut pod = Pod::named("shop", "a", Via::Cri);
        pod.uid = Some("uid-a".to_owned());
        sweep.pod = Some(pod.into());
        assert!(notified.sweep_event(&sweep).is_some_and(|e| !e.resolved));
        assert!(notified.sweep_event(&sweep).is_none(), "it has one");
        sweep.state = swept.state;
        assert!(notified.sweep_event(&sweep).is_some_and(|e| e.resolved));
        assert!(notified.sweep_event(&sweep).is_none());
    }

    #[test]
    fn the_number_of_remembered_conflicts_is_bounded() {
        let mut notified = NotifiedPods::default();
        for id in 0..SUBJECTS as u128 + 10 {
            notified.pods_of(ConflictId(id).into());
        }
        assert!(notified.by_subject.len() <= SUBJECTS && notified.order.len() <= SUBJECTS);
    }
}
