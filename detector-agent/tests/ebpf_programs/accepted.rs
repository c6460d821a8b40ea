//! Whatever the kernel learns a hardware address from is a claim, however unusual the frame; the node is the victim.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::ensure;
use detector_agent::observe::ebpf::EbpfOptions;
use detector_common::{Counter, RejectReason};
use detector_engine::{FrameClaim, Mac};
use detector_testkit::{ExtensionHeader, Frame, MacAddress, until};

use crate::fixture::{DEVICE, Fixture, MAC, TIMEOUT};

const NODE_MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0x01]);
const OTHER_MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0x0b]);
/// Locally administered, with the group bit.
const GROUP_MAC: MacAddress = MacAddress([0x03, 0, 0, 0, 0, 0x0a]);
const NODE: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 1);

fn node6() -> Ipv6Addr {
    "fd00::1".parse().unwrap()
}

/// An address of its own for each case.
fn address6(case: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, u16::try_from(case).unwrap())
}

/// A pod with the program attached, and addresses of the node on its device.
fn victim() -> Fixture {
    let fixture = Fixture::new(&EbpfOptions::default());
    let netns = fixture.node.netns();
    netns
        .sysctl(&format!("net.ipv6.conf.{DEVICE}.disable_ipv6"), "0")
        .unwrap();
    netns
        .ip_batch([
            format!("link set {DEVICE} address {NODE_MAC}"),
            format!("address add {NODE}/24 dev {DEVICE}"),
            format!("address add {}/64 dev {DEVICE} nodad", node6()),
        ])
        .unwrap();
    netns.wait_running(DEVICE).unwrap();
    netns.wait_local(node6().into()).unwrap();
    fixture
}

/// The node's neighbour entry.
fn entry(fixture: &Fixture, address: IpAddr) -> String {
    let netns = fixture.node.netns();
    netns
        .ip(&format!("neigh show {address} dev {DEVICE}"))
        .unwrap()
}

/// Waits until the node has learned the hardware address.
fn wait_learned(fixture: &Fixture, address: IpAddr, mac: MacAddress) {
    until(TIMEOUT, "the node to accept the frame", || {
        let entry = entry(fixture, address);
        ensure!(entry.contains(&mac.to_string()), "{entry:?}");
        Ok(())
    })
    .unwrap();
}

/// The claims made of an advertisement, after the node got an entry for its target with [`OTHER_MAC`].
fn claims_of_advertisement(fixture: &mut Fixture, case: usize, frame: Frame) -> Vec<FrameClaim> {
    let address = address6(case).into();
    let node = &fixture.node;
    node.set_neighbour(address, DEVICE, OTHER_MAC, "stale")
        .unwrap();
    fixture.claims_of(&[frame])
}

fn advertisement(case: usize, mac: MacAddress) -> Frame {
    Frame::solicited_advertisement(MAC, address6(case), Some(mac), (NODE_MAC, node6()))
}

#[test]
fn arp_with_any_sender_mac_is_accepted_and_a_claim() {
    let mut fixture = victim();
    for (case, mac) in [GROUP_MAC, MacAddress::BROADCAST, MacAddress::ZERO]
        .into_iter()
        .enumerate()
    {
        let address = Ipv4Addr::new(10, 244, 2, 10 + u8::try_from(case).unwrap());
        let claims = fixture.claims_of(&[Frame::request(mac, address, NODE).ether_source(MAC)]);
        wait_learned(&fixture, address.into(), mac);
        assert_eq!(
            claims,
            [FrameClaim {
                mac: Mac(mac.0),
                ..fixture.arp(address)
            }]
        );

        let address = Ipv4Addr::new(10, 244, 2, 20 + u8::try_from(case).unwrap());
        let claims = fixture.claims_of(&[Frame::request(MAC, address, NODE).ether_source(mac)]);
        wait_learned(&fixture, address.into(), MAC);
        let ether_source = Mac(mac.0);
        assert_eq!(
            claims,
            [FrameClaim {
                ether_source,
                ..fixture.arp(address)
            }]
        );
    }
}

#[test]
fn advertisement_of_any_mac_is_accepted_and_a_claim() {
    let mut fixture = victim();
    for (case, mac) in [GROUP_MAC, MacAddress::BROADCAST, MacAddress::ZERO]
        .into_iter()
        .enumerate()
    {
        let frame = advertisement(case, mac);
        let claims = claims_of_advertisement(&mut fixture, case, frame);
        wait_learned(&fixture, address6(case).into(), mac);
        let claims: Vec<_> = claims
            .iter()
            .map(|claim| (claim.address, claim.mac))
            .collect();
        assert_eq!(claims, [(address6(case).into(), Mac(mac.0))]);
    }
}

#[test]
fn advertisement_behind_extension_headers_is_accepted_and_a_claim() {
    use ExtensionHeader::{DestinationOptions, HopByHop, Routing};
    let chains: [&[ExtensionHeader]; 5] = [
        &[HopByHop],
        &[DestinationOptions],
        &[Routing],
        &[HopByHop, DestinationOptions, Routing, DestinationOptions],
        &[DestinationOptions; 8],
    ];
    let mut frames: Vec<Frame> = (0..)
        .zip(chains)
        .map(|(case, headers)| advertisement(case, MAC).extension_headers(headers))
        .collect();
    // A payload length of zero without a jumbo payload option.
    let mut frame = advertisement(frames.len(), MAC).extension_headers(&[HopByHop]);
    frame.payload_mut()[4..6].fill(0);
    frames.push(frame);
    let mut fixture = victim();
    for (case, frame) in frames.into_iter().enumerate() {
        let claims = claims_of_advertisement(&mut fixture, case, frame);
        wait_learned(&fixture, address6(case).into(), MAC);
        let claims: Vec<_> = claims
            .iter()
            .map(|claim| (claim.address, claim.mac))
            .collect();
        assert_eq!(claims, [(address6(case).into(), Mac(MAC.0))], "case {case}");
    }
}

