//! Frames recorded on Linux 6.18, as they are and with single fields changed.

mod any;
mod arp;
mod ndp;
mod routers;
mod tags;

use core::mem::MaybeUninit;
use std::{string::String, vec::Vec};

use super::{Classification, FrameSlice, parse};
use crate::RawClaim;

const MAC: [u8; 6] = [0x02, 0x1c, 0, 0, 0, 0x01];
const OTHER_MAC: [u8; 6] = [0x02, 0x1c, 0, 0, 0, 0x02];

/// An ARP announcement of 10.244.2.10 (RFC 5227 §3).
const ANNOUNCEMENT: &str =
    "ffffffffffff021c000000010806 0001080006040001 021c00000001 0af4020a 000000000000 0af4020a";

/// An ARP probe for 10.244.2.10 (RFC 5227 §2.1.1).
const PROBE: &str =
    "ffffffffffff021c000000010806 0001080006040001 021c00000001 00000000 000000000000 0af4020a";

/// A gratuitous ARP reply for 192.168.91.33.
const REPLY: &str =
    "ffffffffffff021c000000010806 0001080006040002 021c00000001 c0a85b21 021c00000001 c0a85b21";

/// Duplicate address detection of fd00::a:b, with the nonce option of RFC 7527.
const DAD: &str = "3333ff0a000b021c0000000186dd\
    6000000000203aff 00000000000000000000000000000000 ff0200000000000000000001ff0a000b\
    8700e60b00000000 fd0000000000000000000000000a000b 0e01f2e83fb656c9";

/// An unsolicited advertisement of fd00::a:b, with the target link-layer option.
const ADVERTISEMENT: &str = "333300000001021c0000000186dd\
    6000000000203aff fd0000000000000000000000000a000b ff020000000000000000000000000001\
    88005a5720000000 fd0000000000000000000000000a000b 0201021c00000001";

/// A solicitation for fd00::1 by fd00::a:b, with the source link-layer option.
const SOLICITATION: &str = "3333ff000001021c0000000186dd\
    6000000000203aff fd0000000000000000000000000a000b ff0200000000000000000001ff000001\
    8700000000000000 fd000000000000000000000000000001 0101021c00000001";

/// A router solicitation by fd00::a:b, with the source link-layer option.
const ROUTER_SOLICITATION: &str = "333300000002021c0000000186dd\
    6000000000103aff fd0000000000000000000000000a000b ff020000000000000000000000000002\
    8500000000000000 0101021c00000001";

/// A router advertisement by fe80::a:b, with the source link-layer option and a prefix.
const ROUTER_ADVERTISEMENT: &str = "333300000001021c0000000186dd\
    6000000000383aff fe8000000000000000000000000a000b ff020000000000000000000000000001\
    8600000040000708 0000000000000000 0101021c00000001\
    030440c0ffffffffffffffff00000000 fd000000000000000000000000000000";

/// A redirect by fe80::1 to fd00::a:b on the link, with the target link-layer option.
const REDIRECT: &str = "021c00000002021c0000000186dd\
    6000000000303aff fe800000000000000000000000000001 fd000000000000000000000000000002\
    8900000000000000 fd0000000000000000000000000a000b fd0000000000000000000000000a000b\
    0201021c00000001";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(digits.get(at..at + 2).unwrap(), 16).unwrap())
        .collect()
}

fn classify_tagged(frame: &[u8], outer_tag: Option<u16>) -> (Classification, RawClaim) {
    let mut claim = MaybeUninit::new(RawClaim::default());
    let class = parse(&FrameSlice { frame, outer_tag }, &mut claim);
    // SAFETY: initialised above.
    (class, unsafe { claim.assume_init() })
}

fn classify(frame: &[u8]) -> Classification {
    classify_tagged(frame, None).0
}

/// A recorded frame with the bytes at the given offsets replaced.
fn changed(hex: &str, changes: &[(usize, &[u8])]) -> Vec<u8> {
    let mut frame = bytes(hex);
    for (at, new) in changes {
        frame[*at..*at + new.len()].copy_from_slice(new);
    }
    frame
}

fn claim(frame: &[u8]) -> RawClaim {
    let (class, claim) = classify_tagged(frame, None);
    assert_eq!(class, Classification::Claim);
    claim
}

fn v4(address: [u8; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&address);
    bytes
}

/// fe80::a:b
const LINK_LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0, 0x0b];

/// fd00::a:b
const V6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0, 0x0b];

fn expected(tag: u8, tentative: u8, address: [u8; 16]) -> RawClaim {
    RawClaim {
        tag,
        tentative,
        vlan_outer: 0,
        ifindex: 0,
        address,
        mac: MAC,
        ether_source: MAC,
        vlan_inner: 0,
        router: 0,
        reserved: 0,
    }
}

/// A recorded IPv6 frame with extension headers of the given types inserted, each with that many additional units of eight
/// bytes. All bytes after the length are zero: padding, no segments left, or an atomic fragment.
fn behind(hex: &str, headers: &[(u8, usize)]) -> Vec<u8> {
    let mut frame = bytes(hex);
    let mut next = frame[20];
    for (kind, units) in headers.iter().rev() {
        let mut header = std::vec![0; 8 + 8 * units];
        header[0] = next;
        header[1] = u8::try_from(*units).unwrap();
        frame.splice(54..54, header);
        next = *kind;
    }
    frame[20] = next;
    let length = u16::try_from(frame.len() - 54).unwrap();
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    frame
}

/// A frame with tags inserted.
fn tagged(mut frame: Vec<u8>, tags: TagList<'_>) -> Vec<u8> {
    let inner: Vec<u8> = tags
        .iter()
        .flat_map(|(kind, tci)| [kind.to_be_bytes(), tci.to_be_bytes()])
        .flatten()
        .collect();
    frame.splice(12..12, inner);
    frame
}

/// Tags in a frame, outermost first: type and tag control information.
type TagList<'a> = &'a [(u16, u16)];

const Q: u16 = 0x8100;
const AD: u16 = 0x88a8;
