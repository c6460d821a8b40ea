//! Tests of which claims are registered.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use detector_engine::{
    Beginning, Claimant, Evidence, EvidenceDetail, EvidenceKind, Mac, NudState, Seen,
};
use detector_event::Via;

use super::*;

const NOW: Timestamp = Timestamp(1_000_000_000_000);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The pod `shop/web-<n>` with these primary addresses.
fn pod(n: u32, primary: &[&str]) -> Arc<Pod> {
    Arc::new(Pod {
        uid: Some(format!("uid-{n}")),
        container_id: Some(format!("cid-{n}")),
        primary_addresses: primary.iter().map(|a| ip(a)).collect(),
        ..Pod::named("shop", format!("web-{n}"), Via::Cri)
    })
}

fn evidence(kind: EvidenceKind, at: u64) -> Evidence {
    Evidence {
        kind,
        seen: Seen::once(Timestamp(at), Beginning::default()),
        mac: Some(Mac([2, 0, 0, 0, 0, 1])),
        detail: (kind == EvidenceKind::Neighbour)
            .then_some(EvidenceDetail::State(NudState::Permanent)),
    }
}

/// An address assigned on device `n` at this time.
fn assigned(n: u32, at: u64) -> CertainClaim {
    let id = ClaimantId::Device(n, 1);
    CertainClaim {
        claimant: Claimant {
            evidence: vec![evidence(EvidenceKind::Address, at)],
            ..Claimant::new(id, format!("veth{n}"), n, Timestamp(at))
        },
        is_on_device: true,
        receives_traffic: false,
    }
}

fn of(claim: CertainClaim, pod: &Arc<Pod>) -> Candidate {
    Candidate {
        claim,
        pod: Some(Arc::clone(pod)),
        is_settled: false,
    }
}

fn unnamed(claim: CertainClaim, is_settled: bool) -> Candidate {
    Candidate {
        claim,
        pod: None,
        is_settled,
    }
}

impl ClaimSelector {
    /// The claim that is sent after this update; `None` if none is.
    fn claims(&mut self, address: &str, candidates: Vec<Candidate>) -> Option<LocalClaim> {
        self.update(NOW, ip(address), candidates);
        let state = self.addresses.get(&ip(address))?;
        state.sent.as_ref().map(|sent| sent.claim.clone())
    }
}

/// A device with the primary address 10.0.0.1, whose claim is sent.
fn with_registered() -> (ClaimSelector, Arc<Pod>) {
    let mut selector = ClaimSelector::default();
    let pod = pod(1, &["10.0.0.1"]);
    assert!(
        selector
            .claims("10.0.0.1", vec![of(assigned(1, 5), &pod)])
            .is_some()
    );
    (selector, pod)
}

#[test]
fn primary_address_of_a_pod_is_registered() {
    let mut selector = ClaimSelector::default();
    let candidate = of(assigned(1, 5), &pod(1, &["10.0.0.1", "fd00::1"]));
    let update = selector.update(NOW, ip("10.0.0.1"), vec![candidate.clone()]);
    let party = Party {
        device: "veth1".to_owned(),
        ifindex: 1,
        mac: Some(Mac([2, 0, 0, 0, 0, 1])),
        namespace: "shop".to_owned(),
        pod: "web-1".to_owned(),
        pod_uid: "uid-1".to_owned(),
        container_id: "cid-1".to_owned(),
        evidence: Some(EvidenceKind::Address),
        ..Party::default()
    };
    let claim = LocalClaim {
        party,
        began: Timestamp(5),
        terminating: false,
        rightful: None,
        mode: Mode::Register,
    };
    let subject = Subject::Address(ip("10.0.0.1"));
    let claim = Some(claim);
    assert_eq!(update, Some(ClaimUpdate { subject, claim }));
    assert_eq!(selector.update(NOW, ip("10.0.0.1"), vec![candidate]), None);
    let ended = selector.update(NOW, ip("10.0.0.1"), Vec::new());
    let claim = None;
    assert_eq!(ended, Some(ClaimUpdate { subject, claim }));
    assert!(selector.addresses.is_empty());
}

#[test]
fn nothing_is_registered_without_pod_or_primary_addresses() {
    let mut selector = ClaimSelector::default();
    for candidate in [
        unnamed(assigned(1, 5), false),
        unnamed(assigned(1, 5), true),
        of(assigned(1, 5), &pod(1, &[])),
        of(assigned(1, 5), &pod(1, &["10.0.0.2"])),
    ] {
        assert_eq!(selector.update(NOW, ip("10.0.0.1"), vec![candidate]), None);
    }
}

