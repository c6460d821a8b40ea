//! What an operator may change about the rules, and the bounds that keep memory finite.

use std::{net::IpAddr, time::Duration};

use ipnet::IpNet;

/// The rules' parameters.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Shared addresses (VIPs): moving between devices is normal for them, flapping is not.
    pub allow: Vec<IpNet>,
    /// How long a claim lives that was only heard, when nothing else supports it.
    pub claim_ttl: Duration,
    /// How many moves of an allowed address make it flap, at least 2 (RFC 7432 §15.1: 5).
    pub flap_moves: usize,
    /// Within which time (RFC 7432 §15.1: 180 s).
    pub flap_window: Duration,
    /// What makes an anomaly.
    pub anomalies: AnomalyRules,
    /// Memory bounds.
    pub bounds: Bounds,
    /// Seed of the conflict ids; random in production, fixed in tests.
    pub id_seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            claim_ttl: Duration::from_secs(600),
            flap_moves: 5,
            flap_window: Duration::from_secs(180),
            anomalies: AnomalyRules::default(),
            bounds: Bounds::default(),
            id_seed: 0,
        }
    }
}

impl Settings {
    /// Whether `address` is a shared one that may move.
    #[must_use]
    pub fn is_allowed(&self, address: IpAddr) -> bool {
        self.allow.iter().any(|net| net.contains(&address))
    }
}

/// How long something has to be so before it is an anomaly.
#[derive(Clone, Copy, Debug)]
pub struct AnomalyRules {
    /// A live address that the books lack, where single ones may lack for a moment: some plugins (ptp, AWS) free an
    /// address before they remove the device. Books that were deleted as a whole are believed at once.
    pub drift_grace: Duration,
    /// An address in the books that no pod has.
    pub leak_after: Duration,
    /// A host route that leads to no claimant: plugins change address, device and route one after the other.
    pub stray_route_grace: Duration,
}

impl Default for AnomalyRules {
    fn default() -> Self {
        Self {
            drift_grace: Duration::from_secs(2),
            leak_after: Duration::from_secs(600),
            stray_route_grace: Duration::from_secs(5),
        }
    }
}

/// Upper bounds of everything that others can make grow. At a bound the newest is counted and dropped.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Claims one device may hold by frames, and addresses it may hold in its namespace.
    pub claims_per_device: usize,
    /// Links followed at once.
    pub links: usize,
    /// Neighbour entries, forwarding entries and routes followed at once, each.
    pub kernel_entries: usize,
    /// Claimants listed in one conflict.
    pub claimants_per_conflict: usize,
    /// Conflicts open at once.
    pub open_conflicts: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            claims_per_device: 1024,
            links: 16_384,
            kernel_entries: 65_536,
            claimants_per_conflict: 64,
            open_conflicts: 4096,
        }
    }
}
