//! Parameters of the detection rules, and the bounds that keep memory finite.

use std::{net::IpAddr, time::Duration};

use detector_common::Budget;
use ipnet::IpNet;

/// Parameters of the detection rules (`docs/detection-rules.md`).
#[derive(Clone, Debug)]
pub struct Settings {
    /// Shared addresses (VIPs): they may move between devices, but not flap.
    pub allow: Vec<IpNet>,
    /// How long a claim that was only seen in frames lives without further evidence.
    pub claim_ttl: Duration,
    /// How many moves make an allowed address flap, at least 2 (RFC 7432 §15.1: 5).
    pub flap_moves: usize,
    /// The window within which moves are counted (RFC 7432 §15.1: 180 s).
    pub flap_window: Duration,
    /// How long a new port of a switch other than a bridge waits for the name of its network. Until
    /// then it conflicts with nothing.
    pub cni_network_wait: Duration,
    /// The shortest time between two updates of a conflict. The last change within it is reported at its end.
    pub update_interval: Duration,
    /// Whether addresses are noted whose claims may have changed, for
    /// [`Engine::take_changed_claims`](crate::Engine::take_changed_claims).
    pub follow_claims: bool,
    /// Grace periods of anomalies.
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
            cni_network_wait: Duration::ZERO,
            update_interval: Duration::ZERO,
            follow_claims: false,
            anomalies: AnomalyRules::default(),
            bounds: Bounds::default(),
            id_seed: 0,
        }
    }
}

impl Settings {
    /// Whether `address` is a shared address that may move.
    #[must_use]
    pub fn is_allowed(&self, address: IpAddr) -> bool {
        self.allow.iter().any(|net| net.contains(&address))
    }
}

/// Three addresses contested at once may be mistakes, such as a copied configuration.
pub const SWEEP_FROM: usize = 4;

/// From when on a state is an anomaly.
#[derive(Clone, Copy, Debug)]
pub struct AnomalyRules {
    /// A live address without an allocation. Some plugins (ptp, AWS) release an address before they
    /// remove the device. Not applied if the pool's allocations were deleted as a whole.
    pub drift_grace: Duration,
    /// An allocated address that no pod has.
    pub leak_after: Duration,
    /// A host route that leads to no claimant: plugins change the address, the device and the route
    /// one after the other.
    pub stray_route_grace: Duration,
    /// A hardware address that two pods have, or that was learned on another port than its pod's: a
    /// machine that migrates is behind both for a moment, and so may be a pod that is replaced.
    pub mac_grace: Duration,
    /// How many open conflicts a device must contest on observed evidence alone to be a sweep.
    pub sweep_from: usize,
}

impl Default for AnomalyRules {
    fn default() -> Self {
        Self {
            drift_grace: Duration::from_secs(2),
            leak_after: Duration::from_secs(600),
            stray_route_grace: Duration::from_secs(5),
            mac_grace: Duration::from_secs(5),
            sweep_from: SWEEP_FROM,
        }
    }
}

/// How many times [`Bounds::open_conflicts`] may be open in all.
const RESERVE_FACTOR: usize = 4;

/// Upper bounds of everything that pods or plugins can make grow. What is dropped at a bound is
/// counted in [`DropCounters`](crate::DropCounters); no device can have claims of others dropped.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Addresses that one device may claim by frames, and addresses it may have assigned.
    pub claims_per_device: usize,
    /// Addresses assigned beyond that, of all devices: they count as claims once another claims them
    /// too.
    pub overflow_addresses: usize,
    /// Changes of the addresses of one device; beyond, the device is read instead.
    pub address_changes: Budget,
    /// The same beyond that, of addresses that others claim too.
    pub contested_address_changes: Budget,
    /// Links tracked at once.
    pub links: usize,
    /// Neighbour entries, forwarding entries and routes tracked at once, each.
    pub kernel_entries: usize,
    /// Claimants listed in one conflict, and as many that left.
    pub claimants_per_conflict: usize,
    /// Claimants listed in all open conflicts, including those that left: a kilobyte each at most, see `tests/update_pace.rs`.
    /// Beyond, a conflict lists two.
    pub listed_claimants: usize,
    /// Conflicts open at once between devices that take part in many; four times as many in all.
    pub open_conflicts: usize,
    /// Anomalies open at once that name one device.
    pub anomalies_per_device: usize,
    /// From how many open conflicts on a device counts as one that takes part in many.
    pub conflicts_per_device: usize,
}

impl Bounds {
    /// Conflicts open at once in all.
    #[must_use]
    pub fn all_open_conflicts(&self) -> usize {
        self.open_conflicts.saturating_mul(RESERVE_FACTOR)
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            claims_per_device: 1024,
            overflow_addresses: 131_072,
            address_changes: Budget::new(2048, 256),
            contested_address_changes: Budget::new(256, 64),
            links: 16_384,
            kernel_entries: 65_536,
            claimants_per_conflict: 16,
            listed_claimants: 65_536,
            open_conflicts: 4096,
            anomalies_per_device: 256,
            conflicts_per_device: 64,
        }
    }
}
