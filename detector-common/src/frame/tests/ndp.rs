//! Neighbour Discovery: which address each message claims, and why malformed messages are rejected.

use super::{
    ADVERTISEMENT, DAD, MAC, OTHER_MAC, Q, SOLICITATION, V6, behind, bytes, changed, claim,
    classify, expected, tagged,
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
fn link_layer_address_may_be_zero_or_a_group() {
    for mac in [[0; 6], [3, 0, 0, 0, 0, 1], [0xff; 6]] {
        for hex in [ADVERTISEMENT, SOLICITATION] {
            assert_eq!(claim(&changed(hex, &[(80, &mac)])).mac, mac);
        }
        assert_eq!(claim(&changed(DAD, &[(6, &mac)])).mac, mac);
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
    use RejectReason::{Address, HopLimit, IcmpCode, IcmpLength, IpVersion, NdpOption, Truncated};
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
        // ::ffff:10.244.2.10, which is no address of an IPv6 packet.
        (ADVERTISEMENT, 62, &MAPPED, Address),
        (SOLICITATION, 22, &MAPPED, Address),
        (DAD, 62, &MAPPED, Address),
        (ADVERTISEMENT, 79, &[0], NdpOption),
        (ADVERTISEMENT, 79, &[2], NdpOption),
        (ADVERTISEMENT, 79, &[255], NdpOption),
        // Seven bytes of an option of eight.
        (ADVERTISEMENT, 18, &[0, 31], NdpOption),
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
fn eight_options_are_checked_and_more_hide_no_claim() {
    let with_options = |count: u8| {
        let mut frame = changed(ADVERTISEMENT, &[(19, &[24 + 8 * count])]);
        for _ in 1..count {
            frame.extend([14, 1, 0, 0, 0, 0, 0, 0]);
        }
        frame
    };
    assert_eq!(claim(&with_options(8)).mac, MAC);
    let mut more = with_options(9);
    assert_eq!(claim(&more).mac, MAC);
    // The option that a receiver takes the address from is not examined.
    let link_layer: std::vec::Vec<u8> = more.splice(78..86, []).collect();
    more.extend(link_layer);
    assert_eq!(claim(&more).address, V6);
    let mut bad_last = with_options(8);
    let last = bad_last.len() - 7;
    bad_last[last] = 0;
    assert_eq!(
        classify(&bad_last),
        Classification::Rejected(RejectReason::NdpOption)
    );
}

/// ::ffff:10.244.2.10
const MAPPED: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 244, 2, 10];

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

#[test]
fn message_behind_extension_headers_claims() {
    let chains: &[&[(u8, usize)]] = &[
        &[(HOP_BY_HOP, 0)],
        &[(DESTINATION, 0)],
        &[(ROUTING, 0)],
        &[(HOP_BY_HOP, 3), (DESTINATION, 1), (ROUTING, 2)],
        &[(DESTINATION, 0); 8],
        &[(DESTINATION, 255)],
    ];
    for headers in chains {
        let (dad, ns, na) = (DAD, SOLICITATION, ADVERTISEMENT);
        assert_eq!(claim(&behind(dad, headers)), expected(TAG_NDP, 1, V6));
        assert_eq!(claim(&behind(ns, headers)), expected(TAG_NDP, 0, V6));
        assert_eq!(claim(&behind(na, headers)), expected(TAG_NDP, 0, V6));
        let tagged = tagged(behind(na, headers), &[(Q, 5), (Q, 6)]);
        assert_eq!(claim(&tagged).address, V6);
    }
}

#[test]
fn message_behind_extension_headers_is_checked() {
    use RejectReason::{HopLimit, IcmpCode, IcmpLength, NdpOption, Truncated};
    let cases: &[(usize, &[u8], RejectReason)] = &[
        (21, &[254], HopLimit),
        (54 + 24 + 1, &[1], IcmpCode),
        (19, &[24 + 24 - 1], IcmpLength),
        (19, &[24 + 33], Truncated),
        (54 + 24 + 24 + 1, &[2], NdpOption),
    ];
    let valid = behind(ADVERTISEMENT, &[(HOP_BY_HOP, 1), (DESTINATION, 0)]);
    for (at, new, reason) in cases {
        let mut frame = valid.clone();
        frame[*at..*at + new.len()].copy_from_slice(new);
        assert_eq!(
            classify(&frame),
            Classification::Rejected(*reason),
            "{new:?} at {at}"
        );
    }
    for length in 54..valid.len() {
        let class = classify(&valid[..length]);
        let is_visible = length > 54 + 24;
        let expected = if is_visible {
            Classification::Rejected(Truncated)
        } else {
            Classification::Other
        };
        assert_eq!(class, expected, "{length} bytes");
    }
}

/// As in Linux, and RFC 8200 §4.1.
#[test]
fn hop_by_hop_options_are_valid_only_in_front() {
    for headers in [
        [(DESTINATION, 0), (HOP_BY_HOP, 0)],
        [(HOP_BY_HOP, 0), (HOP_BY_HOP, 0)],
    ] {
        assert_eq!(
            classify(&behind(ADVERTISEMENT, &headers)),
            Classification::Other
        );
    }
}

/// A payload length of zero announces a jumbo payload option, whose presence Linux does not verify.
#[test]
fn payload_length_zero_is_the_whole_frame_after_hop_by_hop_options() {
    let jumbo = |headers: &[(u8, usize)]| {
        let mut frame = behind(ADVERTISEMENT, headers);
        frame[18..20].copy_from_slice(&[0, 0]);
        frame
    };
    let mut frame = jumbo(&[(HOP_BY_HOP, 0), (DESTINATION, 0)]);
    assert_eq!(claim(&frame), expected(TAG_NDP, 0, V6));
    // What follows is part of the message.
    frame.extend([0; 8]);
    assert_eq!(
        classify(&frame),
        Classification::Rejected(RejectReason::NdpOption)
    );
    for headers in [&[(DESTINATION, 0)][..], &[]] {
        assert_eq!(
            classify(&jumbo(headers)),
            Classification::Rejected(RejectReason::IcmpLength)
        );
    }
}

#[test]
fn up_to_eight_extension_headers_are_followed() {
    let many = |count| behind(ADVERTISEMENT, &std::vec![(DESTINATION, 1); count]);
    assert_eq!(claim(&many(8)), expected(TAG_NDP, 0, V6));
    let rejected = Classification::Rejected(RejectReason::ExtensionHeaderCount);
    assert_eq!(classify(&many(9)), rejected);
    // Whatever is behind them.
    let mut other = many(9);
    other[54 + 8 * 16] = 17;
    assert_eq!(classify(&other), rejected);
}

#[test]
fn fragmented_ndp_is_rejected() {
    let fragment = Classification::Rejected(RejectReason::Fragment);
    let chains: &[&[(u8, usize)]] = &[
        &[(FRAGMENT, 0)],
        &[(HOP_BY_HOP, 0), (FRAGMENT, 0)],
        &[(FRAGMENT, 0), (DESTINATION, 1)],
    ];
    for headers in chains {
        assert_eq!(classify(&behind(ADVERTISEMENT, headers)), fragment);
    }
    let mut frame = behind(ADVERTISEMENT, &[(FRAGMENT, 0)]);
    // The byte is reserved, not a length.
    frame[55] = 9;
    assert_eq!(classify(&frame), fragment);
    // Fragments of other protocols are ignored.
    frame[54] = 17;
    assert_eq!(classify(&frame), Classification::Other);
}
