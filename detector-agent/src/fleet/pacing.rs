//! When requests may be sent: so many per second with bursts, few at a time, and none for a while after the server was overloaded
//! or away.

use std::time::Duration;

use tokio::time::Instant;

use crate::process::{
    timer::{DoublingDelay, RetryPolicy, with_jitter},
    token_bucket::TokenBucket,
};

/// Seconds of the rate that a burst may use at once.
const BURST_SECONDS: u32 = 5;
/// Requests at a time.
const IN_FLIGHT: usize = 8;
/// Pauses after failures.
const PAUSES: RetryPolicy = RetryPolicy {
    first: Duration::from_millis(250),
    longest: Duration::from_secs(60),
};
/// The longest pause that the server may ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);

/// The pace of all requests of this agent.
#[derive(Debug)]
pub(super) struct Pacing {
    rate: TokenBucket<Instant>,
    pause: DoublingDelay,
    /// None is sent before, after a failure.
    paused_until: Instant,
    /// None is sent before, because the server asked for that.
    asked_until: Instant,
    /// The last answer was a failure: one request at a time finds out whether the server is back.
    is_failing: bool,
    in_flight: usize,
    random: fastrand::Rng,
}

impl Pacing {
    /// `rate` requests per second, at least one.
    pub(super) fn new(rate: u32, now: Instant) -> Self {
        let rate = rate.max(1);
        Self {
            rate: TokenBucket::new(
                rate.saturating_mul(BURST_SECONDS),
                Duration::from_secs(1) / rate,
                now,
            ),
            pause: DoublingDelay::new(PAUSES),
            paused_until: now,
            asked_until: now,
            is_failing: false,
            in_flight: 0,
            random: fastrand::Rng::new(),
        }
    }

    /// When the next request may be sent; `None` before another is answered.
    pub(super) fn next(&self) -> Option<Instant> {
        let limit = if self.is_failing { 1 } else { IN_FLIGHT };
        let refilled = self.rate.next_at();
        (self.in_flight < limit).then(|| refilled.max(self.paused_until).max(self.asked_until))
    }

    /// Whether to send a request now; if so, it counts as sent.
    pub(super) fn try_begin(&mut self, now: Instant) -> bool {
        if self.next().is_none_or(|next| now < next) {
            return false;
        }
        self.rate.take(now);
        self.in_flight += 1;
        true
    }

