//! What is not published again, what is too much, and that no loss is silent.

use std::{net::Ipv4Addr, time::Duration};

use detector_agent::{
    engine::{FrameClaim, Mac},
    observe::ebpf::{DeviceLosses, EbpfOptions, Losses},
};
use detector_common::{Counter, DropReason, RecordKind};
use detector_testkit::{Frame, FrameSender, Mac as WireMac, PodSpec};

use crate::world::{MAC, World};

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 10);
const OTHER_MAC: WireMac = WireMac([0x02, 0, 0, 0, 0, 0x0b]);

fn many(count: u32) -> Vec<Frame> {
    (0..count)
        .map(|number| Frame::announcement(MAC, Ipv4Addr::from(0x0af4_0001 + number)))
        .collect()
}

#[test]
fn a_known_claim_is_only_counted() {
    let mut world = World::new(&EbpfOptions::default());
    let frames: Vec<Frame> = (0..50).map(|_| Frame::announcement(MAC, ADDRESS)).collect();
    assert_eq!(world.claims_of(&frames), [world.arp(ADDRESS)]);
    assert_eq!(world.count(Counter::Known(RecordKind::Arp)), 49);
}

#[test]
fn a_claim_that_differs_in_anything_is_published() {
    let mut world = World::new(&EbpfOptions::default());
    let frames = [
        Frame::announcement(MAC, ADDRESS),
        Frame::announcement(OTHER_MAC, ADDRESS),
        Frame::announcement(MAC, ADDRESS).ether_source(OTHER_MAC),
        Frame::announcement(MAC, ADDRESS).vlan(5),
        Frame::probe(MAC, ADDRESS),
    ];
    let mac = Mac(OTHER_MAC.0);
    let claim = world.arp(ADDRESS);
    let claims = world.claims_of(&frames);
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
fn a_claim_is_published_again_after_the_interval() {
    let mut world = World::new(&EbpfOptions {
        republish_after: Duration::ZERO,
        ..EbpfOptions::default()
    });
    let frames: Vec<Frame> = (0..5).map(|_| Frame::announcement(MAC, ADDRESS)).collect();
    assert_eq!(world.claims_of(&frames), [world.arp(ADDRESS); 5]);
}

#[test]
fn a_shared_address_is_published_each_time_that_another_device_claims_it() {
    const BESIDE: Ipv4Addr = Ipv4Addr::new(10, 244, 3, 10);
    let mut world = World::new(&EbpfOptions {
        shared: vec![
            "10.244.2.0/24".parse().unwrap(),
            "fd00::/16".parse().unwrap(),
        ],
        ..EbpfOptions::default()
    });
    let other = world
        .node
        .add_pod(&PodSpec::new("veth1").mac(OTHER_MAC))
        .unwrap();
    let ifindex = world.node.netns().ifindex("veth1").unwrap();
    world.attach_to(ifindex, "veth1").unwrap();
    let other = FrameSender::open(&other).unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        for address in [ADDRESS, ADDRESS, BESIDE] {
            world
                .sender
                .send(&Frame::announcement(MAC, address))
                .unwrap();
            other
                .send(&Frame::announcement(OTHER_MAC, address))
                .unwrap();
            // Asking is no claim.
            other.send(&Frame::probe(OTHER_MAC, address)).unwrap();
        }
        seen.extend(world.claims_so_far());
    }
    let claimed = |address: Ipv4Addr| {
        let claims = seen.iter().filter(|c| c.address == address && !c.tentative);
        claims.count()
    };
    assert_eq!(claimed(ADDRESS), 12);
    assert_eq!(claimed(BESIDE), 2, "it may not move");
    // Who has it and says so again tells nothing new.
    let frames: Vec<Frame> = (0..5).map(|_| Frame::announcement(MAC, ADDRESS)).collect();
    assert_eq!(world.claims_of(&frames).len(), 1);
}

#[test]
fn a_device_beyond_its_budget_is_turned_away_and_another_is_not() {
    let mut world = World::new(&EbpfOptions {
        budget_burst: 8,
        ..EbpfOptions::default()
    });
    let other = world
        .node
        .add_pod(&PodSpec::new("veth1").mac(OTHER_MAC))
        .unwrap();
    let ifindex = world.node.netns().ifindex("veth1").unwrap();
    world.attach_to(ifindex, "veth1").unwrap();
    for frame in many(2_000) {
        world.sender.send(&frame).unwrap();
    }
    let turned_away = loop_until(|| {
        let losses = world.counts().losses();
        let published = world.count(Counter::Published(RecordKind::Arp));
        (published + losses.budget == 2_000).then_some(losses)
    });
    assert_eq!(turned_away.ring_full, 0);
    // 8 at once, and 256 a second for as long as the loop above took.
    assert!(turned_away.budget >= 1_000, "{turned_away:?}");
    assert_eq!(
        world.programs.counters().devices_over_budget().unwrap(),
        [DeviceLosses {
            ifindex: world.ifindex,
            frames: turned_away.budget,
            neighbours: 0
        }]
    );
    FrameSender::open(&other)
        .unwrap()
        .send(&Frame::announcement(OTHER_MAC, ADDRESS))
        .unwrap();
    let claim = world.wait(|stamped| match stamped.observation {
        detector_agent::engine::Observation::Frame(claim) if claim.ifindex == ifindex => {
            Some(claim)
        }
        _ => None,
    });
    assert_eq!(claim.address, ADDRESS);
}

#[test]
fn without_a_limit_everything_is_published() {
    let mut world = World::new(&EbpfOptions {
        budget_burst: 1,
        budget_per_second: 0,
        ..EbpfOptions::default()
    });
    assert_eq!(world.claims_of(&many(2_000)).len(), 2_000);
    assert_eq!(world.counts().losses(), Losses::default());
}

#[test]
fn a_claim_that_the_full_ring_lost_is_counted_and_published_by_its_next_frame() {
    let mut world = World::new(&EbpfOptions {
        ring_bytes: 1,
        budget_per_second: 0,
        ..EbpfOptions::default()
    });
    let frames = many(500);
    for frame in &frames {
        world.sender.send(frame).unwrap();
    }
    let lost = loop_until(|| {
        let lost = world.count(Counter::Dropped(DropReason::RingFull));
        let published = world.count(Counter::Published(RecordKind::Arp));
        (published + lost == 500).then_some(lost)
    });
    assert!(lost > 300, "a ring of one page took {} claims", 500 - lost);
    let mut first = Vec::new();
    assert!(
        !world
            .reader
            .drain(usize::MAX, |stamped| first.push(stamped))
            .more
    );
    assert_eq!(first.len() as u64, 500 - lost);
    // Not one of those that were lost is thought to be known.
    let claims = world.claims_of(&frames[first.len()..first.len() + 20]);
    assert_eq!(claims.len(), 20);
}

/// Asks until there is an answer; packets are on their way through another CPU's queue at most.
fn loop_until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = std::time::Instant::now() + crate::world::PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "the counters never added up"
        );
        std::thread::yield_now();
    }
}
