//! How much is open and claimed, kept as it changes: counting it again would cost too much to do it
//! with every event.

use std::{collections::BTreeMap, net::IpAddr};

use crate::hash::HashMap;

/// How many conflicts or anomalies are open, by kind.
#[derive(Debug)]
pub(crate) struct KindCounts<K>(BTreeMap<K, usize>);

impl<K> Default for KindCounts<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> KindCounts<K> {
    pub(crate) fn add(&mut self, kind: K) {
        *self.0.entry(kind).or_default() += 1;
    }

    pub(crate) fn subtract(&mut self, kind: &K) {
        if let Some(count) = self.0.get_mut(kind) {
            *count = count.saturating_sub(1);
        }
    }

    pub(crate) fn of(&self, kind: &K) -> usize {
        self.0.get(kind).copied().unwrap_or_default()
    }
}

/// How many live claims each address had when it was last decided about, and all of them together.
#[derive(Debug, Default)]
pub(crate) struct ClaimCounts {
    /// No address has as many claims as would need more bits.
    by_address: HashMap<IpAddr, u32>,
    total: usize,
}

impl ClaimCounts {
    pub(crate) fn set(&mut self, address: IpAddr, claims: usize) {
        let claims = u32::try_from(claims).unwrap_or(u32::MAX);
        let before = if claims == 0 {
            self.by_address.remove(&address)
        } else {
            self.by_address.insert(address, claims)
        };
        self.total = self.total - before.unwrap_or_default() as usize + claims as usize;
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }
}
