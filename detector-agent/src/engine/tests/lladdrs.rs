//! What a neighbour entry of the kernel is kept as, and what a bridge's entry is known to have held before.

use super::*;
use crate::engine::facts::{Facts, NeighbourUpdateContext, StoreOutcome};

const BRIDGE: IfIndex = 9;
const WINDOW: Duration = Duration::from_secs(180);

/// Entries for 10.0.0.1 on a pod's device (1) and on a bridge, told when the test says.
#[derive(Default)]
struct Entries {
    facts: Facts,
    secs: u64,
    bounds: Bounds,
}

impl Entries {
    fn tell(&mut self, what: Neighbour, live: bool) -> StoreOutcome {
        let telling = NeighbourUpdateContext {
            at: Timestamp(self.secs * 1_000 * MS),
            live,
            former: (what.ifindex == BRIDGE).then_some(WINDOW),
        };
        let lladdr = what.lladdr.unwrap();
        self.facts
            .set_neighbour(what, lladdr, telling, &self.bounds)
    }

    fn pods(&mut self, state: NudState, live: bool) -> StoreOutcome {
        self.tell(neighbour(1, "10.0.0.1", mac(1), state), live)
    }

    /// The bridge's entry holds these one after the other.
    fn turns(&mut self, to: &[u8]) {
        for n in to {
            self.tell(
                neighbour(BRIDGE, "10.0.0.1", mac(*n), NudState::Stale),
                true,
            );
        }
    }

    fn restore_former_lladdr(&mut self, n: u8) {
        let at = Timestamp(1);
        self.facts
            .restore_former_lladdr(BRIDGE, ip("10.0.0.1"), mac(n), (at, at));
    }

    fn refute(&mut self, ifindex: IfIndex, leads_there: u8) -> bool {
        let leads_there = |m| m == mac(leads_there);
        self.facts
            .refute_neighbour(ifindex, ip("10.0.0.1"), leads_there)
    }

    fn is_refuted(&self, ifindex: IfIndex) -> bool {
        let known = self.facts.get(ip("10.0.0.1")).unwrap();
        let mut of = known.neighbours.iter().filter(|n| n.ifindex == ifindex);
        of.any(|n| n.refuted)
    }

    /// What the bridge's entry held before, oldest first, and whether it flapped.
    fn former(&self) -> Vec<(u8, bool)> {
        let known = self.facts.get(ip("10.0.0.1")).unwrap();
        let of = known.neighbours.iter().filter(|n| n.ifindex == BRIDGE);
        of.flat_map(|n| &n.former)
            .map(|f| (f.mac.0[5], f.flapped))
            .collect()
    }

    fn asked(&self) -> Vec<u8> {
        (1..=9)
            .filter(|n| self.facts.is_mac_referenced(BRIDGE, mac(*n)))
            .collect()
    }
}

#[test]
fn an_entry_told_again_is_news_only_where_state_or_belief_changes() {
    let mut entries = Entries::default();
    assert_eq!(
        entries.pods(NudState::Reachable, true),
        StoreOutcome::Changed
    );
    assert_eq!(
        entries.pods(NudState::Reachable, true),
        StoreOutcome::Refreshed
    );
    assert_eq!(entries.pods(NudState::Stale, true), StoreOutcome::Changed);
    assert_eq!(entries.pods(NudState::Stale, true), StoreOutcome::Refreshed);
    assert!(entries.refute(1, 1));
    assert_eq!(entries.pods(NudState::Stale, true), StoreOutcome::Refreshed);
    assert!(entries.is_refuted(1));
    assert_eq!(
        entries.pods(NudState::Reachable, false),
        StoreOutcome::Changed
    );
    assert!(entries.is_refuted(1), "read, not confirmed");
    assert_eq!(
        entries.pods(NudState::Reachable, true),
        StoreOutcome::Changed
    );
    assert!(!entries.is_refuted(1));
}

#[test]
fn another_lladdr_is_not_what_was_refuted() {
    let mut entries = Entries::default();
    entries.turns(&[1]);
    entries.refute(BRIDGE, 1);
    assert!(entries.is_refuted(BRIDGE));
    entries.turns(&[2]);
    assert!(!entries.is_refuted(BRIDGE));
}

#[test]
fn a_removal_refutes_only_entries_of_that_link_that_lead_there() {
    let mut entries = Entries::default();
    assert!(!entries.refute(BRIDGE, 1), "no entry at all");
    entries.pods(NudState::Stale, true);
    assert!(!entries.refute(BRIDGE, 1), "none on the bridge");
    entries.turns(&[2]);
    assert!(!entries.refute(BRIDGE, 1), "it leads elsewhere");
    assert!(entries.refute(BRIDGE, 2));
    assert!(entries.is_refuted(BRIDGE) && !entries.is_refuted(1));
}

