//! ARP: which address each message claims, and why malformed messages are rejected.

use super::{
    ANNOUNCEMENT, MAC, OTHER_MAC, PROBE, REPLY, bytes, changed, claim, classify, expected, v4,
};
use crate::frame::Classification;
use crate::{RejectReason, TAG_ARP};

#[test]
fn announcement_claims_its_sender() {
    assert_eq!(
        claim(&bytes(ANNOUNCEMENT)),
        expected(TAG_ARP, 0, v4([10, 244, 2, 10]))
    );
}

#[test]
fn request_claims_its_sender_not_its_target() {
    let frame = changed(ANNOUNCEMENT, &[(38, &[10, 244, 2, 1])]);
    assert_eq!(claim(&frame), expected(TAG_ARP, 0, v4([10, 244, 2, 10])));
}

#[test]
fn gratuitous_reply_claims_its_sender() {
    assert_eq!(
        claim(&bytes(REPLY)),
        expected(TAG_ARP, 0, v4([192, 168, 91, 33]))
    );
}

#[test]
fn probe_claims_its_target_tentatively() {
    assert_eq!(
        claim(&bytes(PROBE)),
        expected(TAG_ARP, 1, v4([10, 244, 2, 10]))
    );
}

#[test]
fn accepts_padding_and_hardware_type_ieee_802() {
    let mut frame = changed(ANNOUNCEMENT, &[(14, &[0, 6])]);
    frame.resize(60, 0);
    assert_eq!(claim(&frame), expected(TAG_ARP, 0, v4([10, 244, 2, 10])));
}

#[test]
fn keeps_an_ethernet_source_other_than_the_sender() {
    let found = claim(&changed(ANNOUNCEMENT, &[(6, &OTHER_MAC)]));
    assert_eq!((found.mac, found.ether_source), (MAC, OTHER_MAC));
}

#[test]
fn hardware_address_may_be_zero_or_a_group() {
    for mac in [[0; 6], [3, 0, 0, 0, 0, 1], [0xff; 6]] {
        for hex in [ANNOUNCEMENT, REPLY, PROBE] {
            assert_eq!(claim(&changed(hex, &[(22, &mac)])).mac, mac);
        }
        let found = claim(&changed(ANNOUNCEMENT, &[(6, &mac)]));
        assert_eq!((found.mac, found.ether_source), (MAC, mac));
    }
}

#[test]
fn malformed_arp_is_rejected_with_its_reason() {
    use RejectReason::{Address, ArpFormat, ArpOperation};
    let cases: &[(&str, usize, &[u8], RejectReason)] = &[
        (ANNOUNCEMENT, 14, &[0, 2], ArpFormat),
        (ANNOUNCEMENT, 16, &[0x86, 0xdd], ArpFormat),
        (ANNOUNCEMENT, 18, &[8], ArpFormat),
        (ANNOUNCEMENT, 19, &[16], ArpFormat),
        (ANNOUNCEMENT, 20, &[0, 0], ArpOperation),
        (ANNOUNCEMENT, 20, &[0, 3], ArpOperation),
        (ANNOUNCEMENT, 28, &[0, 0, 0, 1], Address),
        (ANNOUNCEMENT, 28, &[127, 0, 0, 1], Address),
        (ANNOUNCEMENT, 28, &[224, 0, 0, 1], Address),
        (ANNOUNCEMENT, 28, &[240, 0, 0, 1], Address),
        (ANNOUNCEMENT, 28, &[255; 4], Address),
        // A reply without a sender address is not a probe.
        (REPLY, 28, &[0; 4], Address),
        (PROBE, 38, &[0; 4], Address),
        (PROBE, 38, &[239, 1, 1, 1], Address),
    ];
    for (hex, at, new, reason) in cases {
        assert_eq!(
            classify(&changed(hex, &[(*at, new)])),
            Classification::Rejected(*reason),
            "{hex} with {new:?} at {at}"
        );
    }
}
