//! Objects that another agent, which may be compromised, or a person wrote: whatever they contain, they cost bounded memory, cause no
//! report of a node against itself, and make this agent delete nothing that is not its own.

use std::time::Duration;

use detector_engine::{Confidence, ConflictId, ConflictKind, ConflictScope, Network};

use super::{
    super::{Outcome, Request, Stored, Version, conflict, machine},
    agent::{Agent, address, asked, holder, other_address, server, set_node, writes_claim},
};
use crate::{
    Subject,
    objects::{
        self, ClaimSpec, ConflictCause, ConflictClaimant, ConflictSpec, ConflictState, MAX_COLUMN,
        MAX_REASON, Party,
    },
};

fn party(node: &str, boot_id: &str) -> Party {
    Party {
        node: node.to_owned(),
        boot_id: boot_id.to_owned(),
        ..Party::default()
    }
}

/// A claimant that claims to be confirmed and active.
fn claimant(node: &str, boot_id: &str) -> ConflictClaimant {
    ConflictClaimant {
        party: party(node, boot_id),
        asked: 1,
        confirmed: 1,
        active: true,
        ..ConflictClaimant::default()
    }
}

fn conflict(subject: Subject, claimants: Vec<ConflictClaimant>) -> ConflictSpec {
    ConflictSpec {
        address: subject,
        conflict_id: ConflictId(666),
        kind: ConflictKind::Duplicate,
        scope: ConflictScope::Fleet,
        network: Network::Node,
        state: ConflictState::Active,
        confidence: Confidence::Certain,
        raised_at: None,
        resolved_at: None,
        nodes: "x".repeat(2 * MAX_COLUMN),
        pods: "x".repeat(2 * MAX_COLUMN),
        cause: Some(Box::new(ConflictCause {
            summary: "x".repeat(2 * MAX_COLUMN),
            ..ConflictCause::default()
        })),
        claimants,
    }
}

fn stored<T>(uid: &str, resource_version: &str, spec: T) -> Stored<T> {
    let version = Version {
        uid: uid.to_owned(),
        resource_version: resource_version.to_owned(),
    };
    Stored { version, spec }
}

/// A claimant in which every text is as long as it can be without a bound.
fn huge(node: &str) -> ConflictClaimant {
    let text = || "ä".repeat(100_000);
    ConflictClaimant {
        party: Party {
            node: node.to_owned(),
            boot_id: text(),
            device: text(),
            namespace: text(),
            pod: text(),
            pod_uid: text(),
            container_id: text(),
            source: text(),
            ..Party::default()
        },
        unconfirmed_because: Some(text()),
        ..ConflictClaimant::default()
    }
}

/// Whether the server accepts the conflict: [`objects`] has the bounds of the schema.
fn assert_bounded(spec: &ConflictSpec) {
    assert!(spec.claimants.len() <= objects::MAX_CLAIMANTS);
    assert!(spec.nodes.chars().count() <= MAX_COLUMN);
    assert!(spec.pods.chars().count() <= MAX_COLUMN);
    for claimant in &spec.claimants {
        let because = claimant.unconfirmed_because.as_deref().unwrap_or_default();
        assert!(because.chars().count() <= MAX_REASON);
        let size = serde_json::to_vec(&claimant).unwrap().len();
        assert!(size < 4_096, "{size} bytes");
    }
}

fn written(sent: &[Request]) -> impl Iterator<Item = &ConflictSpec> {
    sent.iter().filter_map(|request| match request {
        Request::CreateConflict(spec) | Request::ReplaceConflict(_, spec) => Some(spec),
        _ => None,
    })
}

#[test]
fn huge_texts_are_cut() {
    let mut server = server(&["a", "b"]);
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    a.run(&mut server);
    server.write_conflict(conflict(address(), vec![huge("b"), claimant("a", "a-0")]));
    let sent = a.run(&mut server);
    let mut written = written(&sent).peekable();
    assert!(written.peek().is_some(), "{}", sent.len());
    written.for_each(assert_bounded);
}

#[test]
fn thousands_of_claimants_are_cut() {
    let mut server = server(&["a", "b"]);
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    a.run(&mut server);
    let claimants = (0..5_000).map(|n| claimant(&format!("node-{n}"), "boot"));
    let claimants = std::iter::once(claimant("a", "a-0")).chain(claimants);
    server.write_conflict(conflict(address(), claimants.collect()));
    let sent = a.run(&mut server);
    written(&sent).for_each(assert_bounded);
    let entry = &a.protocol.entries[&address()];
    assert!(entry.conflict.spec().unwrap().claimants.len() <= conflict::MAX_CLAIMANTS);
}

