//! Events about conflicts and anomalies: typed until they are serialised, and their wording for people.

mod anomaly;
mod any_event;
mod changed;
mod clean;
mod conflict;
mod envelope;
pub mod guidance;
mod maker;
pub(crate) mod names;
mod newest;
pub mod next_step;
pub mod row;
#[cfg(test)]
pub(crate) mod samples;
pub mod summary;
pub mod text;

pub use anomaly::{AnomalyData, ResolvedBecause};
pub use any_event::{AnyEvent, SubjectId, SubjectKind};
pub use changed::ChangedField;
pub use clean::clean;
#[cfg(feature = "node")]
pub(crate) use clean::clean_log_line;
pub use conflict::{ClaimData, ClaimantData, ConflictData, EvidenceData};
pub use envelope::{
    AnomalyEvent, Change, DataContentType, Event, EventType, SpecVersion, SubjectClass,
    SubjectState,
};
pub use maker::{EventMaker, EventSubject};
pub use names::ContractName;
pub use newest::NewestBy;
pub use next_step::Guidance;
