//! Which addresses can be claimed at all, and the scope within which two claims conflict
//! (`docs/detection-rules.md`, sections 2 and 4).

use std::net::IpAddr;

use super::observation::{IfIndex, Vlan};

/// Two claims of one address conflict only within one scope. The network namespace is always the
/// agent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Scope {
    /// VLAN tags of the claim.
    pub(super) vlan: Vlan,
    /// The L2 domain (the bridge, or the device itself); set for link-local addresses only.
    pub(super) domain: Option<IfIndex>,
}

/// Untagged claims of addresses that are not link-local: those that IPAM allocates and routes lead
/// to.
pub(super) const NODE_WIDE: Scope = Scope {
    vlan: Vlan {
        outer: None,
        inner: None,
    },
    domain: None,
};

/// Whether an address can belong to one pod: not unspecified, loopback, multicast, broadcast or
/// reserved.
pub(super) fn is_claimable(address: IpAddr) -> bool {
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
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "a test that cannot go on fails")]

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
