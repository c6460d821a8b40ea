//! Why something was found, in events and in the API; see docs/events.md.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use detector_engine::diagnosis::{self, Cause, CauseConfidence, Facts, UnixTime};
use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use crate::schema;
use crate::{AnomalyData, ConflictData, Guidance, SubjectId, WallTime, diagnosis_digest, names};

/// Why a conflict came about, or an anomaly was raised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Diagnosis")
)]
pub struct DiagnosisData {
    /// The cause, or `unknown`.
    #[serde(with = "names::name")]
    #[cfg_attr(feature = "schema", schemars(with = "schema::Name<Cause>"))]
    pub cause: Cause,
    /// Whether the cause is proven or only likely.
    #[serde(with = "names::name")]
    #[cfg_attr(feature = "schema", schemars(with = "schema::Name<CauseConfidence>"))]
    pub confidence: CauseConfidence,
    /// When the cause began, which is not when it was noticed; null if that is not known.
    pub since: Option<WallTime>,
    /// The cause in a sentence or two; for people.
    pub summary: String,
    /// The facts that support the cause.
    pub evidence: Vec<DiagnosisEvidence>,
    /// How many addresses and pods the cause affects.
    pub affected: Affected,
    /// What to do, in a safe order; for people.
    pub repair: String,
    /// Other causes that the facts rule out.
    #[serde(with = "names::list")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<schema::Name<Cause>>"))]
    pub ruled_out: Vec<Cause>,
    /// Facts that were not checked, so that no cause follows from them.
    pub not_checked: Vec<NotChecked>,
}

impl DiagnosisData {
    /// Whether the cause is known.
    #[must_use]
    pub fn has_cause(&self) -> bool {
        self.cause != Cause::Unknown
    }

    /// How certain the cause is: unknown, likely or proven.
    fn certainty(&self) -> u8 {
        match self.confidence {
            _ if !self.has_cause() => 0,
            CauseConfidence::Likely => 1,
            CauseConfidence::Proven => 2,
        }
    }

    /// The cause in one sentence, if it is known: `ipam_state_wiped (proven): The reservations of …`. For people, not yet cleaned.
    #[must_use]
    pub fn cause_text(&self) -> Option<String> {
        let (cause, confidence) = (self.cause.name(), self.confidence.name());
        self.has_cause()
            .then(|| format!("{cause} ({confidence}): {}", self.summary))
    }
}

/// A fact that supports a cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiagnosisEvidence {
    /// The fact; for people.
    pub fact: String,
    /// The source of the fact, such as `file:/var/lib/cni/networks/pods`.
    pub source: String,
    /// When it happened; null if it has no time.
    pub at: Option<WallTime>,
}

/// How much a cause affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Affected {
    /// Number of addresses.
    pub addresses: usize,
    /// Number of pods.
    pub pods: usize,
}

/// A fact that was not checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NotChecked {
    /// Which fact; for people.
    pub what: String,
    /// Why it was not checked; for people.
    pub because: String,
}

/// Something that happened around a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TimelineEntry {
    /// When it happened.
    pub at: WallTime,
    /// What happened; for people.
    pub what: String,
    /// The source that reported it.
    pub source: String,
}

/// A diagnosis with what happened around the finding, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The diagnosis.
    pub diagnosis: Arc<DiagnosisData>,
    /// At most [`MAX_TIMELINE`](diagnosis::MAX_TIMELINE) entries.
    pub timeline: Arc<[TimelineEntry]>,
}

impl Explanation {
    /// Diagnosis and timeline that follow from the facts of an incident, in the form that events contain.
    #[must_use]
    pub fn of(facts: &Facts) -> Self {
        let found = diagnosis::diagnose(facts);
        let diagnosis = DiagnosisData {
            cause: found.cause,
            confidence: found.confidence,
            since: found.since.and_then(wall),
            summary: found.summary,
            evidence: found
                .evidence
                .into_iter()
                .map(|evidence| DiagnosisEvidence {
                    fact: evidence.fact,
                    source: evidence.source.to_string(),
                    at: evidence.at.and_then(wall),
                })
                .collect(),
            affected: Affected {
                addresses: found.affected.addresses,
                pods: found.affected.pods,
            },
            repair: found.repair,
            ruled_out: found.ruled_out,
            not_checked: found
                .not_checked
                .into_iter()
                .map(|not_checked| NotChecked {
                    what: not_checked.what,
                    because: not_checked.because,
                })
                .collect(),
        };
        let timeline = diagnosis::timeline(facts).into_iter().filter_map(|entry| {
            Some(TimelineEntry {
                at: wall(entry.at)?,
                what: entry.what,
                source: entry.source.to_string(),
            })
        });
        Self {
            diagnosis: Arc::new(diagnosis),
            timeline: timeline.collect(),
        }
    }
}

