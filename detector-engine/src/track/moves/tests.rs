//! How many moves of an allowed address are kept, and for how long.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot continue fails"
)]

use super::*;
use crate::model::{IfIndex, NODE_WIDE, Vlan};

const UNTAGGED: Scope = NODE_WIDE;

const TAGGED: Scope = Scope {
    vlan: Vlan {
        outer: Some(7),
        inner: None,
    },
    ..UNTAGGED
};

/// In nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// [`Moves`] with times in seconds and claimants by ifindex.
struct MovesFixture {
    moves: Moves,
}

impl MovesFixture {
    fn new() -> Self {
        Self {
            moves: Moves::new(&Arc::default()),
        }
    }

    fn claim_in(&mut self, scope: Scope, address: IpAddr, device: IfIndex, secs: u64) -> bool {
        let id = ClaimantId::Device(device, 1);
        let claimant = Claimant::new(id, format!("veth{device}"), device, at(0));
        let same = |a, b| a == b;
        self.moves
            .record_claim(address, scope, &claimant, same, at(secs))
    }

    fn claim(&mut self, device: IfIndex, secs: u64) -> bool {
        self.claim_in(UNTAGGED, vip(), device, secs)
    }

    fn remove_idle(&mut self, secs: u64) {
        self.moves.remove_idle(vip(), at(secs), |_| false);
    }

    fn record_in(&self, scope: Scope) -> Option<MoveHistory> {
        self.moves.to_record(vip(), scope)
    }

    /// Move times in seconds, and the ifindexes of participants.
    fn recorded(&self) -> (Vec<u64>, Vec<IfIndex>) {
        let record = self.record_in(UNTAGGED).unwrap();
        let secs = |t: &Timestamp| t.0 / SECOND;
        let device = |(_, c): &(Timestamp, Claimant)| match c.id {
            ClaimantId::Device(device, _) => device,
            _ => panic!("{:?}", c.id),
        };
        (
            record.moves.iter().map(secs).collect(),
            record.participants.iter().map(device).collect(),
        )
    }
}

fn vip() -> IpAddr {
    [10, 9, 0, 1].into()
}

/// The `n`th address of the allowed range.
fn nth(n: u16) -> IpAddr {
    let [high, low] = n.to_be_bytes();
    IpAddr::from([10, 9, high, low])
}

fn at(secs: u64) -> Timestamp {
    Timestamp(secs * SECOND)
}

#[test]
fn claim_of_the_holder_is_not_a_move() {
    let mut fixture = MovesFixture::new();
    assert!(!fixture.claim(1, 1));
    assert!(!fixture.claim(1, 2));
    assert!(fixture.claim(2, 3));
    assert!(!fixture.claim(2, 4));
    assert_eq!(fixture.recorded(), (vec![3], vec![1, 2]));
}

#[test]
fn holder_is_kept_for_one_window_after_its_last_claim() {
    let mut fixture = MovesFixture::new();
    fixture.claim(1, 1);
    fixture.claim(1, 100);
    fixture.claim(1, 50);
    fixture.remove_idle(279);
    assert!(fixture.claim(2, 279), "device 1 holds it until 280 s");
    fixture.remove_idle(459);
    assert!(!fixture.claim(1, 459), "no holder any more");
}

#[test]
fn newest_16_participants_and_256_moves_are_kept() {
    let mut fixture = MovesFixture::new();
    for n in 0..=300 {
        fixture.claim(n, 1);
    }
    let (moves, participants) = fixture.recorded();
    assert_eq!(moves.len(), 256);
    assert_eq!(participants, (285..=300).collect::<Vec<_>>());
}

