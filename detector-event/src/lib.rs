//! Events about conflicts and anomalies: typed until they are serialised, and their wording for people.
//!
//! What the agent, its clients and the kubectl plugin share: the shapes of the API's answers, pods, times and texts. No I/O.

mod anomaly;
pub mod answers;
mod any_event;
mod changed;
mod clean;
mod conflict;
mod counted;
mod diagnosis;
mod ended;
mod envelope;
pub mod error_chain;
pub mod explain;
mod group;
pub mod guidance;
pub mod history;
mod json;
mod maker;
pub mod names;
mod newest;
pub mod next_step;
mod part;
mod pod;
pub mod row;
#[cfg(any(test, feature = "samples"))]
pub mod samples;
#[cfg(feature = "schema")]
pub mod schema;
pub mod summary;
pub mod text;
mod time;

pub use anomaly::{AnomalyData, ResolvedBecause};
pub use any_event::{AnyEvent, SubjectId, SubjectKind};
pub use changed::{ChangedField, diagnosis_digest};
pub use clean::{clean, clean_log_line};
pub use conflict::{ClaimData, ClaimantData, ConflictData, EvidenceData};
pub use counted::counted;
pub use diagnosis::{
    Affected, DiagnosisData, DiagnosisEvidence, Explanation, Explanations, NotChecked,
    TimelineEntry,
};
pub use envelope::{
    AnomalyEvent, Change, DataContentType, Event, EventType, SpecVersion, SubjectClass,
    SubjectState,
};
pub use json::write_json;
pub use maker::{EventMaker, EventSubject};
pub use names::ContractName;
pub use newest::NewestBy;
pub use next_step::Guidance;
pub use part::{PartReport, Role, State};
pub use pod::{MAX_PRIMARY_ADDRESSES, MAX_SECONDARY_ADDRESSES, Owner, Pod, PodAnswer, Via};
pub use time::{Moment, WallTime};
