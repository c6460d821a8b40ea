//! What is reported: the event of a conflict or an anomaly, and its wording for people.

mod anomaly;
pub(crate) mod any_event;
mod conflict;
#[cfg(test)]
pub(crate) mod samples;
pub mod summary;
pub mod text;

pub use anomaly::AnomalyData;
pub use any_event::AnyEvent;
pub use conflict::{
    AnomalyEvent, Change, ClaimantData, ConflictData, Event, EventMaker, EvidenceData,
};
