//! The frame parser that runs in the kernel against the [reference](mod@crate::reference).

use std::mem::MaybeUninit;

use detector_common::{
    Claim, TAG_ARP,
    frame::{Bytes, Seen, examine},
};

use crate::reference::{self, Claimed, Protocol, Said};

/// Takes an input apart: a byte that says whether a tag is held apart from the frame, that tag, and the frame.
#[must_use]
pub fn split(input: &[u8]) -> Option<(Option<u16>, &[u8])> {
    let [apart, high, low, frame @ ..] = input else {
        return None;
    };
    let tag = u16::from_be_bytes([*high, *low]);
    Some(((apart & 1 == 1).then_some(tag), frame))
}

/// Lets both read the frame in `input`.
///
/// # Panics
/// Where they do not agree.
pub fn compare(input: &[u8]) {
    let Some((outer_tag, frame)) = split(input) else {
        return;
    };
    let mut claim = MaybeUninit::new(Claim::default());
    let seen = examine(&Bytes { frame, outer_tag }, &mut claim);
    // SAFETY: it was initialised to begin with, and every byte of a claim is set or left.
    let claim = unsafe { claim.assume_init() };
    let verdict = match seen {
        Seen::Other => Verdict::Other,
        Seen::Rejected(reason) => Verdict::Rejected(reason.label()),
        Seen::Claim => Verdict::Claim(claimed(&claim)),
    };
    let said = reference::read(frame, outer_tag);
    assert!(
        verdict.agrees(&said),
        "parser: {verdict:?}\nreference: {said:?}\ntag apart: {outer_tag:x?}\nframe: {frame:02x?}"
    );
}

/// What a parser made of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing that claims an address.
    Other,
    /// Malformed or forbidden, for the reason of this label.
    Rejected(&'static str),
    /// A claim.
    Claim(Claimed),
}

impl Verdict {
    /// Whether the reference says the same. Of several faults in one frame a parser names whichever it meets first.
    #[must_use]
    pub fn agrees(&self, said: &Said) -> bool {
        match (self, said) {
            (Self::Other, Said::Other) => true,
            (Self::Rejected(reason), Said::Faulty(faults)) => faults.contains(reason),
            (Self::Claim(claim), Said::Claim(expected)) => claim == expected,
            _ => false,
        }
    }
}

fn claimed(claim: &Claim) -> Claimed {
    let arp = claim.tag == TAG_ARP;
    Claimed {
        protocol: if arp { Protocol::Arp } else { Protocol::Ndp },
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
    }
}
