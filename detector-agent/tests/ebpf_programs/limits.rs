//! Suppressed repetitions, budgets, and that every loss is counted.

use std::{net::Ipv4Addr, time::Duration};

use detector_agent::observe::ebpf::{DeviceLosses, EbpfOptions, LossCounters};
use detector_common::{Counter, DropReason, RecordKind};
use detector_engine::{FrameClaim, Mac};
use detector_testkit::{Frame, FrameSender, MacAddress, PodSpec};

use crate::fixture::{Fixture, MAC, loop_until};

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 10);
const OTHER_MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0x0b]);

fn many(count: u32) -> Vec<Frame> {
    (0..count)
        .map(|number| Frame::announcement(MAC, Ipv4Addr::from(0x0af4_0001 + number)))
        .collect()
}

#[test]
fn repeated_claim_is_only_counted() {
    let mut fixture = Fixture::new(&EbpfOptions::default());
    let frames: Vec<Frame> = (0..50).map(|_| Frame::announcement(MAC, ADDRESS)).collect();
    assert_eq!(fixture.claims_of(&frames), [fixture.arp(ADDRESS)]);
    assert_eq!(fixture.count(Counter::Known(RecordKind::Arp)), 49);
}

#[test]
fn claim_that_differs_in_any_field_is_published() {
    let mut fixture = Fixture::new(&EbpfOptions::default());
    let frames = [
        Frame::announcement(MAC, ADDRESS),
        Frame::announcement(OTHER_MAC, ADDRESS),
        Frame::announcement(MAC, ADDRESS).ether_source(OTHER_MAC),
        Frame::announcement(MAC, ADDRESS).vlan(5),
        Frame::probe(MAC, ADDRESS),
    ];
    let mac = Mac(OTHER_MAC.0);
    let claim = fixture.arp(ADDRESS);
    let claims = fixture.claims_of(&frames);
    assert_eq!(claims.len(), frames.len());
    assert_eq!(
        claims[1],
        FrameClaim {
            mac,
            ether_source: mac,
            ..claim
        }
    );
}

#[test]
fn claim_is_published_again_after_the_interval() {
    let mut fixture = Fixture::new(&EbpfOptions {
        republish_after: Duration::ZERO,
        ..EbpfOptions::default()
    });
    let frames: Vec<Frame> = (0..5).map(|_| Frame::announcement(MAC, ADDRESS)).collect();
    assert_eq!(fixture.claims_of(&frames), [fixture.arp(ADDRESS); 5]);
}

#[test]
fn every_move_of_a_shared_address_is_published() {
    const UNSHARED: Ipv4Addr = Ipv4Addr::new(10, 244, 3, 10);
    let mut fixture = Fixture::new(&EbpfOptions {
        shared: vec![
            "10.244.2.0/24".parse().unwrap(),
            "fd00::/16".parse().unwrap(),
        ],
        ..EbpfOptions::default()
    });
    let other = fixture
        .node
        .add_pod(&PodSpec::new("veth1").mac(OTHER_MAC))
        .unwrap();
    let ifindex = fixture.node.netns().ifindex("veth1").unwrap();
    fixture.attach_to(ifindex, "veth1").unwrap();
    let other = FrameSender::open(&other).unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        for address in [ADDRESS, ADDRESS, UNSHARED] {
            fixture
                .sender
                .send(&Frame::announcement(MAC, address))
                .unwrap();
            other
                .send(&Frame::announcement(OTHER_MAC, address))
                .unwrap();
            // A probe is not a claim.
            other.send(&Frame::probe(OTHER_MAC, address)).unwrap();
        }
        seen.extend(fixture.claims_so_far());
    }
    let claimed = |address: Ipv4Addr| {
        let claims = seen.iter().filter(|c| c.address == address && !c.tentative);
        claims.count()
    };
    assert_eq!(claimed(ADDRESS), 12);
    assert_eq!(claimed(UNSHARED), 2, "not a shared address");
    // Repeated claims of the same device are not published.
    let frames: Vec<Frame> = (0..5).map(|_| Frame::announcement(MAC, ADDRESS)).collect();
    assert_eq!(fixture.claims_of(&frames).len(), 1);
}

#[test]
fn budget_limits_one_device_but_not_others() {
    let mut fixture = Fixture::new(&EbpfOptions {
        budget_burst: 8,
        ..EbpfOptions::default()
    });
    let other = fixture
        .node
        .add_pod(&PodSpec::new("veth1").mac(OTHER_MAC))
        .unwrap();
    let ifindex = fixture.node.netns().ifindex("veth1").unwrap();
    fixture.attach_to(ifindex, "veth1").unwrap();
    for frame in many(2_000) {
        fixture.sender.send(&frame).unwrap();
    }
    let losses = loop_until(|| {
        let losses = fixture.counts().losses();
        let published = fixture.count(Counter::Published(RecordKind::Arp));
        (published + losses.budget == 2_000).then_some(losses)
    });
    assert_eq!(losses.ring_full, 0);
    // 8 at once, and 256 a second while the loop above ran.
    assert!(losses.budget >= 1_000, "{losses:?}");
    assert_eq!(
        fixture.programs.counters().devices_over_budget().unwrap(),
        [DeviceLosses {
            ifindex: fixture.ifindex,
            frames: losses.budget,
            neighbours: 0
        }]
    );
    FrameSender::open(&other)
        .unwrap()
        .send(&Frame::announcement(OTHER_MAC, ADDRESS))
        .unwrap();
    let claim = fixture.wait(|stamped| match stamped.observation {
        detector_engine::Observation::Frame(claim) if claim.ifindex == ifindex => Some(claim),
        _ => None,
    });
    assert_eq!(claim.address, ADDRESS);
}

#[test]
fn everything_is_published_without_a_limit() {
    let mut fixture = Fixture::new(&EbpfOptions {
        budget_burst: 1,
        budget_per_second: 0,
        ..EbpfOptions::default()
    });
    assert_eq!(fixture.claims_of(&many(2_000)).len(), 2_000);
    assert_eq!(fixture.counts().losses(), LossCounters::default());
}

#[test]
fn claim_lost_to_a_full_ring_is_published_by_the_next_frame() {
    let mut fixture = Fixture::new(&EbpfOptions {
        ring_bytes: 1,
        budget_per_second: 0,
        ..EbpfOptions::default()
    });
    let frames = many(500);
    for frame in &frames {
        fixture.sender.send(frame).unwrap();
    }
    let lost = loop_until(|| {
        let lost = fixture.count(Counter::Dropped(DropReason::RingFull));
        let published = fixture.count(Counter::Published(RecordKind::Arp));
        (published + lost == 500).then_some(lost)
    });
    assert!(lost > 300, "a ring of one page held {} claims", 500 - lost);
    let mut first = Vec::new();
    assert!(
        !fixture
            .reader
            .drain(usize::MAX, |stamped| first.push(stamped))
            .more
    );
    assert_eq!(first.len() as u64, 500 - lost);
    // No lost claim is treated as already published.
    let claims = fixture.claims_of(&frames[first.len()..first.len() + 20]);
    assert_eq!(claims.len(), 20);
}
