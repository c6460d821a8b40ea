//! The events that the agent writes, as types for tests.
//!
//! Declared independently of the agent's own types. Unknown fields are ignored, because fields may be added to the contract.
//! [`crate::contract::violations`] compares every line that a test reads with the schema of events.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A conflict was raised.
pub const RAISED: &str = "io.ipconflict.conflict.raised";
/// A conflict changed.
pub const UPDATED: &str = "io.ipconflict.conflict.updated";
/// A conflict was resolved.
pub const RESOLVED: &str = "io.ipconflict.conflict.resolved";
/// An anomaly was raised.
pub const ANOMALY_RAISED: &str = "io.ipconflict.anomaly.raised";
/// An anomaly changed.
pub const ANOMALY_UPDATED: &str = "io.ipconflict.anomaly.updated";
/// An anomaly was resolved.
pub const ANOMALY_RESOLVED: &str = "io.ipconflict.anomaly.resolved";

/// A CloudEvents envelope.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    /// Unique for each event.
    pub id: String,
    /// `ip-conflict-detector/<node>`.
    pub source: String,
    /// The event type: [`RAISED`], ….
    #[serde(rename = "type")]
    pub kind: String,
    /// The address that the event is about.
    pub subject: String,
    /// RFC 3339, microseconds.
    pub time: String,
    /// The conflict or anomaly after the event.
    pub data: Value,
}

impl Event {
    /// The conflict; `None` for an anomaly event or a contract violation.
    #[must_use]
    pub fn conflict(&self) -> Option<Conflict> {
        if !self.kind.starts_with("io.ipconflict.conflict.") {
            return None;
        }
        serde_json::from_value(self.data.clone()).ok()
    }

    /// The anomaly; `None` for a conflict event or a contract violation.
    #[must_use]
    pub fn anomaly(&self) -> Option<Anomaly> {
        if !self.kind.starts_with("io.ipconflict.anomaly.") {
            return None;
        }
        serde_json::from_value(self.data.clone()).ok()
    }

    /// Whether it raises a conflict on this address.
    #[must_use]
    pub fn raises(&self, address: &str) -> bool {
        self.kind == RAISED && self.subject == address
    }

    /// Whether it updates a conflict on this address.
    #[must_use]
    pub fn updates(&self, address: &str) -> bool {
        self.kind == UPDATED && self.subject == address
    }

    /// Whether it resolves a conflict on this address.
    #[must_use]
    pub fn resolves(&self, address: &str) -> bool {
        self.kind == RESOLVED && self.subject == address
    }
}

/// The data of an anomaly event.
#[derive(Clone, Debug, Deserialize)]
pub struct Anomaly {
    /// Stable for the life of the anomaly.
    pub anomaly_id: String,
    /// `ipam_drift`, `ipam_leak`, `gateway_unresolved`, `route_astray`, `address_sweep`, `mac_duplicate` or `mac_moved`.
    pub kind: String,
    /// The cause, as an identifier.
    pub cause: String,
    /// Why it was raised.
    pub diagnosis: Option<Value>,
    /// `active` or `resolved`.
    pub state: String,
    /// The address.
    pub address: String,
    /// The pod device.
    pub device: Option<String>,
    /// Its pod.
    pub pod: Option<Value>,
    /// Further devices.
    pub also_on: Vec<String>,
    /// The IPAM that the allocations belong to.
    pub ipam: Option<String>,
    /// The IPAM data directory, file or resource.
    pub source: Option<String>,
    /// The owner that IPAM has recorded for the address.
    pub owner: Option<String>,
    /// How many addresses the device contests; `address_sweep` only.
    pub contested: Option<usize>,
    /// The first of them; `address_sweep` only.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// A description in one sentence.
    pub detail: String,
    /// Why it was resolved.
    pub resolved_because: Option<String>,
}

