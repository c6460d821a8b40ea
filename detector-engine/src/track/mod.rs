//! What is open. What changes about it are the effects.

pub(crate) mod anomaly;
pub(crate) mod conflict_room;
pub(crate) mod counts;
pub(crate) mod lifecycle;
pub(crate) mod moves;
pub(crate) mod repeats;
pub(crate) mod tracked_conflict;
