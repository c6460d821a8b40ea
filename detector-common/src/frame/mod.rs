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

pub use bytes::Bytes;
use network_types::{
    eth::{EthHdr, EtherType},
    vlan::VlanHdr,
};

use crate::{Claim, RejectReason};

/// A type that is read off the wire as it is.
///
/// # Safety
/// Every bit pattern is a valid value, and it has no padding.
pub unsafe trait Wire: Copy {}

// SAFETY: bytes and integers alone, no padding (their sizes are asserted where they are read).
unsafe impl Wire for VlanHdr {}
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
    /// A header; `None` where the frame ends before it does.
    fn read<T: Wire>(&self, offset: usize) -> Option<T>;
}

/// What a frame turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// No ARP and no neighbour solicitation or advertisement.
    Other,
    /// A claim; [`Claim::ifindex`] is left zero.
    Claim(Claim),
    /// It should have been a claim but is malformed or forbidden.
    Rejected(RejectReason),
}

const ARP: u16 = EtherType::Arp as u16;
const IPV6: u16 = EtherType::Ipv6 as u16;
const VLAN: u16 = EtherType::Ieee8021q as u16;
const PROVIDER_VLAN: u16 = EtherType::Ieee8021ad as u16;

/// VLAN ids, 0 where there is no tag. A priority tag (id 0) is no tag.
#[derive(Clone, Copy)]
struct Tags {
    outer: u16,
    inner: u16,
}

/// Says what `frame` claims.
#[inline(always)]
pub fn examine<F: Frame>(frame: &F) -> Seen {
    let result = match frame.protocol() {
        ARP => tags(frame, 0, 0).and_then(|tags| arp::claim(frame, EthHdr::LEN, tags)),
        IPV6 => {
            if ndp::absent(frame, EthHdr::LEN) {
                return Seen::Other;
            }
            tags(frame, 0, 0).and_then(|tags| ndp::claim(frame, EthHdr::LEN, tags))
        }
        VLAN | PROVIDER_VLAN => return tagged(frame),
        _ => return Seen::Other,
    };
    seen(result)
}

#[inline(always)]
fn seen(result: Result<Claim, RejectReason>) -> Seen {
    match result {
        Ok(claim) => Seen::Claim(claim),
        Err(reason) => Seen::Rejected(reason),
    }
}

/// A frame with at least one tag in it. Two can be: when none is held apart, which no real ingress does to the outer one.
#[inline(always)]
fn tagged<F: Frame>(frame: &F) -> Seen {
    const FIRST: usize = EthHdr::LEN;
    const SECOND: usize = EthHdr::LEN + VlanHdr::LEN;
    const THIRD: usize = EthHdr::LEN + 2 * VlanHdr::LEN;

    let Some(tag) = frame.read::<VlanHdr>(FIRST) else {
        return Seen::Rejected(RejectReason::Truncated);
    };
    let first = u16::from_be_bytes(tag.tci);
    match tag.ether_type {
        VLAN | PROVIDER_VLAN => {
            let Some(tag) = frame.read::<VlanHdr>(SECOND) else {
                return Seen::Rejected(RejectReason::Truncated);
            };
            if !matches!(tag.ether_type, ARP | IPV6) {
                return Seen::Other;
            }
            if frame.outer_tag().is_some() {
                return Seen::Rejected(RejectReason::Vlan);
            }
            behind_tags(
                frame,
                tag.ether_type,
                THIRD,
                first,
                u16::from_be_bytes(tag.tci),
            )
        }
        protocol => behind_tags(frame, protocol, SECOND, first, 0),
    }
}

#[inline(always)]
fn behind_tags<F: Frame>(frame: &F, protocol: u16, offset: usize, first: u16, second: u16) -> Seen {
    let result = match protocol {
        ARP => tags(frame, first, second).and_then(|tags| arp::claim(frame, offset, tags)),
        IPV6 => {
            if ndp::absent(frame, offset) {
                return Seen::Other;
            }
            tags(frame, first, second).and_then(|tags| ndp::claim(frame, offset, tags))
        }
        _ => return Seen::Other,
    };
    seen(result)
}

/// The VLAN ids of up to two tags found in the frame and the one held apart, which is the outermost.
#[inline(always)]
fn tags<F: Frame>(frame: &F, first: u16, second: u16) -> Result<Tags, RejectReason> {
    let apart = frame.outer_tag().unwrap_or(0) & 0x0fff;
    let (first, second) = (first & 0x0fff, second & 0x0fff);
    // At most two of the three are set: `tagged` turns three tags away. Priority tags (id 0) fall out.
    let (outer, inner) = match (apart, first, second) {
        (0, 0, only) => (only, 0),
        (0, outer, inner) => (outer, inner),
        (only, 0, 0) => (only, 0),
        (outer, 0, inner) | (outer, inner, _) => (outer, inner),
    };
    if outer == 0x0fff || inner == 0x0fff {
        return Err(RejectReason::Vlan);
    }
    Ok(Tags { outer, inner })
}

/// Whether a hardware address can be one station's: neither zero nor a group address.
#[inline(always)]
fn is_station(mac: [u8; 6]) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}
