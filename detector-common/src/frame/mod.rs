//! What a frame claims.
//!
//! Written once over [`Frame`], so that the kernel program and the tests on the host run the very same code. Nothing here
//! loops without a bound, and nothing allocates: the kernel's verifier has to follow every path.
//!
//! Limits: Neighbour Discovery behind IPv6 extension headers other than a fragment header is not looked for, and the
//! ICMPv6 checksum is not verified (on a veth it is often not even filled in yet).

mod arp;
mod bytes;
mod ndp;
mod question;
#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]
mod tests;

use core::mem::MaybeUninit;

pub use bytes::Bytes;
use network_types::{
    eth::{EthHdr, EtherType},
    vlan::VlanHdr,
};
pub use question::question;

use crate::{Claim, RejectReason};

/// A type that is read off the wire as it is.
///
/// # Safety
/// Every bit pattern is a valid value, and it has no padding.
pub unsafe trait Wire: Copy {}

// SAFETY: bytes and integers alone, no padding (their sizes are asserted where they are read).
unsafe impl Wire for VlanHdr {}
// SAFETY: a byte.
unsafe impl Wire for u8 {}
// SAFETY: an integer.
unsafe impl Wire for u32 {}
// SAFETY: an array of bytes.
unsafe impl<const N: usize> Wire for [u8; N] {}

/// A frame, from its Ethernet header on, without the tag the kernel holds apart.
pub trait Frame {
    /// The ethertype as it stands on the wire (network order): the one after the tag that is held apart.
    fn protocol(&self) -> u16;
    /// The tag control information that the kernel holds apart from the frame.
    fn outer_tag(&self) -> Option<u16>;
    /// The frame's length in bytes.
    fn length(&self) -> usize;
    /// One byte; `None` where the frame is shorter. This is the one read that data packets pay for.
    fn peek(&self, offset: usize) -> Option<u8>;
    /// A header at an offset out of a few; `None` where the frame ends before it does.
    fn read<T: Wire>(&self, offset: usize) -> Option<T>;
    /// Something at any offset; `None` where the frame ends before it does.
    fn load<T: Wire>(&self, offset: usize) -> Option<T>;
}

/// What a frame turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// No ARP and no neighbour solicitation or advertisement.
    Other,
    /// A claim, which was filled in.
    Claim,
    /// It should have been a claim but is malformed or forbidden.
    Rejected(RejectReason),
}

const ARP: u16 = EtherType::Arp as u16;
const IPV6: u16 = EtherType::Ipv6 as u16;
const VLAN: u16 = EtherType::Ieee8021q as u16;
const PROVIDER_VLAN: u16 = EtherType::Ieee8021ad as u16;

/// Offset of the Ethernet source.
const ETHER_SOURCE: usize = 6;

/// What lies behind the Ethernet header and the tags in the frame.
#[derive(Clone, Copy)]
struct Payload {
    protocol: u16,
    offset: usize,
    /// Tag control information of the tags in the frame, 0 where there is none.
    first: u16,
    second: u16,
}

/// Says what `frame` claims, and fills in `claim` where it claims something: all but the interface, which becomes zero. (An
/// out-parameter, since the compiler would carry a claim that is returned through registers byte by byte; uninitialised,
/// since data packets should not pay for it.)
#[inline(always)]
pub fn examine<F: Frame>(frame: &F, claim: &mut MaybeUninit<Claim>) -> Seen {
    let protocol = frame.protocol();
    let payload = match protocol {
        ARP | IPV6 => Payload {
            protocol,
            offset: EthHdr::LEN,
            first: 0,
            second: 0,
        },
        VLAN | PROVIDER_VLAN => match behind_tags(frame) {
            Ok(payload) => payload,
            Err(reason) => return Seen::Rejected(reason),
        },
        _ => return Seen::Other,
    };
    if payload.protocol == IPV6 {
        if ndp::absent(frame, payload.offset) {
            return Seen::Other;
        }
    } else if payload.protocol != ARP {
        return Seen::Other;
    }
    match fill(frame, payload, claim) {
        Ok(()) => Seen::Claim,
        Err(reason) => Seen::Rejected(reason),
    }
}

#[inline(always)]
fn fill<F: Frame>(
    frame: &F,
    payload: Payload,
    claim: &mut MaybeUninit<Claim>,
) -> Result<(), RejectReason> {
    let claim = Claim::cleared(claim);
    tags(frame, payload, claim)?;
    claim.ether_source = frame
        .read::<[u8; 6]>(ETHER_SOURCE)
        .ok_or(RejectReason::Truncated)?;
    if payload.protocol == ARP {
        arp::fill(frame, payload.offset, claim)
    } else {
        ndp::fill(frame, payload.offset, claim)
    }
}

/// What lies behind the one or two tags in the frame. Two there are only where none is held apart, which no real ingress
/// does to the outer one; what is behind more is not looked at.
#[inline(always)]
fn behind_tags<F: Frame>(frame: &F) -> Result<Payload, RejectReason> {
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

/// The VLAN ids of the tag held apart, which is the outermost, and those in the frame.
#[inline(always)]
fn tags<F: Frame>(frame: &F, payload: Payload, claim: &mut Claim) -> Result<(), RejectReason> {
    const ID: u16 = 0x0fff;
    let apart = frame.outer_tag().unwrap_or(0) & ID;
    let (first, second) = (payload.first & ID, payload.second & ID);
    // Priority tags (id 0) fall out, wherever they stand.
    let (outer, inner) = match (apart, first, second) {
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

/// Whether a hardware address can be one station's: neither zero nor a group address.
#[inline(always)]
fn is_station(mac: [u8; 6]) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}