fn wall(time: UnixTime) -> Option<WallTime> {
    WallTime::from_unix_nanos(i64::try_from(time.0).ok()?)
}

/// The explanations of what is open, shared by all who show it.
#[derive(Debug, Default)]
pub struct Explanations(Mutex<HashMap<SubjectId, Found>>);

/// What the agents of the claimants found.
#[derive(Debug, Default)]
struct Found {
    here: Option<Explanation>,
    elsewhere: Option<DiagnosisData>,
}

impl Found {
    /// The explanation of this agent, with the cause that the agent of another node found if that is more certain.
    fn best(&self) -> Option<Explanation> {
        let here = self.here.as_ref()?;
        let known = &here.diagnosis;
        let better = self.elsewhere.as_ref();
        let Some(better) = better.filter(|found| found.certainty() > known.certainty()) else {
            return Some(here.clone());
        };
        let mut ruled_out = known.ruled_out.clone();
        ruled_out.retain(|cause| *cause != better.cause);
        Some(Explanation {
            diagnosis: Arc::new(DiagnosisData {
                affected: known.affected,
                ruled_out,
                not_checked: known.not_checked.clone(),
                ..better.clone()
            }),
            timeline: Arc::clone(&here.timeline),
        })
    }

    fn digest(&self) -> u64 {
        diagnosis_digest(self.best().as_ref().map(|best| &*best.diagnosis))
    }
}

impl Explanations {
    /// The explanation of a conflict or an anomaly; `None` if there is none yet.
    #[must_use]
    pub fn of(&self, id: SubjectId) -> Option<Explanation> {
        self.lock().get(&id)?.best()
    }

    /// The diagnosis that this agent made of it.
    #[must_use]
    pub fn found_here(&self, id: SubjectId) -> Option<Arc<DiagnosisData>> {
        let here = self.lock().get(&id)?.here.clone();
        here.map(|here| here.diagnosis)
    }

    /// Replaces an explanation. Returns whether this is news: another cause or confidence than before. An unknown cause is no
    /// news.
    pub fn set(&self, id: SubjectId, explanation: Explanation) -> bool {
        let mut all = self.lock();
        let found = all.entry(id).or_default();
        let before = found.digest();
        found.here = Some(explanation);
        let now = found.digest();
        now != 0 && now != before
    }

    /// Replaces what the agent of another node found. It is shown while it is more certain than what this agent found.
    pub fn set_elsewhere(&self, id: SubjectId, diagnosis: Option<DiagnosisData>) {
        let mut all = self.lock();
        if diagnosis.is_some() || all.contains_key(&id) {
            all.entry(id).or_default().elsewhere = diagnosis;
        }
    }

    /// The conflict or anomaly is over.
    pub fn remove(&self, id: SubjectId) {
        self.lock().remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SubjectId, Found>> {
        // A panic while it was held leaves a whole map.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConflictData {
    /// Adds why it came about; what to do follows from it.
    pub fn explain(&mut self, explanations: &Explanations) {
        if let Some(explanation) = explanations.of(self.conflict_id.into()) {
            self.diagnosis = Some(explanation.diagnosis);
            self.timeline = Some(explanation.timeline);
            self.guidance = Guidance::of_conflict(self);
        }
    }
}

impl AnomalyData {
    /// Adds why it was raised; what to do follows from it.
    pub fn explain(&mut self, explanations: &Explanations) {
        if let Some(explanation) = explanations.of(self.anomaly_id.into()) {
            self.diagnosis = Some(explanation.diagnosis);
            self.timeline = Some(explanation.timeline);
            self.guidance = Guidance::of_anomaly(self);
        }
    }
}
