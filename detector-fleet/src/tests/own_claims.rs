//! What is believed of `IPClaim`s: when they are read again, and what a write without an answer may still do.

use std::time::Duration;

use detector_engine::Timestamp;

use super::{
    super::{
        Identity, Outcome, Stored, Version,
        claim::{AnsweredRequest, ClaimBelief, Holder},
    },
    agent::{Agent, address, holder, server},
};
use crate::objects::{ClaimSpec, Party};

const SECOND: Duration = Duration::from_secs(1);
const NOW: Timestamp = Timestamp(1_000_000_000_000);

/// The answer at a time to a request that was sent then.
fn answered(
    belief: &mut ClaimBelief,
    is_write: bool,
    (sent, now): (Timestamp, Timestamp),
    next_call: u64,
    outcome: Outcome,
) {
    let me = Identity {
        node: "a".to_owned(),
        boot_id: "a-0".to_owned(),
    };
    let sent = AnsweredRequest {
        subject: address(),
        me: &me,
        is_write,
        sent,
        now,
        next_call,
        conflict: None,
    };
    belief.answered(&sent, outcome, &mut fastrand::Rng::with_seed(7));
}

fn claim_of(node: &str, boot_id: &str) -> Outcome {
    let party = Party {
        node: node.to_owned(),
        boot_id: boot_id.to_owned(),
        ..Party::default()
    };
    Outcome::Claim(Stored {
        version: Version {
            uid: "1".to_owned(),
            resource_version: "1".to_owned(),
        },
        spec: ClaimSpec {
            address: address(),
            party,
        },
    })
}

#[test]
fn write_without_an_answer_is_settled_by_a_read_that_was_sent_late_enough() {
    let mut belief = ClaimBelief::new(Holder::Absent);
    answered(&mut belief, true, (NOW, NOW), 1, Outcome::Failed);
    let read = |belief: &mut ClaimBelief, sent, now| {
        answered(belief, false, (NOW + sent, NOW + now), 2, Outcome::NotFound);
    };
    // The answer is late enough, the request is not.
    read(&mut belief, 74 * SECOND, 80 * SECOND);
    assert!(!belief.is_released());
    read(&mut belief, 76 * SECOND, 80 * SECOND);
    assert!(belief.is_released());
}

#[test]
fn write_of_this_run_without_an_answer_is_read_again_although_the_address_lives() {
    let a = Agent::new("a");
    let local = a.local("web");
    let mut belief = ClaimBelief::restored(NOW);
    assert_eq!(belief.next_read(Some(&local)), None);
    answered(&mut belief, true, (NOW, NOW), 1, Outcome::Failed);
    assert_eq!(belief.next_read(Some(&local)), Some(NOW + 75 * SECOND));
}

#[test]
fn claim_that_this_node_does_not_contest_is_not_read_again() {
    let a = Agent::new("a");
    let local = a.local("web");
    let mut belief = ClaimBelief::new(Holder::Unknown);
    answered(&mut belief, false, (NOW, NOW), 1, claim_of("b", "b-0"));
    assert!(belief.next_read(Some(&local)).is_some());
    assert_eq!(belief.next_read(None), None);
}

#[test]
fn another_boot_of_a_node_is_another_holder() {
    let mut belief = ClaimBelief::new(Holder::Unknown);
    answered(&mut belief, false, (NOW, NOW), 1, claim_of("b", "b-0"));
    answered(&mut belief, false, (NOW, NOW), 2, claim_of("b", "b-0"));
    assert_eq!(belief.known, 1);
    answered(&mut belief, false, (NOW, NOW), 3, claim_of("b", "b-1"));
    assert_eq!(belief.known, 3);
}

#[test]
fn claim_that_somebody_deleted_is_registered_again_within_hours() {
    let mut server = server(&["a"]);
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    a.run(&mut server);
    server.claims.clear();
    a.run_for(&mut server, 9_000 * SECOND);
    assert!(holder(&server, address()).is_some());
}

#[test]
fn request_of_an_earlier_run_that_takes_effect_late_is_released() {
    let mut server = server(&["a"]);
    let mut before = Agent::new("a");
    before.claim(address(), "web");
    let late = before.next().unwrap();
    let mut a = Agent::starting("a", 0, before.journal);
    a.protocol.local_is_complete(a.now);
    a.run_for(&mut server, 60 * SECOND);
    assert!(!a.journal.is_empty(), "it may still appear");
    server.apply(late.subject, &late.request);
    a.run_for(&mut server, 20 * SECOND);
    assert_eq!(holder(&server, address()), None);
    assert!(a.journal.is_empty());
}
