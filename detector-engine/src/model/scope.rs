//! Which addresses can be claimed at all, and the scope within which two claims conflict
//! (`docs/detection-rules.md`, sections 2 and 4).

use std::net::IpAddr;

use crate::model::{IfIndex, Network, Vlan};

/// Identifies a CNI network by its place in the list of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CniNetworkId(pub(crate) usize);

/// Identifies a network. The network namespace is always the agent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum NetworkId {
    /// The routing domain of the main table.
    Node,
    /// The routing domain of a VRF.
    Vrf(IfIndex),
    /// The L2 domain of a bridge, or of another switch, that the node does not route.
    Switch(IfIndex),
    /// A network of a switch other than a bridge, which the CNI results of its ports name.
    Cni(CniNetworkId),
    /// One link, for a link-local address: that of a bridge and its ports, or of a device alone.
    Link(IfIndex),
}

impl NetworkId {
    /// The link that identifies it.
    pub(crate) fn link(self) -> Option<IfIndex> {
        match self {
            Self::Node | Self::Cni(_) => None,
            Self::Vrf(link) | Self::Switch(link) | Self::Link(link) => Some(link),
        }
    }

    /// The network of a persisted conflict, with the link that identifies it.
    pub(crate) fn of_record(address: IpAddr, network: &Network, link: Option<IfIndex>) -> Self {
        match (network, link) {
            (_, None) => Self::Node,
            (Network::Vrf(_), Some(link)) => Self::Vrf(link),
            // A record from before networks had names has a link only for a link-local address.
            (_, Some(link)) if is_link_local(address) => Self::Link(link),
            (_, Some(link)) => Self::Switch(link),
        }
    }
}

/// Two claims of one address conflict only within one scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Scope {
    pub(crate) network: NetworkId,
    /// VLAN tags of the claim; none if its VLAN is routed.
    pub(crate) vlan: Vlan,
}

impl Scope {
    /// Untagged in this network.
    pub(crate) const fn untagged(network: NetworkId) -> Self {
        let vlan = Vlan {
            outer: None,
            inner: None,
        };
        Self { network, vlan }
    }
}

/// Untagged claims in what the node routes by its main table: that is where IPAM's addresses are.
pub(crate) const NODE_WIDE: Scope = Scope::untagged(NetworkId::Node);

/// Whether an address can belong to one pod: not unspecified, loopback, multicast, broadcast or
/// reserved.
pub(crate) fn is_claimable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let first = v4.octets()[0];
            // 0/8 "this network" and 127/8 never leave a host; 224/4 and 240/4 are not unicast (RFC
            // 6890).
            first != 0 && first != 127 && first < 224
        }
        IpAddr::V6(v6) => !v6.is_unspecified() && !v6.is_loopback() && !v6.is_multicast(),
    }
}

/// Addresses that are unique only on one link: 169.254/16 (RFC 3927) and fe80::/10 (RFC 4291).
#[must_use]
pub fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Whether `address` on an interface shows that the kernel's stack is in charge of `other` there
/// too: it has the same family, and is not link-local unless `other` is.
pub(crate) fn is_like(address: IpAddr, other: IpAddr) -> bool {
    address.is_ipv4() == other.is_ipv4() && (is_link_local(other) || !is_link_local(address))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "a test that cannot continue fails")]

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn addresses_no_pod_can_own_are_not_claimable() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "ff02::1",
        ] {
            assert!(!is_claimable(ip(text)), "{text}");
        }
        for text in [
            "10.0.0.1",
            "169.254.1.1",
            "223.255.255.1",
            "fe80::1",
            "2001:db8::1",
        ] {
            assert!(is_claimable(ip(text)), "{text}");
        }
    }

    #[test]
    fn link_local_covers_both_families() {
        assert!(
            is_link_local(ip("169.254.0.1"))
                && is_link_local(ip("fe80::1"))
                && is_link_local(ip("febf::1"))
        );
        assert!(!is_link_local(ip("169.253.0.1")) && !is_link_local(ip("fec0::1")));
    }
}