    /// A request that was begun was not sent, because there was none.
    pub(super) fn withdraw(&mut self) {
        self.rate.put_back();
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// A request was answered.
    pub(super) fn answered(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.is_failing = false;
        self.pause.reset();
    }

    /// A request that was sent at `sent_at` has failed, and the server may have asked for a pause.
    pub(super) fn failed(&mut self, sent_at: Instant, now: Instant, retry_after: Option<Duration>) {
        self.in_flight = self.in_flight.saturating_sub(1);
        // Those that were sent before the pause began are the same failure.
        if sent_at >= self.paused_until {
            self.is_failing = true;
            let pause = self.pause.advance_with_jitter(&mut self.random);
            self.paused_until = now + pause;
        }
        if let Some(wanted) = retry_after {
            let wanted = wanted.min(LONGEST_RETRY_AFTER);
            // Not before, and not all agents at the same moment.
            let more = wanted - with_jitter(wanted, &mut self.random);
            self.asked_until = self.asked_until.max(now + wanted + more);
        }
    }

    /// A request that was answered has shown that none makes sense before `until`.
    pub(super) fn pause(&mut self, until: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.is_failing = true;
        self.paused_until = self.paused_until.max(until);
    }

    /// The server seems to be back: the next request finds out.
    pub(super) fn resume(&mut self, now: Instant) {
        self.paused_until = self.paused_until.min(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends as much as is allowed in this time, each request answered at once; returns how many.
    fn sent(pacing: &mut Pacing, from: Instant, time: Duration) -> usize {
        let mut now = from;
        let mut sent = 0;
        while now < from + time {
            while pacing.try_begin(now) {
                pacing.answered();
                sent += 1;
            }
            now += Duration::from_millis(10);
        }
        sent
    }

    #[test]
    fn burst_is_followed_by_the_rate() {
        let start = Instant::now();
        let mut pacing = Pacing::new(20, start);
        let second = Duration::from_secs(1);
        assert_eq!(sent(&mut pacing, start, second), 100 + 19);
        assert_eq!(sent(&mut pacing, start + second, 10 * second), 200);
        let rested = start + 60 * second;
        assert_eq!(sent(&mut pacing, rested, second), 100 + 19);
    }

    #[test]
    fn few_are_in_flight_and_none_is_lost() {
        let now = Instant::now();
        let mut pacing = Pacing::new(20, now);
        let begun = (0..20).filter(|_| pacing.try_begin(now)).count();
        assert_eq!((begun, pacing.next()), (IN_FLIGHT, None));
        pacing.answered();
        assert!(pacing.try_begin(now) && !pacing.try_begin(now));
        pacing.withdraw();
        assert!(pacing.try_begin(now));
    }

    #[test]
    fn failures_pause_everything_longer_and_longer() {
        let mut now = Instant::now();
        let mut pacing = Pacing::new(20, now);
        while pacing.try_begin(now) {}
        for _ in 0..IN_FLIGHT {
            pacing.failed(now, now + Duration::from_millis(1), None);
        }
        now += Duration::from_millis(1);
        let first = pacing.next().map(|next| next - now);
        assert!(
            first.is_some_and(|pause| pause <= PAUSES.first && pause >= PAUSES.first / 2),
            "eight that fail together are one failure: {first:?}"
        );
        for _ in 0..12 {
            now = pacing.next().unwrap_or(now);
            assert!(pacing.try_begin(now));
            assert_eq!(pacing.next(), None, "one at a time while it fails");
            pacing.failed(now, now, None);
        }
        let pause = pacing.next().map(|next| next - now);
        assert!(
            pause.is_some_and(|pause| pause <= PAUSES.longest && pause >= PAUSES.longest / 2),
            "{pause:?}"
        );
        now = pacing.next().unwrap_or(now);
        assert!(pacing.try_begin(now));
        pacing.answered();
        assert!(pacing.try_begin(now) && pacing.try_begin(now));
    }

    #[test]
    fn sign_of_life_ends_a_pause_but_not_what_the_server_asked_for() {
        let now = Instant::now();
        let mut pacing = Pacing::new(20, now);
        assert!(pacing.try_begin(now) && pacing.try_begin(now));
        pacing.pause(now + Duration::from_secs(180));
        pacing.failed(now, now, Some(Duration::from_secs(1)));
        assert!(!pacing.try_begin(now + Duration::from_secs(2)));
        pacing.resume(now);
        assert!(!pacing.try_begin(now));
        let later = now + Duration::from_secs(2);
        assert!(pacing.try_begin(later) && !pacing.try_begin(later));
    }

    #[test]
    fn server_may_ask_for_a_longer_pause_but_not_for_any() {
        let now = Instant::now();
        for (asked, least, most) in [(1, 1, 2), (30, 30, 45), (1_000_000, 300, 450)] {
            let mut pacing = Pacing::new(20, now);
            assert!(pacing.try_begin(now));
            pacing.failed(now, now, Some(Duration::from_secs(asked)));
            let pause = pacing.next().map(|next| (next - now).as_secs());
            assert!(
                pause.is_some_and(|pause| (least..=most).contains(&pause)),
                "{asked}: {pause:?}"
            );
        }
    }

    #[test]
    fn request_that_was_withdrawn_costs_nothing() {
        let now = Instant::now();
        let mut pacing = Pacing::new(20, now);
        for _ in 0..1_000 {
            assert!(pacing.try_begin(now));
            pacing.withdraw();
        }
        let begun = (0..1_000).take_while(|_| {
            let begins = pacing.try_begin(now);
            pacing.answered();
            begins
        });
        assert_eq!(begun.count(), 100);
    }

    #[test]
    fn longer_of_two_pauses_holds() {
        let now = Instant::now();
        let (minute, second) = (Duration::from_secs(60), Duration::from_secs(1));
        let mut pacing = Pacing::new(20, now);
        assert!(pacing.try_begin(now) && pacing.try_begin(now));
        pacing.pause(now + minute);
        pacing.pause(now + second);
        assert_eq!(pacing.next(), Some(now + minute));
        let mut pacing = Pacing::new(20, now);
        assert!(pacing.try_begin(now) && pacing.try_begin(now));
        pacing.failed(now, now, Some(minute));
        pacing.failed(now, now, Some(second));
        assert!(pacing.next() >= Some(now + minute));
    }

    #[test]
    fn answer_ends_the_growth_of_pauses() {
        let mut now = Instant::now();
        let mut pacing = Pacing::new(20, now);
        for _ in 0..12 {
            assert!(pacing.try_begin(now));
            pacing.failed(now, now, None);
            now = pacing.next().unwrap_or(now);
        }
        assert!(pacing.try_begin(now));
        pacing.answered();
        assert!(pacing.try_begin(now));
        pacing.failed(now, now, None);
        let pause = pacing.next().map(|next| next - now);
        assert!(
            pause.is_some_and(|pause| pause <= PAUSES.first),
            "{pause:?}"
        );
    }

    #[test]
    fn agents_spread_after_a_pause_that_the_server_asked_for() {
        let now = Instant::now();
        let pause = || {
            let mut pacing = Pacing::new(20, now);
            assert!(pacing.try_begin(now));
            pacing.failed(now, now, Some(Duration::from_secs(30)));
            pacing.next()
        };
        let pauses: std::collections::HashSet<_> = (0..20).map(|_| pause()).collect();
        assert!(pauses.len() > 10, "{pauses:?}");
    }
}
