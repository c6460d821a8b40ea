//! The event of the Contract: CloudEvents 1.0, structured JSON.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::anomaly::AnomalyData;
use crate::{
    clock::Moment,
    engine::{self, Conflict, Timestamp},
    pods::{Pod, PodAnswer},
};

/// What happened to a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// It was found.
    Raised,
    /// It changed.
    Updated,
    /// It is over.
    Resolved,
}

impl Change {
    /// The last word of the event type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Raised => "raised",
            Self::Updated => "updated",
            Self::Resolved => "resolved",
        }
    }
}

/// A CloudEvent about a conflict, or with [`AnomalyData`] about an anomaly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event<D = ConflictData> {
    /// Always `1.0`.
    pub specversion: String,
    /// Unique among the node's events.
    pub id: String,
    /// `ip-conflict-detector/<node>`.
    pub source: String,
    /// `io.ipconflict.conflict.raised`, `.updated` or `.resolved`; `io.ipconflict.anomaly.raised` or `.resolved`.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The address.
    pub subject: String,
    /// When the event was made, RFC 3339.
    pub time: String,
    /// Always `application/json`.
    pub datacontenttype: String,
    /// The conflict, or the anomaly.
    pub data: D,
}

/// A CloudEvent about an anomaly.
pub type AnomalyEvent = Event<AnomalyData>;

/// A conflict as events, the API and `check` show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictData {
    /// Stable for the conflict's life.
    pub conflict_id: String,
    /// The node's name.
    pub node: String,
    /// The address in question.
    pub address: String,
    /// The VLAN (of two tags the outer one).
    pub vlan: Option<u16>,
    /// The inner of two VLAN tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner_vlan: Option<u16>,
    /// `duplicate`, `host` or `flapping`.
    pub kind: String,
    /// `certain` or `observed`.
    pub confidence: String,
    /// `active` or `resolved`.
    pub state: String,
    /// RFC 3339.
    pub raised_at: String,
    /// RFC 3339.
    pub updated_at: String,
    /// RFC 3339.
    pub resolved_at: Option<String>,
    /// Microseconds from the kernel's time of the deciding observation to the event.
    pub latency_us: u64,
    /// The device that receives the node's traffic for the address.
    pub traffic_goes_to: Option<String>,
    /// Who claims it; those that left follow with the reason.
    pub claimants: Vec<ClaimantData>,
    /// Claimants beyond the bound of the list.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub claimants_omitted: usize,
}

/// One claimant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimantData {
    /// Its device.
    pub device: String,
    /// The device's index.
    pub ifindex: u32,
    /// The hardware address its newest evidence gives.
    pub mac: Option<String>,
    /// The bridge it is a port of.
    pub master: Option<String>,
    /// RFC 3339.
    pub since: String,
    /// Its pod.
    pub pod: Option<Pod>,
    /// Why the pod is not known.
    pub pod_unknown_because: Option<String>,
    /// Why it is a claimant.
    pub evidence: Vec<EvidenceData>,
    /// Why it no longer is: `device_removed`, `address_removed` or `expired`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<String>,
}

/// One piece of evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvidenceData {
    /// `address`, `arp`, `ndp` or `neighbour`.
    pub kind: String,
    /// RFC 3339.
    pub first_seen: String,
    /// RFC 3339.
    pub last_seen: String,
    /// The hardware address it gave.
    pub mac: Option<String>,
    /// More about it, such as the neighbour state.
    pub detail: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// Makes the events of one node.
#[derive(Clone, Debug)]
pub struct EventMaker {
    node: String,
    /// Distinguishes this run's event ids from those of earlier ones.
    run: u64,
    serial: u64,
}

impl EventMaker {
    /// `run` should be random.
    #[must_use]
    pub fn new(node: String, run: u64) -> Self {
        Self {
            node,
            run,
            serial: 0,
        }
    }

