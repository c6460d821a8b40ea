//! The address that a frame asks for: ARP requests and neighbour solicitations sent to a group.
//!
//! Limit: frames with a VLAN tag inside the frame (not kept outside by the kernel), or with IPv6 extension headers, are not
//! examined.

use network_types::{arp::ArpHdr, eth::EthHdr};

use super::{
    ARP, FrameReader, arp,
    ndp::{self, NdpPacket},
};
use crate::{RawClaim, TAG_ARP};

/// The address that a broadcast or multicast frame asks for; `claim` is the claim of the same frame.
///
/// `None` if the frame asks for no address or for the sender's own, is a duplicate address probe, or is unicast: Linux
/// verifies a neighbour it already knows by unicast (RFC 1122 §2.3.2.1, RFC 4861 §7.3.3).
#[inline(always)]
pub fn probed_address<F: FrameReader>(frame: &F, claim: &RawClaim) -> Option<[u8; 16]> {
    if claim.tentative != 0 {
        return None;
    }
    let is_arp = claim.tag == TAG_ARP;
    if (frame.protocol() == ARP) != is_arp {
        return None;
    }
    // The group bit: broadcast, or the solicited-node multicast address.
    let [first, ..] = frame.read::<[u8; 6]>(0)?;
    if first & 1 == 0 {
        return None;
    }
    let target = if is_arp {
        arp::requested_address(&frame.read::<ArpHdr>(EthHdr::LEN)?)?
    } else {
        ndp::solicited_address(&frame.read::<NdpPacket>(EthHdr::LEN)?)?
    };
    (target != claim.address).then_some(target)
}
