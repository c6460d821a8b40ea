//! An event about either a conflict or an anomaly, for the sinks, which treat both alike.

use std::{fmt, net::IpAddr, sync::Arc};

use detector_engine::{AnomalyId, AnomalyKind, ConflictId, ConflictKind, LeaveReason};
use serde::{Deserialize, Serialize};

use super::{
    AnomalyEvent, Change, ChangedField, ClaimantData, ContractName, Event, ResolvedBecause,
    SubjectState,
};
use crate::{DiagnosisData, Pod, WallTime};

/// An event about a conflict or about an anomaly. Cheap to clone; as JSON it is the event itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AnyEvent {
    /// About a conflict.
    Conflict(Arc<Event>),
    /// About an anomaly.
    Anomaly(Arc<AnomalyEvent>),
}

impl From<Event> for AnyEvent {
    fn from(event: Event) -> Self {
        Self::Conflict(Arc::new(event))
    }
}

impl From<AnomalyEvent> for AnyEvent {
    fn from(event: AnomalyEvent) -> Self {
        Self::Anomaly(Arc::new(event))
    }
}

/// The id of the conflict or anomaly that an event is about. Displayed as in events, 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct SubjectId(u128);

impl From<SubjectId> for String {
    fn from(id: SubjectId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for SubjectId {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        u128::from_str_radix(&text, 16).map(Self)
    }
}

impl fmt::Display for SubjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ConflictId(self.0).fmt(f)
    }
}

impl From<u128> for SubjectId {
    fn from(id: u128) -> Self {
        Self(id)
    }
}

impl From<SubjectId> for u128 {
    fn from(id: SubjectId) -> Self {
        id.0
    }
}

impl From<ConflictId> for SubjectId {
    fn from(id: ConflictId) -> Self {
        Self(id.0)
    }
}

impl From<AnomalyId> for SubjectId {
    fn from(id: AnomalyId) -> Self {
        Self(id.0)
    }
}

/// The kind of a conflict or an anomaly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubjectKind {
    /// A conflict.
    Conflict(ConflictKind),
    /// An anomaly.
    Anomaly(AnomalyKind),
}

impl ContractName for SubjectKind {
    const ALL: &'static [Self] = &[
        Self::Conflict(ConflictKind::Duplicate),
        Self::Conflict(ConflictKind::Host),
        Self::Conflict(ConflictKind::Flapping),
        Self::Anomaly(AnomalyKind::IpamDrift),
        Self::Anomaly(AnomalyKind::IpamLeak),
        Self::Anomaly(AnomalyKind::GatewayUnresolved),
        Self::Anomaly(AnomalyKind::RouteAstray),
        Self::Anomaly(AnomalyKind::AddressSweep),
        Self::Anomaly(AnomalyKind::PodCidrOverlap),
        Self::Anomaly(AnomalyKind::RogueRouter),
        Self::Anomaly(AnomalyKind::MacDuplicate),
        Self::Anomaly(AnomalyKind::MacMoved),
        Self::Anomaly(AnomalyKind::AddressUnusable),
    ];

    fn contract_name(self) -> &'static str {
        match self {
            Self::Conflict(kind) => kind.name(),
            Self::Anomaly(kind) => kind.name(),
        }
    }
}