#[test]
fn a_removal_takes_only_what_leads_there_out_of_flapping() {
    let mut entries = Entries::default();
    entries.turns(&[1, 2, 1]);
    assert!(entries.refute(BRIDGE, 1));
    entries.turns(&[3]);
    assert_eq!(entries.former(), [(2, true), (1, false)]);
    assert!(entries.refute(BRIDGE, 2));
    assert_eq!(entries.former(), [(2, false), (1, false)]);
}

#[test]
fn an_entry_that_returned_and_left_again_says_nothing_of_the_next() {
    let mut entries = Entries::default();
    entries.turns(&[1, 2, 1, 3, 4]);
    assert_eq!(entries.former(), [(2, true), (1, true), (3, false)]);
}

#[test]
fn the_newest_four_are_remembered() {
    let mut entries = Entries::default();
    entries.turns(&[1, 2, 3, 4, 5]);
    assert_eq!(entries.asked(), [1, 2, 3, 4, 5]);
    entries.turns(&[6]);
    let macs: Vec<_> = entries.former().iter().map(|(n, _)| *n).collect();
    assert_eq!(macs, [2, 3, 4, 5]);
    assert_eq!(entries.asked(), [2, 3, 4, 5, 6]);
    assert_eq!(entries.facts.take_unreferenced(), [(BRIDGE, mac(1))]);
}

#[test]
fn what_was_held_is_forgotten_when_the_window_is_over_unless_it_is_held_again() {
    for (next, asked, unasked) in [(3, [2, 3], vec![(BRIDGE, mac(1))]), (1, [1, 2], vec![])] {
        let mut entries = Entries::default();
        entries.turns(&[1, 2]);
        entries.secs = WINDOW.as_secs();
        entries.turns(&[next]);
        assert_eq!(entries.former(), [(2, false)]);
        assert_eq!(entries.asked(), asked);
        assert_eq!(entries.facts.take_unreferenced(), unasked);
    }
}

#[test]
fn what_an_earlier_agent_knew_is_put_before_what_is_known() {
    let mut entries = Entries::default();
    entries.pods(NudState::Stale, true);
    entries.restore_former_lladdr(2);
    entries.turns(&[1]);
    for n in [2, 2, 3, 1] {
        entries.restore_former_lladdr(n);
    }
    assert_eq!(entries.former(), [(3, true), (2, true)]);
    assert_eq!(entries.asked(), [1, 2, 3]);
    entries.turns(&[4]);
    assert_eq!(entries.former(), [(3, true), (2, true), (1, true)]);
    entries.restore_former_lladdr(5);
    entries.restore_former_lladdr(6);
    assert_eq!(
        entries.former(),
        [(5, true), (3, true), (2, true), (1, true)]
    );
}

#[test]
fn a_lladdr_is_asked_for_while_any_entry_of_the_bridge_gives_it() {
    let mut entries = Entries::default();
    entries.turns(&[1]);
    entries.tell(neighbour(BRIDGE, "10.0.0.2", mac(1), NudState::Stale), true);
    for _ in 0..2 {
        entries.pods(NudState::Stale, true);
    }
    assert_eq!(entries.facts.referenced_mac_count(), 1, "on bridges alone");
    assert!(entries.facts.remove_neighbour(BRIDGE, ip("10.0.0.1")));
    assert_eq!(entries.asked(), [1]);
    assert!(entries.facts.remove_neighbour(BRIDGE, ip("10.0.0.2")));
    assert!(entries.asked().is_empty());
}

#[test]
fn an_entry_withdrawn_is_that_links_and_makes_room_for_one() {
    let mut entries = Entries {
        bounds: Bounds {
            claims_per_device: 2,
            ..Bounds::default()
        },
        ..Entries::default()
    };
    let known = |n: u8| neighbour(1, &format!("10.0.0.{n}"), mac(1), NudState::Stale);
    entries.tell(known(1), true);
    entries.tell(known(2), true);
    assert!(!entries.facts.remove_neighbour(1, ip("10.0.0.9")));
    assert!(!entries.facts.remove_neighbour(2, ip("10.0.0.1")));
    assert!(entries.facts.remove_neighbour(1, ip("10.0.0.1")));
    assert_eq!(entries.tell(known(3), true), StoreOutcome::Changed);
    assert_eq!(entries.tell(known(4), true), StoreOutcome::Refused);
}
