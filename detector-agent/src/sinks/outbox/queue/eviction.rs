//! Which events are evicted first at a sink's bound.

use std::collections::VecDeque;

use detector_event::{Change, SubjectId};

use super::{LaneState, Queue, QueueEntry};

/// Events of one subject that are evicted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sinks::outbox) struct EvictionCandidate {
    pub(in crate::sinks::outbox) subject: SubjectId,
    pub(in crate::sinks::outbox) seqs: Vec<u64>,
    pub(in crate::sinks::outbox) bytes: usize,
    /// They include the undelivered `raised` event, and not the `resolved` one: the subject stays open, and the sink
    /// has not got it.
    pub(in crate::sinks::outbox) drops_raised: bool,
    /// The sink may have got the `raised` event, and now does not get the `resolved` one.
    pub(in crate::sinks::outbox) loses_resolved: bool,
}

impl Queue {
    /// The events that may be evicted, in this order, the oldest first: subjects whose events the receiver rejects, and
    /// resolved ones of which the sink has got nothing (those without any attempt before the others); updates outdated by a later event of their subject; open
    /// subjects of which the sink has got nothing; other updates; last the `resolved` events of subjects that the sink
    /// has got, and subjects that it may have got. Nothing is sent from then on until [`Queue::unfreeze`].
    pub(in crate::sinks::outbox) fn eviction_candidates(&mut self) -> VecDeque<EvictionCandidate> {
        self.frozen = true;
        let mut ranked: Vec<(u8, EvictionCandidate)> = Vec::new();
        for subject in self.heads.values() {
            let Some(lane) = self.lanes.get(subject) else {
                continue;
            };
            if lane.state == LaneState::Sending || lane.state == LaneState::Removing {
                continue;
            }
            // Behind its end, a subject may have been raised again.
            let is_over = lane
                .entries
                .back()
                .is_some_and(|e| e.change == Change::Resolved);
            let has = |change| match change {
                Change::Resolved => is_over,
                _ => lane.entries.iter().any(|e| e.change == change),
            };
            let rejected = lane.entries.front().filter(|_| lane.is_parked);
            let rank = match (has(Change::Raised), has(Change::Resolved)) {
                _ if rejected.is_some_and(|event| match event.change {
                    Change::Raised => !lane.tried,
                    Change::Updated => !has(Change::Resolved),
                    Change::Resolved => false,
                }) =>
                {
                    0
                }
                (true, true) => u8::from(lane.tried),
                (true, false) if lane.tried => 5,
                (true, false) => 3,
                (false, false) => 4,
                (false, true) => 5,
            };
            if rank > 1 {
                let last = lane.entries.len().saturating_sub(1);
                let outdated = lane.entries.iter().take(last);
                for entry in outdated.filter(|e| e.change == Change::Updated) {
                    ranked.push((2, candidate(*subject, std::iter::once(entry), false)));
                }
            }
            let drops_raised = has(Change::Raised) && !has(Change::Resolved);
            let all = candidate(*subject, lane.entries.iter(), drops_raised);
            let loses_resolved = matches!(rank, 1 | 5);
            ranked.push((
                rank,
                EvictionCandidate {
                    loses_resolved,
                    ..all
                },
            ));
        }
        ranked.sort_by_key(|(rank, candidate)| (*rank, candidate.seqs.first().copied()));
        ranked.into_iter().map(|(_, candidate)| candidate).collect()
    }
}