impl AnyEvent {
    /// Unique among the node's events.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Conflict(event) => &event.id,
            Self::Anomaly(event) => &event.id,
        }
    }

    /// When it was created.
    #[must_use]
    pub fn time(&self) -> WallTime {
        match self {
            Self::Conflict(event) => event.time,
            Self::Anomaly(event) => event.time,
        }
    }

    /// The conflict or anomaly that it is about. A sink gets the events of one subject in order.
    #[must_use]
    pub fn subject_id(&self) -> SubjectId {
        match self {
            Self::Conflict(event) => event.data.conflict_id.into(),
            Self::Anomaly(event) => event.data.anomaly_id.into(),
        }
    }

    /// The node's name.
    #[must_use]
    pub fn node(&self) -> &str {
        match self {
            Self::Conflict(event) => &event.data.node,
            Self::Anomaly(event) => &event.data.node,
        }
    }

    /// The cluster's name, if it is configured.
    #[must_use]
    pub fn cluster(&self) -> Option<&str> {
        match self {
            Self::Conflict(event) => event.data.cluster.as_deref(),
            Self::Anomaly(event) => event.data.cluster.as_deref(),
        }
    }

    /// The address of its subject.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        match self {
            Self::Conflict(event) => event.data.address,
            Self::Anomaly(event) => event.data.address,
        }
    }

    /// The kind of its subject.
    #[must_use]
    pub fn kind(&self) -> SubjectKind {
        match self {
            Self::Conflict(event) => SubjectKind::Conflict(event.data.kind),
            Self::Anomaly(event) => SubjectKind::Anomaly(event.data.kind),
        }
    }

    /// When its subject was raised.
    #[must_use]
    pub fn raised_at(&self) -> WallTime {
        match self {
            Self::Conflict(event) => event.data.raised_at,
            Self::Anomaly(event) => event.data.raised_at,
        }
    }

    /// When its subject was resolved.
    #[must_use]
    pub fn resolved_at(&self) -> Option<WallTime> {
        match self {
            Self::Conflict(event) => event.data.resolved_at,
            Self::Anomaly(event) => event.data.resolved_at,
        }
    }

    /// The pods of its subject.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        let (claimants, holder) = match self {
            Self::Conflict(event) => (event.data.claimants.as_slice(), None),
            Self::Anomaly(event) => (&[][..], event.data.pod.as_deref()),
        };
        let pods = claimants.iter().filter_map(|c| c.pod.as_deref());
        pods.chain(holder)
    }

    /// What happened to its subject.
    #[must_use]
    pub fn change(&self) -> Change {
        match self {
            Self::Conflict(event) => event.event_type.change,
            Self::Anomaly(event) => event.event_type.change,
        }
    }

    /// Why its subject came about, once that was looked into.
    #[must_use]
    pub fn diagnosis(&self) -> Option<&DiagnosisData> {
        match self {
            Self::Conflict(event) => event.data.diagnosis.as_deref(),
            Self::Anomaly(event) => event.data.diagnosis.as_deref(),
        }
    }

    /// Whether a diagnosis is still to come.
    #[must_use]
    pub fn awaits_diagnosis(&self) -> bool {
        let is_diagnosed = match self {
            Self::Conflict(_) => true,
            Self::Anomaly(event) => event.data.is_diagnosed(),
        };
        is_diagnosed && self.diagnosis().is_none()
    }

    /// Whether its subject has ended.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        match self {
            Self::Conflict(event) => event.data.is_resolved(),
            Self::Anomaly(event) => event.data.is_resolved(),
        }
    }

    /// The same event with another change in its type, for a sink that has seen less of the subject: the first event
    /// a sink gets is `raised`.
    #[must_use]
    pub fn with_change(&self, change: Change) -> Self {
        let mut event = self.clone();
        if event.change() == change {
            return event;
        }
        match &mut event {
            Self::Conflict(event) => {
                let event = Arc::make_mut(event);
                event.event_type.change = change;
                if change != Change::Updated {
                    event.data.changed = Vec::new();
                }
            }
            Self::Anomaly(event) => Arc::make_mut(event).event_type.change = change,
        }
        event
    }

    /// The fields that an update of a conflict names as changed.
    #[must_use]
    pub fn changed(&self) -> &[ChangedField] {
        match self {
            Self::Conflict(event) => &event.data.changed,
            Self::Anomaly(_) => &[],
        }
    }

    /// Adds fields that an update changed which a receiver gets this one instead of.
    pub fn add_changed(&mut self, before: &[ChangedField]) {
        if let Self::Conflict(event) = self
            && event.event_type.change == Change::Updated
        {
            let changed = &mut Arc::make_mut(event).data.changed;
            for field in before {
                if !changed.contains(field) {
                    changed.push(*field);
                }
            }
        }
    }

    /// Whether `newer` contains nothing that this event does not. What is unknown of a pod in `newer` makes no
    /// difference: right after a start nothing is known, and then each source answers at another time.
    #[must_use]
    pub fn supersedes(&self, newer: &Self) -> bool {
        match (self, newer) {
            (Self::Conflict(one), Self::Conflict(other)) => conflict_supersedes(one, other),
            (Self::Anomaly(one), Self::Anomaly(other)) => {
                let (one, other) = (&one.data, &other.data);
                one.kind == other.kind
                    && one.cause == other.cause
                    && one.owner == other.owner
                    && one.device == other.device
                    && one.also_on == other.also_on
                    && covers_pod(one.pod.as_deref(), other.pod.as_deref())
            }
            _ => false,
        }
    }

    /// The resolving event of a subject whose end was not seen: it ended while the agent was down, or the event was
    /// lost.
    #[must_use]
    pub fn resolved_unseen(&self, id: String, now: WallTime) -> Self {
        match self {
            Self::Conflict(event) => {
                let mut event = (**event).clone();
                event.event_type.change = Change::Resolved;
                event.id = id;
                event.time = now;
                event.data.state = SubjectState::Resolved;
                event.data.guidance = None;
                event.data.updated_at = now;
                event.data.resolved_at = Some(now);
                event.data.duration_seconds = Some(now.since(event.data.raised_at));
                event.data.changed = Vec::new();
                event.data.latency_us = 0;
                event.data.traffic_goes_to = None;
                for claimant in &mut event.data.claimants {
                    claimant.left.get_or_insert(LeaveReason::Expired);
                }
                event.into()
            }
            Self::Anomaly(event) => {
                let mut event = (**event).clone();
                event.event_type.change = Change::Resolved;
                event.id = id;
                event.time = now;
                event.data.state = SubjectState::Resolved;
                event.data.guidance = None;
                event.data.resolved_at = Some(now);
                event.data.duration_seconds = Some(now.since(event.data.raised_at));
                event.data.resolved_because = Some(ResolvedBecause::Unseen);
                event.data.latency_us = 0;
                event.into()
            }
        }
    }
}