#[test]
fn device_with_the_most_addresses_makes_room_for_others() {
    let mut fixture = MovesFixture::new();
    for n in 0..4096 {
        let device = if n < 100 { 1 } else { 2 };
        fixture.claim_in(UNTAGGED, nth(n), device, u64::from(n));
    }
    fixture.claim_in(UNTAGGED, nth(5000), 3, 5000);
    assert!(fixture.claim_in(UNTAGGED, nth(5000), 1, 5001));
    assert!(fixture.claim_in(UNTAGGED, nth(0), 3, 5001), "of another");
    assert!(fixture.claim_in(UNTAGGED, nth(4095), 3, 5001), "newer");
    assert!(!fixture.claim_in(UNTAGGED, nth(100), 3, 5001), "oldest");
}

#[test]
fn moves_older_than_the_window_are_dropped_on_claim() {
    let mut fixture = MovesFixture::new();
    for (device, secs) in [(1, 0), (2, 10), (1, 100), (2, 190)] {
        fixture.claim(device, secs);
    }
    assert_eq!(fixture.recorded(), (vec![100, 190], vec![1, 2]));
    fixture.claim(3, 290);
    assert_eq!(fixture.recorded(), (vec![190, 290], vec![2, 3]));
}

#[test]
fn expired_moves_are_not_flapping() {
    let mut fixture = MovesFixture::new();
    for n in 0..6 {
        fixture.claim(n % 2, 10 + u64::from(n));
    }
    let is_flapping =
        |fixture: &mut MovesFixture, secs| !fixture.moves.flapping(vip(), at(secs)).is_empty();
    assert!(is_flapping(&mut fixture, 190));
    assert!(!is_flapping(&mut fixture, 191));
}

#[test]
fn next_expiry_is_the_oldest_counted_move() {
    let mut fixture = MovesFixture::new();
    for (device, secs) in [(1, 5), (2, 10), (1, 20), (2, 30)] {
        fixture.claim(device, secs);
    }
    let mut next = |secs| fixture.moves.next_expiry(vip(), at(secs));
    assert_eq!(next(31), Some(at(190)));
    assert_eq!(next(190), Some(at(200)));
    assert_eq!(next(200), Some(at(210)));
    assert_eq!(next(210), None);
}

#[test]
fn moves_are_recorded_and_restored_per_vlan() {
    let mut fixture = MovesFixture::new();
    for (scope, device) in [(UNTAGGED, 1), (UNTAGGED, 2), (TAGGED, 3), (TAGGED, 4)] {
        fixture.claim_in(scope, vip(), device, 1);
    }
    fixture.claim_in(TAGGED, vip(), 3, 2);
    let (untagged, tagged) = (
        fixture.record_in(UNTAGGED).unwrap(),
        fixture.record_in(TAGGED).unwrap(),
    );
    assert_eq!((untagged.moves.len(), tagged.moves.len()), (1, 2));
    let mut next = MovesFixture::new();
    next.moves.restore(vip(), UNTAGGED, untagged.clone());
    next.moves.restore(vip(), TAGGED, tagged.clone());
    assert_eq!(next.record_in(UNTAGGED), Some(untagged));
    assert_eq!(next.record_in(TAGGED), Some(tagged));
}

#[test]
fn restored_moves_precede_those_since_the_restart() {
    let mut fixture = MovesFixture::new();
    for (device, secs) in [(1, 1), (2, 2), (3, 3)] {
        fixture.claim(device, secs);
    }
    let record = fixture.record_in(UNTAGGED).unwrap();
    let mut next = MovesFixture::new();
    next.claim(4, 10);
    next.claim(2, 11);
    next.moves.restore(vip(), UNTAGGED, record);
    assert_eq!(next.recorded(), (vec![2, 3, 11], vec![1, 3, 4, 2]));
    next.remove_idle(190);
    assert!(next.claim(3, 190), "device 2 held it at 11 s");
}

#[test]
fn holder_with_a_live_claim_is_kept_beyond_the_window() {
    let mut fixture = MovesFixture::new();
    fixture.claim(1, 1);
    fixture.moves.remove_idle(vip(), at(500), |_| true);
    assert!(fixture.claim(2, 500));
}
