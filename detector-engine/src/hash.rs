//! The hash tables of the engine.
//!
//! One event looks up some eighty keys, for which SipHash, the default of the standard library, takes a sixth of its instructions.
//! How many keys a device can add is bounded, and a pod does not know the seed of a table: keys chosen to collide gain nothing.

pub(crate) use foldhash::{HashMap, HashSet};
