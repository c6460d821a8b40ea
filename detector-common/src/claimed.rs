//! The table of claimed addresses, by which the kernel program recognises a contested claim.

use crate::{Budget, TAG_ARP};

/// Maximum number of claimed addresses that the kernel program knows.
pub const CLAIMED_ADDRESSES: u32 = 32_768;

/// The holder of an address that several devices claim, or the node. No device has this index.
pub const SEVERAL_HOLDERS: u32 = 0;

/// What a device may publish beyond its budget for frames: claims of addresses that others claim.
pub const CONTESTED_BUDGET: Budget = Budget::new(4_096, 2_048);

/// How often a device may contest one address with different claims within the interval after which a claim is published
/// again. Claims with and without a VLAN tag, and probes, are counted separately.
pub const CONTESTS_PER_ADDRESS: u64 = 4;

/// A claimed address as a key: an IPv6 address, or an IPv4-mapped one (RFC 4291 section 2.5.5.2); see [`claimed_address`].
pub type ClaimedAddress = [u8; 16];

/// The key of an address; `tag` and `address` as in [`RawClaim`](crate::RawClaim).
#[must_use]
#[inline(always)]
pub const fn claimed_address(tag: u8, address: [u8; 16]) -> ClaimedAddress {
    if tag != TAG_ARP {
        return address;
    }
    let [a, b, c, d, ..] = address;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::TAG_NDP;

    #[test]
    fn ipv4_addresses_are_mapped() {
        let mut address = [0; 16];
        address[..4].copy_from_slice(&[10, 244, 2, 10]);
        let mapped = Ipv4Addr::new(10, 244, 2, 10).to_ipv6_mapped();
        assert_eq!(claimed_address(TAG_ARP, address), mapped.octets());
        let address = Ipv6Addr::LOCALHOST.octets();
        assert_eq!(claimed_address(TAG_NDP, address), address);
    }
}
