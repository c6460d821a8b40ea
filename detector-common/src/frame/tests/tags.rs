//! VLAN tags.

use super::{AD, ADVERTISEMENT, ANNOUNCEMENT, Q, TagList, bytes, claim, see, see_tagged, tagged};
use crate::frame::Seen;
use crate::{Claim, RejectReason};

#[test]
fn tags_become_part_of_the_claim() {
    // Held apart, in the frame, outer, inner.
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
        // A priority tag is no tag.
        (Some(0xe000), &[], 0, 0),
        (Some(0), &[(Q, 7)], 7, 0),
        (Some(100), &[(Q, 0)], 100, 0),
        (None, &[(AD, 0), (Q, 7)], 7, 0),
        (None, &[(AD, 100), (Q, 0)], 100, 0),
        (Some(0), &[(AD, 100), (Q, 7)], 100, 7),
    ];
    for hex in [ANNOUNCEMENT, ADVERTISEMENT] {
        for (apart, inside, outer, inner) in cases {
            let frame = tagged(hex, inside);
            let (seen, found) = see_tagged(&frame, *apart);
            assert_eq!(seen, Seen::Claim, "{apart:?} and {inside:?}");
            let without = Claim {
                vlan_outer: 0,
                vlan_inner: 0,
                ..found
            };
            assert_eq!(without, claim(&bytes(hex)));
            assert_eq!(
                (found.vlan_outer, found.vlan_inner),
                (*outer, *inner),
                "{apart:?} and {inside:?}"
            );
        }
    }
}

#[test]
fn three_tags_and_the_reserved_id_are_rejected() {
    let cases: &[(Option<u16>, TagList<'_>)] = &[
        (Some(1), &[(AD, 2), (Q, 3)]),
        (Some(0xfff), &[]),
        (None, &[(Q, 0xfff)]),
        (Some(5), &[(Q, 0xfff)]),
    ];
    for hex in [ANNOUNCEMENT, ADVERTISEMENT] {
        for (apart, inside) in cases {
            let frame = tagged(hex, inside);
            let (seen, _) = see_tagged(&frame, *apart);
            assert_eq!(
                seen,
                Seen::Rejected(RejectReason::Vlan),
                "{apart:?} and {inside:?}"
            );
        }
    }
}

#[test]
fn tagged_data_packets_are_left_at_once() {
    let mut frame = tagged(ANNOUNCEMENT, &[(Q, 5)]);
    frame[16..18].copy_from_slice(&[0x08, 0x00]);
    assert_eq!(see(&frame), Seen::Other);
    // Three tags in the frame: the third is not even looked at.
    assert_eq!(
        see(&tagged(ANNOUNCEMENT, &[(AD, 1), (Q, 2), (Q, 3)])),
        Seen::Other
    );
}
