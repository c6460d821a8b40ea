//! Neighbour Discovery (RFC 4861): every message that Linux learns a hardware address from, and duplicate address detection
//! (RFC 4862).
//!
//! | message | claims | Linux learns from it in net/ipv6 |
//! | --- | --- | --- |
//! | neighbour solicitation | its source | `ndisc_recv_ns` (ndisc.c) |
//! | neighbour advertisement | its target | `ndisc_recv_na` |
//! | router solicitation | its source | `ndisc_recv_rs`, on a router |
//! | router advertisement | its source, a router | `ndisc_router_discovery` |
//! | redirect with a target link-layer option | its target | `rt6_do_redirect` (route.c) |

use network_types::{eth::EthHdr, icmp::Icmpv6Hdr, ip::Ipv6Hdr};

use super::{FrameReader, Payload, WireFormat};
use crate::{RawClaim, RejectReason, TAG_NDP};

const ICMPV6: u8 = 58;
/// Extension headers that Linux steps over (`ipv6_parse_hopopts`, `ipv6_destopt_rcv` and `ipv6_rthdr_rcv` in
/// net/ipv6/exthdrs.c, `ipv6_frag_rcv` in net/ipv6/reassembly.c).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;
/// Packets with more extension headers are rejected, though receivers accept them: no stack sends so many.
const MAX_EXTENSION_HEADERS: usize = 8;
/// Options beyond these are not examined. The message is still a claim; stacks put a link-layer address first.
const MAX_OPTIONS: usize = 8;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
const SOURCE_LINK_LAYER: u8 = 1;
const TARGET_LINK_LAYER: u8 = 2;
/// The Solicited flag of an advertisement, in the first byte after the ICMPv6 checksum.
const SOLICITED: u8 = 0x40;
/// The solicited-node groups `ff02::1:ff00:0/104` (RFC 4291 §2.7.1), shifted by the 24 bits that vary.
const SOLICITED_NODE: u128 = 0xff02_0000_0000_0000_0000_0001_ff00_0000 >> 24;
/// Offset of the IPv6 next header field.
const NEXT_HEADER: usize = 6;
/// Length of an IPv6 fragment header, and unit of the length of the other extension headers, which does not count the first.
const EXTENSION_UNIT: usize = 8;
/// Unit of an option's length field, which is also the length of an Ethernet link-layer address option.
const OPTION_UNIT: usize = 8;

/// The ICMPv6 header and the target address: a solicitation or advertisement without its options.
#[repr(C)]
#[derive(Clone, Copy)]
struct NdpBody {
    icmp: Icmpv6Hdr,
    target: [u8; 16],
}

/// The IPv6 header and a solicitation or advertisement directly behind it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct NdpPacket {
    ip: Ipv6Hdr,
    body: NdpBody,
}

const _: () = assert!(size_of::<NdpBody>() == 24 && align_of::<NdpBody>() == 1);
const _: () = assert!(size_of::<NdpPacket>() == 64 && align_of::<NdpPacket>() == 1);
// SAFETY: consists of byte arrays without padding (size and alignment are asserted above).
unsafe impl WireFormat for Ipv6Hdr {}
// SAFETY: as above.
unsafe impl WireFormat for Icmpv6Hdr {}
// SAFETY: as above.
unsafe impl WireFormat for NdpBody {}
// SAFETY: as above.
unsafe impl WireFormat for NdpPacket {}

/// Where a message is.
#[derive(Clone, Copy)]
pub(super) struct NdpLocation {
    /// Offset of the ICMPv6 header.
    offset: usize,
    /// A solicitation or advertisement of a neighbour directly behind the IPv6 header, without a tag in the frame: the usual
    /// messages, which are read in place.
    is_usual: bool,
    /// Whether one of them is a fragment header.
    is_fragment: bool,
}

/// Finds the message in an IPv6 packet. Reads one byte of a data packet without extension headers.
#[inline(always)]
pub(super) fn find<F: FrameReader>(
    frame: &F,
    payload: Payload,
) -> Result<Option<NdpLocation>, RejectReason> {
    let upper = payload.offset + Ipv6Hdr::LEN;
    match payload.peek(frame, NEXT_HEADER) {
        Some(ICMPV6) => {
            let kind = payload.peek(frame, Ipv6Hdr::LEN);
            Ok(is_neighbour_discovery(kind).then_some(NdpLocation {
                offset: upper,
                is_usual: !payload.has_tags && matches!(kind, Some(SOLICITATION | ADVERTISEMENT)),
                is_fragment: false,
            }))
        }
        Some(first @ (HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS)) => {
            find_behind_extensions(frame, upper, first)
        }
        _ => Ok(None),
    }
}

