//! Compares the frame parser of the kernel program with the [reference](mod@crate::reference) parser.

use std::mem::MaybeUninit;

use detector_common::{
    RawClaim, TAG_ARP,
    frame::{Classification, FrameSlice, parse},
};

use crate::reference::{self, ClaimFields, ClaimProtocol, ReferenceVerdict};

/// Splits an input into a byte for whether there is a tag outside the frame, that tag, and the frame.
#[must_use]
pub fn split(input: &[u8]) -> Option<(Option<u16>, &[u8])> {
    let [has_tag, high, low, frame @ ..] = input else {
        return None;
    };
    let tag = u16::from_be_bytes([*high, *low]);
    Some(((has_tag & 1 == 1).then_some(tag), frame))
}

/// Parses the frame in `input` with both parsers.
///
/// # Panics
/// They disagree.
pub fn compare(input: &[u8]) {
    let Some((outer_tag, frame)) = split(input) else {
        return;
    };
    let mut claim = MaybeUninit::new(RawClaim::default());
    let class = parse(&FrameSlice { frame, outer_tag }, &mut claim);
    // SAFETY: initialised above.
    let claim = unsafe { claim.assume_init() };
    let verdict = match class {
        Classification::Other => ParserVerdict::Other,
        Classification::Rejected(reason) => ParserVerdict::Rejected(reason.label()),
        Classification::Claim => ParserVerdict::Claim(claim_fields(&claim)),
    };
    let expected = reference::read(frame, outer_tag);
    assert!(
        verdict.agrees_with(&expected),
        "parser: {verdict:?}\nreference: {expected:?}\ntag outside the frame: {outer_tag:x?}\nframe: {frame:02x?}"
    );
}

/// Result of the parser under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParserVerdict {
    /// The frame does not claim an address.
    Other,
    /// The frame is malformed or must not claim an address; the reason's label.
    Rejected(&'static str),
    /// A claim.
    Claim(ClaimFields),
}

impl ParserVerdict {
    /// Whether the reference agrees. If a frame has several faults, the parser reports any one of them.
    #[must_use]
    pub fn agrees_with(&self, expected: &ReferenceVerdict) -> bool {
        match (self, expected) {
            (Self::Other, ReferenceVerdict::Other) => true,
            (Self::Rejected(reason), ReferenceVerdict::Faulty(faults)) => faults.contains(reason),
            (Self::Claim(claim), ReferenceVerdict::Claim(expected)) => claim == expected,
            _ => false,
        }
    }
}

fn claim_fields(claim: &RawClaim) -> ClaimFields {
    let arp = claim.tag == TAG_ARP;
    ClaimFields {
        protocol: if arp {
            ClaimProtocol::Arp
        } else {
            ClaimProtocol::Ndp
        },
        tentative: claim.tentative == 1,
        address: if arp {
            claim.address.iter().take(4).copied().collect()
        } else {
            claim.address.to_vec()
        },
        mac: claim.mac,
        ether_source: claim.ether_source,
        vlans: [claim.vlan_outer, claim.vlan_inner]
            .into_iter()
            .filter(|id| *id != 0)
            .collect(),
        router: claim.router == 1,
    }
}
