//! The frame parser: which address an ARP or Neighbour Discovery frame claims.
//!
//! Generic over [`FrameReader`], so that the kernel program and the tests on the host run the same code. Loops are bounded
//! and nothing allocates, because the kernel's verifier has to follow every path.
//!
//! A hardware address may have any value: Linux also accepts zero and group addresses from ARP and Neighbour Discovery
//! (`neigh_update` in net/core/neighbour.c).
//!
//! Limits: the ICMPv6 checksum is not verified (on a veth it is often not filled in yet), nor are the contents of IPv6
//! extension headers.

mod arp;
mod ndp;
mod probed_address;
mod slice;
#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]
mod tests;

use core::mem::MaybeUninit;

use ndp::NdpLocation;
use network_types::{
    eth::{EthHdr, EtherType},
    vlan::VlanHdr,
};
pub use probed_address::probed_address;
pub use slice::FrameSlice;

use crate::{RawClaim, RejectReason};

/// A type that is copied from the wire byte by byte.
///
/// # Safety
/// Every bit pattern is a valid value, and it has no padding.
pub unsafe trait WireFormat: Copy {}

// SAFETY: consists of integers without padding.
unsafe impl WireFormat for VlanHdr {}
// SAFETY: an integer.
unsafe impl WireFormat for u8 {}
// SAFETY: an integer.
unsafe impl WireFormat for u32 {}
// SAFETY: an array of bytes.
unsafe impl<const N: usize> WireFormat for [u8; N] {}

/// Access to a frame, starting at its Ethernet header and without the VLAN tag that the kernel keeps outside of it.
pub trait FrameReader {
    /// The ethertype in network order: the one after the tag that is kept outside the frame.
    fn protocol(&self) -> u16;
    /// The tag control information that the kernel keeps outside the frame.
    fn outer_tag(&self) -> Option<u16>;
    /// The frame's length in bytes.
    fn length(&self) -> usize;
    /// One byte; `None` if the frame is shorter. The only read that is done on data packets.
    fn peek(&self, offset: usize) -> Option<u8>;
    /// A value at one of a few offsets; `None` if the frame is shorter.
    fn read<T: WireFormat>(&self, offset: usize) -> Option<T>;
    /// A value at any offset; `None` if the frame is shorter.
    fn load<T: WireFormat>(&self, offset: usize) -> Option<T>;
}

/// What the parser made of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classification {
    /// Claims no address.
    Other,
    /// A claim, which has been filled in.
    Claim,
    /// ARP or Neighbour Discovery that is malformed or must not claim an address.
    Rejected(RejectReason),
}

const ARP: u16 = EtherType::Arp as u16;
const IPV6: u16 = EtherType::Ipv6 as u16;
const VLAN: u16 = EtherType::Ieee8021q as u16;
const PROVIDER_VLAN: u16 = EtherType::Ieee8021ad as u16;

/// Offset of the Ethernet source.
const ETHER_SOURCE: usize = 6;

/// Tags in a frame that are followed. Linux strips any number of priority tags (`__netif_receive_skb_core` in
/// net/core/dev.c); frames with more are rejected, because what they carry is unknown.
const MAX_TAGS: usize = 64;

/// The payload after the Ethernet header and the tags in the frame.
#[derive(Clone, Copy)]
struct Payload {
    protocol: u16,
    /// Directly behind the Ethernet header if there are no tags in the frame.
    offset: usize,
    has_tags: bool,
    tags: Tags,
}

impl Payload {
    /// A value at an offset from the beginning of the payload. Behind tags the offset varies, and reading in place would let the
    /// verifier follow the parser once for each number of tags.
    #[inline(always)]
    fn read<F: FrameReader, T: WireFormat>(&self, frame: &F, offset: usize) -> Option<T> {
        if self.has_tags {
            frame.load(self.offset + offset)
        } else {
            frame.read(EthHdr::LEN + offset)
        }
    }

    /// As [`Payload::read`], one byte of a data packet.
    #[inline(always)]
    fn peek<F: FrameReader>(&self, frame: &F, offset: usize) -> Option<u8> {
        if self.has_tags {
            frame.load(self.offset + offset)
        } else {
            frame.peek(EthHdr::LEN + offset)
        }
    }
}

/// VLAN ids of tags, outermost first, 0 if absent. Priority tags (id 0) do not count, at any position.
#[derive(Clone, Copy)]
struct Tags {
    outer: u16,
    inner: u16,
    has_more: bool,
}

