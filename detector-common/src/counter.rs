//! The counters of the kernel programs: one `u64` per CPU and [`Counter`].
//!
//! A counter is an index into one per-CPU array.

/// The kind of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// A claim in an ARP frame.
    Arp,
    /// A claim in a Neighbour Discovery message.
    Ndp,
    /// A neighbour entry that was added, changed or removed.
    Neighbour,
}

/// Why an observation was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The ring buffer was full.
    RingFull,
    /// The device's budget for new claims was exhausted.
    Budget,
    /// The device's budget for neighbour entries was exhausted.
    NeighbourBudget,
}

/// Why a frame is not a valid claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// The frame is shorter than its headers require.
    Truncated,
    /// More than two VLAN tags with an id, or the reserved VLAN id 4095.
    Vlan,
    /// ARP for other hardware or protocol types than Ethernet and IPv4, or with wrong address lengths.
    ArpFormat,
    /// Neither an ARP request nor an ARP reply.
    ArpOperation,
    /// The claimed address is unspecified, loopback, multicast, broadcast or IPv4-mapped.
    Address,
    /// The ethertype is IPv6 but the IP version is not 6.
    IpVersion,
    /// Neighbour Discovery with a hop limit other than 255, so it was forwarded (RFC 4861 §7.1).
    HopLimit,
    /// Neighbour Discovery with an ICMPv6 code other than 0.
    IcmpCode,
    /// An ICMPv6 length too small for the message.
    IcmpLength,
    /// Neighbour Discovery in a fragment (RFC 6980 §5).
    Fragment,
    /// More IPv6 extension headers than are followed: whether Neighbour Discovery is behind them is unknown.
    ExtensionHeaderCount,
    /// A Neighbour Discovery option has length zero, exceeds the message, or cannot hold an Ethernet address.
    NdpOption,
    /// More VLAN tags than are followed: whether ARP or Neighbour Discovery is behind them is unknown.
    TagCount,
    /// Neighbour Discovery that receivers discard because its fields contradict each other (RFC 4861 §7.1): duplicate
    /// address detection with a source link-layer address option or not sent to a solicited-node address, a
    /// multicast advertisement with the Solicited flag, or a router advertisement or redirect that is not from a link-local
    /// address.
    NdpContradiction,
}

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counter {
    /// Records written to the ring buffer.
    Published(RecordKind),
    /// Observations that were published recently and not again.
    Known(RecordKind),
    /// Observations that were lost.
    Dropped(DropReason),
    /// Frames that are not valid claims.
    Rejected(RejectReason),
    /// Kernel log lines requested, including those that a limit or a full buffer suppressed.
    LogLines,
}

/// Number of counters.
pub const COUNTERS: u32 = 24;

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
        Self::IpVersion,
        Self::HopLimit,
        Self::IcmpCode,
        Self::IcmpLength,
        Self::Fragment,
        Self::ExtensionHeaderCount,
        Self::NdpOption,
        Self::TagCount,
        Self::NdpContradiction,
    ];

    /// The value of the label `reason`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Vlan => "vlan",
            Self::TagCount => "tag_count",
            Self::ArpFormat => "arp_format",
            Self::ArpOperation => "arp_operation",
            Self::Address => "address",
            Self::IpVersion => "ip_version",
            Self::HopLimit => "hop_limit",
            Self::IcmpCode => "icmp_code",
            Self::IcmpLength => "icmp_length",
            Self::Fragment => "fragment",
            Self::ExtensionHeaderCount => "extension_header_count",
            Self::NdpOption => "ndp_option",
            Self::NdpContradiction => "ndp_contradiction",
        }
    }
}

impl Counter {
    /// Index in the array of counters, below [`COUNTERS`].
    #[must_use]
    #[inline(always)]
    pub const fn index(self) -> u32 {
        match self {
            Self::Published(kind) => kind as u32,
            Self::Known(kind) => 3 + kind as u32,
            Self::Dropped(reason) => 6 + reason as u32,
            Self::Rejected(reason) => 9 + reason as u32,
            Self::LogLines => 23,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, vec::Vec};

    use super::*;

    #[test]
    fn counter_indexes_are_unique_and_in_bounds() {
        let mut all: Vec<Counter> = Vec::new();
        all.extend(RecordKind::ALL.map(Counter::Published));
        all.extend(RecordKind::ALL.map(Counter::Known));
        all.extend(DropReason::ALL.map(Counter::Dropped));
        all.extend(RejectReason::ALL.map(Counter::Rejected));
        all.push(Counter::LogLines);
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
