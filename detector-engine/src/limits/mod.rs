//! Bounds: what is read again and when, what was refused, and the table of claimed addresses for the kernel programs.

pub(crate) mod change_budget;
pub(crate) mod claimed_addresses;
pub(crate) mod expiry;
pub(crate) mod further_reads;
pub(crate) mod in_flight_snapshots;
pub(crate) mod refusals;
pub(crate) mod self_check;
