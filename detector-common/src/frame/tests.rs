//! Frames recorded on Linux 6.18, and what becomes of them when one field is wrong.

extern crate std;

use core::mem::MaybeUninit;
use std::{format, string::String, vec, vec::Vec};

use proptest::prelude::*;

use super::{Bytes, Seen, examine};
use crate::{Claim, RejectReason, TAG_ARP, TAG_NDP};

const MAC: [u8; 6] = [0x02, 0x1c, 0, 0, 0, 0x01];
const OTHER_MAC: [u8; 6] = [0x02, 0x1c, 0, 0, 0, 0x02];

/// An ARP announcement of 10.244.2.10 (RFC 5227, 3).
const ANNOUNCEMENT: &str =
    "ffffffffffff021c000000010806 0001080006040001 021c00000001 0af4020a 000000000000 0af4020a";
/// An ARP probe for 10.244.2.10 (RFC 5227, 2.1.1).
const PROBE: &str =
    "ffffffffffff021c000000010806 0001080006040001 021c00000001 00000000 000000000000 0af4020a";
/// A gratuitous ARP reply for 192.168.91.33.
const REPLY: &str =
    "ffffffffffff021c000000010806 0001080006040002 021c00000001 c0a85b21 021c00000001 c0a85b21";
/// Duplicate address detection of fd00::a:b, with the nonce option of RFC 7527.
const DAD: &str = "3333ff0a000b021c0000000186dd\
    6000000000203aff 00000000000000000000000000000000 ff0200000000000000000001ff0a000b\
    8700e60b00000000 fd0000000000000000000000000a000b 0e01f2e83fb656c9";
/// An unsolicited advertisement of fd00::a:b, with the target link-layer option.
const ADVERTISEMENT: &str = "333300000001021c0000000186dd\
    6000000000203aff fd0000000000000000000000000a000b ff020000000000000000000000000001\
    88005a5720000000 fd0000000000000000000000000a000b 0201021c00000001";
/// A solicitation for fd00::1 by fd00::a:b, with the source link-layer option.
const SOLICITATION: &str = "3333ff000001021c0000000186dd\
    6000000000203aff fd0000000000000000000000000a000b ff0200000000000000000001ff000001\
    8700000000000000 fd000000000000000000000000000001 0101021c00000001";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(digits.get(at..at + 2).unwrap(), 16).unwrap())
        .collect()
}

fn see_tagged(frame: &[u8], outer_tag: Option<u16>) -> (Seen, Claim) {
    let mut claim = MaybeUninit::new(Claim::default());
    let seen = examine(&Bytes { frame, outer_tag }, &mut claim);
    // SAFETY: it was initialised to begin with.
    (seen, unsafe { claim.assume_init() })
}

fn see(frame: &[u8]) -> Seen {
    see_tagged(frame, None).0
}

/// A recorded frame with bytes at some places replaced.
fn changed(hex: &str, changes: &[(usize, &[u8])]) -> Vec<u8> {
    let mut frame = bytes(hex);
    for (at, new) in changes {
        frame[*at..*at + new.len()].copy_from_slice(new);
    }
    frame
}

fn claim(frame: &[u8]) -> Claim {
    let (seen, claim) = see_tagged(frame, None);
    assert_eq!(seen, Seen::Claim);
    claim
}

fn v4(address: [u8; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&address);
    bytes
}

/// fd00::a:b
const V6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0, 0x0b];

fn expected(tag: u8, tentative: u8, address: [u8; 16]) -> Claim {
    Claim {
        tag,
        tentative,
        vlan_outer: 0,
        ifindex: 0,
        address,
        mac: MAC,
        ether_source: MAC,
        vlan_inner: 0,
        reserved: 0,
    }
}

#[test]
fn an_announcement_claims_its_sender() {
    assert_eq!(
        claim(&bytes(ANNOUNCEMENT)),
        expected(TAG_ARP, 0, v4([10, 244, 2, 10]))
    );
}

#[test]
fn an_ordinary_request_claims_its_sender_not_its_target() {
    let frame = changed(ANNOUNCEMENT, &[(38, &[10, 244, 2, 1])]);
    assert_eq!(claim(&frame), expected(TAG_ARP, 0, v4([10, 244, 2, 10])));
}

#[test]
fn a_gratuitous_reply_claims_its_sender() {
    assert_eq!(
        claim(&bytes(REPLY)),
        expected(TAG_ARP, 0, v4([192, 168, 91, 33]))
    );
}

#[test]
fn a_probe_claims_its_target_tentatively() {
    assert_eq!(
        claim(&bytes(PROBE)),
        expected(TAG_ARP, 1, v4([10, 244, 2, 10]))
    );
}

#[test]
fn arp_may_be_padded_and_of_ieee_802() {
    let mut frame = changed(ANNOUNCEMENT, &[(14, &[0, 6])]);
    frame.resize(60, 0);
    assert_eq!(claim(&frame), expected(TAG_ARP, 0, v4([10, 244, 2, 10])));
}

#[test]
fn an_ethernet_source_that_differs_from_the_sender_is_kept_beside_it() {
    let found = claim(&changed(ANNOUNCEMENT, &[(6, &OTHER_MAC)]));
    assert_eq!((found.mac, found.ether_source), (MAC, OTHER_MAC));
}

#[test]
fn malformed_arp_is_rejected_with_the_reason() {
    use RejectReason::{Address, ArpFormat, ArpOperation, HardwareAddress};
    let cases: &[(&str, usize, &[u8], RejectReason)] = &[
        (ANNOUNCEMENT, 14, &[0, 2], ArpFormat),
        (ANNOUNCEMENT, 16, &[0x86, 0xdd], ArpFormat),
        (ANNOUNCEMENT, 18, &[8], ArpFormat),
        (ANNOUNCEMENT, 19, &[16], ArpFormat),
        (ANNOUNCEMENT, 20, &[0, 0], ArpOperation),
        (ANNOUNCEMENT, 20, &[0, 3], ArpOperation),
        (ANNOUNCEMENT, 22, &[0, 0, 0, 0, 0, 0], HardwareAddress),
        (ANNOUNCEMENT, 22, &[0x03], HardwareAddress),
        (ANNOUNCEMENT, 22, &[0xff; 6], HardwareAddress),
        (ANNOUNCEMENT, 28, &[0, 0, 0, 1], Address),
        (ANNOUNCEMENT, 28, &[127, 0, 0, 1], Address),
        (ANNOUNCEMENT, 28, &[224, 0, 0, 1], Address),
        (ANNOUNCEMENT, 28, &[240, 0, 0, 1], Address),
        (ANNOUNCEMENT, 28, &[255; 4], Address),
        // A reply from nobody is no probe.
        (REPLY, 28, &[0; 4], Address),
        (PROBE, 38, &[0; 4], Address),
        (PROBE, 38, &[239, 1, 1, 1], Address),
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

/// A frame with tags put into it.
fn tagged(hex: &str, tags: TagList<'_>) -> Vec<u8> {
    let mut frame = bytes(hex);
    let inner: Vec<u8> = tags
        .iter()
        .flat_map(|(kind, tci)| [kind.to_be_bytes(), tci.to_be_bytes()])
        .flatten()
        .collect();
    frame.splice(12..12, inner);
    frame
}

/// Tags in a frame, outermost first: type and tag control information.
type TagList<'a> = &'a [(u16, u16)];

const Q: u16 = 0x8100;
const AD: u16 = 0x88a8;

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
