//! VLAN tags.

use super::{
    AD, ADVERTISEMENT, ANNOUNCEMENT, Q, TagList, bytes, claim, classify, classify_tagged, tagged,
};
use crate::frame::Classification;
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
    // Three tags in the frame: the third is not parsed.
    assert_eq!(
        classify(&tagged(bytes(ANNOUNCEMENT), &[(AD, 1), (Q, 2), (Q, 3)])),
        Classification::Other
    );
}
