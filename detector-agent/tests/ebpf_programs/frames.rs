//! Claims by frames on a real veth device.

use std::net::{Ipv4Addr, Ipv6Addr};

use detector_agent::observe::ebpf::EbpfOptions;
use detector_common::{Counter, RecordKind, RejectReason};
use detector_engine::{FrameClaim, FrameKind, Mac, Observation, Timestamp, Vlan};
use detector_testkit::{ArpOperation, ExtensionHeader, Frame, MacAddress, NaFlags};
use nix::time::{ClockId, clock_gettime};

use crate::fixture::{Fixture, MAC};

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 10);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 1);
const OTHER_MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0x0b]);

fn v6() -> Ipv6Addr {
    "fd00::a:b".parse().unwrap()
}

#[test]
fn gratuitous_arp_is_observed_as_a_claim() {
    let mut fixture = Fixture::new(&EbpfOptions::default());
    let claims = fixture.claims_of(&[Frame::announcement(MAC, ADDRESS)]);
    assert_eq!(claims, [fixture.arp(ADDRESS)]);
}

#[test]
fn claim_has_the_time_of_its_frame() {
    let now = || {
        let time = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
        Timestamp(u64::try_from(time.tv_sec() * 1_000_000_000 + time.tv_nsec()).unwrap())
    };
    let mut fixture = Fixture::new(&EbpfOptions::default());
    let before = now();
    fixture
        .sender
        .send(&Frame::announcement(MAC, ADDRESS))
        .unwrap();
    let at = fixture
        .wait(|stamped| matches!(stamped.observation, Observation::Frame(_)).then_some(stamped.at));
    assert!(before <= at && at <= now(), "{before:?} {at:?}");
}

#[test]
fn every_kind_of_arp_makes_its_claim() {
    let mut fixture = Fixture::new(&EbpfOptions::default());
    let at = |last| Ipv4Addr::new(10, 244, 2, last);
    let claims = fixture.claims_of(&[
        Frame::request(MAC, at(1), GATEWAY),
        Frame::probe(MAC, at(2)),
        Frame::gratuitous_reply(MAC, at(3)),
        Frame::arp(
            ArpOperation::Reply,
            OTHER_MAC,
            (MAC, at(4)),
            (OTHER_MAC, GATEWAY),
        ),
        Frame::announcement(MAC, at(5)).ether_source(OTHER_MAC),
    ]);
    let expected = [
        fixture.arp(at(1)),
        FrameClaim {
            tentative: true,
            ..fixture.arp(at(2))
        },
        fixture.arp(at(3)),
        fixture.arp(at(4)),
        FrameClaim {
            ether_source: Mac(OTHER_MAC.0),
            ..fixture.arp(at(5))
        },
    ];
    assert_eq!(claims, expected);
}

#[test]
fn every_kind_of_ndp_makes_its_claim() {
    let mut fixture = Fixture::new(&EbpfOptions::default());
    let at = |last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
    let claims = fixture.claims_of(&[
        Frame::solicitation(MAC, at(1), v6()),
        Frame::dad(MAC, at(2)),
        Frame::advertisement(MAC, at(3), Some(MAC), NaFlags::OVERRIDE),
        Frame::solicited_advertisement(MAC, at(4), None, (OTHER_MAC, v6())),
        Frame::advertisement(MAC, at(5), Some(OTHER_MAC), NaFlags::OVERRIDE),
    ]);
    let claim = |last| FrameClaim {
        kind: FrameKind::Ndp,
        address: at(last).into(),
        ..fixture.arp(ADDRESS)
    };
    let expected = [
        claim(1),
        FrameClaim {
            tentative: true,
            ..claim(2)
        },
        claim(3),
        claim(4),
        FrameClaim {
            mac: Mac(OTHER_MAC.0),
            ..claim(5)
        },
    ];
    assert_eq!(claims, expected);
}

#[test]
fn vlan_tags_are_part_of_the_claim() {
    let mut fixture = Fixture::new(&EbpfOptions::default());
    let advertisement = || Frame::advertisement(MAC, v6(), Some(MAC), NaFlags::OVERRIDE);
    let claims = fixture.claims_of(&[
        Frame::announcement(MAC, ADDRESS).vlan(100),
        Frame::announcement(MAC, ADDRESS).vlan(100).vlan(7),
        Frame::announcement(MAC, ADDRESS).vlan(0),
        advertisement().vlan(100),
        advertisement().vlan(100).vlan(7),
    ]);
    let vlans: Vec<Vlan> = claims.iter().map(|claim| claim.vlan).collect();
    let vlan = |outer, inner| Vlan { outer, inner };
    let expected = [
        vlan(Some(100), None),
        vlan(Some(100), Some(7)),
        vlan(None, None),
        vlan(Some(100), None),
        vlan(Some(100), Some(7)),
    ];
    assert_eq!(vlans, expected);
}

