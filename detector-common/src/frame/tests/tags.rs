//! VLAN tags.

use super::{
    AD, ADVERTISEMENT, ANNOUNCEMENT, Q, ROUTER_ADVERTISEMENT, SOLICITATION, TagList, bytes, claim,
    classify, classify_tagged, tagged,
};
use crate::frame::{Classification, MAX_TAGS};
use crate::{RawClaim, RejectReason};

#[test]
fn tags_are_part_of_the_claim() {
    // Tag outside the frame, tags in the frame, expected outer and inner id.
    let cases: &[(Option<u16>, TagList<'_>, u16, u16)] = &[
        (None, &[], 0, 0),
        (Some(100), &[], 100, 0),
        (None, &[(Q, 100)], 100, 0),
        (None, &[(AD, 100)], 100, 0),
        (Some(100), &[(Q, 7)], 100, 7),
        (None, &[(AD, 100), (Q, 7)], 100, 7),
        (Some(4094), &[(Q, 4094)], 4094, 4094),
        // Priority and drop bits are not part of the id.
        (Some(0xf064), &[(Q, 0xe007)], 100, 7),
        // Priority tags (id 0) do not count.
        (Some(0xe000), &[], 0, 0),
        (Some(0), &[(Q, 7)], 7, 0),
        (Some(100), &[(Q, 0)], 100, 0),
        (None, &[(AD, 0), (Q, 7)], 7, 0),
        (None, &[(AD, 100), (Q, 0)], 100, 0),
        (Some(0), &[(AD, 100), (Q, 7)], 100, 7),
    ];
    for hex in [ANNOUNCEMENT, ADVERTISEMENT] {
        for (outside, inside, outer, inner) in cases {
            let frame = tagged(bytes(hex), inside);
            let (class, found) = classify_tagged(&frame, *outside);
            assert_eq!(class, Classification::Claim, "{outside:?} and {inside:?}");
            let without = RawClaim {
                vlan_outer: 0,
                vlan_inner: 0,
                ..found
            };
            assert_eq!(without, claim(&bytes(hex)));
            assert_eq!(
                (found.vlan_outer, found.vlan_inner),
                (*outer, *inner),
                "{outside:?} and {inside:?}"
            );
        }
    }
}

#[test]
fn third_tag_and_reserved_id_are_rejected() {
    let cases: &[(Option<u16>, TagList<'_>)] = &[
        (Some(1), &[(AD, 2), (Q, 3)]),
        (None, &[(AD, 1), (Q, 2), (Q, 3)]),
        (None, &[(AD, 1), (Q, 0), (Q, 2), (Q, 0), (Q, 3), (Q, 0)]),
        (Some(0xfff), &[]),
        (None, &[(Q, 0xfff)]),
        (Some(5), &[(Q, 0xfff)]),
    ];
    for hex in [ANNOUNCEMENT, ADVERTISEMENT] {
        for (outside, inside) in cases {
            let frame = tagged(bytes(hex), inside);
            let (class, _) = classify_tagged(&frame, *outside);
            assert_eq!(
                class,
                Classification::Rejected(RejectReason::Vlan),
                "{outside:?} and {inside:?}"
            );
        }
    }
}

#[test]
fn tagged_data_packets_are_ignored() {
    let mut frame = tagged(bytes(ANNOUNCEMENT), &[(Q, 5)]);
    frame[16..18].copy_from_slice(&[0x08, 0x00]);
    assert_eq!(classify(&frame), Classification::Other);
    let mut frame = tagged(bytes(ANNOUNCEMENT), &[(Q, 0); MAX_TAGS]);
    frame[12 + 4 * MAX_TAGS..][..2].copy_from_slice(&[0x08, 0x00]);
    assert_eq!(classify(&frame), Classification::Other);
}

/// Linux strips any number of them.
#[test]
fn priority_tags_are_followed_up_to_a_bound_and_counted_beyond() {
    for hex in [
        ANNOUNCEMENT,
        ADVERTISEMENT,
        SOLICITATION,
        ROUTER_ADVERTISEMENT,
    ] {
        for count in [3, 4, 5, 20, MAX_TAGS] {
            let frame = tagged(bytes(hex), &std::vec![(Q, 0xe000); count]);
            assert_eq!(claim(&frame), claim(&bytes(hex)), "{count} tags");
        }
        let mut tags = [(Q, 0); MAX_TAGS];
        tags[MAX_TAGS / 2] = (AD, 100);
        tags[MAX_TAGS - 1] = (Q, 7);
        let found = claim(&tagged(bytes(hex), &tags));
        assert_eq!((found.vlan_outer, found.vlan_inner), (100, 7));
        let deeper = tagged(bytes(hex), &[(Q, 0); MAX_TAGS + 1]);
        let rejected = Classification::Rejected(RejectReason::TagCount);
        assert_eq!(classify(&deeper), rejected);
    }
}

#[test]
fn frame_that_ends_within_its_tags_is_truncated() {
    let frame = tagged(bytes(ANNOUNCEMENT), &[(Q, 0); 6]);
    for length in 14..14 + 4 * 6 {
        let truncated = Classification::Rejected(RejectReason::Truncated);
        assert_eq!(classify(&frame[..length]), truncated, "{length} bytes");
    }
}
