//! What follows from the [`mirror`](crate::mirror). No state: the same facts always give the same answers.

pub(crate) mod bridge_entries;
pub(crate) mod claim_scope;
pub(crate) mod claimants;
pub(crate) mod dedup;
pub(crate) mod evidence;
pub(crate) mod traffic_receiver;
