//! Claims of addresses that others claim, made by a device that has exceeded its budget.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use detector_agent::observe::ebpf::EbpfOptions;
use detector_common::{CONTESTED_BUDGET, CONTESTS_PER_ADDRESS, Counter, RecordKind, RejectReason};
use detector_engine::{AddressHolder, ClaimedUpdate, FrameClaim};
use detector_testkit::{Frame, MacAddress, NaFlags};

use crate::fixture::{Fixture, MAC, MARKERS, loop_until};

const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 10);
const OTHER_VICTIM: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 11);
const VICTIM6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x10);
const UNCLAIMED: Ipv4Addr = Ipv4Addr::new(10, 244, 3, 1);
/// A device that does not exist here.
const OTHER: AddressHolder = AddressHolder::Device(4_711);

/// A pod that has used up its budget for good, and the addresses that others claim.
fn flooding_pod(claimed: impl IntoIterator<Item = (IpAddr, AddressHolder)>) -> Fixture {
    let mut fixture = Fixture::new(&EbpfOptions {
        budget_burst: 8,
        budget_per_second: 1,
        ..EbpfOptions::default()
    });
    // Markers are needed although the budget is used up.
    let markers = (0..16).map(|n| Ipv4Addr::from(u32::from(MARKERS) + n).into());
    let markers = markers.map(|marker| (marker, AddressHolder::Several));
    let entries = claimed.into_iter().chain(markers).collect();
    fixture
        .programs
        .write_claimed(&ClaimedUpdate::All(entries))
        .unwrap();
    let flood: Vec<_> = (0..2_000).map(|n| announcement(0x0a80_0000 + n)).collect();
    let published = fixture.claims_of(&flood);
    assert!((8..100).contains(&published.len()), "{}", published.len());
    fixture
}

fn announcement(address: u32) -> Frame {
    Frame::announcement(MAC, address.into())
}

/// The claims of `address` that are observed when the frames are sent.
fn observed(
    fixture: &mut Fixture,
    frames: &[Frame],
    address: impl Into<IpAddr>,
) -> Vec<FrameClaim> {
    let address = address.into();
    let mut claims = fixture.claims_of(frames);
    claims.retain(|claim| claim.address == address);
    claims
}

fn macs() -> impl Iterator<Item = MacAddress> {
    (1..=100).map(|n| MacAddress([2, 0, 0, 0, 1, n]))
}

#[test]
fn contested_claim_beyond_the_budget_is_published() {
    let mut fixture = flooding_pod([
        (VICTIM.into(), OTHER),
        (OTHER_VICTIM.into(), AddressHolder::Several),
        (VICTIM6.into(), OTHER),
    ]);
    let frames = [
        Frame::announcement(MAC, VICTIM),
        Frame::announcement(MAC, VICTIM),
        Frame::announcement(MAC, OTHER_VICTIM),
        Frame::advertisement(MAC, VICTIM6, Some(MAC), NaFlags::OVERRIDE),
    ];
    let claims = fixture.claims_of(&frames);
    let claimed: Vec<_> = claims.iter().map(|claim| claim.address).collect();
    assert_eq!(
        claimed,
        [VICTIM.into(), OTHER_VICTIM.into(), IpAddr::from(VICTIM6)]
    );
    assert_eq!(claims[0], fixture.arp(VICTIM));
}

#[test]
fn only_claims_of_addresses_of_others_exceed_the_budget() {
    let mut fixture = flooding_pod([]);
    let own = AddressHolder::Device(fixture.ifindex);
    let change = |fixture: &mut Fixture, holder| {
        let update = ClaimedUpdate::Changed(vec![(VICTIM.into(), holder)]);
        fixture.programs.write_claimed(&update).unwrap();
    };
    // Each is a new claim, and at most one of them meets a refilled token.
    let mut macs = macs();
    let mut published = |fixture: &mut Fixture, address| {
        let frames: Vec<_> = macs
            .by_ref()
            .take(3)
            .map(|mac| Frame::announcement(mac, address))
            .collect();
        observed(fixture, &frames, address).len()
    };
    assert!(published(&mut fixture, UNCLAIMED) <= 1);
    change(&mut fixture, Some(own));
    assert!(published(&mut fixture, VICTIM) <= 1);
    change(&mut fixture, Some(OTHER));
    assert_eq!(published(&mut fixture, VICTIM), 3);
    change(&mut fixture, None);
    assert!(published(&mut fixture, VICTIM) <= 1);
    // Not in the table, as if it were removed twice.
    change(&mut fixture, None);
}

#[test]
fn flood_of_claims_of_one_address_hides_no_other() {
    let mut fixture = flooding_pod([(VICTIM.into(), OTHER), (OTHER_VICTIM.into(), OTHER)]);
    let frames: Vec<_> = macs().map(|mac| Frame::announcement(mac, VICTIM)).collect();
    let published = observed(&mut fixture, &frames, VICTIM).len() as u64;
    // One more for each token that was refilled meanwhile.
    assert!((CONTESTS_PER_ADDRESS..CONTESTS_PER_ADDRESS + 3).contains(&published));
    let claim = [Frame::announcement(MAC, OTHER_VICTIM)];
    assert_eq!(observed(&mut fixture, &claim, OTHER_VICTIM).len(), 1);
}

