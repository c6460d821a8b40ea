//! Kubernetes events on the pods of a conflict: what `kubectl describe pod` and every event exporter show.
//!
//! `IPConflict` (Warning) once for each pod of a conflict, as soon as the pod is known, with another claimant's pod as
//! the related object; `IPConflictResolved` (Normal) on the same pods when it is over.
//!
//! Invariants: taking an event never waits; the queue, the memory of conflicts and the rate per pod are bounded. The
//! rate is client-go's (`EventSourceObjectSpamFilter`): 25 at once on one object, then one every 5 minutes.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use ::kube::{
    Client, Error,
    runtime::events::{Event as ApiEvent, EventType, Recorder, Reporter},
};
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tracing::{info, warn};

use super::Kube;
use crate::{
    identify::Pod,
    report::{
        EventSink,
        event::{ClaimantData, ConflictData, Event},
        metrics::{Delivery, Metrics},
    },
};

/// The sink's name in metrics.
const SINK: &str = "kubernetes";
/// Who reports, a qualified name as the API wants it.
const CONTROLLER: &str = "ipconflict.io/detector-agent";
/// Events that wait for the server.
const QUEUE: usize = 1024;
/// Conflicts whose told pods are remembered.
const CONFLICTS: usize = 4096;
/// client-go's figures.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(300);
const OBJECTS: usize = 4096;
const ATTEMPTS: u32 = 12;
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Longest a note may be, in bytes.
const NOTE: usize = 1024;

/// Takes the agent's events for the API server.
#[derive(Debug)]
pub struct KubeEvents {
    queue: mpsc::Sender<Arc<Event>>,
    metrics: Arc<Metrics>,
}

impl KubeEvents {
    /// A sink, and the task that posts what it takes. `instance` names this agent among others (the node).
    #[must_use]
    pub fn new(
        kube: Kube,
        instance: String,
        metrics: Arc<Metrics>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (queue, queued) = mpsc::channel(QUEUE);
        let sink = Self {
            queue,
            metrics: Arc::clone(&metrics),
        };
        (sink, post_all(kube, instance, metrics, queued))
    }
}

impl EventSink for KubeEvents {
    fn offer(&mut self, event: &Arc<Event>) {
        if self.queue.try_send(Arc::clone(event)).is_err() {
            count(&self.metrics, "dropped");
        }
    }
}

fn count(metrics: &Metrics, outcome: &'static str) {
    let labels = Delivery {
        sink: SINK.to_owned(),
        outcome,
    };
    metrics.deliveries.get_or_create(&labels).inc();
}

async fn post_all(
    kube: Kube,
    instance: String,
    metrics: Arc<Metrics>,
    mut queued: mpsc::Receiver<Arc<Event>>,
) {
    let Some(recorder) = recorder(&kube, instance, &queued).await else {
        return;
    };
    let mut told = Told::default();
    let mut limit = Limit::default();
    let mut in_trouble = false;
    while let Some(event) = queued.recv().await {
        for notice in told.notices(&event.data) {
            if !limit.allows(&notice.key(), Instant::now()) {
                count(&metrics, "limited");
                continue;
            }
            let outcome = post(&recorder, &notice).await;
            match outcome {
                Ok(()) => count(&metrics, "delivered"),
                Err(_) => count(&metrics, "failed"),
            }
            match (outcome, in_trouble) {
                (Err(error), false) => warn!("events on pods cannot be posted: {error}"),
                (Ok(()), true) => info!("events on pods are posted again"),
                _ => continue,
            }
            in_trouble = !in_trouble;
        }
    }
}