#[test]
fn conflicts_about_what_this_node_does_not_have_take_bounded_memory() {
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    let all = 4 * machine::MAX_CONNECTED;
    for number in 0..all {
        let [high, middle, low] = [16, 8, 0].map(|shift| number >> shift & 0xff);
        let subject: Subject = format!("10.{high}.{middle}.{low}").parse().unwrap();
        let claimants = vec![claimant("b", "boot"), claimant("a", "a-0")];
        let stored = stored(&number.to_string(), "1", conflict(subject, claimants));
        a.protocol.conflict_changed(a.now, stored);
    }
    assert!(a.protocol.entries.len() <= machine::MAX_CONNECTED + 1);
    assert!(a.protocol.counts().unusable_objects > 0, "it is counted");
    // What the node has is still registered.
    let call = (0..100).find_map(|_| a.next().filter(|call| call.subject == address()));
    assert!(matches!(call.unwrap().request, Request::CreateClaim(_)));
}

#[test]
fn claim_of_this_node_from_another_boot_is_no_conflict() {
    let mut server = server(&["a"]);
    let spec = ClaimSpec {
        address: address(),
        party: party("a", "another-boot"),
    };
    server.apply(address(), &Request::CreateClaim(spec));
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    a.run(&mut server);
    assert_eq!(holder(&server, address()).unwrap().boot_id, "a-0");
    assert!(server.conflicts.is_empty());
    assert!(a.reports().is_empty());
}

#[test]
fn conflict_of_this_node_with_itself_is_ended() {
    let mut server = server(&["a"]);
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    a.run(&mut server);
    let claimants = vec![claimant("a", "another-boot"), claimant("a", "a-0")];
    server.write_conflict(conflict(address(), claimants));
    a.run(&mut server);
    assert_eq!(server.open_conflict(address()), None);
    assert!(a.reports().is_empty());
}

#[test]
fn entry_of_this_node_that_another_wrote_proves_nothing() {
    let mut server = server(&["a", "b"]);
    let mut b = Agent::new("b");
    b.claim(address(), "cart");
    b.run(&mut server);
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    let holder = ConflictClaimant {
        party: party("b", "b-0"),
        ..ConflictClaimant::default()
    };
    let claimants = vec![holder, claimant("a", "another-boot")];
    server.write_conflict(conflict(address(), claimants));
    a.run(&mut server);
    assert!(a.reports().is_empty());
    let spec = &server.conflicts[&address().object_name()].spec;
    assert_eq!(spec.state, ConflictState::Suspected);
    assert_eq!(spec.claimants[1].party.boot_id, "a-0");
    assert_ne!(spec.claimants[1].asked, spec.claimants[1].confirmed);
}

#[test]
fn conflict_about_what_this_node_does_not_have_makes_it_write_no_claim() {
    let mut server = server(&["a", "b"]);
    let mut b = Agent::new("b");
    b.claim(address(), "cart");
    b.run(&mut server);
    let mut a = Agent::new("a");
    a.watch(&server);
    for first in ["a", "b"] {
        let second = if first == "a" { "b" } else { "a" };
        let claimants = vec![claimant(first, "boot"), claimant(second, "boot")];
        server.write_conflict(conflict(address(), claimants));
        let sent = a.run(&mut server);
        assert!(!writes_claim(&sent), "{sent:?}");
        assert!(a.reports().is_empty());
    }
    assert_eq!(holder(&server, address()).unwrap().node, "b");
}

#[test]
fn wrong_conflict_does_not_make_a_holder_give_up_its_claim() {
    let mut server = server(&["a", "b"]);
    set_node(&mut server, "b", 0, true);
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    a.run(&mut server);
    // It names another holder, and this node as one that has left.
    let mut me = claimant("a", "a-0");
    me.left = Some(detector_engine::LeaveReason::AddressRemoved);
    server.write_conflict(conflict(address(), vec![claimant("b", "b-0"), me]));
    let sent = a.run(&mut server);
    assert!(!writes_claim(&sent), "{sent:?}");
    assert_eq!(holder(&server, address()).unwrap().node, "a");
}

#[test]
fn claim_under_the_name_of_another_address_is_left_alone() {
    let mut server = server(&["a", "b"]);
    for node in ["a", "b"] {
        let spec = ClaimSpec {
            address: other_address(),
            party: party(node, "boot"),
        };
        let name = address().object_name();
        server
            .claims
            .insert(name.clone(), stored("forged", "5", spec));
        let before = server.claims.clone();
        let mut a = Agent::new("a");
        a.claim(address(), "web");
        let sent = a.run_for(&mut server, Duration::from_secs(1_200));
        assert!(sent.len() < 12, "{} requests", sent.len());
        a.release(address());
        a.run(&mut server);
        assert_eq!(server.claims, before);
        assert!(server.conflicts.is_empty());
        assert!(a.reports().is_empty());
        assert!(a.protocol.counts().unusable_objects > 0);
    }
}