#[test]
fn malformed_frames_are_counted_by_reason_only() {
    let mut fixture = Fixture::new(&EbpfOptions::default());
    let valid_arp = || Frame::announcement(MAC, ADDRESS);
    let valid_ndp = || Frame::advertisement(MAC, v6(), Some(MAC), NaFlags::OVERRIDE);
    // Replaces one byte after the Ethernet header.
    let broken = |mut frame: Frame, at: usize, value: u8| {
        *frame.payload_mut().get_mut(at).unwrap() = value;
        frame
    };
    let short = |mut frame: Frame, length: usize| {
        frame.payload_mut().truncate(length);
        frame
    };
    let too_many_tags = (0..66).fold(valid_arp(), |frame, _| frame.vlan(0));
    let many_headers = [ExtensionHeader::DestinationOptions; 9];
    let cases = [
        (short(valid_arp(), 27), RejectReason::Truncated),
        (valid_arp().vlan(0xfff), RejectReason::Vlan),
        (broken(valid_arp(), 5, 16), RejectReason::ArpFormat),
        (broken(valid_arp(), 7, 3), RejectReason::ArpOperation),
        (
            Frame::announcement(MAC, Ipv4Addr::LOCALHOST),
            RejectReason::Address,
        ),
        (broken(valid_ndp(), 0, 0x40), RejectReason::IpVersion),
        (broken(valid_ndp(), 7, 64), RejectReason::HopLimit),
        (broken(valid_ndp(), 41, 1), RejectReason::IcmpCode),
        (broken(valid_ndp(), 5, 8), RejectReason::IcmpLength),
        (
            valid_ndp().extension_headers(&[ExtensionHeader::Fragment]),
            RejectReason::Fragment,
        ),
        (
            valid_ndp().extension_headers(&many_headers),
            RejectReason::ExtensionHeaderCount,
        ),
        (broken(valid_ndp(), 65, 0), RejectReason::NdpOption),
        (too_many_tags, RejectReason::TagCount),
        (
            broken(valid_ndp(), 44, 0x60),
            RejectReason::NdpContradiction,
        ),
    ];
    for (frame, reason) in cases {
        let before = fixture.counts();
        assert_eq!(fixture.claims_of(&[frame]), [], "{reason:?}");
        let after = fixture.counts();
        for other in RejectReason::ALL {
            let more = after.get(Counter::Rejected(other)) - before.get(Counter::Rejected(other));
            assert_eq!(
                more,
                u64::from(other == reason),
                "{reason:?} counted {other:?}"
            );
        }
    }
}

#[test]
fn other_traffic_is_neither_published_nor_counted() {
    let mut fixture = Fixture::new(&EbpfOptions::default());
    // An echo request is ICMPv6 but not Neighbour Discovery.
    let echo = Frame::icmpv6(
        MAC,
        OTHER_MAC,
        v6(),
        "fd00::1".parse().unwrap(),
        128,
        &[0; 4],
    );
    assert_eq!(fixture.claims_of(&[echo]), []);
    let counts = fixture.counts();
    assert!(counts.rejected().all(|(_, count)| count == 0));
    // Only the marker.
    assert_eq!(counts.get(Counter::Published(RecordKind::Arp)), 1);
    assert_eq!(counts.get(Counter::Published(RecordKind::Ndp)), 0);
}

#[test]
fn observed_frames_still_reach_the_stack() {
    let mut fixture = Fixture::new(&EbpfOptions::default());
    fixture
        .node
        .netns()
        .ip(&format!(
            "address add {GATEWAY}/24 dev {}",
            crate::fixture::DEVICE
        ))
        .unwrap();
    fixture
        .sender
        .send(&Frame::request(MAC, ADDRESS, GATEWAY))
        .unwrap();
    // The kernel learns the sender of a request for its own address.
    let lladdr = fixture.wait(|stamped| match stamped.observation {
        Observation::Neighbour(found) if found.address == ADDRESS => Some(found.lladdr),
        _ => None,
    });
    assert_eq!(lladdr, Some(Mac(MAC.0)));
}
