//! Neighbour Discovery: which address each message claims, and why malformed messages are rejected.

use super::{
    ADVERTISEMENT, DAD, MAC, OTHER_MAC, SOLICITATION, V6, bytes, changed, claim, classify, expected,
};
use crate::frame::Classification;
use crate::{RejectReason, TAG_NDP};

#[test]
fn dad_claims_its_target_tentatively() {
    assert_eq!(claim(&bytes(DAD)), expected(TAG_NDP, 1, V6));
}

#[test]
fn solicitation_claims_its_source() {
    assert_eq!(claim(&bytes(SOLICITATION)), expected(TAG_NDP, 0, V6));
}

#[test]
fn advertisement_claims_its_target() {
    assert_eq!(claim(&bytes(ADVERTISEMENT)), expected(TAG_NDP, 0, V6));
}

#[test]
fn link_layer_option_takes_precedence_over_ethernet_source() {
    for hex in [ADVERTISEMENT, SOLICITATION] {
        let found = claim(&changed(hex, &[(80, &OTHER_MAC)]));
        assert_eq!((found.mac, found.ether_source), (OTHER_MAC, MAC));
        // The option that belongs to the other message type is ignored.
        let frame = bytes(hex);
        let found = claim(&changed(hex, &[(78, &[3 - frame[78]]), (80, &OTHER_MAC)]));
        assert_eq!(found.mac, MAC);
        let mut without = changed(hex, &[(19, &[24])]);
        without.truncate(78);
        assert_eq!(claim(&without).mac, MAC);
    }
}

#[test]
fn first_link_layer_option_counts_after_other_options() {
    let mut frame = changed(ADVERTISEMENT, &[(19, &[24 + 16 + 8 + 8]), (78, &[14, 2])]);
    frame.extend([0; 8]);
    frame.extend([2, 1]);
    frame.extend(OTHER_MAC);
    frame.extend([2, 1]);
    frame.extend(MAC);
    assert_eq!(claim(&frame).mac, OTHER_MAC);
}

#[test]
fn malformed_ndp_is_rejected_with_its_reason() {
    use RejectReason::{
        Address, HardwareAddress, HopLimit, IcmpCode, IcmpLength, IpVersion, NdpOption, Truncated,
    };
    let cases: &[(&str, usize, &[u8], RejectReason)] = &[
        (ADVERTISEMENT, 14, &[0x40], IpVersion),
        (ADVERTISEMENT, 18, &[0, 23], IcmpLength),
        (ADVERTISEMENT, 18, &[0, 0], IcmpLength),
        (ADVERTISEMENT, 18, &[0, 33], Truncated),
        (ADVERTISEMENT, 18, &[0xff, 0xff], Truncated),
        (ADVERTISEMENT, 21, &[254], HopLimit),
        (ADVERTISEMENT, 55, &[1], IcmpCode),
        (ADVERTISEMENT, 62, &[0xff, 0x02], Address),
        (ADVERTISEMENT, 62, &[0; 16], Address),
        (
            ADVERTISEMENT,
            62,
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            Address,
        ),
        (ADVERTISEMENT, 79, &[0], NdpOption),
        (ADVERTISEMENT, 79, &[2], NdpOption),
        (ADVERTISEMENT, 79, &[255], NdpOption),
        // Seven bytes of an option of eight.
        (ADVERTISEMENT, 18, &[0, 31], NdpOption),
        (ADVERTISEMENT, 80, &[0; 6], HardwareAddress),
        (ADVERTISEMENT, 80, &[1], HardwareAddress),
        (SOLICITATION, 22, &[0xff, 0x02], Address),
        (SOLICITATION, 62, &[0xff, 0x02], Address),
        (DAD, 62, &[0xff, 0x02], Address),
        (DAD, 79, &[0], NdpOption),
    ];
    for (hex, at, new, reason) in cases {
        assert_eq!(
            classify(&changed(hex, &[(*at, new)])),
            Classification::Rejected(*reason),
            "{hex} with {new:?} at {at}"
        );
    }
}

#[test]
fn messages_that_receivers_discard_are_rejected() {
    let contradiction = Classification::Rejected(RejectReason::NdpContradiction);
    // DAD with a source link-layer address instead of the nonce, sent to all nodes, sent to a similar group.
    assert_eq!(classify(&changed(DAD, &[(78, &[1])])), contradiction);
    assert_eq!(classify(&changed(DAD, &[(49, &[0])])), contradiction);
    assert_eq!(classify(&changed(DAD, &[(50, &[0xfe])])), contradiction);
    // A multicast advertisement with the Solicited flag.
    assert_eq!(
        classify(&changed(ADVERTISEMENT, &[(58, &[0x60])])),
        contradiction
    );
    // Unicast, the flag is valid.
    let answer = changed(ADVERTISEMENT, &[(38, &[0xfd, 0]), (58, &[0x60])]);
    assert_eq!(claim(&answer), expected(TAG_NDP, 0, V6));
    // A solicitation that is not DAD may be sent to any destination.
    let unusual = changed(SOLICITATION, &[(50, &[0xfe])]);
    assert_eq!(claim(&unusual), expected(TAG_NDP, 0, V6));
}

#[test]
fn link_layer_option_of_another_size_is_rejected() {
    let mut frame = changed(ADVERTISEMENT, &[(19, &[40]), (79, &[2])]);
    frame.extend([0; 8]);
    assert_eq!(
        classify(&frame),
        Classification::Rejected(RejectReason::NdpOption)
    );
}

#[test]
fn up_to_eight_options_are_all_checked() {
    let with_options = |count: u8| {
        let mut frame = changed(ADVERTISEMENT, &[(19, &[24 + 8 * count])]);
        for _ in 1..count {
            frame.extend([14, 1, 0, 0, 0, 0, 0, 0]);
        }
        frame
    };
    assert_eq!(claim(&with_options(8)).mac, MAC);
    assert_eq!(
        classify(&with_options(9)),
        Classification::Rejected(RejectReason::NdpOptionCount)
    );
    let mut bad_last = with_options(8);
    let last = bad_last.len() - 7;
    bad_last[last] = 0;
    assert_eq!(
        classify(&bad_last),
        Classification::Rejected(RejectReason::NdpOption)
    );
}

#[test]
fn fragmented_ndp_is_rejected() {
    let mut frame = bytes(ADVERTISEMENT);
    frame[20] = 44;
    frame[19] += 8;
    frame.splice(54..54, [58, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(
        classify(&frame),
        Classification::Rejected(RejectReason::Fragment)
    );
    // Fragments of other protocols are ignored.
    frame[54] = 17;
    assert_eq!(classify(&frame), Classification::Other);
}