/// Whether `newer` has nothing about a pod that `known` does not.
fn covers_pod(known: Option<&Pod>, newer: Option<&Pod>) -> bool {
    match (known, newer) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(known), Some(newer)) => known.covers(newer),
    }
}

fn conflict_supersedes(one: &Event, other: &Event) -> bool {
    let (one, other) = (&one.data, &other.data);
    let same = |(one, other): (&ClaimantData, &ClaimantData)| {
        one.device == other.device
            && one.ifindex == other.ifindex
            && one.left == other.left
            && (other.rightful.is_none() || one.rightful == other.rightful)
            && (other.allocated.is_none() || one.allocated == other.allocated)
            && covers_pod(one.pod.as_deref(), other.pod.as_deref())
    };
    one.kind == other.kind
        && one.sweep == other.sweep
        && one.confidence == other.confidence
        && one.traffic_goes_to == other.traffic_goes_to
        && one.claimants_omitted == other.claimants_omitted
        && one.claimants.len() == other.claimants.len()
        && one.claimants.iter().zip(&other.claimants).all(same)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)] // a test that cannot set itself up fails

    use super::*;
    use crate::samples;

    #[test]
    fn a_newly_known_pod_is_a_change_and_an_unknown_one_is_not() {
        let known = samples::raised("10.0.0.1");
        let mut unknown = known.clone();
        unknown.data.claimants[0].pod = None;
        let (known, unknown) = (AnyEvent::from(known), AnyEvent::from(unknown));
        assert!(known.supersedes(&known));
        assert!(known.supersedes(&unknown));
        assert!(!unknown.supersedes(&known));
    }

    #[test]
    fn another_claimant_is_a_change() {
        let known = samples::raised("10.0.0.1");
        let mut more = known.clone();
        let mut third = more.data.claimants[0].clone();
        third.ifindex += 100;
        more.data.claimants.push(third);
        let (known, more) = (AnyEvent::from(known), AnyEvent::from(more));
        assert!(!known.supersedes(&more));
        assert!(!more.supersedes(&known));
    }

    #[test]
    fn an_unseen_end_resolves_the_same_subject() {
        for known in [
            AnyEvent::from(samples::raised("10.0.0.1")),
            AnyEvent::from(samples::drift("10.0.0.1")),
        ] {
            let end = known.resolved_unseen("other".to_owned(), WallTime::now());
            assert_eq!(end.subject_id(), known.subject_id());
            assert_eq!(end.change(), Change::Resolved);
            assert!(end.is_resolved() && !known.is_resolved());
            assert_eq!(end.id(), "other");
            assert!(end.resolved_at().is_some());
        }
    }

    #[test]
    fn events_have_the_documented_json_and_field_order() {
        let conflict = r#"{"specversion":"1.0","id":"1","source":"ip-conflict-detector/node-1","type":"io.ipconflict.conflict.raised","subject":"10.0.0.1","time":"TIME","datacontenttype":"application/json","data":{"conflict_id":"000000000000000031302e302e302e31","node":"node-1","cluster":null,"address":"10.0.0.1","network":"node","vlan":null,"kind":"duplicate","severity":"critical","scope":"node","confidence":"certain","state":"active","raised_at":"TIME","updated_at":"TIME","resolved_at":null,"latency_us":40,"traffic_goes_to":"veth-a","claimants":[{"node":"n","device":"veth-a","ifindex":12,"mac":"02:00:00:00:00:01","master":null,"since":"TIME","pod":{"namespace":"default","name":"a","uid":null,"container_id":null,"via":"cri"},"pod_unknown_because":null,"evidence":[{"kind":"address","first_seen":"TIME","last_seen":"TIME","mac":null,"detail":null}]}],"diagnosis":null,"timeline":[],"guidance":{"next_step":"Delete the pod that came last: the runbook shows how to find out which one that is.","runbook_url":"https://github.com/ipconflict/ip-conflict-detector/blob/main/docs/runbooks/IPAddressConflict.md#duplicate"}}}"#;
        let mut event = samples::raised("10.0.0.1");
        event.data.claimants.truncate(1);
        let anomaly = r#"{"specversion":"1.0","id":"3","source":"ip-conflict-detector/node-1","type":"io.ipconflict.anomaly.raised","subject":"10.0.0.1","time":"TIME","datacontenttype":"application/json","data":{"anomaly_id":"000000000000000031302e302e302e31","node":"node-1","cluster":null,"kind":"ipam_drift","severity":"warning","cause":"not_allocated","state":"active","address":"10.0.0.1","vlan":null,"device":"veth-a","ifindex":12,"pod":{"namespace":"default","name":"a","uid":null,"container_id":null,"via":"cri"},"pod_unknown_because":null,"also_on":[],"ipam":"host-local","network":"cbr0","source":"/var/lib/cni/networks/cbr0","owner":null,"detail":"it is not allocated, and the next pod may get it","raised_at":"TIME","resolved_at":null,"resolved_because":null,"latency_us":40,"diagnosis":null,"timeline":[],"guidance":{"effect":"Traffic is not affected yet; the next pod may get the address.","next_step":"Keep new pods off the node (kubectl cordon node-1), then restore the allocation or recreate the pod default/a.","runbook_url":"https://github.com/ipconflict/ip-conflict-detector/blob/main/docs/runbooks/IPAMDrift.md"}}}"#;
        let events = [AnyEvent::from(event), samples::drift("10.0.0.1").into()];
        for (event, expected) in events.into_iter().zip([conflict, anomaly]) {
            let expected = expected.replace("TIME", "2026-11-21T01:02:03.123456Z");
            assert_eq!(serde_json::to_string(&event).unwrap(), expected);
        }
    }

    #[test]
    fn an_event_survives_serialisation() {
        for event in [
            AnyEvent::from(samples::raised("10.0.0.1")),
            AnyEvent::from(samples::drift("10.0.0.1")),
        ] {
            let text = serde_json::to_string(&event).unwrap();
            assert_eq!(serde_json::from_str::<AnyEvent>(&text).unwrap(), event);
        }
    }
}
