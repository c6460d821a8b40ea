#![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

use detector_event::samples;

use super::*;

use Change::{Raised, Resolved, Updated};

fn fill(queue: &mut Queue, entries: &[(&str, Change)]) {
    for (seq, (subject, change)) in entries.iter().enumerate() {
        queue.push(QueueEntry {
            seq: seq as u64,
            subject: samples::subject_id(subject),
            change: *change,
            changed: vec![ChangedField::Pod],
            bytes: 10,
            age: Duration::ZERO,
            since: Instant::now(),
            event: None,
        });
    }
}

fn queue(entries: &[(&str, Change)]) -> Queue {
    let mut queue = Queue::new(None);
    fill(&mut queue, entries);
    queue
}

fn windowed(has_incidents: bool, entries: &[(&str, Change)]) -> Queue {
    let mut queue = Queue::new(Some(Window {
        lasts: Duration::from_secs(10),
        has_incidents,
    }));
    fill(&mut queue, entries);
    queue
}

/// Stores the incident of a window that is over, as the outbox does.
fn store_window(queue: &mut Queue, now: Instant) -> usize {
    let raised = queue.raised_in_window(now);
    for subject in &raised {
        queue.incidents.join(*subject, raised[0]);
    }
    queue.window_stored();
    raised.len()
}

fn seqs(job: &SendJob) -> Vec<u64> {
    job.members.iter().map(|member| member.seq).collect()
}

#[test]
fn the_next_event_of_a_subject_waits_for_the_removal_of_the_last() {
    let mut queue = queue(&[("a", Raised), ("a", Resolved), ("b", Raised)]);
    let now = Instant::now();
    assert_eq!(seqs(&queue.take(now).unwrap()), [0]);
    assert_eq!(seqs(&queue.take(now).unwrap()), [2]);
    assert_eq!(queue.take(now).unwrap_err(), Idle::Empty);
    queue.finished(0);
    assert_eq!(queue.take(now).unwrap_err(), Idle::Empty);
    assert!(queue.has_successors());
    queue.removed(samples::subject_id("a"), 0);
    assert_eq!(seqs(&queue.take(now).unwrap()), [1]);
    assert_eq!((queue.len(), queue.bytes()), (2, 20));
}

#[test]
fn a_parked_event_waits_unless_an_update_supersedes_it() {
    let now = Instant::now();
    let at = now + Duration::from_secs(900);
    for (lane, is_superseded) in [
        (&[Raised][..], false),
        (&[Raised, Resolved], false),
        (&[Raised, Updated], true),
        (&[Updated], false),
        (&[Updated, Updated], true),
        (&[Updated, Resolved], true),
        (&[Resolved], false),
    ] {
        let entries: Vec<_> = lane.iter().map(|change| ("a", *change)).collect();
        let mut queue = queue(&entries);
        let job = queue.take(now).unwrap();
        assert!(!job.was_rejected);
        queue.rejected(&job, at);
        assert_eq!((queue.len(), queue.parked()), (lane.len(), lane.len()));
        if !is_superseded {
            assert_eq!(queue.take(now).unwrap_err(), Idle::Until(at), "{lane:?}");
        }
        let again = queue.take(at).unwrap();
        assert_eq!(seqs(&again), [0]);
        assert!(again.was_rejected);
        assert_eq!(again.is_superseded, is_superseded, "{lane:?}");
        queue.finished(0);
        assert_eq!(queue.parked(), 0);
        queue.removed(samples::subject_id("a"), 0);
        assert_eq!(queue.len(), lane.len() - 1);
    }
}

#[test]
fn a_failed_event_delays_only_its_own_subject() {
    let mut queue = queue(&[("a", Raised), ("a", Resolved), ("b", Raised)]);
    let now = Instant::now();
    let later = now + Duration::from_secs(5);
    assert_eq!(seqs(&queue.take(now).unwrap()), [0]);
    queue.failed(0, later);
    assert_eq!(seqs(&queue.take(now).unwrap()), [2]);
    assert_eq!(queue.take(now).unwrap_err(), Idle::Until(later));
    let again = queue.take(later).unwrap();
    assert_eq!((seqs(&again), again.failures), (vec![0], 1));
}

