//! ARP (RFC 826) and address conflict detection (RFC 5227).

use network_types::{arp::ArpHdr, eth::EtherType};

use super::{FrameReader, Payload, WireFormat};
use crate::{RawClaim, RejectReason, TAG_ARP};

const REQUEST: u16 = 1;
const REPLY: u16 = 2;
/// Hardware types Ethernet and IEEE 802 (RFC 5494 treats them alike).
const ETHERNET: u16 = 1;
const IEEE_802: u16 = 6;

const _: () = assert!(ArpHdr::LEN == 28);
// SAFETY: consists of byte arrays without padding (its size is asserted above).
unsafe impl WireFormat for ArpHdr {}

/// Fills in the claim of an ARP packet: the target of a probe, tentatively, else the sender.
#[inline(always)]
pub(super) fn fill<F: FrameReader>(
    frame: &F,
    payload: Payload,
    claim: &mut RawClaim,
) -> Result<bool, RejectReason> {
    let arp = payload
        .read::<_, ArpHdr>(frame, 0)
        .ok_or(RejectReason::Truncated)?;
    let hardware = u16::from_be_bytes(arp.htype);
    let protocol = u16::from_ne_bytes(arp.ptype);
    if !matches!(hardware, ETHERNET | IEEE_802)
        || protocol != EtherType::Ipv4 as u16
        || arp.hlen != 6
        || arp.plen != 4
    {
        return Err(RejectReason::ArpFormat);
    }
    let operation = u16::from_be_bytes(arp.oper);
    if !matches!(operation, REQUEST | REPLY) {
        return Err(RejectReason::ArpOperation);
    }
    let probe = operation == REQUEST && arp.spa == [0; 4];
    let address = if probe { arp.tpa } else { arp.spa };
    // 0/8, 127/8, and everything from 224/4: multicast, class E and broadcast.
    if matches!(address[0], 0 | 127 | 224..) {
        return Err(RejectReason::Address);
    }
    claim.tag = TAG_ARP;
    claim.tentative = u8::from(probe);
    if let Some(first) = claim.address.first_chunk_mut() {
        *first = address;
    }
    claim.mac = arp.sha;
    Ok(true)
}

/// The address requested by a packet that [`fill`] accepted.
#[inline(always)]
pub(super) fn requested_address(arp: &ArpHdr) -> Option<[u8; 16]> {
    if u16::from_be_bytes(arp.oper) != REQUEST || matches!(arp.tpa[0], 0 | 127 | 224..) {
        return None;
    }
    let [a, b, c, d] = arp.tpa;
    Some([a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
}
