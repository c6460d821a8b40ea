//! Whom a frame asks for: ARP requests and neighbour solicitations to everybody.
//!
//! Limits: frames that carry a tag in themselves (not held apart by the kernel) are not looked at.

use network_types::eth::EthHdr;

use super::{
    ARP, Frame,
    arp::{self, Arp},
    ndp::{self, Message},
};
use crate::{Claim, TAG_ARP};

/// The address that a frame asks everybody for; `claim` is what the same frame claims. `None` where it asks for nobody,
/// for itself, whether an address is free, or a neighbour that it already knows (Linux asks those by unicast,
/// RFC 1122 §2.3.2.1, RFC 4861 §7.3.3).
#[inline(always)]
pub fn question<F: Frame>(frame: &F, claim: &Claim) -> Option<[u8; 16]> {
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
        arp::asked(&frame.read::<Arp>(EthHdr::LEN)?)?
    } else {
        ndp::asked(&frame.read::<Message>(EthHdr::LEN)?)?
    };
    (target != claim.address).then_some(target)
}
