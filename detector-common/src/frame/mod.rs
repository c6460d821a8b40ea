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
    /// Neither ARP nor a neighbour solicitation or advertisement.
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

/// The payload after the Ethernet header and the tags in the frame.
#[derive(Clone, Copy)]
struct Payload {
    protocol: u16,
    offset: usize,
    /// Tag control information of the tags in the frame, 0 if absent.
    first: u16,
    second: u16,
}

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
            first: 0,
            second: 0,
        },
        VLAN | PROVIDER_VLAN => match payload_after_tags(frame) {
            Ok(payload) => payload,
            Err(reason) => return Classification::Rejected(reason),
        },
        _ => return Classification::Other,
    };
    let ndp = match payload.protocol {
        ARP => None,
        IPV6 => match ndp::find(frame, payload.offset) {
            Ok(Some(location)) => Some(location),
            Ok(None) => return Classification::Other,
            Err(reason) => return Classification::Rejected(reason),
        },
        _ => return Classification::Other,
    };
    match fill(frame, payload, ndp, claim) {
        Ok(()) => Classification::Claim,
        Err(reason) => Classification::Rejected(reason),
    }
}

#[inline(always)]
fn fill<F: FrameReader>(
    frame: &F,
    payload: Payload,
    ndp: Option<NdpLocation>,
    claim: &mut MaybeUninit<RawClaim>,
) -> Result<(), RejectReason> {
    let claim = RawClaim::zeroed(claim);
    fill_tags(frame, payload, claim)?;
    claim.ether_source = frame
        .read::<[u8; 6]>(ETHER_SOURCE)
        .ok_or(RejectReason::Truncated)?;
    match ndp {
        None => arp::fill(frame, payload.offset, claim),
        Some(location) => ndp::fill(frame, payload.offset, location, claim),
    }
}

/// The payload after one or two tags in the frame. Two occur only if none is kept outside the frame, which a device's
/// ingress never does with the outer one; a third tag is not parsed.
#[inline(always)]
fn payload_after_tags<F: FrameReader>(frame: &F) -> Result<Payload, RejectReason> {
    let first = frame
        .read::<VlanHdr>(EthHdr::LEN)
        .ok_or(RejectReason::Truncated)?;
    let mut payload = Payload {
        protocol: first.ether_type,
        offset: EthHdr::LEN + VlanHdr::LEN,
        first: u16::from_be_bytes(first.tci),
        second: 0,
    };
    if matches!(payload.protocol, VLAN | PROVIDER_VLAN) {
        let second = frame
            .read::<VlanHdr>(payload.offset)
            .ok_or(RejectReason::Truncated)?;
        payload.protocol = second.ether_type;
        payload.offset += VlanHdr::LEN;
        payload.second = u16::from_be_bytes(second.tci);
    }
    Ok(payload)
}

/// Fills in the VLAN ids of the tag kept outside the frame, which is the outermost, and of those in the frame.
#[inline(always)]
fn fill_tags<F: FrameReader>(
    frame: &F,
    payload: Payload,
    claim: &mut RawClaim,
) -> Result<(), RejectReason> {
    const ID: u16 = 0x0fff;
    let outside = frame.outer_tag().unwrap_or(0) & ID;
    let (first, second) = (payload.first & ID, payload.second & ID);
    // Priority tags (id 0) do not count, at any position.
    let (outer, inner) = match (outside, first, second) {
        (0, 0, only) | (0, only, 0) | (only, 0, 0) => (only, 0),
        (0, outer, inner) | (outer, 0, inner) | (outer, inner, 0) => (outer, inner),
        _ => return Err(RejectReason::Vlan),
    };
    if outer == ID || inner == ID {
        return Err(RejectReason::Vlan);
    }
    claim.vlan_outer = outer;
    claim.vlan_inner = inner;
    Ok(())
}
