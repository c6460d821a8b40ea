//! Which connection gives way in which situation.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use super::*;

const HALF: usize = MAX_CONNECTIONS / 2;

fn other(number: usize) -> ConnectionSource {
    ConnectionSource::Other(IpAddr::from([10, 0, (number >> 8) as u8, number as u8]))
}

fn is_open(slot: &mut Slot) -> bool {
    slot.closed.try_recv() == Err(oneshot::error::TryRecvError::Empty)
}

fn count_open<'s>(slots: impl IntoIterator<Item = &'s mut Slot>) -> usize {
    slots
        .into_iter()
        .filter_map(|slot| is_open(slot).then_some(()))
        .count()
}

fn fill(slots: &Slots, client: ConnectionSource, count: usize) -> Vec<Slot> {
    (0..count).map(|_| slots.admit(client).unwrap()).collect()
}

#[test]
fn a_source_at_its_bound_loses_its_idlest_connection() {
    let slots = Slots::new(1 << 20);
    let mut bystander = slots.admit(other(1)).unwrap();
    let mut held = fill(&slots, other(2), PER_SOURCE);
    // The first is being answered, the second was answered last.
    let answering = held[0].handle().answer();
    drop(held[1].handle().answer());
    let mut newest = slots.admit(other(2)).unwrap();
    let open: Vec<_> = held.iter_mut().map(is_open).collect();
    assert_eq!(open.iter().filter(|open| !**open).count(), 1);
    assert!(!open[2], "the one that has waited the longest");
    assert!(is_open(&mut newest) && is_open(&mut bystander));
    drop(answering);
}

#[test]
fn a_source_whose_connections_are_all_answered_is_refused() {
    let slots = Slots::new(1 << 20);
    let held = fill(&slots, other(1), PER_SOURCE);
    let answering: Vec<_> = held.iter().map(|slot| slot.handle().answer()).collect();
    assert!(slots.admit(other(1)).is_none());
    drop(answering);
    assert!(slots.admit(other(1)).is_some());
}

#[test]
fn at_the_total_the_source_with_the_most_connections_gives_way() {
    let slots = Slots::new(1 << 20);
    let mut modest = slots.admit(other(0)).unwrap();
    let mut held = Vec::new();
    for number in 1.. {
        let room = HALF - 1 - held.len();
        held.extend(fill(&slots, other(number), room.min(PER_SOURCE)));
        if room <= PER_SOURCE {
            break;
        }
    }
    let answering: Vec<_> = held.iter().map(|slot| slot.handle().answer()).collect();
    let mut newest = slots.admit(other(1000)).unwrap();
    assert!(!is_open(&mut held[0]));
    assert!(held[1..].iter_mut().all(is_open));
    assert!(is_open(&mut modest) && is_open(&mut newest));
    drop(answering);
}

#[test]
fn others_never_take_a_slot_of_the_node() {
    let slots = Slots::new(1 << 20);
    let mut streams = fill(&slots, ConnectionSource::Node, HALF / 2);
    let answering: Vec<_> = streams.iter().map(|slot| slot.handle().answer()).collect();
    // As many sources as connections: none has more than another one.
    let mut held: Vec<_> = (0..HALF * 2).map(|n| slots.admit(other(n))).collect();
    assert!(streams.iter_mut().all(is_open));
    assert_eq!(count_open(held.iter_mut().flatten()), HALF);
    assert!(slots.admit(ConnectionSource::Node).is_some());
    drop(answering);
}

#[test]
fn idle_connections_of_the_node_give_way_to_its_probes() {
    let slots = Slots::new(1 << 20);
    let mut held = fill(&slots, ConnectionSource::Node, HALF);
    let mut probe = slots.admit(ConnectionSource::Node).unwrap();
    assert!(!is_open(&mut held[0]) && is_open(&mut held[1]) && is_open(&mut probe));
}

#[test]
fn connections_take_a_quarter_of_the_descriptors() {
    let slots = Slots::new(64);
    let mut held: Vec<_> = (0..100).filter_map(|n| slots.admit(other(n))).collect();
    held.extend((0..100).filter_map(|_| slots.admit(ConnectionSource::Node)));
    assert_eq!(count_open(&mut held), 16);
    assert!(slots.shed());
    assert_eq!(count_open(&mut held), 15);
}

#[test]
fn connections_that_are_being_closed_are_bounded() {
    let slots = Slots::new(4 * MAX_CONNECTIONS);
    let mut held = fill(&slots, other(1), PER_SOURCE);
    held.extend((2..).map_while(|number| slots.admit(other(number))));
    assert_eq!(held.len(), 2 * HALF);
    assert_eq!(count_open(&mut held), HALF);
    drop(held.swap_remove(0));
    assert!(slots.admit(other(0)).is_some());
}

#[test]
fn unread_responses_are_bounded() {
    let slots = Slots::new(1 << 20);
    let mut modest = slots.admit(other(0)).unwrap();
    let reading = modest.handle().answer();
    reading.holds(MAX_UNREAD / 8);
    let mut held = fill(&slots, other(1), 8);
    let answering: Vec<_> = held.iter().map(|slot| slot.handle().answer()).collect();
    for answer in &answering {
        answer.holds(MAX_UNREAD / 8);
    }
    assert!(
        !is_open(&mut held[0]),
        "the oldest response of the largest holder"
    );
    assert!(is_open(&mut modest) && held[1..].iter_mut().all(is_open));
    drop(reading);
}

#[test]
fn the_node_is_recognised_by_its_addresses() {
    let client = |peer: &str, local: &str| {
        ConnectionSource::new(peer.parse().unwrap(), local.parse().unwrap())
    };
    for (peer, local) in [
        ("127.0.0.1:1", "127.0.0.1:9842"),
        ("[::1]:1", "[::1]:9842"),
        ("192.0.2.7:1", "192.0.2.7:9842"),
        ("[::ffff:192.0.2.7]:1", "[::ffff:192.0.2.7]:9842"),
    ] {
        assert_eq!(client(peer, local), ConnectionSource::Node, "{peer}");
    }
    let pod = "10.0.0.1".parse().unwrap();
    for peer in ["10.0.0.1:1", "[::ffff:10.0.0.1]:1"] {
        assert_eq!(client(peer, "192.0.2.7:9842"), ConnectionSource::Other(pod));
    }
}
