//! How often one object may be told something: client-go's `EventSourceObjectSpamFilter`, 25 at once, then one every
//! 5 minutes.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

/// client-go's figures.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(300);
/// Objects that are remembered; beyond, the one that was told longest ago is forgotten.
const OBJECTS: usize = 4096;

/// A bucket of tokens for each object, as client-go's spam filter has it.
#[derive(Debug, Default)]
pub(super) struct Limit {
    buckets: HashMap<String, Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: u32,
    /// When the last token was added.
    at: Instant,
}

impl Limit {
    /// Whether this object may be told something now; it is then.
    pub(super) fn allows(&mut self, object: &str, now: Instant) -> bool {
        if !self.buckets.contains_key(object) && self.buckets.len() >= OBJECTS {
            let oldest = self.buckets.iter().min_by_key(|(_, bucket)| bucket.at);
            if let Some(oldest) = oldest.map(|(object, _)| object.clone()) {
                self.buckets.remove(&oldest);
            }
        }
        let bucket = self.buckets.entry(object.to_owned()).or_insert(Bucket {
            tokens: BURST,
            at: now,
        });
        let refills = now.duration_since(bucket.at).as_secs() / REFILL.as_secs();
        let refills = u32::try_from(refills).unwrap_or(u32::MAX).min(BURST);
        if bucket.tokens.saturating_add(refills) >= BURST {
            *bucket = Bucket {
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
    fn one_pod_gets_25_events_at_once_then_one_every_five_minutes() {
        let mut limit = Limit::default();
        let now = Instant::now();
        let allowed = |limit: &mut Limit, now| (0..100).filter(|_| limit.allows("a", now)).count();
        assert_eq!(allowed(&mut limit, now), 25);
        assert!(limit.allows("b", now));
        assert_eq!(
            allowed(&mut limit, now + REFILL - Duration::from_secs(1)),
            0
        );
        assert_eq!(allowed(&mut limit, now + 2 * REFILL), 2);
        assert_eq!(allowed(&mut limit, now + 1000 * REFILL), 25);
    }

    #[test]
    fn memory_of_objects_is_bounded() {
        let mut limit = Limit::default();
        let now = Instant::now();
        for object in 0..OBJECTS + 10 {
            limit.allows(&object.to_string(), now);
        }
        assert!(limit.buckets.len() <= OBJECTS);
    }
}