#[test]
fn excluded_ranges_are_not_registered() {
    let mut selector = ClaimSelector::new(vec!["10.0.0.0/24".parse().unwrap()]);
    let pod = pod(1, &["10.0.0.1", "10.0.1.1"]);
    assert_eq!(
        selector.claims("10.0.0.1", vec![of(assigned(1, 5), &pod)]),
        None
    );
    assert!(
        selector
            .claims("10.0.1.1", vec![of(assigned(1, 5), &pod)])
            .is_some()
    );
    let blocks = ["10.0.0.64/26", "10.0.1.64/26"].map(|range| range.parse().unwrap());
    let sent = selector.update_ranges(NOW, PoolId(1), "calico", blocks);
    assert_eq!(sent.len(), 1);
}

#[test]
fn permanent_neighbour_entry_registers_a_primary_address() {
    let mut claim = assigned(1, 5);
    claim.claimant.evidence = vec![
        evidence(EvidenceKind::Arp, 3),
        evidence(EvidenceKind::Neighbour, 7),
    ];
    claim.is_on_device = false;
    let mut selector = ClaimSelector::default();
    let sent = selector.claims("10.0.0.1", vec![of(claim, &pod(1, &["10.0.0.1"]))]);
    let sent = sent.unwrap();
    assert_eq!(sent.party.evidence, Some(EvidenceKind::Neighbour));
    assert_eq!(sent.began, Timestamp(7), "frames do not count");
}

#[test]
fn other_address_on_the_primary_device_is_only_looked_up() {
    let (mut selector, pod) = with_registered();
    let sent = selector.claims("10.0.0.9", vec![of(assigned(1, 6), &pod)]);
    assert_eq!(sent.unwrap().mode, Mode::Lookup);
    // Another interface in the pod.
    let mut on_lo = assigned(1, 6);
    on_lo.is_on_device = false;
    assert_eq!(selector.claims("10.0.0.9", vec![of(on_lo, &pod)]), None);
    // Another device of the pod, in a secondary network.
    let secondary = of(assigned(2, 6), &pod);
    assert_eq!(selector.claims("192.168.0.9", vec![secondary]), None);
}

#[test]
fn addresses_are_looked_at_again_when_the_primary_one_comes_or_goes() {
    let mut selector = ClaimSelector::default();
    let pod = pod(1, &["10.0.0.1"]);
    let other = || vec![of(assigned(1, 6), &pod)];
    assert_eq!(selector.claims("10.0.0.9", other()), None);
    assert_eq!(selector.take_rechecks(NOW), []);
    selector.claims("10.0.0.1", other());
    assert_eq!(selector.take_rechecks(NOW), [(1, 1)]);
    assert!(selector.claims("10.0.0.9", other()).is_some());
    selector.claims("10.0.0.1", Vec::new());
    assert_eq!(selector.take_rechecks(NOW), [(1, 1)]);
    assert_eq!(selector.claims("10.0.0.9", other()), None);
}

#[test]
fn lookups_of_a_device_are_bounded() {
    let (mut selector, pod) = with_registered();
    selector.take_rechecks(NOW);
    let foreign: Vec<_> = (0..1000_u32)
        .map(|n| IpAddr::from((0x0a01_0000 + n).to_be_bytes()))
        .collect();
    let own = || vec![of(assigned(1, 6), &pod)];
    let sent: Vec<_> = foreign
        .iter()
        .filter(|address| selector.update(NOW, **address, own()).is_some())
        .collect();
    assert_eq!(sent.len(), MAX_LOOKUPS);
    assert_eq!(selector.addresses.len(), 1 + MAX_LOOKUPS);
    assert_eq!(selector.devices.len(), 1);
    assert_eq!(selector.take_rechecks(NOW), [], "there is no room");
    assert_eq!(selector.overflowing_devices(), 1);
    // Addresses that come and go cause no further request before the pause is over.
    for _ in 0..10 {
        for address in &foreign {
            selector.update(NOW, *address, Vec::new());
        }
        for address in &foreign {
            assert_eq!(selector.update(NOW, *address, own()), None);
        }
    }
    assert_eq!(selector.addresses.len(), 1);
    assert_eq!(selector.devices[&(1, 1)].lookups.len(), MAX_LOOKUPS);
    let later = NOW + LOOKUP_PAUSE;
    assert_eq!(selector.take_rechecks(later), [(1, 1)]);
    assert_eq!(selector.overflowing_devices(), 0);
    let sent = foreign
        .iter()
        .filter(|a| selector.update(later, **a, own()).is_some());
    assert_eq!(sent.count(), MAX_LOOKUPS);
    for address in foreign.iter().chain([&ip("10.0.0.1")]) {
        selector.update(later, *address, Vec::new());
    }
    selector.take_rechecks(later + LOOKUP_PAUSE);
    assert!(selector.addresses.is_empty() && selector.devices.is_empty());
}

