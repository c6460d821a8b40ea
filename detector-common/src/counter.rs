//! The counters the kernel programs keep: one `u64` per CPU and [`Counter`].
//!
//! A counter is an index into one per-CPU array; index, label and the list of all are defined together here.

/// What a published or suppressed observation was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// A claim made by ARP.
    Arp,
    /// A claim made by Neighbour Discovery.
    Ndp,
    /// A neighbour entry of the kernel that appeared, changed or went.
    Neighbour,
}

/// Why an observation that should have been published was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The ring buffer had no room.
    RingFull,
    /// The device's budget for new claims was spent.
    Budget,
    /// The budget of the device for neighbour entries was spent.
    NeighbourBudget,
}

/// Why a frame that looked like a claim was none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// The frame ends before what it must hold.
    Truncated,
    /// More than two VLAN tags, or the reserved VLAN id 4095.
    Vlan,
    /// ARP for another hardware or protocol than Ethernet and IPv4, or with their lengths wrong.
    ArpFormat,
    /// Neither an ARP request nor an ARP reply.
    ArpOperation,
    /// The claimed address is unspecified, loopback, multicast or broadcast.
    Address,
    /// The claimed hardware address is zero or a group address.
    HardwareAddress,
    /// An IPv6 ethertype over another IP version.
    IpVersion,
    /// Neighbour Discovery with a hop limit other than 255: it has been forwarded (RFC 4861, 7.1).
    HopLimit,
    /// Neighbour Discovery with an ICMPv6 code other than 0.
    IcmpCode,
    /// An ICMPv6 length too small for the message.
    IcmpLength,
    /// Neighbour Discovery in a fragment (RFC 6980).
    Fragment,
    /// A Neighbour Discovery option of length zero, out of bounds, or not of the size an Ethernet address needs.
    NdpOption,
    /// More Neighbour Discovery options than any real stack sends.
    NdpOptionCount,
    /// Neighbour Discovery that no receiver takes, because its fields contradict each other (RFC 4861, 7.1): duplicate address
    /// detection with a source link-layer address or to another group than a solicited node's, or an advertisement to a
    /// group that calls itself solicited.
    NdpContradiction,
}

/// One of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counter {
    /// Records handed to the agent.
    Published(RecordKind),
    /// Observations equal to one published a short while ago.
    Known(RecordKind),
    /// Observations that were lost.
    Dropped(DropReason),
    /// Frames that were no valid claim.
    Rejected(RejectReason),
}

/// How many counters there are.
pub const COUNTERS: u32 = 23;

impl RecordKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Arp, Self::Ndp, Self::Neighbour];

    /// The value of the label `kind`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Arp => "arp",
            Self::Ndp => "ndp",
            Self::Neighbour => "neighbour",
        }
    }
}

impl DropReason {
    /// Every reason.
    pub const ALL: [Self; 3] = [Self::RingFull, Self::Budget, Self::NeighbourBudget];

    /// The value of the label `reason`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::RingFull => "ring_full",
            Self::Budget => "budget",
            Self::NeighbourBudget => "neighbour_budget",
        }
    }
}

impl RejectReason {
    /// Every reason.
    pub const ALL: [Self; 14] = [
        Self::Truncated,
        Self::Vlan,
        Self::ArpFormat,
        Self::ArpOperation,
        Self::Address,
        Self::HardwareAddress,
        Self::IpVersion,
        Self::HopLimit,
        Self::IcmpCode,
        Self::IcmpLength,
        Self::Fragment,
        Self::NdpOption,
        Self::NdpOptionCount,
        Self::NdpContradiction,
    ];

    /// The value of the label `reason`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Vlan => "vlan",
            Self::ArpFormat => "arp_format",
            Self::ArpOperation => "arp_operation",
            Self::Address => "address",
            Self::HardwareAddress => "hardware_address",
            Self::IpVersion => "ip_version",
            Self::HopLimit => "hop_limit",
            Self::IcmpCode => "icmp_code",
            Self::IcmpLength => "icmp_length",
            Self::Fragment => "fragment",
            Self::NdpOption => "ndp_option",
            Self::NdpOptionCount => "ndp_option_count",
            Self::NdpContradiction => "ndp_contradiction",
        }
    }
}

impl Counter {
    /// Its index in the array of counters, below [`COUNTERS`].
    #[must_use]
    #[inline(always)]
    pub const fn index(self) -> u32 {
        match self {
            Self::Published(kind) => kind as u32,
            Self::Known(kind) => 3 + kind as u32,
            Self::Dropped(reason) => 6 + reason as u32,
            Self::Rejected(reason) => 9 + reason as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, vec::Vec};

    use super::*;

    #[test]
    fn every_counter_has_an_index_of_its_own_within_bounds() {
        let mut all: Vec<Counter> = Vec::new();
        all.extend(RecordKind::ALL.map(Counter::Published));
        all.extend(RecordKind::ALL.map(Counter::Known));
        all.extend(DropReason::ALL.map(Counter::Dropped));
        all.extend(RejectReason::ALL.map(Counter::Rejected));
        let indexes: HashSet<u32> = all.iter().map(|counter| counter.index()).collect();
        assert_eq!(indexes.len(), all.len());
        assert_eq!(indexes, (0..COUNTERS).collect());
    }

    #[test]
    fn labels_are_unique() {
        let labels: HashSet<_> = RejectReason::ALL
            .iter()
            .map(|reason| reason.label())
            .collect();
        assert_eq!(labels.len(), RejectReason::ALL.len());
    }
}
