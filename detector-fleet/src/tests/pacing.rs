//! When requests about one subject are sent, and in which order those about several.

use std::time::Duration;

use detector_engine::Timestamp;

use super::{
    super::{
        Mode, Outcome, Request,
        pace::Pace,
        queue::{Priority, Queue},
    },
    agent::{Agent, address, asked, other_address, server},
};
use crate::Subject;

const SECOND: Duration = Duration::from_secs(1);
const NOW: Timestamp = Timestamp(1_000_000_000_000);

fn subject(number: u8) -> Subject {
    format!("10.244.1.{number}").parse().unwrap()
}

#[test]
fn requests_beyond_a_burst_wait_until_there_was_a_pause() {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut pace = Pace::default();
    for _ in 0..8 {
        pace.sent(NOW, &mut rng);
        assert!(pace.not_before() <= NOW);
    }
    pace.sent(NOW, &mut rng);
    assert!(pace.not_before() > NOW);
    let later = NOW + 11 * SECOND;
    pace.sent(later, &mut rng);
    assert!(pace.not_before() <= later);
}

#[test]
fn rejected_request_waits_for_minutes_unless_its_content_changes() {
    let mut server = server(&["a"]);
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    let call = a.next().unwrap();
    a.answer(&call, Outcome::Rejected);
    a.sleep(200 * SECOND);
    assert!(a.next().is_none(), "too early");
    a.claim(address(), "cart");
    let call = a.next().unwrap();
    assert!(matches!(call.request, Request::CreateClaim(_)), "{call:?}");
    a.answer(&call, Outcome::Rejected);
    let sent = a.run_for(&mut server, 400 * SECOND);
    assert!(matches!(sent[0].1, Request::CreateClaim(_)), "{sent:?}");
}

#[test]
fn release_is_sent_before_registrations_that_wait() {
    let mut server = server(&["a"]);
    let mut a = Agent::new("a");
    a.claim(subject(200), "web");
    a.run(&mut server);
    for number in 0..10 {
        a.claim(subject(number), "web");
    }
    a.release(subject(200));
    let call = a.next().unwrap();
    assert!(matches!(call.request, Request::DeleteClaim(_)), "{call:?}");
}

#[test]
fn subjects_are_served_in_the_order_in_which_they_came() {
    let mut queue = Queue::default();
    for number in [5, 3, 9] {
        queue.ready(subject(number), Priority::Plain);
    }
    queue.ready(subject(5), Priority::Plain);
    let order: Vec<_> = std::iter::from_fn(|| queue.pop_ready()).collect();
    assert_eq!(order, [5, 3, 9].map(subject));
}

#[test]
fn nothing_is_sent_before_the_journal_has_it() {
    let mut a = Agent::new("a");
    let claim = a.local("web");
    a.protocol.set_local(a.now, address(), Some(claim));
    let wall = detector_event::WallTime::from_unix_nanos(1_000_000).unwrap();
    assert_eq!(a.protocol.next_request(a.now, wall), None);
    assert_eq!(a.protocol.take_effects().len(), 1);
    assert!(a.protocol.next_request(a.now, wall).is_some());
    // Also if that turns out while requests are taken.
    let claim = a.local("cart");
    a.protocol.set_local(a.now, other_address(), Some(claim));
    assert_eq!(a.protocol.next_request(a.now, wall), None);
}

#[test]
fn address_that_is_only_looked_up_from_now_on_is_read() {
    let (mut server, _a, mut b) = asked("web", "cart");
    let mut claim = b.local("cart");
    claim.mode = Mode::Lookup;
    b.protocol.set_local(b.now, address(), Some(claim));
    let sent = b.run(&mut server);
    assert!(matches!(sent[0], Request::GetClaim), "{sent:?}");
}