/// As [`find`], behind the extension header of type `first` at `offset`. The contents of the headers are not verified.
#[inline(always)]
fn find_behind_extensions<F: FrameReader>(
    frame: &F,
    mut offset: usize,
    first: u8,
) -> Result<Option<NdpLocation>, RejectReason> {
    let mut header = first;
    let mut is_fragment = false;
    for _ in 0..MAX_EXTENSION_HEADERS {
        let Some([next, units]) = frame.load::<[u8; 2]>(offset) else {
            return Ok(None);
        };
        offset += EXTENSION_UNIT;
        if header == FRAGMENT {
            is_fragment = true;
        } else {
            offset += usize::from(units) * EXTENSION_UNIT;
        }
        match next {
            ICMPV6 => {
                let location = NdpLocation {
                    offset,
                    is_usual: false,
                    is_fragment,
                };
                return Ok(is_neighbour_discovery(frame.load(offset)).then_some(location));
            }
            // Hop-by-hop options are valid only directly behind the IPv6 header (RFC 8200 §4.1).
            ROUTING | FRAGMENT | DESTINATION_OPTIONS => header = next,
            _ => return Ok(None),
        }
    }
    Err(RejectReason::ExtensionHeaderCount)
}

#[inline(always)]
fn is_neighbour_discovery(kind: Option<u8>) -> bool {
    matches!(kind, Some(ROUTER_SOLICITATION..=REDIRECT))
}

/// A message without its options.
struct NdpMessage {
    ip: Ipv6Hdr,
    icmp: Icmpv6Hdr,
    /// Zero in messages without one.
    target: [u8; 16],
}

#[inline(always)]
fn read<F: FrameReader>(frame: &F, payload: Payload, location: NdpLocation) -> Option<NdpMessage> {
    if location.is_usual {
        let NdpPacket { ip, body } = payload.read(frame, 0)?;
        let NdpBody { icmp, target } = body;
        return Some(NdpMessage { ip, icmp, target });
    }
    let ip = payload.read(frame, 0)?;
    let icmp = frame.load::<Icmpv6Hdr>(location.offset)?;
    let target = if has_target(icmp.type_) {
        frame.load(location.offset + Icmpv6Hdr::LEN)?
    } else {
        [0; 16]
    };
    Some(NdpMessage { ip, icmp, target })
}

#[inline(always)]
fn has_target(kind: u8) -> bool {
    matches!(kind, SOLICITATION | ADVERTISEMENT | REDIRECT)
}

/// The length of a message of this kind without its options.
#[inline(always)]
fn length_without_options(kind: u8) -> usize {
    match kind {
        ROUTER_SOLICITATION => 8,
        ROUTER_ADVERTISEMENT => 16,
        REDIRECT => 40,
        _ => size_of::<NdpBody>(),
    }
}

