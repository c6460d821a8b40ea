//! The hash tables of the engine.
//!
//! One event looks up some eighty keys, for which SipHash, the default of the standard library, takes a sixth of its instructions.
//! How many keys a device can add is bounded, and a pod does not know the seed of a table: keys chosen to collide gain nothing.

pub(crate) use foldhash::{HashMap, HashSet};

/// How many entries a table has room for.
const ROOM: usize = 28;

/// A table with room for the first conflicts: it would grow on the way to an event line.
pub(crate) fn with_room<K, V>() -> HashMap<K, V> {
    HashMap::with_capacity_and_hasher(ROOM, Default::default())
}
