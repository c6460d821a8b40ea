//! How neighbour entries are stored, and which lladdrs a bridge entry is known to have had before.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot continue fails"
)]

use super::*;
use crate::model::Bounds;

const BRIDGE: IfIndex = 9;
const WINDOW: Duration = Duration::from_secs(180);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

fn neighbour(ifindex: IfIndex, address: &str, lladdr: Mac, state: NudState) -> Neighbour {
    Neighbour {
        ifindex,
        address: ip(address),
        lladdr: Some(lladdr),
        state,
    }
}

/// Stored entries for 10.0.0.1 on pod device 1 and on a bridge, updated at a chosen time.
#[derive(Default)]
struct Entries {
    facts: Facts,
    secs: u64,
}

impl Entries {
    fn set(&mut self, entry: Neighbour, live: bool) -> StoreOutcome {
        let context = NeighbourUpdateContext {
            at: Timestamp(self.secs * 1_000_000_000),
            beginning: Beginning::seen(),
            live,
            former: (entry.ifindex == BRIDGE).then_some(WINDOW),
            peer: None,
        };
        let lladdr = entry.lladdr.unwrap();
        self.facts.set_neighbour(entry, lladdr, context)
    }

    fn set_pod_entry(&mut self, state: NudState, live: bool) -> StoreOutcome {
        self.set(neighbour(1, "10.0.0.1", mac(1), state), live)
    }

    /// The bridge entry takes these lladdrs one after the other.
    fn set_bridge_lladdrs(&mut self, lladdrs: &[u8]) {
        for n in lladdrs {
            self.set(
                neighbour(BRIDGE, "10.0.0.1", mac(*n), NudState::Stale),
                true,
            );
        }
    }

    fn restore_former_lladdr(&mut self, n: u8) {
        let at = Timestamp(1);
        self.facts.restore_former_lladdr(
            BRIDGE,
            ip("10.0.0.1"),
            mac(n),
            Seen::once(at, Beginning::seen()),
        );
    }

    fn refute(&mut self, ifindex: IfIndex, leads_there: u8) -> bool {
        let leads_there = |m| m == mac(leads_there);
        self.facts
            .refute_neighbour(ifindex, ip("10.0.0.1"), false, leads_there)
    }

    fn is_refuted(&self, ifindex: IfIndex) -> bool {
        let facts = self.facts.get(ip("10.0.0.1")).unwrap();
        let mut entries = facts.neighbours.iter().filter(|n| n.ifindex == ifindex);
        entries.any(|n| n.refuted)
    }

    /// Former lladdrs of the bridge entry, oldest first, and whether each flapped.
    fn former(&self) -> Vec<(u8, bool)> {
        let facts = self.facts.get(ip("10.0.0.1")).unwrap();
        let entries = facts.neighbours.iter().filter(|n| n.ifindex == BRIDGE);
        entries
            .flat_map(|n| &n.former)
            .map(|f| (f.mac.0[5], f.flapped))
            .collect()
    }

    fn referenced_macs(&self) -> Vec<u8> {
        (1..=9)
            .filter(|n| self.facts.is_mac_referenced(BRIDGE, mac(*n)))
            .collect()
    }
}

#[test]
fn repeated_entry_changes_only_state_or_refutation() {
    let mut entries = Entries::default();
    assert_eq!(
        entries.set_pod_entry(NudState::Reachable, true),
        StoreOutcome::Changed
    );
    assert_eq!(
        entries.set_pod_entry(NudState::Reachable, true),
        StoreOutcome::Known
    );
    assert_eq!(
        entries.set_pod_entry(NudState::Stale, true),
        StoreOutcome::Changed
    );
    assert_eq!(
        entries.set_pod_entry(NudState::Stale, true),
        StoreOutcome::Known
    );
    assert!(entries.refute(1, 1));
    assert_eq!(
        entries.set_pod_entry(NudState::Stale, true),
        StoreOutcome::Known
    );
    assert!(entries.is_refuted(1));
    assert_eq!(
        entries.set_pod_entry(NudState::Reachable, false),
        StoreOutcome::Changed
    );
    assert!(entries.is_refuted(1), "dumped, not confirmed");
    assert_eq!(
        entries.set_pod_entry(NudState::Reachable, true),
        StoreOutcome::Changed
    );
    assert!(!entries.is_refuted(1));
}