/// Fills in the claim of the message at `location`; `false` if it claims no address.
#[inline(always)]
pub(super) fn fill<F: FrameReader>(
    frame: &F,
    payload: Payload,
    location: NdpLocation,
    claim: &mut RawClaim,
) -> Result<bool, RejectReason> {
    let NdpMessage { ip, icmp, target } =
        read(frame, payload, location).ok_or(RejectReason::Truncated)?;
    if ip.vcf[0] >> 4 != 6 {
        return Err(RejectReason::IpVersion);
    }
    if location.is_fragment {
        return Err(RejectReason::Fragment);
    }
    if ip.hop_limit != 255 {
        return Err(RejectReason::HopLimit);
    }
    if icmp.code != 0 {
        return Err(RejectReason::IcmpCode);
    }
    let length = usize::from(u16::from_be_bytes(ip.payload_len));
    // Linux takes the packet as long as it is then, even without a jumbo payload option (`ip6_rcv_core` in
    // net/ipv6/ip6_input.c).
    let end = if length == 0 && ip.next_hdr == HOP_BY_HOP {
        frame.length()
    } else {
        payload.offset + Ipv6Hdr::LEN + length
    };
    let kind = icmp.type_;
    let options = location.offset + length_without_options(kind);
    if end < options {
        return Err(RejectReason::IcmpLength);
    }
    if end > frame.length() {
        return Err(RejectReason::Truncated);
    }
    let is_unspecified = ip.src_addr == [0; 16];
    // Without an address there is nothing to claim, and Linux learns nothing.
    if kind == ROUTER_SOLICITATION && is_unspecified {
        return Ok(false);
    }
    if has_target(kind) && target[0] == 0xff {
        return Err(RejectReason::Address);
    }
    let detection = kind == SOLICITATION && is_unspecified;
    // RFC 4861 §6.1.2, §7.1.1, §7.1.2, §8.1; Linux discards these as well (`ndisc_recv_ns`, `ndisc_recv_na`,
    // `ndisc_router_discovery` and `ndisc_redirect_rcv` in net/ipv6/ndisc.c).
    let contradicts = match kind {
        SOLICITATION => detection && u128::from_be_bytes(ip.dst_addr) >> 24 != SOLICITED_NODE,
        ADVERTISEMENT => ip.dst_addr[0] == 0xff && icmp.data[0] & SOLICITED != 0,
        ROUTER_ADVERTISEMENT | REDIRECT => !is_link_local(ip.src_addr),
        _ => false,
    };
    if contradicts {
        return Err(RejectReason::NdpContradiction);
    }
    claim.tag = TAG_NDP;
    claim.tentative = u8::from(detection);
    claim.router = u8::from(kind == ROUTER_ADVERTISEMENT);
    claim.address = match kind {
        ADVERTISEMENT | REDIRECT => target,
        SOLICITATION if detection => target,
        _ => ip.src_addr,
    };
    if !is_unicast(claim.address) {
        return Err(RejectReason::Address);
    }
    let wanted = if matches!(kind, ADVERTISEMENT | REDIRECT) {
        TARGET_LINK_LAYER
    } else {
        SOURCE_LINK_LAYER
    };
    claim.mac = claim.ether_source;
    let has_link_layer_address = link_layer_option(
        frame,
        options,
        location.is_usual,
        end,
        wanted,
        &mut claim.mac,
    )?;
    // RFC 4861 §7.1.1: no source link-layer address with the unspecified source address.
    if detection && has_link_layer_address {
        return Err(RejectReason::NdpContradiction);
    }
    // Without the option a redirect changes a route, but no neighbour entry.
    Ok(kind != REDIRECT || has_link_layer_address)
}

/// Stores the hardware address of the first option of type `wanted` in `mac`; returns `false` if there is none. Options
/// after it are checked too: receivers discard a message for one bad length (RFC 4861 §7.1). `start` is constant if `is_constant`.
#[inline(always)]
fn link_layer_option<F: FrameReader>(
    frame: &F,
    start: usize,
    is_constant: bool,
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
        let option = if index == 0 && is_constant {
            frame.read::<[u8; OPTION_UNIT]>(EthHdr::LEN + size_of::<NdpPacket>())
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
    Ok(found)
}

/// Whether the address is neither unspecified, loopback, multicast nor an IPv4-mapped one (RFC 4291 §2.5.5.2), which no IPv6
/// packet has (`ip6_rcv_core` in net/ipv6/ip6_input.c).
#[inline(always)]
fn is_unicast(address: [u8; 16]) -> bool {
    let value = u128::from_be_bytes(address);
    value > 1 && address[0] != 0xff && value >> 32 != 0xffff
}

/// Whether the address is in fe80::/10.
#[inline(always)]
fn is_link_local(address: [u8; 16]) -> bool {
    address[0] == 0xfe && address[1] & 0xc0 == 0x80
}

/// The address solicited by a message that [`fill`] accepted. A message after an in-frame VLAN tag is read at the wrong offset
/// here and usually does not look like a solicitation; one behind extension headers is not examined.
#[inline(always)]
pub(super) fn solicited_address(NdpPacket { ip, body }: &NdpPacket) -> Option<[u8; 16]> {
    let is_solicitation = ip.next_hdr == ICMPV6 && body.icmp.type_ == SOLICITATION;
    (is_solicitation && is_unicast(body.target)).then_some(body.target)
}