#[test]
fn another_pod_can_have_what_a_device_looks_up() {
    let (mut selector, pod_1) = with_registered();
    let mut candidates = vec![of(assigned(1, 6), &pod_1)];
    let sent = selector.claims("10.0.0.2", candidates.clone()).unwrap();
    assert_eq!((sent.mode, &*sent.party.pod), (Mode::Lookup, "web-1"));
    candidates.push(of(assigned(2, 7), &pod(2, &["10.0.0.2"])));
    let sent = selector.claims("10.0.0.2", candidates).unwrap();
    assert_eq!((sent.mode, &*sent.party.pod), (Mode::Register, "web-2"));
}

#[test]
fn one_of_several_claimants_represents_the_node() {
    let pods = [1, 2, 3].map(|n| pod(n, &["10.0.0.1"]));
    let mut claims = [1, 2, 3].map(|n| assigned(n, 10 - u64::from(n)));
    let mut selector = ClaimSelector::default();
    let mut device = |claims: &[CertainClaim]| {
        let candidates = claims.iter().map(|claim| {
            let index = usize::try_from(claim.claimant.ifindex).unwrap() - 1;
            of(claim.clone(), &pods[index])
        });
        let sent = selector.claims("10.0.0.1", candidates.collect());
        sent.map(|sent| sent.party.ifindex)
    };
    claims[1].receives_traffic = true;
    assert_eq!(device(&claims), Some(2), "receives the traffic");
    claims[1].receives_traffic = false;
    claims[0].receives_traffic = true;
    assert_eq!(device(&claims), Some(2), "stays");
    claims[0].receives_traffic = false;
    assert_eq!(
        device(&[claims[0].clone(), claims[2].clone()]),
        Some(3),
        "the oldest"
    );
    assert_eq!(device(&[]), None);
}

#[test]
fn claim_keeps_its_beginning_while_some_evidence_lasts() {
    let pod = pod(1, &["10.0.0.1"]);
    let mut selector = ClaimSelector::default();
    let mut began = |evidence: &[Evidence]| {
        let mut claim = assigned(1, 0);
        claim.claimant.evidence = evidence.to_vec();
        let sent = selector.claims("10.0.0.1", vec![of(claim, &pod)]);
        sent.unwrap().began.0
    };
    let (address, entry) = (
        evidence(EvidenceKind::Address, 5),
        evidence(EvidenceKind::Neighbour, 4),
    );
    assert_eq!(began(std::slice::from_ref(&address)), 5);
    assert_eq!(began(&[address, entry.clone()]), 5);
    assert_eq!(began(std::slice::from_ref(&entry)), 5);
    let again = evidence(EvidenceKind::Address, 9);
    assert_eq!(began(&[again.clone(), entry]), 5);
    assert_eq!(began(&[again]), 5);
    assert_eq!(began(&[evidence(EvidenceKind::Address, 12)]), 12);
}

#[test]
fn right_of_the_pod_is_sent_and_its_change_too() {
    let pod = pod(1, &["10.0.0.1"]);
    let mut selector = ClaimSelector::default();
    for rightful in [None, Some(true)] {
        let mut claim = assigned(1, 5);
        claim.claimant.rightful = rightful;
        let sent = selector.claims("10.0.0.1", vec![of(claim, &pod)]);
        assert_eq!(sent.unwrap().rightful, rightful);
    }
}

#[test]
fn hardware_address_stays_and_deletion_of_the_pod_is_sent() {
    let (mut selector, pod) = with_registered();
    let mut claim = assigned(1, 5);
    claim.claimant.evidence[0].mac = Some(Mac([6; 6]));
    assert_eq!(
        selector.update(NOW, ip("10.0.0.1"), vec![of(claim.clone(), &pod)]),
        None
    );
    let terminating = Arc::new(Pod {
        terminating: true,
        ..Pod::clone(&pod)
    });
    let sent = selector.claims("10.0.0.1", vec![of(claim, &terminating)]);
    assert!(sent.unwrap().terminating);
}

#[test]
fn feed_is_complete_once_every_pod_is_settled_and_every_pool_read() {
    let mut selector = ClaimSelector::default();
    assert!(!selector.complete_if_decided(), "pools are searched");
    selector.update_ranges(NOW, PoolId(2), "", []);
    selector.await_pools([PoolId(1)].into());
    selector.update(NOW, ip("10.0.0.1"), vec![unnamed(assigned(1, 5), false)]);
    let nameless = of(assigned(2, 5), &pod(2, &[]));
    selector.update(NOW, ip("10.0.0.2"), vec![nameless]);
    assert!(!selector.complete_if_decided());
    assert_eq!(selector.undecided(), [ip("10.0.0.1"), ip("10.0.0.2")]);
    selector.update_ranges(NOW, PoolId(1), "calico", []);
    selector.update(NOW, ip("10.0.0.1"), vec![unnamed(assigned(1, 5), true)]);
    assert!(!selector.complete_if_decided());
    let named = of(assigned(2, 5), &pod(2, &["10.0.0.2"]));
    selector.update(NOW, ip("10.0.0.2"), vec![named]);
    assert!(selector.complete_if_decided() && selector.is_complete());
    assert!(!selector.complete_if_decided(), "only once");
    // Later ones do not matter.
    selector.update(NOW, ip("10.0.0.3"), vec![unnamed(assigned(3, 5), false)]);
    assert!(selector.undecided().is_empty());
}