impl Tags {
    const NONE: Self = Self {
        outer: 0,
        inner: 0,
        has_more: false,
    };

    /// Adds the tag inside of those that were added before.
    #[inline(always)]
    fn push(&mut self, tag_control: u16) {
        let id = tag_control & VLAN_ID;
        if id == 0 {
        } else if self.outer == 0 {
            self.outer = id;
        } else if self.inner == 0 {
            self.inner = id;
        } else {
            self.has_more = true;
        }
    }
}

/// The bits of the tag control information that are the VLAN id. An id of all ones is reserved.
const VLAN_ID: u16 = 0x0fff;

/// Parses `frame` and, for [`Classification::Claim`], initialises `claim` with an interface index of zero.
///
/// An out-parameter, because the BPF backend passes a returned claim through registers byte by byte; uninitialised, so that
/// data packets do not pay for it.
#[inline(always)]
pub fn parse<F: FrameReader>(frame: &F, claim: &mut MaybeUninit<RawClaim>) -> Classification {
    let protocol = frame.protocol();
    let payload = match protocol {
        ARP | IPV6 => Payload {
            protocol,
            offset: EthHdr::LEN,
            has_tags: false,
            tags: Tags::NONE,
        },
        VLAN | PROVIDER_VLAN => match payload_after_tags(frame) {
            Ok(payload) => payload,
            Err(reason) => return Classification::Rejected(reason),
        },
        _ => return Classification::Other,
    };
    let ndp = match payload.protocol {
        ARP => None,
        IPV6 => match ndp::find(frame, payload) {
            Ok(Some(location)) => Some(location),
            Ok(None) => return Classification::Other,
            Err(reason) => return Classification::Rejected(reason),
        },
        _ => return Classification::Other,
    };
    match fill(frame, payload, ndp, claim) {
        Ok(true) => Classification::Claim,
        Ok(false) => Classification::Other,
        Err(reason) => Classification::Rejected(reason),
    }
}

/// `false` if the frame claims no address.
#[inline(always)]
fn fill<F: FrameReader>(
    frame: &F,
    payload: Payload,
    ndp: Option<NdpLocation>,
    claim: &mut MaybeUninit<RawClaim>,
) -> Result<bool, RejectReason> {
    let claim = RawClaim::zeroed(claim);
    fill_tags(frame, payload, claim)?;
    claim.ether_source = frame
        .read::<[u8; 6]>(ETHER_SOURCE)
        .ok_or(RejectReason::Truncated)?;
    match ndp {
        None => arp::fill(frame, payload, claim),
        Some(location) => ndp::fill(frame, payload, location, claim),
    }
}

/// The payload after the tags in the frame. One tag is usually kept outside of it, at a device's ingress always.
#[inline(always)]
fn payload_after_tags<F: FrameReader>(frame: &F) -> Result<Payload, RejectReason> {
    let mut offset = EthHdr::LEN;
    let mut tags = Tags::NONE;
    for index in 0..MAX_TAGS {
        // The first tag, also of a data packet, is at a constant offset, where reading is cheaper.
        let tag = if index == 0 {
            frame.read::<VlanHdr>(EthHdr::LEN)
        } else {
            frame.load::<VlanHdr>(offset)
        };
        let tag = tag.ok_or(RejectReason::Truncated)?;
        tags.push(u16::from_be_bytes(tag.tci));
        offset += VlanHdr::LEN;
        if !matches!(tag.ether_type, VLAN | PROVIDER_VLAN) {
            return Ok(Payload {
                protocol: tag.ether_type,
                offset,
                has_tags: true,
                tags,
            });
        }
    }
    Err(RejectReason::TagCount)
}

/// Fills in the VLAN ids of the tag kept outside the frame, which is the outermost, and of those in the frame.
#[inline(always)]
fn fill_tags<F: FrameReader>(
    frame: &F,
    payload: Payload,
    claim: &mut RawClaim,
) -> Result<(), RejectReason> {
    let mut tags = Tags::NONE;
    tags.push(frame.outer_tag().unwrap_or(0));
    tags.push(payload.tags.outer);
    tags.push(payload.tags.inner);
    if tags.has_more || payload.tags.has_more || tags.outer == VLAN_ID || tags.inner == VLAN_ID {
        return Err(RejectReason::Vlan);
    }
    claim.vlan_outer = tags.outer;
    claim.vlan_inner = tags.inner;
    Ok(())
}
