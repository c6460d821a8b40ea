//! Messages of and about routers, from which Linux learns hardware addresses as well.

use super::{
    LINK_LOCAL, MAC, OTHER_MAC, REDIRECT, ROUTER_ADVERTISEMENT, ROUTER_SOLICITATION, V6, behind,
    bytes, changed, claim, classify, expected,
};
use crate::frame::Classification;
use crate::{RawClaim, RejectReason, TAG_NDP};

#[test]
fn router_solicitation_claims_its_source() {
    assert_eq!(claim(&bytes(ROUTER_SOLICITATION)), expected(TAG_NDP, 0, V6));
    let other = changed(ROUTER_SOLICITATION, &[(64, &OTHER_MAC)]);
    assert_eq!(claim(&other).mac, OTHER_MAC);
}

#[test]
fn router_solicitation_without_an_address_claims_nothing() {
    let unspecified = changed(ROUTER_SOLICITATION, &[(22, &[0; 16])]);
    assert_eq!(classify(&unspecified), Classification::Other);
}

#[test]
fn router_advertisement_claims_its_source_as_a_router() {
    let router = RawClaim {
        router: 1,
        ..expected(TAG_NDP, 0, LINK_LOCAL)
    };
    assert_eq!(claim(&bytes(ROUTER_ADVERTISEMENT)), router);
    let other = changed(ROUTER_ADVERTISEMENT, &[(72, &OTHER_MAC)]);
    assert_eq!(claim(&other).mac, OTHER_MAC);
    // Its options may be missing.
    let mut bare = changed(ROUTER_ADVERTISEMENT, &[(19, &[16])]);
    bare.truncate(54 + 16);
    assert_eq!(claim(&bare), router);
}

#[test]
fn redirect_claims_its_target() {
    assert_eq!(claim(&bytes(REDIRECT)), expected(TAG_NDP, 0, V6));
    let other = changed(REDIRECT, &[(96, &OTHER_MAC)]);
    assert_eq!(claim(&other).mac, OTHER_MAC);
    // Without a hardware address it changes a route only.
    let mut without = changed(REDIRECT, &[(19, &[40])]);
    without.truncate(54 + 40);
    assert_eq!(classify(&without), Classification::Other);
    let source_option = changed(REDIRECT, &[(94, &[1])]);
    assert_eq!(classify(&source_option), Classification::Other);
}

#[test]
fn router_messages_that_receivers_discard_are_rejected() {
    use RejectReason::{Address, HopLimit, IcmpCode, IcmpLength, NdpContradiction, NdpOption};
    let cases: &[(&str, usize, &[u8], RejectReason)] = &[
        (ROUTER_SOLICITATION, 21, &[64], HopLimit),
        (ROUTER_SOLICITATION, 18, &[0, 7], IcmpLength),
        (ROUTER_SOLICITATION, 63, &[0], NdpOption),
        (ROUTER_ADVERTISEMENT, 55, &[1], IcmpCode),
        (ROUTER_ADVERTISEMENT, 18, &[0, 15], IcmpLength),
        (ROUTER_ADVERTISEMENT, 22, &[0xfd, 0], NdpContradiction),
        (ROUTER_ADVERTISEMENT, 22, &[0; 16], NdpContradiction),
        (REDIRECT, 18, &[0, 39], IcmpLength),
        (REDIRECT, 22, &[0xfd, 0], NdpContradiction),
        (REDIRECT, 62, &[0xff, 2], Address),
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
fn router_messages_cut_at_any_byte_are_truncated() {
    for hex in [ROUTER_SOLICITATION, ROUTER_ADVERTISEMENT, REDIRECT] {
        let frame = bytes(hex);
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
fn router_messages_behind_extension_headers_claim() {
    for hex in [ROUTER_SOLICITATION, ROUTER_ADVERTISEMENT, REDIRECT] {
        let found = claim(&behind(hex, &[(0, 0), (60, 1)]));
        assert_eq!(found, claim(&bytes(hex)));
        assert_eq!(found.mac, MAC);
    }
}