#[test]
fn ranges_are_sent_once_and_end_with_their_last_pool() {
    let range = |text: &str| text.parse::<IpNet>().unwrap();
    let mut selector = ClaimSelector::default();
    let blocks = [range("10.1.0.64/26"), range("fd00:1::/122")];
    let sent = selector.update_ranges(NOW, PoolId(1), "calico", blocks);
    let texts: Vec<_> = sent.iter().map(|u| u.subject.to_string()).collect();
    assert_eq!(texts, ["10.1.0.64/26", "fd00:1::/122"]);
    let claim = sent[0].claim.as_ref().unwrap();
    assert_eq!(
        (&*claim.party.source, claim.mode),
        ("calico", Mode::Register)
    );
    assert_eq!(
        selector.update_ranges(NOW, PoolId(2), "calico", [blocks[0]]),
        []
    );
    assert_eq!(
        selector.update_ranges(NOW, PoolId(1), "calico", [blocks[1]]),
        []
    );
    let gone = selector.update_ranges(NOW, PoolId(2), "calico", []);
    assert_eq!(gone.len(), 1);
    assert_eq!(
        (gone[0].subject, &gone[0].claim),
        (Subject::range(blocks[0]), &None)
    );
}

#[test]
fn address_that_was_looked_up_keeps_one_place_while_it_pauses() {
    let (mut selector, pod) = with_registered();
    let own = || vec![of(assigned(1, 6), &pod)];
    selector.take_rechecks(NOW);
    assert!(selector.claims("10.0.0.9", own()).is_some());
    assert_eq!(selector.claims("10.0.0.9", Vec::new()), None);
    assert_eq!(selector.claims("10.0.0.9", own()), None, "it pauses");
    assert_eq!(selector.devices[&(1, 1)].lookups.len(), 1);
    let later = NOW + LOOKUP_PAUSE;
    assert_eq!(selector.take_rechecks(later), [(1, 1)]);
    assert!(selector.update(later, ip("10.0.0.9"), own()).is_some());
}

#[test]
fn spellings_of_one_range_are_one_range() {
    let range = |text: &str| text.parse::<IpNet>().unwrap();
    let mut selector = ClaimSelector::default();
    let sent = selector.update_ranges(NOW, PoolId(1), "calico", [range("10.1.0.70/26")]);
    assert_eq!(sent.len(), 1);
    let same = selector.update_ranges(NOW, PoolId(2), "calico", [range("10.1.0.64/26")]);
    assert_eq!(same, []);
    assert_eq!(selector.update_ranges(NOW, PoolId(1), "calico", []), []);
    assert_eq!(
        selector.update_ranges(NOW, PoolId(2), "calico", []).len(),
        1
    );
}

#[test]
fn pools_that_are_found_later_do_not_delay_the_start() {
    let mut selector = ClaimSelector::default();
    selector.await_pools([PoolId(1)].into());
    selector.await_pools([PoolId(1), PoolId(2)].into());
    selector.update_ranges(NOW, PoolId(1), "calico", []);
    assert!(selector.complete_if_decided());
}

#[test]
fn another_device_is_another_claim_even_if_it_was_seen_at_the_same_time() {
    let (mut selector, pod) = with_registered();
    let mut claim = assigned(2, 5);
    claim.claimant.evidence[0].mac = Some(Mac([6; 6]));
    let sent = selector.claims("10.0.0.1", vec![of(claim, &pod)]).unwrap();
    assert_eq!((sent.party.ifindex, sent.party.mac), (2, Some(Mac([6; 6]))));
}

#[test]
fn claim_has_its_strongest_evidence_and_begins_with_the_earliest() {
    let mut claim = assigned(1, 0);
    claim.claimant.evidence = vec![
        evidence(EvidenceKind::Neighbour, 4),
        evidence(EvidenceKind::Address, 9),
    ];
    let mut selector = ClaimSelector::default();
    let sent = selector.claims("10.0.0.1", vec![of(claim, &pod(1, &["10.0.0.1"]))]);
    let sent = sent.unwrap();
    assert_eq!(sent.party.evidence, Some(EvidenceKind::Address));
    assert_eq!(sent.began, Timestamp(4));
}