#[test]
fn new_lladdr_clears_the_refutation() {
    let mut entries = Entries::default();
    entries.set_bridge_lladdrs(&[1]);
    entries.refute(BRIDGE, 1);
    assert!(entries.is_refuted(BRIDGE));
    entries.set_bridge_lladdrs(&[2]);
    assert!(!entries.is_refuted(BRIDGE));
}

#[test]
fn removal_refutes_only_entries_leading_to_the_link() {
    let mut entries = Entries::default();
    assert!(!entries.refute(BRIDGE, 1), "no entry at all");
    entries.set_pod_entry(NudState::Stale, true);
    assert!(!entries.refute(BRIDGE, 1), "none on the bridge");
    entries.set_bridge_lladdrs(&[2]);
    assert!(!entries.refute(BRIDGE, 1), "it leads to another MAC");
    assert!(entries.refute(BRIDGE, 2));
    assert!(entries.is_refuted(BRIDGE) && !entries.is_refuted(1));
}

#[test]
fn removal_ends_flapping_only_for_macs_leading_there() {
    let mut entries = Entries::default();
    entries.set_bridge_lladdrs(&[1, 2, 1]);
    assert!(entries.refute(BRIDGE, 1));
    entries.set_bridge_lladdrs(&[3]);
    assert_eq!(entries.former(), [(2, true), (1, false)]);
    assert!(entries.refute(BRIDGE, 2));
    assert_eq!(entries.former(), [(2, false), (1, false)]);
}

#[test]
fn return_after_a_removal_is_a_handover() {
    // The address is removed behind 2 while the entry still leads there, or only later.
    for leads_there_at_removal in [true, false] {
        let mut entries = Entries::default();
        entries.set_bridge_lladdrs(&[1, 2]);
        if leads_there_at_removal {
            assert!(entries.refute(BRIDGE, 2));
        }
        entries.set_bridge_lladdrs(&[3]);
        if !leads_there_at_removal {
            assert!(entries.refute(BRIDGE, 2));
        }
        entries.set_bridge_lladdrs(&[1]);
        assert_eq!(entries.former(), [(2, false), (3, true)]);
        // It answers again.
        entries.set_bridge_lladdrs(&[2, 1]);
        assert_eq!(entries.former(), [(3, true), (2, true)]);
    }
}

#[test]
fn confirmation_after_a_removal_shows_that_the_pod_answers() {
    let mut entries = Entries::default();
    entries.set_bridge_lladdrs(&[1, 2]);
    assert!(entries.refute(BRIDGE, 2));
    let confirmed = neighbour(BRIDGE, "10.0.0.1", mac(2), NudState::Reachable);
    entries.set(confirmed, true);
    entries.set_bridge_lladdrs(&[1]);
    assert_eq!(entries.former(), [(2, true)]);
}

#[test]
fn later_lladdr_does_not_inherit_flapping() {
    let mut entries = Entries::default();
    entries.set_bridge_lladdrs(&[1, 2, 1, 3, 4]);
    assert_eq!(entries.former(), [(2, true), (1, true), (3, false)]);
}

#[test]
fn newest_four_former_lladdrs_are_kept() {
    let mut entries = Entries::default();
    entries.set_bridge_lladdrs(&[1, 2, 3, 4, 5]);
    assert_eq!(entries.referenced_macs(), [1, 2, 3, 4, 5]);
    entries.set_bridge_lladdrs(&[6]);
    let macs: Vec<_> = entries.former().iter().map(|(n, _)| *n).collect();
    assert_eq!(macs, [2, 3, 4, 5]);
    assert_eq!(entries.referenced_macs(), [2, 3, 4, 5, 6]);
    assert_eq!(
        std::mem::take(&mut entries.facts.side_effects.unreferenced),
        [(BRIDGE, mac(1))]
    );
}

