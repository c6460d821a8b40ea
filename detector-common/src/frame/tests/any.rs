//! Truncated, unrelated and random frames.

use std::{format, vec, vec::Vec};

use proptest::prelude::*;

use super::{
    AD, ADVERTISEMENT, ANNOUNCEMENT, DAD, PROBE, Q, REDIRECT, REPLY, ROUTER_ADVERTISEMENT,
    ROUTER_SOLICITATION, SOLICITATION, behind, bytes, changed, classify, classify_tagged, tagged,
};
use crate::frame::Classification;
use crate::{RejectReason, TAG_ARP, TAG_NDP};

#[test]
fn frame_cut_at_any_byte_is_truncated() {
    for hex in [ANNOUNCEMENT, PROBE, REPLY] {
        let frame = bytes(hex);
        for length in 14..frame.len() {
            assert_eq!(
                classify(&frame[..length]),
                Classification::Rejected(RejectReason::Truncated),
                "{length} bytes"
            );
        }
    }
    for hex in [DAD, ADVERTISEMENT, SOLICITATION] {
        let frame = bytes(hex);
        // Without the ICMPv6 type it is not recognisable as Neighbour Discovery.
        for length in 14..55 {
            assert_eq!(
                classify(&frame[..length]),
                Classification::Other,
                "{length} bytes"
            );
        }
        for length in 55..frame.len() {
            assert_eq!(
                classify(&frame[..length]),
                Classification::Rejected(RejectReason::Truncated),
                "{length} bytes"
            );
        }
    }
}

#[test]
fn other_traffic_is_ignored() {
    for kind in [1, 128, 129, 132, 138, 143] {
        assert_eq!(
            classify(&changed(ADVERTISEMENT, &[(54, &[kind])])),
            Classification::Other,
            "ICMPv6 type {kind}"
        );
    }
    for next in [6, 17, 50, 51, 59, 135] {
        assert_eq!(
            classify(&changed(ADVERTISEMENT, &[(20, &[next])])),
            Classification::Other,
            "next header {next}"
        );
    }
    assert_eq!(
        classify(&changed(ANNOUNCEMENT, &[(12, &[0x08, 0x00])])),
        Classification::Other
    );
    assert_eq!(classify(&[]), Classification::Other);
}

/// A recorded frame, possibly tagged, with some bytes changed, cut or padded.
fn mutated() -> impl Strategy<Value = (Vec<u8>, Option<u16>)> {
    let frames = prop::sample::select(vec![
        ANNOUNCEMENT,
        PROBE,
        REPLY,
        DAD,
        ADVERTISEMENT,
        SOLICITATION,
        ROUTER_SOLICITATION,
        ROUTER_ADVERTISEMENT,
        REDIRECT,
    ]);
    let tags = prop::collection::vec((prop::sample::select(vec![Q, AD]), any::<u16>()), 0..4);
    let changes = prop::collection::vec((0_usize..90, any::<u8>()), 0..6);
    let kinds = prop::sample::select(vec![0, 43, 44, 60]);
    let headers = prop::collection::vec((kinds, 0_usize..3), 0..4);
    let shape = (frames, headers, tags);
    (shape, changes, 0_usize..160, any::<Option<u16>>()).prop_map(
        |((hex, headers, tags), changes, length, outside)| {
            let frame = if [ANNOUNCEMENT, PROBE, REPLY].contains(&hex) {
                bytes(hex)
            } else {
                behind(hex, &headers)
            };
            let mut frame = tagged(frame, &tags);
            for (at, byte) in changes {
                if let Some(place) = frame.get_mut(at) {
                    *place = byte;
                }
            }
            if length > 20 {
                frame.resize(length, 0);
            }
            (frame, outside)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn every_claim_is_within_the_rules((frame, outside) in mutated()) {
        let (class, claim) = classify_tagged(&frame, outside);
        if class == Classification::Claim {
            prop_assert!(claim.vlan_outer < 0xfff && claim.vlan_inner < 0xfff);
            prop_assert!(claim.vlan_inner == 0 || claim.vlan_outer != 0);
            prop_assert!(claim.tentative <= 1 && claim.reserved == 0 && claim.ifindex == 0);
            prop_assert!(claim.router <= u8::from(claim.tag == TAG_NDP));
            match claim.tag {
                TAG_ARP => {
                    prop_assert!((1..224).contains(&claim.address[0]) && claim.address[0] != 127);
                    prop_assert_eq!(&claim.address[4..], &[0; 12]);
                }
                TAG_NDP => {
                    let address = u128::from_be_bytes(claim.address);
                    prop_assert!(address > 1 && claim.address[0] != 0xff);
                    prop_assert!(address >> 32 != 0xffff);
                }
                other => prop_assert!(false, "{}", format!("tag {other}")),
            }
        }
    }

    #[test]
    fn parsing_never_panics(frame in prop::collection::vec(any::<u8>(), 0..200), outside in any::<Option<u16>>()) {
        classify_tagged(&frame, outside);
    }
}