#[test]
fn claim_that_names_no_node_is_left_alone() {
    let mut server = server(&["a"]);
    for node in ["", "../pods", "A", &"a".repeat(300)] {
        let spec = ClaimSpec {
            address: address(),
            party: party(node, "boot"),
        };
        let name = address().object_name();
        server.claims.insert(name, stored("forged", "5", spec));
        let before = server.claims.clone();
        let mut a = Agent::new("a");
        a.claim(address(), "web");
        let sent = a.run_for(&mut server, Duration::from_secs(60));
        assert!(!sent.iter().any(|(_, r)| matches!(r, Request::GetNode(_))));
        assert_eq!(server.claims, before);
    }
}

#[test]
fn conflict_of_another_address_under_the_name_is_not_used() {
    let mut server = server(&["a", "b"]);
    let mut b = Agent::new("b");
    b.claim(address(), "cart");
    b.run(&mut server);
    let claimants = vec![claimant("b", "b-0"), claimant("a", "a-0")];
    let forged = stored("forged", "5", conflict(other_address(), claimants));
    server.conflicts.insert(address().object_name(), forged);
    let before = server.conflicts.clone();
    let mut a = Agent::new("a");
    a.list(Vec::new());
    a.claim(address(), "web");
    while a.exchange(&mut server).is_some() {}
    assert!(a.reports().is_empty());
    assert_eq!(server.conflicts, before);
    assert!(a.protocol.counts().unusable_objects > 0);
}

#[test]
fn resource_version_that_is_no_number_counts_as_newer() {
    let mut server = server(&["a", "b"]);
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    a.run(&mut server);
    for version in ["", "x", "18446744073709551616", "x"] {
        let mut asks = claimant("b", "b-0");
        (asks.asked, asks.confirmed) = (7, 0);
        let spec = conflict(address(), vec![claimant("a", "a-0"), asks]);
        let stored = stored("forged", version, spec);
        server
            .conflicts
            .insert(address().object_name(), stored.clone());
        a.protocol.conflict_changed(a.now, stored);
        a.sleep(Duration::from_secs(60));
        let sent: Vec<_> = std::iter::from_fn(|| a.exchange(&mut server)).collect();
        let confirms = |spec: &ConflictSpec| spec.claimants.iter().any(|c| c.confirmed == 7);
        assert!(written(&sent).any(confirms), "{version:?}: {sent:?}");
    }
}

#[test]
fn conflict_that_is_deleted_while_the_holder_confirms_stays_deleted() {
    for is_event_first in [true, false] {
        let (mut server, mut a, mut b) = asked("web", "cart");
        a.watch(&server);
        let call = a.next().unwrap();
        assert!(matches!(call.request, Request::ReplaceConflict(..)));
        // The server confirms, and then the conflict is deleted; the answer and the events arrive in either order.
        let outcome = server.apply(call.subject, &call.request);
        server.delete_conflict(&address().object_name());
        if is_event_first {
            a.watch(&server);
            a.answer(&call, outcome);
        } else {
            a.answer(&call, outcome);
            a.watch(&server);
        }
        let sent = a.run(&mut server);
        assert_eq!(written(&sent).count(), 0, "event first: {is_event_first}");
        assert!(server.conflicts.is_empty());
        // The contender writes it again, and it is confirmed.
        b.run(&mut server);
        a.run(&mut server);
        b.run(&mut server);
        assert_eq!(b.reports().len(), 1);
    }
}

#[test]
fn confirmation_of_a_conflict_that_was_deleted_before_is_dropped() {
    let (mut server, mut a, _b) = asked("web", "cart");
    a.watch(&server);
    let call = a.next().unwrap();
    server.delete_conflict(&address().object_name());
    let outcome = server.apply(call.subject, &call.request);
    assert_eq!(outcome, Outcome::NotFound);
    a.answer(&call, outcome);
    let sent = a.run(&mut server);
    assert_eq!(written(&sent).count(), 0, "{sent:?}");
    assert!(server.conflicts.is_empty());
}

#[test]
fn conflict_with_nobody_else_is_not_reported() {
    let mut server = server(&["a", "b"]);
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    a.run(&mut server);
    server.write_conflict(conflict(
        address(),
        vec![claimant("b", "b-0"), claimant("a", "a-0")],
    ));
    a.watch(&server);
    a.reports();
    // Only this node is left in it.
    let mut me = claimant("a", "a-0");
    me.active = false;
    let mut left = claimant("b", "b-0");
    left.left = Some(detector_engine::LeaveReason::Expired);
    server.write_conflict(conflict(address(), vec![left, me]));
    a.watch(&server);
    assert!(a.reports().iter().all(|report| report.is_resolved));
}
