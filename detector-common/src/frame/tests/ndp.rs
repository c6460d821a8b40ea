//! Neighbour Discovery: what claims, for whom, and what is malformed.

use super::{
    ADVERTISEMENT, DAD, MAC, OTHER_MAC, SOLICITATION, V6, bytes, changed, claim, expected, see,
};
use crate::frame::Seen;
use crate::{RejectReason, TAG_NDP};

#[test]
fn duplicate_address_detection_claims_its_target_tentatively() {
    assert_eq!(claim(&bytes(DAD)), expected(TAG_NDP, 1, V6));
}

#[test]
fn a_solicitation_claims_its_source() {
    assert_eq!(claim(&bytes(SOLICITATION)), expected(TAG_NDP, 0, V6));
}

#[test]
fn an_advertisement_claims_its_target() {
    assert_eq!(claim(&bytes(ADVERTISEMENT)), expected(TAG_NDP, 0, V6));
}

#[test]
fn the_link_layer_option_names_the_hardware_address_else_the_ethernet_source_does() {
    for hex in [ADVERTISEMENT, SOLICITATION] {
        let found = claim(&changed(hex, &[(80, &OTHER_MAC)]));
        assert_eq!((found.mac, found.ether_source), (OTHER_MAC, MAC));
        // The other message's option says nothing here.
        let frame = bytes(hex);
        let found = claim(&changed(hex, &[(78, &[3 - frame[78]]), (80, &OTHER_MAC)]));
        assert_eq!(found.mac, MAC);
        let mut without = changed(hex, &[(19, &[24])]);
        without.truncate(78);
        assert_eq!(claim(&without).mac, MAC);
    }
}

#[test]
fn the_link_layer_option_is_found_behind_others_and_the_first_one_counts() {
    let mut frame = changed(ADVERTISEMENT, &[(19, &[24 + 16 + 8 + 8]), (78, &[14, 2])]);
    frame.extend([0; 8]);
    frame.extend([2, 1]);
    frame.extend(OTHER_MAC);
    frame.extend([2, 1]);
    frame.extend(MAC);
    assert_eq!(claim(&frame).mac, OTHER_MAC);
}

#[test]
fn malformed_neighbour_discovery_is_rejected_with_the_reason() {
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
            see(&changed(hex, &[(*at, new)])),
            Seen::Rejected(*reason),
            "{hex} with {new:?} at {at}"
        );
    }
}

#[test]
fn what_no_receiver_takes_is_no_claim() {
    let contradiction = Seen::Rejected(RejectReason::NdpContradiction);
    // Detection with a source link-layer address in place of the nonce, to all nodes, and to a group a bit beside.
    assert_eq!(see(&changed(DAD, &[(78, &[1])])), contradiction);
    assert_eq!(see(&changed(DAD, &[(49, &[0])])), contradiction);
    assert_eq!(see(&changed(DAD, &[(50, &[0xfe])])), contradiction);
    // An answer that nobody asked for calls itself solicited.
    assert_eq!(
        see(&changed(ADVERTISEMENT, &[(58, &[0x60])])),
        contradiction
    );
    // To one node it may.
    let answer = changed(ADVERTISEMENT, &[(38, &[0xfd, 0]), (58, &[0x60])]);
    assert_eq!(claim(&answer), expected(TAG_NDP, 0, V6));
    // The same destinations are right for a solicitation that is no detection.
    let unusual = changed(SOLICITATION, &[(50, &[0xfe])]);
    assert_eq!(claim(&unusual), expected(TAG_NDP, 0, V6));
}

#[test]
fn a_link_layer_option_of_another_size_is_rejected() {
    let mut frame = changed(ADVERTISEMENT, &[(19, &[40]), (79, &[2])]);
    frame.extend([0; 8]);
    assert_eq!(see(&frame), Seen::Rejected(RejectReason::NdpOption));
}

#[test]
fn options_are_checked_to_the_last_and_up_to_eight() {
    let with_options = |count: u8| {
        let mut frame = changed(ADVERTISEMENT, &[(19, &[24 + 8 * count])]);
        for _ in 1..count {
            frame.extend([14, 1, 0, 0, 0, 0, 0, 0]);
        }
        frame
    };
    assert_eq!(claim(&with_options(8)).mac, MAC);
    assert_eq!(
        see(&with_options(9)),
        Seen::Rejected(RejectReason::NdpOptionCount)
    );
    let mut bad_last = with_options(8);
    let last = bad_last.len() - 7;
    bad_last[last] = 0;
    assert_eq!(see(&bad_last), Seen::Rejected(RejectReason::NdpOption));
}

#[test]
fn neighbour_discovery_in_a_fragment_is_rejected() {
    let mut frame = bytes(ADVERTISEMENT);
    frame[20] = 44;
    frame[19] += 8;
    frame.splice(54..54, [58, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(see(&frame), Seen::Rejected(RejectReason::Fragment));
    // A fragment of something else is none of our business.
    frame[54] = 17;
    assert_eq!(see(&frame), Seen::Other);
}