#[test]
fn former_lladdr_is_dropped_after_the_window_unless_current() {
    for (next, referenced, unreferenced) in
        [(3, [2, 3], vec![(BRIDGE, mac(1))]), (1, [1, 2], vec![])]
    {
        let mut entries = Entries::default();
        entries.set_bridge_lladdrs(&[1, 2]);
        entries.secs = WINDOW.as_secs();
        entries.set_bridge_lladdrs(&[next]);
        assert_eq!(entries.former(), [(2, false)]);
        assert_eq!(entries.referenced_macs(), referenced);
        assert_eq!(
            std::mem::take(&mut entries.facts.side_effects.unreferenced),
            unreferenced
        );
    }
}

#[test]
fn restored_former_lladdrs_precede_observed_ones() {
    let mut entries = Entries::default();
    entries.set_pod_entry(NudState::Stale, true);
    entries.restore_former_lladdr(2);
    entries.set_bridge_lladdrs(&[1]);
    for n in [2, 2, 3, 1] {
        entries.restore_former_lladdr(n);
    }
    assert_eq!(entries.former(), [(3, true), (2, true)]);
    assert_eq!(entries.referenced_macs(), [1, 2, 3]);
    entries.set_bridge_lladdrs(&[4]);
    assert_eq!(entries.former(), [(3, true), (2, true), (1, true)]);
    entries.restore_former_lladdr(5);
    entries.restore_former_lladdr(6);
    assert_eq!(
        entries.former(),
        [(5, true), (3, true), (2, true), (1, true)]
    );
}

#[test]
fn mac_is_referenced_while_any_bridge_entry_has_it() {
    let mut entries = Entries::default();
    entries.set_bridge_lladdrs(&[1]);
    entries.set(neighbour(BRIDGE, "10.0.0.2", mac(1), NudState::Stale), true);
    for _ in 0..2 {
        entries.set_pod_entry(NudState::Stale, true);
    }
    assert_eq!(entries.facts.behind.len(), 1, "only bridge entries count");
    assert!(entries.facts.remove_neighbour(BRIDGE, ip("10.0.0.1")));
    assert_eq!(entries.referenced_macs(), [1]);
    assert!(entries.facts.remove_neighbour(BRIDGE, ip("10.0.0.2")));
    assert!(entries.referenced_macs().is_empty());
}

#[test]
fn withdrawn_entry_frees_one_place_of_its_link() {
    let mut entries = Entries {
        facts: Facts::new(Bounds {
            claims_per_device: 2,
            ..Bounds::default()
        }),
        ..Entries::default()
    };
    let entry = |n: u8| neighbour(1, &format!("10.0.0.{n}"), mac(1), NudState::Stale);
    entries.set(entry(1), true);
    entries.set(entry(2), true);
    assert!(!entries.facts.remove_neighbour(1, ip("10.0.0.9")));
    assert!(!entries.facts.remove_neighbour(2, ip("10.0.0.1")));
    assert!(entries.facts.remove_neighbour(1, ip("10.0.0.1")));
    assert_eq!(entries.set(entry(3), true), StoreOutcome::Changed);
    assert_eq!(entries.set(entry(4), true), StoreOutcome::Refused);
}

#[test]
fn changing_lladdrs_leave_no_macs_behind() {
    let mut entries = Entries::default();
    for n in 0..200 {
        entries.set_bridge_lladdrs(&[n]);
    }
    assert_eq!(entries.facts.behind.len(), 5);
    assert!(entries.facts.remove_neighbour(BRIDGE, ip("10.0.0.1")));
    assert_eq!(entries.facts.behind.len(), 0);
}