    /// The event that tells `change` of `conflict`. `pods` names the pod behind a claimant, at once or not at all.
    pub fn event(
        &mut self,
        change: Change,
        conflict: &Conflict,
        pods: impl Fn(&engine::Claimant) -> PodAnswer,
    ) -> Event {
        let moment = Moment::now();
        let data = ConflictData::new(&self.node, &moment, conflict, pods);
        let event_type = format!("io.ipconflict.conflict.{}", change.name());
        self.envelope(event_type, conflict.address, &moment, data)
    }

    /// The event that tells that `anomaly` was raised or resolved.
    pub fn anomaly_event(
        &mut self,
        change: Change,
        anomaly: &engine::Anomaly,
        pods: impl Fn(&engine::Claimant) -> PodAnswer,
    ) -> AnomalyEvent {
        let moment = Moment::now();
        let data = AnomalyData::new(&self.node, &moment, anomaly, pods);
        let event_type = format!("io.ipconflict.anomaly.{}", change.name());
        self.envelope(event_type, anomaly.address, &moment, data)
    }

    fn envelope<D>(
        &mut self,
        event_type: String,
        subject: IpAddr,
        moment: &Moment,
        data: D,
    ) -> Event<D> {
        self.serial += 1;
        Event {
            specversion: "1.0".to_owned(),
            id: format!("{:016x}-{}", self.run, self.serial),
            source: format!("ip-conflict-detector/{}", self.node),
            event_type,
            subject: subject.to_string(),
            time: moment.rfc3339(moment.monotonic()),
            datacontenttype: "application/json".to_owned(),
            data,
        }
    }
}

impl ConflictData {
    /// `conflict` as it is at `moment`; the latency is counted to there.
    #[must_use]
    pub fn new(
        node: &str,
        moment: &Moment,
        conflict: &Conflict,
        pods: impl Fn(&engine::Claimant) -> PodAnswer,
    ) -> Self {
        let time = |at: Timestamp| moment.rfc3339(at);
        let latency = moment.monotonic().since(conflict.decided_at).as_micros();
        Self {
            conflict_id: conflict.id.to_string(),
            node: node.to_owned(),
            address: conflict.address.to_string(),
            vlan: conflict.vlan.outer,
            inner_vlan: conflict.vlan.inner,
            kind: conflict.kind.name().to_owned(),
            confidence: conflict.confidence.name().to_owned(),
            state: if conflict.resolved_at.is_some() {
                "resolved"
            } else {
                "active"
            }
            .to_owned(),
            raised_at: time(conflict.raised_at),
            updated_at: time(conflict.updated_at),
            resolved_at: conflict.resolved_at.map(time),
            latency_us: u64::try_from(latency).unwrap_or(u64::MAX),
            traffic_goes_to: conflict.traffic_goes_to.clone(),
            claimants: conflict
                .claimants
                .iter()
                .map(|c| ClaimantData::new(c, moment, pods(c)))
                .collect(),
            claimants_omitted: conflict.claimants_omitted,
        }
    }
}

impl ClaimantData {
    /// `claimant`, with what is known of its pod.
    #[must_use]
    pub fn new(claimant: &engine::Claimant, moment: &Moment, pod: PodAnswer) -> Self {
        let (pod, pod_unknown_because) = match pod {
            PodAnswer::Known(pod) => (Some((*pod).clone()), None),
            PodAnswer::Unknown(because) => (None, Some(because.to_string())),
        };
        Self {
            device: claimant.device.clone(),
            ifindex: claimant.ifindex,
            mac: claimant.mac.map(|m| m.to_string()),
            master: claimant.master.clone(),
            since: moment.rfc3339(claimant.since),
            pod,
            pod_unknown_because,
            evidence: claimant
                .evidence
                .iter()
                .map(|e| EvidenceData {
                    kind: e.kind.name().to_owned(),
                    first_seen: moment.rfc3339(e.first_seen),
                    last_seen: moment.rfc3339(e.last_seen),
                    mac: e.mac.map(|m| m.to_string()),
                    detail: e.detail.clone(),
                })
                .collect(),
            left: claimant.left.map(|l| l.name().to_owned()),
        }
    }
}
