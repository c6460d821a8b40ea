//! When Calico's blocks are listed: they are those of the whole cluster, so not for each pod that comes.

use std::time::Duration;

use tokio::time::Instant;

/// Blocks are listed once in this time, and once more where an address is in doubt.
const EVERY: Duration = Duration::from_secs(60);
/// The least time between two lists.
const GAP: Duration = Duration::from_secs(3);

/// When they were listed, and may be again.
#[derive(Debug, Default)]
pub(super) struct Pace {
    last: Option<Instant>,
    /// Not because of an address in doubt before this.
    next: Option<Instant>,
    /// An address is in doubt.
    asked: bool,
}

impl Pace {
    /// An address is in doubt: they are wanted as soon as may be.
    pub(super) fn ask(&mut self) {
        self.asked = true;
    }

    /// When they are to be listed because of an address in doubt.
    pub(super) fn asked_for(&self) -> Option<Instant> {
        self.next.filter(|_| self.asked)
    }

    /// Whether they are listed now.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        let due = match (self.last, self.next) {
            (Some(_), Some(next)) if self.asked => next,
            (Some(last), _) => last + EVERY,
            (None, _) => now,
        };
        if due > now {
            return false;
        }
        // One list out of turn, then not another before the time of the last has passed.
        let before = self.last.replace(now);
        let next = before.map_or(now, |before| before + EVERY);
        self.next = Some(next.max(now + GAP));
        self.asked = false;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_doubt_brings_one_list_forward_and_not_every_one() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert!(pace.begin(start));
        assert!(!pace.begin(start + GAP), "nobody asked");
        pace.ask();
        assert_eq!(pace.asked_for(), Some(start + GAP));
        assert!(!pace.begin(start + GAP / 2), "too soon");
        assert!(pace.begin(start + GAP));
        pace.ask();
        assert!(!pace.begin(start + GAP * 2), "the next waits its turn");
        assert!(pace.begin(start + EVERY));
    }
}
