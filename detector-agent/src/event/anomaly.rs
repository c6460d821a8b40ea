//! An anomaly as events, the API and `check` show it.

use serde::{Deserialize, Serialize};

use crate::{
    clock::Moment,
    engine::{self, Anomaly},
    pods::{Pod, PodAnswer},
};

/// An anomaly. What a kind has not got is `null`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnomalyData {
    /// Stable for the anomaly's life, also over a restart of the agent.
    pub anomaly_id: String,
    /// The node's name.
    pub node: String,
    /// `ipam_drift`, `ipam_leak`, `gateway_unresolved` or `route_astray`.
    pub kind: String,
    /// What exactly is wrong, in one word.
    pub cause: String,
    /// `active` or `resolved`.
    pub state: String,
    /// The address in question; of a gateway the one that is asked for.
    pub address: String,
    /// The VLAN (of two tags the outer one).
    pub vlan: Option<u16>,
    /// The pod device that holds the address, or asks for it.
    pub device: Option<String>,
    /// That device's index.
    pub ifindex: Option<u32>,
    /// That device's pod.
    pub pod: Option<Pod>,
    /// Why the pod is not known.
    pub pod_unknown_because: Option<String>,
    /// Further devices that hold the address.
    #[serde(default)]
    pub also_on: Vec<String>,
    /// Whose books: `host-local`, `calico-ipam` or `aws-ipamd`.
    pub ipam: Option<String>,
    /// The network in the CNI configuration.
    pub network: Option<String>,
    /// The data directory, file or resource that was read.
    pub source: Option<String>,
    /// Whom the books hold the address for.
    pub owner: Option<String>,
    /// One sentence about it.
    pub detail: String,
    /// RFC 3339.
    pub raised_at: String,
    /// RFC 3339.
    pub resolved_at: Option<String>,
    /// Why it is over, in one word.
    pub resolved_because: Option<String>,
    /// Microseconds from the observation that decided it to the event.
    pub latency_us: u64,
}

impl AnomalyData {
    /// `anomaly` as it is at `moment`.
    #[must_use]
    pub fn new(
        node: &str,
        moment: &Moment,
        anomaly: &Anomaly,
        pods: impl Fn(&engine::Claimant) -> PodAnswer,
    ) -> Self {
        let holder = anomaly.holder.as_ref();
        let (pod, pod_unknown_because) = match holder.map(pods) {
            Some(PodAnswer::Known(pod)) => (Some((*pod).clone()), None),
            Some(PodAnswer::Unknown(because)) => (None, Some(because.to_string())),
            None => (None, None),
        };
        let source = anomaly.source.as_deref();
        let latency = moment.monotonic().since(anomaly.decided_at).as_micros();
        Self {
            anomaly_id: anomaly.id.to_string(),
            node: node.to_owned(),
            kind: anomaly.kind.name().to_owned(),
            cause: anomaly.cause.name().to_owned(),
            state: if anomaly.resolved_at.is_some() {
                "resolved"
            } else {
                "active"
            }
            .to_owned(),
            address: anomaly.address.to_string(),
            vlan: anomaly.vlan.outer,
            device: holder.map(|h| h.device.clone()),
            ifindex: holder.map(|h| h.ifindex),
            pod,
            pod_unknown_because,
            also_on: anomaly.also_on.clone(),
            ipam: source.map(|s| s.ipam.name().to_owned()),
            network: source.map(|s| s.network.clone()),
            source: source.map(|s| s.place.clone()),
            owner: anomaly.owner.as_deref().map(str::to_owned),
            detail: anomaly.detail.clone(),
            raised_at: moment.rfc3339(anomaly.raised_at),
            resolved_at: anomaly.resolved_at.map(|at| moment.rfc3339(at)),
            resolved_because: anomaly.resolve_reason.map(|b| b.name().to_owned()),
            latency_us: u64::try_from(latency).unwrap_or(u64::MAX),
        }
    }
}
