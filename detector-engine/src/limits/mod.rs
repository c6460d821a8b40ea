//! Bounds: what is read again and when, what was refused, and the table of claimed addresses for the kernel programs.

pub(crate) mod change_budget;
pub(crate) mod claimed_addresses;
pub(crate) mod expiry;
pub(crate) mod in_flight_snapshots;
pub(crate) mod reads;
pub(crate) mod self_check;
