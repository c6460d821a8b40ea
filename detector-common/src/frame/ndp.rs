//! Neighbour solicitations and advertisements (RFC 4861), and duplicate address detection (RFC 4862).

use network_types::{icmp::Icmpv6Hdr, ip::Ipv6Hdr};

use super::{Frame, Wire, is_station};
use crate::{Claim, RejectReason, TAG_NDP};

const ICMPV6: u8 = 58;
const FRAGMENT: u8 = 44;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_LINK_LAYER: u8 = 1;
const TARGET_LINK_LAYER: u8 = 2;
/// The Solicited flag of an advertisement, in the first byte behind the ICMPv6 checksum.
const SOLICITED: u8 = 0x40;
/// The solicited-node groups, `ff02::1:ff00:0/104` (RFC 4291, 2.7.1), without the 24 bits that differ.
const SOLICITED_NODE: u128 = 0xff02_0000_0000_0000_0000_0001_ff00_0000 >> 24;
/// A message longer than this many options is no real one: the most a stack sends is a link-layer address, a nonce and
/// the four of SEND (RFC 3971).
const MAX_OPTIONS: usize = 8;
/// Offset of the IPv6 next header field.
const NEXT_HEADER: usize = 6;
/// Length of an IPv6 fragment header.
const FRAGMENT_LEN: usize = 8;
/// The least a solicitation or advertisement measures: header, flags and target.
const MESSAGE_LEN: usize = Icmpv6Hdr::LEN + 16;
/// What a link-layer address option of Ethernet measures, and so its length field times 8.
const OPTION_UNIT: usize = 8;

/// The IPv6 and ICMPv6 headers and the target, as they follow each other in the frame.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Message {
    ip: Ipv6Hdr,
    icmp: Icmpv6Hdr,
    target: [u8; 16],
}

const _: () = assert!(size_of::<Message>() == 64 && align_of::<Message>() == 1);
// SAFETY: bytes alone, no padding (size and alignment are asserted above).
unsafe impl Wire for Message {}

/// Whether the IPv6 packet at `offset` is surely no solicitation or advertisement. One byte is read of a data packet.
#[inline(always)]
pub(super) fn absent<F: Frame>(frame: &F, offset: usize) -> bool {
    match frame.peek(offset + NEXT_HEADER) {
        Some(ICMPV6) => !is_neighbour_discovery(frame, offset + Ipv6Hdr::LEN),
        Some(FRAGMENT) => {
            frame.peek(offset + Ipv6Hdr::LEN) != Some(ICMPV6)
                || !is_neighbour_discovery(frame, offset + Ipv6Hdr::LEN + FRAGMENT_LEN)
        }
        _ => true,
    }
}

#[inline(always)]
fn is_neighbour_discovery<F: Frame>(frame: &F, offset: usize) -> bool {
    matches!(frame.peek(offset), Some(SOLICITATION | ADVERTISEMENT))
}

/// The claim of the message at `offset`, which [`absent`] has let through.
#[inline(always)]
pub(super) fn fill<F: Frame>(
    frame: &F,
    offset: usize,
    claim: &mut Claim,
) -> Result<(), RejectReason> {
    let Message { ip, icmp, target } = frame
        .read::<Message>(offset)
        .ok_or(RejectReason::Truncated)?;
    if ip.vcf[0] >> 4 != 6 {
        return Err(RejectReason::IpVersion);
    }
    if ip.next_hdr != ICMPV6 {
        return Err(RejectReason::Fragment);
    }
    if ip.hop_limit != 255 {
        return Err(RejectReason::HopLimit);
    }
    if icmp.code != 0 {
        return Err(RejectReason::IcmpCode);
    }
    let length = usize::from(u16::from_be_bytes(ip.payload_len));
    if length < MESSAGE_LEN {
        return Err(RejectReason::IcmpLength);
    }
    let end = offset + Ipv6Hdr::LEN + length;
    if end > frame.length() {
        return Err(RejectReason::Truncated);
    }
    if target[0] == 0xff {
        return Err(RejectReason::Address);
    }
    let solicitation = icmp.type_ == SOLICITATION;
    let detection = solicitation && ip.src_addr == [0; 16];
    // RFC 4861, 7.1.1 and 7.1.2; Linux discards the same (`ndisc_recv_ns`, `ndisc_recv_na`).
    let contradicts = if solicitation {
        detection && u128::from_be_bytes(ip.dst_addr) >> 24 != SOLICITED_NODE
    } else {
        ip.dst_addr[0] == 0xff && icmp.data[0] & SOLICITED != 0
    };
    if contradicts {
        return Err(RejectReason::NdpContradiction);
    }
    claim.tag = TAG_NDP;
    claim.tentative = u8::from(detection);
    claim.address = if solicitation && !detection {
        ip.src_addr
    } else {
        target
    };
    if !is_unicast(claim.address) {
        return Err(RejectReason::Address);
    }
    let wanted = if solicitation {
        SOURCE_LINK_LAYER
    } else {
        TARGET_LINK_LAYER
    };
    claim.mac = claim.ether_source;
    let named = link_layer_option(
        frame,
        offset + size_of::<Message>(),
        end,
        wanted,
        &mut claim.mac,
    )?;
    // RFC 4861, 7.1.1: who has no address yet is not to be answered.
    if detection && named {
        return Err(RejectReason::NdpContradiction);
    }
    if !is_station(claim.mac) {
        return Err(RejectReason::HardwareAddress);
    }
    Ok(())
}

/// Puts the hardware address in the first option of type `wanted` into `mac`; `false` where there is none. All options are checked, also those after it:
/// a receiver discards the whole message for one bad length (RFC 4861, 7.1).
#[inline(always)]
fn link_layer_option<F: Frame>(
    frame: &F,
    start: usize,
    end: usize,
    wanted: u8,
    mac: &mut [u8; 6],
) -> Result<bool, RejectReason> {
    let mut offset = start;
    let mut found = false;
    for index in 0..MAX_OPTIONS {
        if offset >= end {
            return Ok(found);
        }
        // A length is at least 8, so a shorter rest is out of bounds too.
        if end - offset < OPTION_UNIT {
            return Err(RejectReason::NdpOption);
        }
        // The first one, which mostly is the only one, stands at a known place.
        let option = if index == 0 {
            frame.read::<[u8; OPTION_UNIT]>(start)
        } else {
            frame.load::<[u8; OPTION_UNIT]>(offset)
        };
        let [kind, units, address @ ..] = option.ok_or(RejectReason::Truncated)?;
        let length = usize::from(units) * OPTION_UNIT;
        if length == 0 || length > end - offset {
            return Err(RejectReason::NdpOption);
        }
        if kind == wanted && !found {
            if length != OPTION_UNIT {
                return Err(RejectReason::NdpOption);
            }
            found = true;
            *mac = address;
        }
        offset += length;
    }
    if offset < end {
        Err(RejectReason::NdpOptionCount)
    } else {
        Ok(found)
    }
}

/// Neither unspecified, nor loopback, nor multicast.
#[inline(always)]
fn is_unicast(address: [u8; 16]) -> bool {
    let value = u128::from_be_bytes(address);
    value > 1 && address[0] != 0xff
}

/// The address that a message which [`fill`] let through asks for. What lies behind a tag in the frame, or a fragment
/// header, is read wrongly here and so mostly no solicitation.
#[inline(always)]
pub(super) fn asked(message: &Message) -> Option<[u8; 16]> {
    let asks = message.ip.next_hdr == ICMPV6 && message.icmp.type_ == SOLICITATION;
    (asks && is_unicast(message.target)).then_some(message.target)
}
