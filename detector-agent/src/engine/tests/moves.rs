//! What is remembered of an allowed address's moves, how much, and for how long.

use super::*;
use crate::engine::{moves::Moves, record::PersistedMoves, scope::Scope};

const UNTAGGED: Scope = Scope {
    vlan: Vlan {
        outer: None,
        inner: None,
    },
    domain: None,
};

const TAGGED: Scope = Scope {
    vlan: Vlan {
        outer: Some(7),
        inner: None,
    },
    ..UNTAGGED
};

const WINDOW: Duration = Duration::from_secs(180);

/// The book of moves, told in seconds.
struct Book {
    moves: Moves,
    settings: Settings,
    claimant: Claimant,
}

impl Book {
    fn new() -> Self {
        let mut node = Node::with_pods(1);
        node.address(1, "10.9.0.1");
        let claim = node
            .engine
            .claims_of(ip("10.9.0.1"), node.now)
            .swap_remove(0);
        Self {
            moves: Moves::default(),
            settings: Settings::default(),
            claimant: claim.claimant,
        }
    }

    fn by(&self, who: IfIndex) -> Claimant {
        Claimant {
            id: ClaimantId::Device(who, 1),
            ..self.claimant.clone()
        }
    }

    fn claimed_in(&mut self, scope: Scope, address: IpAddr, who: IfIndex, secs: u64) -> bool {
        let claimant = self.by(who);
        self.moves
            .record_claim(address, scope, &claimant, at(secs), &self.settings)
    }

    fn claimed(&mut self, who: IfIndex, secs: u64) -> bool {
        self.claimed_in(UNTAGGED, vip(), who, secs)
    }

    fn forget(&mut self, secs: u64) {
        self.moves.remove_idle(vip(), at(secs), WINDOW, |_| false);
    }

    fn kept_in(&self, scope: Scope) -> Option<PersistedMoves> {
        self.moves.to_record(vip(), scope)
    }

    /// When it moved, and who took part, in seconds and indices.
    fn kept(&self) -> (Vec<u64>, Vec<IfIndex>) {
        let kept = self.kept_in(UNTAGGED).unwrap();
        let secs = |t: &Timestamp| t.0 / (1_000 * MS);
        let who = |(_, c): &(Timestamp, Claimant)| match c.id {
            ClaimantId::Device(who, _) => who,
            _ => panic!("{:?}", c.id),
        };
        (
            kept.moves.iter().map(secs).collect(),
            kept.participants.iter().map(who).collect(),
        )
    }
}

fn vip() -> IpAddr {
    ip("10.9.0.1")
}

fn at(secs: u64) -> Timestamp {
    Timestamp(secs * 1_000 * MS)
}

#[test]
fn a_claim_of_the_holder_is_no_move() {
    let mut book = Book::new();
    assert!(!book.claimed(1, 1));
    assert!(!book.claimed(1, 2));
    assert!(book.claimed(2, 3));
    assert!(!book.claimed(2, 4));
    assert_eq!(book.kept(), (vec![3], vec![1, 2]));
}

#[test]
fn the_holder_is_remembered_for_the_window_from_its_newest_claim() {
    let mut book = Book::new();
    book.claimed(1, 1);
    book.claimed(1, 100);
    book.claimed(1, 50);
    book.forget(279);
    assert!(book.claimed(2, 279), "it was 1's until 280");
    book.forget(459);
    assert!(!book.claimed(1, 459), "nobody's any more");
}

#[test]
fn the_newest_sixteen_that_took_part_and_256_moves_are_remembered() {
    let mut book = Book::new();
    for n in 0..=300 {
        book.claimed(n, 1);
    }
    let (moves, participants) = book.kept();
    assert_eq!(moves.len(), 256);
    assert_eq!(participants, (285..=300).collect::<Vec<_>>());
}

#[test]
fn no_more_than_4096_addresses_are_followed_and_those_that_are_go_on() {
    let mut book = Book::new();
    let nth = |n: u16| {
        let [high, low] = n.to_be_bytes();
        IpAddr::from([10, 9, high, low])
    };
    for n in 0..=4096 {
        book.claimed_in(UNTAGGED, nth(n), 1, 1);
    }
    assert!(book.claimed_in(UNTAGGED, nth(0), 2, 2));
    assert!(book.claimed_in(UNTAGGED, nth(4095), 2, 2));
    assert!(!book.claimed_in(UNTAGGED, nth(4096), 2, 2));
}

