//! Neighbour solicitations and advertisements (RFC 4861), and duplicate address detection (RFC 4862).

use network_types::{icmp::Icmpv6Hdr, ip::Ipv6Hdr};

use super::{FrameReader, WireFormat, is_station};
use crate::{RawClaim, RejectReason, TAG_NDP};

const ICMPV6: u8 = 58;
const FRAGMENT: u8 = 44;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_LINK_LAYER: u8 = 1;
const TARGET_LINK_LAYER: u8 = 2;
/// The Solicited flag of an advertisement, in the first byte after the ICMPv6 checksum.
const SOLICITED: u8 = 0x40;
/// The solicited-node groups `ff02::1:ff00:0/104` (RFC 4291 §2.7.1), shifted by the 24 bits that vary.
const SOLICITED_NODE: u128 = 0xff02_0000_0000_0000_0000_0001_ff00_0000 >> 24;
/// Messages with more options are rejected: stacks send at most a link-layer address, a nonce and the four options of
/// SEND (RFC 3971).
const MAX_OPTIONS: usize = 8;
/// Offset of the IPv6 next header field.
const NEXT_HEADER: usize = 6;
/// Length of an IPv6 fragment header.
const FRAGMENT_LEN: usize = 8;
/// Minimum length of a solicitation or advertisement: header, flags and target.
const MESSAGE_LEN: usize = Icmpv6Hdr::LEN + 16;
/// Unit of an option's length field, which is also the length of an Ethernet link-layer address option.
const OPTION_UNIT: usize = 8;

/// The IPv6 header, the ICMPv6 header and the target address, contiguous in the frame.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct NdpMessage {
    ip: Ipv6Hdr,
    icmp: Icmpv6Hdr,
    target: [u8; 16],
}

const _: () = assert!(size_of::<NdpMessage>() == 64 && align_of::<NdpMessage>() == 1);
// SAFETY: consists of byte arrays without padding (size and alignment are asserted above).
unsafe impl WireFormat for NdpMessage {}

/// Whether the IPv6 packet at `offset` is a solicitation or advertisement. Reads one byte of a data packet.
#[inline(always)]
pub(super) fn is_present<F: FrameReader>(frame: &F, offset: usize) -> bool {
    match frame.peek(offset + NEXT_HEADER) {
        Some(ICMPV6) => is_neighbour_discovery(frame, offset + Ipv6Hdr::LEN),
        Some(FRAGMENT) => {
            frame.peek(offset + Ipv6Hdr::LEN) == Some(ICMPV6)
                && is_neighbour_discovery(frame, offset + Ipv6Hdr::LEN + FRAGMENT_LEN)
        }
        _ => false,
    }
}

#[inline(always)]
fn is_neighbour_discovery<F: FrameReader>(frame: &F, offset: usize) -> bool {
    matches!(frame.peek(offset), Some(SOLICITATION | ADVERTISEMENT))
}

/// Fills in the claim of the message at `offset`, for which [`is_present`] is true.
#[inline(always)]
pub(super) fn fill<F: FrameReader>(
    frame: &F,
    offset: usize,
    claim: &mut RawClaim,
) -> Result<(), RejectReason> {
    let NdpMessage { ip, icmp, target } = frame
        .read::<NdpMessage>(offset)
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
    // RFC 4861 §7.1.1, §7.1.2; Linux discards these as well (`ndisc_recv_ns`, `ndisc_recv_na` in net/ipv6/ndisc.c).
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
    let has_link_layer_address = link_layer_option(
        frame,
        offset + size_of::<NdpMessage>(),
        end,
        wanted,
        &mut claim.mac,
    )?;
    // RFC 4861 §7.1.1: no source link-layer address with the unspecified source address.
    if detection && has_link_layer_address {
        return Err(RejectReason::NdpContradiction);
    }
    if !is_station(claim.mac) {
        return Err(RejectReason::HardwareAddress);
    }
    Ok(())
}

/// Stores the hardware address of the first option of type `wanted` in `mac`; returns `false` if there is none. Options
/// after it are checked too: receivers discard a message for one bad length (RFC 4861 §7.1).
#[inline(always)]
fn link_layer_option<F: FrameReader>(
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
        // An option is at least 8 bytes long, so a shorter rest is out of bounds.
        if end - offset < OPTION_UNIT {
            return Err(RejectReason::NdpOption);
        }
        // The first option, usually the only one, is at a constant offset, where reading is cheaper.
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

/// Whether the address is neither unspecified, loopback nor multicast.
#[inline(always)]
fn is_unicast(address: [u8; 16]) -> bool {
    let value = u128::from_be_bytes(address);
    value > 1 && address[0] != 0xff
}

/// The address solicited by a message that [`fill`] accepted. A message after an in-frame VLAN tag or a fragment header is
/// read at the wrong offset here and usually does not look like a solicitation.
#[inline(always)]
pub(super) fn solicited_address(message: &NdpMessage) -> Option<[u8; 16]> {
    let is_solicitation = message.ip.next_hdr == ICMPV6 && message.icmp.type_ == SOLICITATION;
    (is_solicitation && is_unicast(message.target)).then_some(message.target)
}
