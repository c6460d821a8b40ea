//! Neighbour solicitations and advertisements (RFC 4861), and duplicate address detection (RFC 4862).

use network_types::{icmp::Icmpv6Hdr, ip::Ipv6Hdr};

use super::{FrameReader, WireFormat};
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
/// Messages with more options are rejected: stacks send at most a link-layer address, a nonce and the four options of
/// SEND (RFC 3971).
const MAX_OPTIONS: usize = 8;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
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

/// The IPv6 header and a message directly behind it.
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
unsafe impl WireFormat for NdpBody {}
// SAFETY: as above.
unsafe impl WireFormat for NdpPacket {}

/// Where a solicitation or advertisement is.
#[derive(Clone, Copy)]
pub(super) struct NdpLocation {
    /// Offset of the ICMPv6 header.
    offset: usize,
    /// Whether extension headers precede it, so that its offset is not constant.
    has_extensions: bool,
    /// Whether one of them is a fragment header.
    is_fragment: bool,
}

/// Finds the solicitation or advertisement in the IPv6 packet at `offset`. Reads one byte of a data packet without extension
/// headers.
#[inline(always)]
pub(super) fn find<F: FrameReader>(
    frame: &F,
    offset: usize,
) -> Result<Option<NdpLocation>, RejectReason> {
    let upper = offset + Ipv6Hdr::LEN;
    match frame.peek(offset + NEXT_HEADER) {
        Some(ICMPV6) => Ok(
            is_neighbour_discovery(frame.peek(upper)).then_some(NdpLocation {
                offset: upper,
                has_extensions: false,
                is_fragment: false,
            }),
        ),
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
                    has_extensions: true,
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
    matches!(kind, Some(SOLICITATION | ADVERTISEMENT))
}

/// Reads the IPv6 header at `offset`, and the message.
#[inline(always)]
fn read<F: FrameReader>(frame: &F, offset: usize, location: NdpLocation) -> Option<NdpPacket> {
    if location.has_extensions {
        Some(NdpPacket {
            ip: frame.read::<Ipv6Hdr>(offset)?,
            body: frame.load::<NdpBody>(location.offset)?,
        })
    } else {
        frame.read::<NdpPacket>(offset)
    }
}

/// Fills in the claim of the message at `location` in the IPv6 packet at `offset`.
#[inline(always)]
pub(super) fn fill<F: FrameReader>(
    frame: &F,
    offset: usize,
    location: NdpLocation,
    claim: &mut RawClaim,
) -> Result<(), RejectReason> {
    let NdpPacket {
        ip,
        body: NdpBody { icmp, target },
    } = read(frame, offset, location).ok_or(RejectReason::Truncated)?;
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
        offset + Ipv6Hdr::LEN + length
    };
    let options = location.offset + size_of::<NdpBody>();
    if end < options {
        return Err(RejectReason::IcmpLength);
    }
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
        options,
        !location.has_extensions,
        end,
        wanted,
        &mut claim.mac,
    )?;
    // RFC 4861 §7.1.1: no source link-layer address with the unspecified source address.
    if detection && has_link_layer_address {
        return Err(RejectReason::NdpContradiction);
    }
    Ok(())
}

/// Stores the hardware address of the first option of type `wanted` in `mac`; returns `false` if there is none. Options
/// after it are checked too: receivers discard a message for one bad length (RFC 4861 §7.1). `start` is one of a few offsets
/// if it `is_constant`.
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

/// The address solicited by a message that [`fill`] accepted. A message after an in-frame VLAN tag is read at the wrong offset
/// here and usually does not look like a solicitation; one behind extension headers is not examined.
#[inline(always)]
pub(super) fn solicited_address(NdpPacket { ip, body }: &NdpPacket) -> Option<[u8; 16]> {
    let is_solicitation = ip.next_hdr == ICMPV6 && body.icmp.type_ == SOLICITATION;
    (is_solicitation && is_unicast(body.target)).then_some(body.target)
}