async fn recorder(
    kube: &Kube,
    instance: String,
    queued: &mpsc::Receiver<Arc<Event>>,
) -> Option<Recorder> {
    let reporter = Reporter {
        controller: CONTROLLER.to_owned(),
        instance: Some(instance),
    };
    let mut pause = Duration::from_millis(500);
    loop {
        // The watch says what is wrong.
        let client: Result<(Client, _), _> = kube.client().await;
        if let Ok((client, _)) = client {
            return Some(Recorder::new(client, reporter));
        }
        if queued.is_closed() {
            return None;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Posts one, again where the server is in trouble; what it refuses is not tried again.
async fn post(recorder: &Recorder, notice: &Notice) -> Result<(), Error> {
    let event = notice.event();
    let mut pause = Duration::from_millis(250);
    let mut attempt = 1;
    loop {
        match recorder.publish(&event, &notice.regarding).await {
            Ok(()) => return Ok(()),
            Err(Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429 => {
                return Err(Error::Api(status));
            }
            Err(error) if attempt == ATTEMPTS => return Err(error),
            Err(_) => sleep(pause).await,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        attempt += 1;
    }
}

/// One event to be posted.
#[derive(Debug)]
struct Notice {
    regarding: ObjectReference,
    related: Option<ObjectReference>,
    resolved: bool,
    note: String,
}

impl Notice {
    fn key(&self) -> String {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        let pod = &self.regarding;
        [part(&pod.namespace), part(&pod.name), part(&pod.uid)].join("/")
    }

    fn event(&self) -> ApiEvent {
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
struct Told {
    by_conflict: HashMap<String, HashSet<String>>,
    order: VecDeque<String>,
}

impl Told {
    /// What is to be posted after this event.
    fn notices(&mut self, data: &ConflictData) -> Vec<Notice> {
        let resolved = data.state == "resolved";
        let told = if resolved {
            self.order.retain(|id| *id != data.conflict_id);
            self.by_conflict
                .remove(&data.conflict_id)
                .unwrap_or_default()
        } else {
            self.remember(&data.conflict_id).clone()
        };
        let mut notices = Vec::new();
        for (position, claimant) in data.claimants.iter().enumerate() {
            // An event without the uid is shown on no pod.
            let Some(regarding) = claimant.pod.as_ref().and_then(reference) else {
                continue;
            };
            let uid = regarding.uid.clone().unwrap_or_default();
            if told.contains(&uid) != resolved || (!resolved && claimant.left.is_some()) {
                continue;
            }
            if !resolved {
                self.remember(&data.conflict_id).insert(uid);
            }
            let others = || {
                let others = data.claimants.iter().enumerate();
                others.filter(move |(other, _)| *other != position)
            };
            notices.push(Notice {
                regarding,
                related: others().find_map(|(_, other)| reference(other.pod.as_ref()?)),
                resolved,
                note: note(data, claimant, others().map(|(_, other)| other), resolved),
            });
        }
        notices
    }

    fn remember(&mut self, conflict: &str) -> &mut HashSet<String> {
        if !self.by_conflict.contains_key(conflict) {
            self.order.push_back(conflict.to_owned());
            if self.order.len() > CONFLICTS
                && let Some(oldest) = self.order.pop_front()
            {
                self.by_conflict.remove(&oldest);
            }
        }
        self.by_conflict.entry(conflict.to_owned()).or_default()
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
        data.confidence,
        data.conflict_id
    );
    let mut end = NOTE;
    while !note.is_char_boundary(end.min(note.len())) {
        end -= 1;
    }
    note.truncate(end);
    note
}

/// A bucket of tokens for each object, as client-go's spam filter has it.
#[derive(Debug, Default)]
struct Limit {
    buckets: HashMap<String, Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: u32,
    /// When the last token was added.
    at: Instant,
}

impl Limit {
    fn allows(&mut self, object: &str, now: Instant) -> bool {
        if !self.buckets.contains_key(object) && self.buckets.len() >= OBJECTS {
            let oldest = self.buckets.iter().min_by_key(|(_, bucket)| bucket.at);
            if let Some(oldest) = oldest.map(|(object, _)| object.clone()) {
                self.buckets.remove(&oldest);
            }
        }
        let bucket = self.buckets.entry(object.to_owned()).or_insert(Bucket {
            tokens: BURST,
            at: now,
        });
        let refills = now.duration_since(bucket.at).as_secs() / REFILL.as_secs();
        let refills = u32::try_from(refills).unwrap_or(u32::MAX).min(BURST);
        if bucket.tokens.saturating_add(refills) >= BURST {
            *bucket = Bucket {
                tokens: BURST,
                at: now,
            };
        } else {
            bucket.tokens += refills;
            bucket.at += REFILL * refills;
        }
        let allowed = bucket.tokens > 0;
        bucket.tokens = bucket.tokens.saturating_sub(1);
        allowed
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::{Value, json};

    use super::*;

    fn claimant(device: &str, pod: Option<&str>) -> Value {
        let pod = pod.map(|name| {
            json!({"namespace": "shop", "name": name, "uid": format!("uid-{name}"), "container_id": null, "via": "cri"})
        });
        json!({"device": device, "ifindex": 1, "mac": null, "master": null, "since": "", "pod": pod,
            "pod_unknown_because": null, "evidence": []})
    }

    fn conflict(state: &str, claimants: &[Value]) -> ConflictData {
        serde_json::from_value(json!({"conflict_id": "c1", "node": "n1", "address": "10.244.2.10", "vlan": null,
            "kind": "duplicate", "confidence": "certain", "state": state, "raised_at": "", "updated_at": "",
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
        let mut told = Told::default();
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
        let mut told = Told::default();
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
        let mut told = Told::default();
        let notices = told.notices(&conflict("active", &claimants));
        assert!(notices.iter().all(|notice| notice.note.len() <= NOTE));
    }

    #[test]
    fn one_pod_gets_25_events_at_once_then_one_every_five_minutes() {
        let mut limit = Limit::default();
        let now = Instant::now();
        let allowed = |limit: &mut Limit, now| (0..100).filter(|_| limit.allows("a", now)).count();
        assert_eq!(allowed(&mut limit, now), 25);
        assert!(limit.allows("b", now));
        assert_eq!(
            allowed(&mut limit, now + REFILL - Duration::from_secs(1)),
            0
        );
        assert_eq!(allowed(&mut limit, now + 2 * REFILL), 2);
        assert_eq!(allowed(&mut limit, now + 1000 * REFILL), 25);
    }

    #[test]
    fn memory_of_pods_and_conflicts_is_bounded() {
        let mut limit = Limit::default();
        let now = Instant::now();
        for object in 0..OBJECTS + 10 {
            limit.allows(&object.to_string(), now);
        }
        assert!(limit.buckets.len() <= OBJECTS);
        let mut told = Told::default();
        for id in 0..CONFLICTS + 10 {
            told.remember(&id.to_string());
        }
        assert!(told.by_conflict.len() <= CONFLICTS && told.order.len() <= CONFLICTS);
    }
}
