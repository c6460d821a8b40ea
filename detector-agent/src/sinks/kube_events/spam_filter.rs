//! The rate of events on one object, as in client-go's `EventSourceObjectSpamFilter`: 25 at once, then one every 5
//! minutes.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::process::token_bucket::TokenBucket;

/// client-go's values.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(300);
/// The most objects with a bucket; beyond it, the one that has been full for longest is dropped.
const OBJECTS: usize = 4096;

/// A token bucket for each object.
#[derive(Debug, Default)]
pub(super) struct SpamFilter {
    buckets: HashMap<String, TokenBucket<Instant>>,
}

impl SpamFilter {
    /// Takes a token of this object; `false` if there is none.
    pub(super) fn take_token(&mut self, object: &str, now: Instant) -> bool {
        if !self.buckets.contains_key(object) && self.buckets.len() >= OBJECTS {
            let oldest = self.buckets.iter().min_by_key(|(_, b)| b.full_at());
            if let Some(oldest) = oldest.map(|(object, _)| object.clone()) {
                self.buckets.remove(&oldest);
            }
        }
        let bucket = self.buckets.entry(object.to_owned());
        let bucket = bucket.or_insert_with(|| TokenBucket::new(BURST, REFILL, now));
        bucket.try_take(now)
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