/// Not silent, because the kernel follows any number.
#[test]
fn advertisement_behind_too_many_extension_headers_is_counted() {
    let mut fixture = victim();
    let frame = advertisement(0, MAC).extension_headers(&[ExtensionHeader::DestinationOptions; 9]);
    assert_eq!(claims_of_advertisement(&mut fixture, 0, frame), []);
    wait_learned(&fixture, address6(0).into(), MAC);
    let counter = Counter::Rejected(RejectReason::ExtensionHeaderCount);
    assert_eq!(fixture.count(counter), 1);
}

/// The first tag is outside the frame when the program runs.
#[test]
fn claims_behind_any_number_of_priority_tags_are_seen_or_counted() {
    let mut fixture = victim();
    let tagged = |frame: Frame, count| (0..count).fold(frame, |frame, _| frame.vlan(0));
    for (case, count) in [1, 2, 3, 4, 5, 40, 65].into_iter().enumerate() {
        let address = Ipv4Addr::new(10, 244, 2, 10 + u8::try_from(case).unwrap());
        let claims = fixture.claims_of(&[tagged(Frame::request(MAC, address, NODE), count)]);
        wait_learned(&fixture, address.into(), MAC);
        assert_eq!(claims, [fixture.arp(address)], "{count} tags");

        let frame = tagged(advertisement(case, MAC), count);
        let claims = claims_of_advertisement(&mut fixture, case, frame);
        wait_learned(&fixture, address6(case).into(), MAC);
        let claims: Vec<_> = claims.iter().map(|claim| claim.address).collect();
        assert_eq!(claims, [address6(case)], "{count} tags");
    }
    let address = Ipv4Addr::new(10, 244, 2, 99);
    let frame = tagged(Frame::request(MAC, address, NODE), 66);
    assert_eq!(fixture.claims_of(&[frame]), []);
    wait_learned(&fixture, address.into(), MAC);
    let counter = Counter::Rejected(RejectReason::TagCount);
    assert_eq!(fixture.count(counter), 1);
}

/// A router learns from solicitations, a host from redirects, and both from advertisements.
#[test]
fn messages_of_and_about_routers_are_accepted_and_claims() {
    let mut fixture = victim();
    let claims = |fixture: &mut Fixture, frame| {
        let claims = fixture.claims_of(&[frame]);
        let claims = claims.iter().map(|claim| (claim.address, claim.mac));
        claims.collect::<Vec<_>>()
    };
    let forwarding = format!("net.ipv6.conf.{DEVICE}.forwarding");
    let link_local = |last| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last);

    let router = link_local(0xa);
    let frame = Frame::router_advertisement(OTHER_MAC, router, "2001:db8::".parse().unwrap());
    assert_eq!(
        claims(&mut fixture, frame),
        [(router.into(), Mac(OTHER_MAC.0))]
    );
    wait_learned(&fixture, router.into(), OTHER_MAC);

    let target: Ipv6Addr = "2001:db8:1::9".parse().unwrap();
    let node = fixture.node.netns();
    node.sysctl(&forwarding, "0").unwrap();
    node.sysctl(&format!("net.ipv6.conf.{DEVICE}.accept_redirects"), "1")
        .unwrap();
    node.ip(&format!("route add {target} via {router} dev {DEVICE}"))
        .unwrap();
    let frame = Frame::redirect(OTHER_MAC, router, target, (NODE_MAC, node6()));
    assert_eq!(
        claims(&mut fixture, frame),
        [(target.into(), Mac(OTHER_MAC.0))]
    );
    wait_learned(&fixture, target.into(), OTHER_MAC);

    fixture.node.netns().sysctl(&forwarding, "1").unwrap();
    let frame = Frame::router_solicitation(OTHER_MAC, address6(1));
    assert_eq!(
        claims(&mut fixture, frame),
        [(address6(1).into(), Mac(OTHER_MAC.0))]
    );
    wait_learned(&fixture, address6(1).into(), OTHER_MAC);
}

#[test]
fn advertisement_that_the_kernel_discards_is_no_claim() {
    use ExtensionHeader::{DestinationOptions, Fragment, HopByHop};
    let chains: [&[ExtensionHeader]; 5] = [
        &[Fragment],
        &[HopByHop, Fragment],
        &[Fragment, DestinationOptions],
        &[DestinationOptions, HopByHop],
        &[HopByHop, HopByHop],
    ];
    let mut fixture = victim();
    for (case, headers) in chains.into_iter().enumerate() {
        let frame = advertisement(case, MAC).extension_headers(headers);
        assert_eq!(claims_of_advertisement(&mut fixture, case, frame), []);
        let entry = entry(&fixture, address6(case).into());
        assert!(
            entry.contains(&OTHER_MAC.to_string()),
            "{headers:?}: {entry}"
        );
    }
}