fn null_as_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The data of a conflict event.
#[derive(Clone, Debug, Deserialize)]
pub struct Conflict {
    /// Stable for the life of the conflict; empty in a look that `check` takes by itself.
    #[serde(deserialize_with = "null_as_empty")]
    pub conflict_id: String,
    /// The node's name.
    pub node: String,
    /// The address.
    pub address: String,
    /// `node`, `vrf:…`, `bridge:…`, `cni:…` or `link:…`.
    pub network: String,
    /// The VLAN it was claimed in.
    pub vlan: Option<Value>,
    /// `duplicate`, `host` or `flapping`.
    pub kind: String,
    /// `node` or `fleet`.
    pub scope: String,
    /// `certain` or `observed`.
    pub confidence: String,
    /// `active` or `resolved`.
    pub state: String,
    /// RFC 3339; only in a resolving event.
    pub resolved_at: Option<String>,
    /// From raised to resolved; only in a resolving event.
    pub duration_seconds: Option<f64>,
    /// What an updating event changed.
    #[serde(default)]
    pub changed: Vec<String>,
    /// Microseconds from the kernel's timestamp of the deciding observation to the creation of the event.
    pub latency_us: Option<f64>,
    /// The device whose pod receives the traffic.
    pub traffic_goes_to: Option<String>,
    /// The anomaly id of the address sweep that it is part of.
    pub sweep: Option<String>,
    /// Why it came about.
    pub diagnosis: Option<Value>,
    /// What happened around it.
    #[serde(default)]
    pub timeline: Vec<Value>,
    /// The claimants; a resolving event also lists former ones.
    pub claimants: Vec<Claimant>,
    /// What to do, while it is active.
    pub guidance: Option<Guidance>,
}

/// What to do about a conflict or an anomaly.
#[derive(Clone, Debug, Deserialize)]
pub struct Guidance {
    /// A sentence or two.
    pub next_step: String,
}

impl Conflict {
    /// The sorted devices of all claimants.
    #[must_use]
    pub fn devices(&self) -> Vec<&str> {
        let mut devices: Vec<_> = self
            .claimants
            .iter()
            .map(|claimant| claimant.device.as_str())
            .collect();
        devices.sort_unstable();
        devices
    }

    /// The claimant on this device.
    #[must_use]
    pub fn claimant(&self, device: &str) -> Option<&Claimant> {
        self.claimants
            .iter()
            .find(|claimant| claimant.device == device)
    }
}

/// A pod device that claims the address.
#[derive(Clone, Debug, Deserialize)]
pub struct Claimant {
    /// The name of its node.
    pub node: String,
    /// The device name.
    pub device: String,
    /// The interface index in the node's namespace.
    pub ifindex: u32,
    /// The MAC of the claim.
    pub mac: Option<String>,
    /// The bridge that the device is a port of.
    pub master: Option<String>,
    /// RFC 3339; `None` if the claim may be older than the agent knows.
    pub since: Option<String>,
    /// Why `since` is not known.
    pub since_unknown_because: Option<String>,
    /// Whether it is known to be the newest.
    #[serde(default)]
    pub newest: bool,
    /// How that is known: `first_sight`, `sandbox` or `pod`.
    pub newest_by: Option<String>,
    /// Whether a record gives the address to its pod.
    pub rightful: Option<bool>,
    /// Whether IPAM has allocated the address to its pod.
    pub allocated: Option<bool>,
    /// Why it is no longer a claimant; `None` while it is.
    #[serde(default)]
    pub left: Option<String>,
    /// The pod, if known.
    pub pod: Option<Value>,
    /// Why the pod is unknown.
    pub pod_unknown_because: Option<String>,
    /// What supports the claim.
    pub evidence: Vec<Evidence>,
}

impl Claimant {
    /// The kinds of its evidence, sorted and deduplicated.
    #[must_use]
    pub fn evidence_kinds(&self) -> Vec<&str> {
        let mut kinds: Vec<_> = self
            .evidence
            .iter()
            .map(|evidence| evidence.kind.as_str())
            .collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }
}

/// One piece of evidence for a claim.
#[derive(Clone, Debug, Deserialize)]
pub struct Evidence {
    /// `address`, `arp`, `ndp`, `neighbour` or `source`.
    pub kind: String,
    /// RFC 3339; `None` if it was there before the agent could see it.
    pub first_seen: Option<String>,
    /// The MAC in the evidence.
    pub mac: Option<String>,
    /// Further information, such as the neighbour entry's state.
    pub detail: Option<String>,
}
