//! Frames of any kind and any length.

use std::{format, vec, vec::Vec};

use proptest::prelude::*;

use super::{
    AD, ADVERTISEMENT, ANNOUNCEMENT, DAD, PROBE, Q, REPLY, SOLICITATION, bytes, changed, see,
    see_tagged, tagged,
};
use crate::frame::Seen;
use crate::{RejectReason, TAG_ARP, TAG_NDP};

#[test]
fn a_frame_cut_short_is_truncated_wherever_it_is_cut() {
    for hex in [ANNOUNCEMENT, PROBE, REPLY] {
        let frame = bytes(hex);
        for length in 14..frame.len() {
            assert_eq!(
                see(&frame[..length]),
                Seen::Rejected(RejectReason::Truncated),
                "{length} bytes"
            );
        }
    }
    for hex in [DAD, ADVERTISEMENT, SOLICITATION] {
        let frame = bytes(hex);
        // Before the ICMPv6 type nothing tells that it is Neighbour Discovery.
        for length in 14..55 {
            assert_eq!(see(&frame[..length]), Seen::Other, "{length} bytes");
        }
        for length in 55..frame.len() {
            assert_eq!(
                see(&frame[..length]),
                Seen::Rejected(RejectReason::Truncated),
                "{length} bytes"
            );
        }
    }
}

#[test]
fn everything_else_is_left_at_once() {
    for kind in [1, 128, 129, 133, 134, 137, 143] {
        assert_eq!(
            see(&changed(ADVERTISEMENT, &[(54, &[kind])])),
            Seen::Other,
            "ICMPv6 type {kind}"
        );
    }
    for next in [0, 6, 17, 43, 50, 60] {
        assert_eq!(
            see(&changed(ADVERTISEMENT, &[(20, &[next])])),
            Seen::Other,
            "next header {next}"
        );
    }
    assert_eq!(
        see(&changed(ANNOUNCEMENT, &[(12, &[0x08, 0x00])])),
        Seen::Other
    );
    assert_eq!(see(&[]), Seen::Other);
}

/// One of the recorded frames, tagged or not, with some bytes changed and perhaps cut or padded.
fn mutated() -> impl Strategy<Value = (Vec<u8>, Option<u16>)> {
    let frames = prop::sample::select(vec![
        ANNOUNCEMENT,
        PROBE,
        REPLY,
        DAD,
        ADVERTISEMENT,
        SOLICITATION,
    ]);
    let tags = prop::collection::vec((prop::sample::select(vec![Q, AD]), any::<u16>()), 0..4);
    let changes = prop::collection::vec((0_usize..90, any::<u8>()), 0..6);
    (frames, tags, changes, 0_usize..120, any::<Option<u16>>()).prop_map(
        |(hex, tags, changes, length, apart)| {
            let mut frame = tagged(hex, &tags);
            for (at, byte) in changes {
                if let Some(place) = frame.get_mut(at) {
                    *place = byte;
                }
            }
            if length > 20 {
                frame.resize(length, 0);
            }
            (frame, apart)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn no_frame_makes_a_claim_that_breaks_the_rules((frame, apart) in mutated()) {
        let (seen, claim) = see_tagged(&frame, apart);
        if seen == Seen::Claim {
            prop_assert!(claim.mac[0] & 1 == 0 && claim.mac != [0; 6]);
            prop_assert!(claim.vlan_outer < 0xfff && claim.vlan_inner < 0xfff);
            prop_assert!(claim.vlan_inner == 0 || claim.vlan_outer != 0);
            prop_assert!(claim.tentative <= 1 && claim.reserved == 0 && claim.ifindex == 0);
            match claim.tag {
                TAG_ARP => {
                    prop_assert!((1..224).contains(&claim.address[0]) && claim.address[0] != 127);
                    prop_assert_eq!(&claim.address[4..], &[0; 12]);
                }
                TAG_NDP => {
                    prop_assert!(u128::from_be_bytes(claim.address) > 1 && claim.address[0] != 0xff);
                }
                other => prop_assert!(false, "{}", format!("tag {other}")),
            }
        }
    }

    #[test]
    fn no_bytes_make_it_panic(frame in prop::collection::vec(any::<u8>(), 0..200), apart in any::<Option<u16>>()) {
        see_tagged(&frame, apart);
    }
}