fn candidate<'e>(
    subject: SubjectId,
    entries: impl Iterator<Item = &'e QueueEntry>,
    drops_raised: bool,
) -> EvictionCandidate {
    let mut candidate = EvictionCandidate {
        subject,
        seqs: Vec::new(),
        bytes: 0,
        drops_raised,
        loses_resolved: false,
    };
    for entry in entries {
        candidate.seqs.push(entry.seq);
        candidate.bytes += entry.bytes;
    }
    candidate
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use std::time::Duration;

    use detector_event::samples;
    use tokio::time::Instant;

    use super::{
        super::tests::queue,
        Change::{Raised, Resolved, Updated},
        *,
    };

    #[test]
    fn complete_pairs_then_outdated_updates_then_undelivered_raises() {
        let mut queue = queue(&[
            ("delivered", Resolved),
            ("open", Raised),
            ("open", Updated),
            ("open", Updated),
            ("pair", Raised),
            ("pair", Resolved),
            ("new", Raised),
        ]);
        let order: Vec<_> = queue
            .eviction_candidates()
            .into_iter()
            .map(|v| (v.subject, v.seqs, v.drops_raised))
            .collect();
        let expected = [
            ("pair", vec![4, 5], false),
            ("open", vec![2], false),
            ("open", vec![1, 2, 3], true),
            ("new", vec![6], true),
            ("delivered", vec![0], false),
        ];
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(name, seqs, drops)| (samples::subject_id(name), seqs, drops))
            .collect();
        assert_eq!(order, expected);
    }

    #[test]
    fn a_subject_that_was_raised_again_is_open() {
        let mut queue = queue(&[
            ("again", Raised),
            ("again", Resolved),
            ("again", Raised),
            ("pair", Raised),
            ("pair", Resolved),
        ]);
        let order: Vec<_> = queue
            .eviction_candidates()
            .into_iter()
            .map(|v| (v.subject, v.seqs, v.drops_raised))
            .collect();
        let expected = [("pair", vec![3, 4], false), ("again", vec![0, 1, 2], true)];
        assert_eq!(
            order,
            expected.map(|(name, seqs, drops)| (samples::subject_id(name), seqs, drops))
        );
    }

    #[test]
    fn a_pair_that_was_attempted_goes_after_one_that_was_not() {
        let mut queue = queue(&[("tried", Raised), ("tried", Resolved)]);
        let now = Instant::now();
        queue.take(now).unwrap();
        queue.failed(0, now);
        let stored = QueueEntry {
            seq: 2,
            subject: samples::subject_id("stored"),
            change: Raised,
            bytes: 10,
            age: Duration::ZERO,
            since: now,
            event: None,
        };
        queue.restore(stored.clone());
        for (seq, subject, change) in [
            (3, "stored", Resolved),
            (4, "new", Raised),
            (5, "new", Resolved),
        ] {
            queue.push(QueueEntry {
                seq,
                subject: samples::subject_id(subject),
                change,
                ..stored.clone()
            });
        }
        let order: Vec<_> = queue
            .eviction_candidates()
            .into_iter()
            .map(|v| (v.subject, v.loses_resolved))
            .collect();
        let expected = [("new", false), ("tried", true), ("stored", true)];
        assert_eq!(
            order,
            expected.map(|(name, loses)| (samples::subject_id(name), loses))
        );
    }

    #[test]
    fn a_rejected_event_goes_before_open_subjects() {
        let mut queue = queue(&[("open", Raised), ("bad", Raised), ("known", Updated)]);
        let now = Instant::now();
        for seq in 0..3 {
            assert_eq!(queue.take(now).unwrap().seq, seq);
        }
        queue.put_back(0);
        queue.rejected(1, now);
        queue.rejected(2, now);
        let order: Vec<_> = queue
            .eviction_candidates()
            .into_iter()
            .map(|v| (v.subject, v.drops_raised, v.loses_resolved))
            .collect();
        let expected = [("bad", true), ("known", false), ("open", true)];
        assert_eq!(
            order,
            expected.map(|(name, drops)| (samples::subject_id(name), drops, false))
        );
    }

    #[test]
    fn an_event_being_sent_is_not_evicted() {
        let mut queue = queue(&[("a", Raised), ("a", Resolved)]);
        assert_eq!(queue.take(Instant::now()).unwrap().seq, 0);
        assert!(queue.eviction_candidates().is_empty());
    }
}
