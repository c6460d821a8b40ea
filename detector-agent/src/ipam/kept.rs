//! What was read of one pool last, and what a new reading changes in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use crate::engine::{ChangedAddresses, Completeness, Timestamp};

/// Addresses that vanish between two readings, and the share of all (4 of 5), that no IPAM frees at once.
const MANY: usize = 5;
/// How long after such a loss the rest of it is expected.
const LOSS_LASTS: Duration = Duration::from_secs(5);

/// The addresses that IPAM held at the last reading, each with what is known of it.
#[derive(Debug)]
pub(super) struct Kept<V> {
    pub(super) held: BTreeMap<IpAddr, V>,
    /// Addresses that it held once and does not now.
    pub(super) formerly: BTreeSet<IpAddr>,
    max_formerly: usize,
    /// How the books were, and where they stood.
    last: Option<(Completeness, String)>,
    lost_until: Option<Timestamp>,
}

impl<V: PartialEq> Kept<V> {
    /// Nothing was read yet. At most `max_formerly` addresses are remembered after they were freed.
    pub(super) fn new(max_formerly: usize) -> Self {
        Self {
            held: BTreeMap::new(),
            formerly: BTreeSet::new(),
            max_formerly,
            last: None,
            lost_until: None,
        }
    }

    /// Whether `found` lacks so much of what was held that somebody deleted the books, now or a moment ago.
    pub(super) fn is_losing<W>(&mut self, found: &BTreeMap<IpAddr, W>, read_at: Timestamp) -> bool {
        let vanished = self.held.keys().filter(|a| !found.contains_key(a)).count();
        if vanished >= MANY && vanished * 5 >= self.held.len() * 4 {
            self.lost_until = Some(read_at + LOSS_LASTS);
        }
        self.lost_until.is_some_and(|until| until > read_at)
    }

    /// Takes over what was found; gives the addresses that came, went or changed. Where nothing could be read, `None`:
    /// what was read last still stands.
    pub(super) fn replace(
        &mut self,
        found: Option<BTreeMap<IpAddr, V>>,
        books: Completeness,
        place: &str,
    ) -> ChangedAddresses {
        let mut touched = Vec::new();
        if let Some(found) = found {
            for address in self.held.keys().filter(|a| !found.contains_key(a)) {
                touched.push(*address);
                if self.formerly.len() < self.max_formerly {
                    self.formerly.insert(*address);
                }
            }
            for (address, new) in &found {
                self.formerly.remove(address);
                if self.held.get(address) != Some(new) {
                    touched.push(*address);
                }
            }
            self.held = found;
        }
        let now = (books, place.to_owned());
        if self.last.as_ref() == Some(&now) {
            return ChangedAddresses::Only(touched);
        }
        self.last = Some(now);
        ChangedAddresses::All
    }
}
