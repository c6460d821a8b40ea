//! Which events go first at a sink's bound.

use std::{collections::VecDeque, sync::Arc};

use super::{Entry, Queue, State};
use crate::event::Change;

/// Events that may be dropped together at the bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sinks::outbox) struct Victim {
    pub(in crate::sinks::outbox) conflict: Arc<str>,
    pub(in crate::sinks::outbox) seqs: Vec<u64>,
    pub(in crate::sinks::outbox) bytes: usize,
    /// The sink was never told of the conflict, and now will not be.
    pub(in crate::sinks::outbox) untold: bool,
    /// The sink knows of the conflict, or may, and now will not learn of its end.
    pub(in crate::sinks::outbox) endless: bool,
}

impl Queue {
    /// What may be dropped at the bound, in this order, the oldest first: conflicts that are over and that the sink
    /// was never told of (those it was not even tried with before the others); updates that a later event of the same
    /// conflict has outdated; conflicts that the sink was not told of yet; other updates; at last the ends of conflicts
    /// that it knows, and what it may know of. Nothing is sent from then on, until [`Queue::thaw`].
    pub(in crate::sinks::outbox) fn victims(&mut self) -> VecDeque<Victim> {
        self.frozen = true;
        let mut ranked: Vec<(u8, Victim)> = Vec::new();
        for conflict in self.heads.values() {
            let Some(lane) = self.lanes.get(conflict) else {
                continue;
            };
            if lane.state == State::Sending || lane.state == State::Removing {
                continue;
            }
            let has = |change| lane.entries.iter().any(|e| e.change == change);
            let rank = match (has(Change::Raised), has(Change::Resolved)) {
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
                    ranked.push((2, victim(conflict, std::iter::once(entry), false)));
                }
            }
            let untold = has(Change::Raised) && !has(Change::Resolved);
            let whole = victim(conflict, lane.entries.iter(), untold);
            let endless = matches!(rank, 1 | 5);
            ranked.push((rank, Victim { endless, ..whole }));
        }
        ranked.sort_by_key(|(rank, victim)| (*rank, victim.seqs.first().copied()));
        ranked.into_iter().map(|(_, victim)| victim).collect()
    }
}

fn victim<'e>(
    conflict: &Arc<str>,
    entries: impl Iterator<Item = &'e Entry>,
    untold: bool,
) -> Victim {
    let mut victim = Victim {
        conflict: Arc::clone(conflict),
        seqs: Vec::new(),
        bytes: 0,
        untold,
        endless: false,
    };
    for entry in entries {
        victim.seqs.push(entry.seq);
        victim.bytes += entry.bytes;
    }
    victim
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use std::time::Duration;

    use tokio::time::Instant;

    use super::{
        super::tests::queue,
        Change::{Raised, Resolved, Updated},
        *,
    };

    #[test]
    fn whole_pairs_go_first_then_outdated_updates_then_what_the_sink_does_not_know() {
        let mut queue = queue(&[
            ("told", Resolved),
            ("open", Raised),
            ("open", Updated),
            ("open", Updated),
            ("pair", Raised),
            ("pair", Resolved),
            ("new", Raised),
        ]);
        let order: Vec<_> = queue
            .victims()
            .into_iter()
            .map(|v| (v.conflict.to_string(), v.seqs, v.untold))
            .collect();
        let expected = [
            ("pair", vec![4, 5], false),
            ("open", vec![2], false),
            ("open", vec![1, 2, 3], true),
            ("new", vec![6], true),
            ("told", vec![0], false),
        ];
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(c, s, u)| (c.to_owned(), s, u))
            .collect();
        assert_eq!(order, expected);
    }

    #[test]
    fn a_pair_that_the_receiver_may_know_in_part_goes_after_one_it_cannot_know() {
        let mut queue = queue(&[("tried", Raised), ("tried", Resolved)]);
        let now = Instant::now();
        queue.take(now).unwrap();
        queue.failed(0, now);
        let stored = Entry {
            seq: 2,
            conflict: Arc::from("stored"),
            change: Raised,
            bytes: 10,
            age: Duration::ZERO,
            since: now,
            event: None,
        };
        queue.restore(stored.clone());
        for (seq, conflict, change) in [
            (3, "stored", Resolved),
            (4, "new", Raised),
            (5, "new", Resolved),
        ] {
            queue.push(Entry {
                seq,
                conflict: Arc::from(conflict),
                change,
                ..stored.clone()
            });
        }
        let order: Vec<_> = queue
            .victims()
            .into_iter()
            .map(|v| (v.conflict.to_string(), v.endless))
            .collect();
        let expected = [("new", false), ("tried", true), ("stored", true)];
        assert_eq!(order, expected.map(|(c, e)| (c.to_owned(), e)));
    }

    #[test]
    fn what_is_being_sent_is_no_victim() {
        let mut queue = queue(&[("a", Raised), ("a", Resolved)]);
        assert_eq!(queue.take(Instant::now()).unwrap().seq, 0);
        assert!(queue.victims().is_empty());
    }
}