#[test]
fn what_is_older_than_the_window_is_forgotten_with_the_next_claim() {
    let mut book = Book::new();
    for (who, secs) in [(1, 0), (2, 10), (1, 100), (2, 190)] {
        book.claimed(who, secs);
    }
    assert_eq!(book.kept(), (vec![100, 190], vec![1, 2]));
    book.claimed(3, 290);
    assert_eq!(book.kept(), (vec![190, 290], vec![2, 3]));
}

#[test]
fn moves_that_are_over_by_now_make_no_flapping() {
    let mut book = Book::new();
    for n in 0..6 {
        book.claimed(n % 2, 10 + u64::from(n));
    }
    let flaps = |book: &mut Book, secs| {
        let settings = book.settings.clone();
        !book.moves.flapping(vip(), at(secs), &settings).is_empty()
    };
    assert!(flaps(&mut book, 190));
    assert!(!flaps(&mut book, 191));
}

#[test]
fn the_next_thing_to_end_is_the_oldest_move_that_still_counts() {
    let mut book = Book::new();
    for (who, secs) in [(1, 5), (2, 10), (1, 20), (2, 30)] {
        book.claimed(who, secs);
    }
    let mut next = |secs| book.moves.next_expiry(vip(), at(secs), WINDOW);
    assert_eq!(next(31), Some(at(190)));
    assert_eq!(next(190), Some(at(200)));
    assert_eq!(next(200), Some(at(210)));
    assert_eq!(next(210), None);
}

#[test]
fn each_vlan_has_its_own_moves_to_keep_and_to_go_on_with() {
    let mut book = Book::new();
    for (scope, who) in [(UNTAGGED, 1), (UNTAGGED, 2), (TAGGED, 3), (TAGGED, 4)] {
        book.claimed_in(scope, vip(), who, 1);
    }
    book.claimed_in(TAGGED, vip(), 3, 2);
    let (untagged, tagged) = (
        book.kept_in(UNTAGGED).unwrap(),
        book.kept_in(TAGGED).unwrap(),
    );
    assert_eq!((untagged.moves.len(), tagged.moves.len()), (1, 2));
    let mut next = Book::new();
    next.moves.restore(vip(), UNTAGGED, untagged.clone());
    next.moves.restore(vip(), TAGGED, tagged.clone());
    assert_eq!(next.kept_in(UNTAGGED), Some(untagged));
    assert_eq!(next.kept_in(TAGGED), Some(tagged));
}

#[test]
fn what_happened_since_the_restart_follows_what_was_kept() {
    let mut book = Book::new();
    for (who, secs) in [(1, 1), (2, 2), (3, 3)] {
        book.claimed(who, secs);
    }
    let kept = book.kept_in(UNTAGGED).unwrap();
    let mut next = Book::new();
    next.claimed(4, 10);
    next.claimed(2, 11);
    next.moves.restore(vip(), UNTAGGED, kept);
    assert_eq!(next.kept(), (vec![2, 3, 11], vec![1, 3, 4, 2]));
    next.forget(190);
    assert!(next.claimed(3, 190), "2 had it at 11");
}

#[test]
fn a_holder_that_still_claims_is_remembered_beyond_the_window() {
    let mut book = Book::new();
    book.claimed(1, 1);
    book.moves.remove_idle(vip(), at(500), WINDOW, |_| true);
    assert!(book.claimed(2, 500));
}

#[test]
fn what_is_forgotten_makes_room_for_others() {
    let mut book = Book::new();
    let nth = |n: u16| {
        let [high, low] = n.to_be_bytes();
        IpAddr::from([10, 9, high, low])
    };
    for n in 0..4096 {
        book.claimed_in(UNTAGGED, nth(n), 1, 1);
    }
    book.moves.remove_idle(nth(7), at(500), WINDOW, |_| false);
    book.claimed_in(UNTAGGED, nth(5000), 1, 500);
    assert!(book.claimed_in(UNTAGGED, nth(5000), 2, 501));
}
