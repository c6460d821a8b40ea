//! Pure detection: claims, rules and the life of a conflict. No I/O, and no clock of its own.

mod observation;

pub use observation::*;
