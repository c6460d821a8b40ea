//! The rate of events on one object, as in client-go's `EventSourceObjectSpamFilter`: 25 at once, then one every 5
//! minutes.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

/// client-go's values.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(300);
/// The most objects with a bucket; beyond it, the one whose bucket was refilled longest ago is dropped.
const OBJECTS: usize = 4096;

/// A token bucket for each object.
#[derive(Debug, Default)]
pub(super) struct SpamFilter {
    buckets: HashMap<String, TokenBucket>,
}

#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    tokens: u32,
    /// When the last token was added.
    at: Instant,
}

impl SpamFilter {
    /// Takes a token of this object; `false` if there is none.
    pub(super) fn take_token(&mut self, object: &str, now: Instant) -> bool {
        if !self.buckets.contains_key(object) && self.buckets.len() >= OBJECTS {
            let oldest = self.buckets.iter().min_by_key(|(_, bucket)| bucket.at);
            if let Some(oldest) = oldest.map(|(object, _)| object.clone()) {
                self.buckets.remove(&oldest);
            }
        }
        let bucket = self
            .buckets
            .entry(object.to_owned())
            .or_insert(TokenBucket {
                tokens: BURST,
                at: now,
            });
        let refills = now.duration_since(bucket.at).as_secs() / REFILL.as_secs();
        let refills = u32::try_from(refills).unwrap_or(u32::MAX).min(BURST);
        if bucket.tokens.saturating_add(refills) >= BURST {
            *bucket = TokenBucket {
                tokens: BURST,
                at: now,
            };
        } else {
            bucket.tokens += refills;
            bucket.at += REFILL * refills;
        }
        let allowed = bucket.tokens > 0;
        bucket.tokens = bucket.tokens.saturating_sub(1);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_gets_25_events_at_once_then_one_every_5_minutes() {
        let mut filter = SpamFilter::default();
        let now = Instant::now();
        let allowed =
            |filter: &mut SpamFilter, now| (0..100).filter(|_| filter.take_token("a", now)).count();
        assert_eq!(allowed(&mut filter, now), 25);
        assert!(filter.take_token("b", now));
        assert_eq!(
            allowed(&mut filter, now + REFILL - Duration::from_secs(1)),
            0
        );
        assert_eq!(allowed(&mut filter, now + 2 * REFILL), 2);
        assert_eq!(allowed(&mut filter, now + 1000 * REFILL), 25);
    }

    #[test]
    fn the_number_of_buckets_is_bounded() {
        let mut filter = SpamFilter::default();
        let now = Instant::now();
        for object in 0..OBJECTS + 10 {
            filter.take_token(&object.to_string(), now);
        }
        assert!(filter.buckets.len() <= OBJECTS);
    }
}
