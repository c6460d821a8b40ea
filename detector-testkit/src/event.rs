//! The event lines that the agent writes, as users rely on them.
//!
//! Typed for reading in tests; unknown fields are let through, so that an agent may say more. What must be there, and
//! of which type, is checked by [`crate::contract::violations`] on every line that a test reads.

use serde::Deserialize;
use serde_json::Value;

/// A conflict began.
pub const RAISED: &str = "io.ipconflict.conflict.raised";
/// Something about a conflict changed.
pub const UPDATED: &str = "io.ipconflict.conflict.updated";
/// A conflict ended.
pub const RESOLVED: &str = "io.ipconflict.conflict.resolved";
/// An anomaly began.
pub const ANOMALY_RAISED: &str = "io.ipconflict.anomaly.raised";
/// An anomaly ended.
pub const ANOMALY_RESOLVED: &str = "io.ipconflict.anomaly.resolved";

/// A CloudEvents envelope.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    /// Unique for each event.
    pub id: String,
    /// `ip-conflict-detector/<node>`.
    pub source: String,
    /// What happened: [`RAISED`], ….
    #[serde(rename = "type")]
    pub kind: String,
    /// The address.
    pub subject: String,
    /// RFC 3339, microseconds.
    pub time: String,
    /// The conflict, or the anomaly, as it stands after the event.
    pub data: Value,
}

impl Event {
    /// The conflict it tells of; `None` for an anomaly or a line that breaks the contract.
    #[must_use]
    pub fn conflict(&self) -> Option<Conflict> {
        if !self.kind.starts_with("io.ipconflict.conflict.") {
            return None;
        }
        serde_json::from_value(self.data.clone()).ok()
    }

    /// The anomaly it tells of; `None` for a conflict or a line that breaks the contract.
    #[must_use]
    pub fn anomaly(&self) -> Option<Anomaly> {
        if !self.kind.starts_with("io.ipconflict.anomaly.") {
            return None;
        }
        serde_json::from_value(self.data.clone()).ok()
    }

    /// Raised for this address?
    #[must_use]
    pub fn raises(&self, address: &str) -> bool {
        self.kind == RAISED && self.subject == address
    }

    /// Updated for this address?
    #[must_use]
    pub fn updates(&self, address: &str) -> bool {
        self.kind == UPDATED && self.subject == address
    }

    /// Resolved for this address?
    #[must_use]
    pub fn resolves(&self, address: &str) -> bool {
        self.kind == RESOLVED && self.subject == address
    }
}

/// Not yet a conflict.
#[derive(Clone, Debug, Deserialize)]
pub struct Anomaly {
    /// Stable for the life of the anomaly.
    pub anomaly_id: String,
    /// `ipam_drift`, `ipam_leak`, `gateway_unresolved` or `route_astray`.
    pub kind: String,
    /// What exactly is wrong.
    pub cause: String,
    /// `active` or `resolved`.
    pub state: String,
    /// The address in question.
    pub address: String,
    /// The pod device.
    pub device: Option<String>,
    /// Its pod.
    pub pod: Option<Value>,
    /// Whose books.
    pub ipam: Option<String>,
    /// The data directory, file or resource.
    pub source: Option<String>,
    /// Whom the books hold the address for.
    pub owner: Option<String>,
    /// One sentence.
    pub detail: String,
    /// Why it is over.
    pub resolved_because: Option<String>,
}

/// One address, more than one claimant.
#[derive(Clone, Debug, Deserialize)]
pub struct Conflict {
    /// Stable for the life of the conflict.
    pub conflict_id: String,
    /// The node's name.
    pub node: String,
    /// The address.
    pub address: String,
    /// The VLAN it was claimed in.
    pub vlan: Option<Value>,
    /// `duplicate`, `host` or `flapping`.
    pub kind: String,
    /// `certain` or `observed`.
    pub confidence: String,
    /// `active` or `resolved`.
    pub state: String,
    /// RFC 3339; in a resolving event.
    pub resolved_at: Option<String>,
    /// Kernel timestamp of the deciding observation to the event's creation, in microseconds.
    pub latency_us: Option<f64>,
    /// The device whose pod receives the traffic.
    pub traffic_goes_to: Option<String>,
    /// Who claims it; in a resolving event also who did.
    pub claimants: Vec<Claimant>,
}

impl Conflict {
    /// The claimants' devices, sorted.
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

/// A device that claims the address.
#[derive(Clone, Debug, Deserialize)]
pub struct Claimant {
    /// Its name.
    pub device: String,
    /// Its index in the node's namespace.
    pub ifindex: u32,
    /// The hardware address that the claim gave.
    pub mac: Option<String>,
    /// The bridge that it is a port of.
    pub master: Option<String>,
    /// Why it left.
    #[serde(default)]
    pub left: Option<String>,
    /// The pod on it.
    pub pod: Option<Value>,
    /// Why the pod is unknown.
    pub pod_unknown_because: Option<String>,
    /// On what ground.
    pub evidence: Vec<Evidence>,
}

impl Claimant {
    /// The kinds of its evidence, sorted, each once.
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

/// One ground for a claim.
#[derive(Clone, Debug, Deserialize)]
pub struct Evidence {
    /// `address`, `arp`, `ndp`, `neighbour` or `source`.
    pub kind: String,
    /// The hardware address it gave.
    pub mac: Option<String>,
    /// Such as the neighbour entry's state.
    pub detail: Option<String>,
}