#[test]
fn a_window_is_one_message_of_raises_and_then_one_of_ends() {
    let mut queue = windowed(false, &[("a", Raised), ("b", Raised), ("b", Resolved)]);
    let now = Instant::now();
    let Err(Idle::Until(end)) = queue.take(now) else {
        unreachable!("the window is not over");
    };
    assert!(end > now + Duration::from_secs(9), "{:?}", end - now);
    assert_eq!(store_window(&mut queue, now), 0);
    assert_eq!(store_window(&mut queue, end), 2);
    let job = queue.take(end).unwrap();
    assert_eq!((seqs(&job), job.change), (vec![0, 1], Raised));
    assert_eq!(job.incident, samples::subject_id("a"));
    for (subject, seq) in [("a", 0), ("b", 1)] {
        queue.finished(seq);
        queue.removed(samples::subject_id(subject), seq);
    }
    let job = queue.take(end + Duration::from_secs(1)).unwrap();
    assert_eq!((seqs(&job), job.change), (vec![2], Resolved));
    assert_eq!(queue.take(end).unwrap_err(), Idle::Empty);
}

#[test]
fn a_raise_is_sent_with_the_newest_state_and_minor_updates_are_not_sent() {
    let mut queue = windowed(false, &[("a", Raised), ("a", Updated), ("b", Updated)]);
    let lane = queue.lanes.get_mut(&samples::subject_id("b")).unwrap();
    lane.entries[0].changed = vec![ChangedField::Evidence];
    queue.close_window();
    let now = Instant::now();
    store_window(&mut queue, now);
    let job = queue.take(now).unwrap();
    assert_eq!((job.members[0].seq, job.members[0].content), (0, 1));
    assert!(!job.is_superseded);
    let job = queue.take(now).unwrap();
    assert_eq!((seqs(&job), job.is_superseded), (vec![2], true));
}

#[test]
fn a_rejected_message_is_divided_until_the_rejected_event_is_alone() {
    let names: Vec<String> = (0..8).map(|n| format!("c{n}")).collect();
    let entries: Vec<_> = names.iter().map(|name| (name.as_str(), Raised)).collect();
    let mut queue = windowed(false, &entries);
    queue.close_window();
    let now = Instant::now();
    let at = now + Duration::from_secs(900);
    store_window(&mut queue, now);
    let mut sizes = Vec::new();
    while let Ok(job) = queue.take(now) {
        sizes.push(job.members.len());
        if seqs(&job).contains(&2) {
            queue.rejected(&job, at);
            continue;
        }
        queue.accepted();
        for member in job.members {
            queue.finished(member.seq);
            queue.removed(member.subject, member.seq);
        }
    }
    assert_eq!(sizes, [8, 4, 2, 4, 2, 1, 1, 2, 2]);
    assert_eq!((queue.len(), queue.parked()), (1, 1));
    assert_eq!(queue.take(now).unwrap_err(), Idle::Until(at));
}

#[test]
fn an_incident_is_resolved_with_its_last_member() {
    let entries = [("a", Resolved), ("b", Resolved), ("c", Resolved)];
    let mut queue = windowed(true, &entries[..2]);
    queue.close_window();
    let [a, b, c] = ["a", "b", "c"].map(samples::subject_id);
    for member in [a, b, c] {
        queue.incidents.join(member, a);
    }
    let now = Instant::now();
    let job = queue.take(now).unwrap();
    assert_eq!((seqs(&job), job.is_superseded), (vec![0, 1], true));
    // They are over, whether or not they are removed by now.
    queue.finished(0);
    queue.finished(1);
    queue.removed(a, 0);
    queue.incidents.leave(a);
    let mut end = QueueEntry {
        seq: 2,
        subject: c,
        change: Resolved,
        changed: Vec::new(),
        bytes: 10,
        age: Duration::ZERO,
        since: now,
        event: None,
    };
    queue.push(end.clone());
    let job = queue.take(now).unwrap();
    assert_eq!(
        (seqs(&job), job.is_superseded, job.incident),
        (vec![2], false, a)
    );
    queue.removed(b, 1);
    queue.finished(2);
    queue.removed(c, 2);
    queue.incidents.leave(b);
    queue.incidents.leave(c);
    // One that joined none has one of its own.
    end.seq = 3;
    queue.push(end);
    let job = queue.take(now).unwrap();
    assert_eq!((job.is_superseded, job.incident), (false, c));
}