/// An IPv4-mapped address is no IPv6 address of anybody, and shares no budget with the IPv4 one.
#[test]
fn flood_for_the_mapped_address_hides_no_claim() {
    let mut fixture = flooding_pod([(VICTIM.into(), OTHER)]);
    let mapped = VICTIM.to_ipv6_mapped();
    let flood = macs().map(|mac| Frame::advertisement(mac, mapped, Some(mac), NaFlags::OVERRIDE));
    let flood: Vec<_> = flood.collect();
    assert_eq!(fixture.claims_of(&flood), []);
    let rejected = Counter::Rejected(RejectReason::Address);
    assert_eq!(fixture.count(rejected), flood.len() as u64);
    let frames: Vec<_> = macs()
        .take(CONTESTS_PER_ADDRESS as usize)
        .map(|mac| Frame::announcement(mac, VICTIM))
        .collect();
    assert_eq!(observed(&mut fixture, &frames, VICTIM).len(), frames.len());
}

/// The IPv6 address that consists of the same bytes as an IPv4 one in a record.
#[test]
fn flood_for_the_same_bytes_in_the_other_family_hides_no_claim() {
    let [a, b, c, d] = VICTIM.octets();
    let same = Ipv6Addr::new(
        u16::from_be_bytes([a, b]),
        u16::from_be_bytes([c, d]),
        0,
        0,
        0,
        0,
        0,
        0,
    );
    let mut fixture = flooding_pod([(VICTIM.into(), OTHER), (same.into(), OTHER)]);
    let flood: Vec<_> = macs()
        .map(|mac| Frame::advertisement(mac, same, Some(mac), NaFlags::OVERRIDE))
        .collect();
    assert!(observed(&mut fixture, &flood, same).len() < 10);
    let claim = [Frame::announcement(MAC, VICTIM)];
    assert_eq!(observed(&mut fixture, &claim, VICTIM).len(), 1);
}

#[test]
fn router_advertisement_inside_a_flood_is_published() {
    let mut fixture = flooding_pod([]);
    let router = |n| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, n);
    let prefix = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0);
    let frames: Vec<_> = (1..=100)
        .map(|n| Frame::router_advertisement(MAC, router(n), prefix))
        .collect();
    let published = fixture.claims_of(&frames).len() as u64;
    assert!((CONTESTS_PER_ADDRESS..CONTESTS_PER_ADDRESS + 3).contains(&published));
}

#[test]
fn tags_and_probes_hide_no_claim_of_the_same_address() {
    let mut fixture = flooding_pod([(VICTIM.into(), OTHER)]);
    let tagged = (1..=100).map(|vlan| Frame::announcement(MAC, VICTIM).vlan(vlan));
    let probes = macs().map(|mac| Frame::probe(mac, VICTIM));
    let frames: Vec<_> = tagged.chain(probes).collect();
    assert!(observed(&mut fixture, &frames, VICTIM).len() < 12);
    let claim = [Frame::announcement(MAC, VICTIM)];
    assert_eq!(observed(&mut fixture, &claim, VICTIM).len(), 1);
}

#[test]
fn contested_claims_have_a_budget_too() {
    const CLAIMED: u32 = 16_000;
    let burst = CONTESTED_BUDGET.window_ns / CONTESTED_BUDGET.interval_ns;
    let victims = (0..CLAIMED).map(|n| Ipv4Addr::from(0x0b00_0000 + n));
    let fixture = flooding_pod(victims.map(|address| (address.into(), OTHER)));
    let frames: Vec<_> = (0..CLAIMED)
        .map(|n| announcement(0x0b00_0000 + n).to_bytes())
        .collect();
    let published = |fixture: &Fixture| fixture.count(Counter::Published(RecordKind::Arp));
    let before = (published(&fixture), fixture.counts().losses().budget);
    fixture.sender.send_all(&frames).unwrap();
    let published = loop_until(|| {
        let published = published(&fixture) - before.0;
        let lost = fixture.counts().losses().budget - before.1;
        (published + lost == u64::from(CLAIMED)).then_some(published)
    });
    assert_eq!(fixture.counts().losses().ring_full, 0);
    assert!(
        (burst..u64::from(CLAIMED)).contains(&published),
        "{published}"
    );
}

#[test]
fn claims_of_an_address_are_published_again_once_others_claim_it() {
    const UNCONTESTED: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 12);
    let mut fixture = Fixture::new(&EbpfOptions::default());
    let frames = [
        Frame::announcement(MAC, VICTIM),
        Frame::announcement(MacAddress([2, 0, 0, 0, 1, 1]), VICTIM),
        Frame::advertisement(MAC, VICTIM6, Some(MAC), NaFlags::OVERRIDE),
        Frame::announcement(MAC, UNCONTESTED),
    ];
    assert_eq!(fixture.claims_of(&frames).len(), 4);
    let holder = AddressHolder::Device(fixture.ifindex);
    let changed = |holder| {
        let addresses = [VICTIM.into(), VICTIM6.into()];
        Some(ClaimedUpdate::Changed(
            addresses.map(|address| (address, holder)).into(),
        ))
    };
    let mut published_after = |update: Option<ClaimedUpdate>| {
        if let Some(update) = update {
            fixture.programs.write_claimed(&update).unwrap();
        }
        let mut claims = fixture.claims_of(&frames);
        // It may share a bucket with one of the others.
        claims.retain(|claim| claim.address != UNCONTESTED);
        claims.len()
    };
    assert_eq!(published_after(changed(Some(holder))), 3);
    assert_eq!(published_after(None), 0, "nothing changed");
    assert_eq!(published_after(changed(Some(AddressHolder::Several))), 3);
    // The agent ended a claim that the program takes for published, whoever else claims the address.
    assert_eq!(published_after(changed(Some(AddressHolder::Several))), 3);
    assert_eq!(published_after(changed(None)), 3);
    assert_eq!(published_after(Some(ClaimedUpdate::All(Vec::new()))), 3);
}
