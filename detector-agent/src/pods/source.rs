//! What all sources have in common: being asked with a deadline, and saying how they fare.

use std::{fmt, future::Future, time::Duration};

use serde::Serialize;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};
use tracing::{info, warn};

use super::{Record, Via};
use crate::{clock, engine::Timestamp};

/// A source that works is asked at least this often, so that its status is true and nothing stays unnoticed.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// Between two questions to a source that is in trouble: at first, doubled each time, at most.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A source of pods.
pub trait Source: Send + 'static {
    /// What its pods are told by.
    const VIA: Via;

    /// Where it looks: a socket, a directory, an address.
    fn target(&self) -> String;

    /// Every pod it knows now, and a remark for people. May be dropped at any await point and asked anew.
    fn records(
        &mut self,
        deadline: Instant,
    ) -> impl Future<Output = Result<SourceSnapshot, Problem>> + Send;
}

/// What a source told.
#[derive(Debug, Default)]
pub struct SourceSnapshot {
    /// Its pods.
    pub records: Vec<Record>,
    /// About the source, for people; empty where there is nothing to say.
    pub remark: String,
}

/// Why a source told nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// There is nothing where it should be.
    #[error("{0}")]
    Missing(String),
    /// It is there, but nobody listens, or we may not.
    #[error("{0}")]
    Refused(String),
    /// Something else answers.
    #[error("{0}")]
    Foreign(String),
    /// It did not answer in time.
    #[error("{0}")]
    Silent(String),
    /// It answered with an error.
    #[error("{0}")]
    Failing(String),
}

/// How a source fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceState {
    /// Not to be used.
    Off,
    /// Not asked yet, or the first answer is not there yet.
    Untried,
    /// It answers.
    Working,
    /// There is nothing where it should be.
    Missing,
    /// It is there, but nobody listens, or we may not.
    Refused,
    /// Something else answers.
    Foreign,
    /// It does not answer in time.
    Silent,
    /// It answers with an error.
    Failing,
}

impl SourceState {
    /// One word, as in metrics and the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Untried => "untried",
            Self::Working => "working",
            Self::Missing => "missing",
            Self::Refused => "refused",
            Self::Foreign => "foreign",
            Self::Silent => "silent",
            Self::Failing => "failing",
        }
    }

    /// Whether it may still name a device.
    #[must_use]
    pub fn is_hopeful(self) -> bool {
        matches!(self, Self::Working | Self::Untried)
    }
}

impl fmt::Display for SourceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How one source fares, for the status page, `/readyz` and `pod_unknown_because`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceStatus {
    /// Which source.
    pub via: Via,
    /// Where it looks.
    pub target: String,
    /// How it fares.
    pub state: SourceState,
    /// The reason of a trouble, or a remark; may be empty.
    pub detail: String,
    /// Pods it told of last.
    pub pods: usize,
    /// Since when it is in this state, monotonic.
    #[serde(skip)]
    pub since: Timestamp,
}

impl SourceStatus {
    /// A source that was not asked yet.
    pub(super) fn untried(via: Via, target: String) -> Self {
        Self {
            via,
            target,
            state: SourceState::Untried,
            detail: String::new(),
            pods: 0,
            since: clock::now(),
        }
    }

    /// A source that is not to be used.
    pub(super) fn off(via: Via) -> Self {
        Self {
            state: SourceState::Off,
            ..Self::untried(via, String::new())
        }
    }

    /// Takes over an outcome.
    pub(super) fn update(
        &mut self,
        target: &str,
        outcome: &Result<SourceSnapshot, Problem>,
    ) -> Change {
        let (state, detail, pods) = match outcome {
            Ok(told) => (
                SourceState::Working,
                told.remark.as_str(),
                told.records.len(),
            ),
            Err(problem) => {
                let state = match problem {
                    Problem::Missing(_) => SourceState::Missing,
                    Problem::Refused(_) => SourceState::Refused,
                    Problem::Foreign(_) => SourceState::Foreign,
                    Problem::Silent(_) => SourceState::Silent,
                    Problem::Failing(_) => SourceState::Failing,
                };
                let (Problem::Missing(why)
                | Problem::Refused(why)
                | Problem::Foreign(why)
                | Problem::Silent(why)
                | Problem::Failing(why)) = problem;
                (state, why.as_str(), 0)
            }
        };
        let turned = self.state != state;
        let told = turned || self.detail != detail;
        let counted = self.pods != pods || self.target != target;
        target.clone_into(&mut self.target);
        detail.clone_into(&mut self.detail);
        self.pods = pods;
        if turned {
            self.state = state;
            self.since = clock::now();
        }
        match (turned, told, counted) {
            (true, _, _) => Change::State,
            (false, true, _) => Change::Detail,
            (false, false, true) => Change::Count,
            (false, false, false) => Change::None,
        }
    }

    /// Says what changed, once.
    pub(super) fn log(&self, change: Change) {
        let Self {
            via,
            target,
            state,
            detail,
            ..
        } = self;
        match (change, state) {
            (Change::None | Change::Count, _) => {}
            (Change::State, SourceState::Working) if detail.is_empty() => {
                info!(via = via.name(), target, "{via} names pods: {target}");
            }
            (_, SourceState::Working) if detail.is_empty() => {}
            // Usual: not every node has every source.
            (_, SourceState::Missing) => {
                info!(via = via.name(), "{via} names no pods: {detail}");
            }
            (_, SourceState::Working) => warn!(via = via.name(), target, "{via}: {detail}"),
            _ => warn!(
                via = via.name(),
                state = state.name(),
                "{via} names no pods: {detail}"
            ),
        }
    }
}

/// What an outcome changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// How the source fares.
    State,
    /// The reason of its trouble, or its remark.
    Detail,
    /// How many pods it knows, or where.
    Count,
    /// Nothing.
    None,
}

/// One answer of a source.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) via: Via,
    pub(super) target: String,
    /// The newest round that was begun before it was asked.
    pub(super) round: u64,
    pub(super) outcome: Result<SourceSnapshot, Problem>,
}

/// Asks once, with a deadline.
pub(super) async fn ask<S: Source>(source: &mut S, round: u64, patience: Duration) -> Report {
    // A source that ends by itself just before the deadline can say more than that time is up.
    let deadline = Instant::now() + patience.mul_f32(0.9);
    let outcome = match timeout(patience, source.records(deadline)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Problem::Silent(format!(
            "{} did not answer within {patience:?}",
            source.target()
        ))),
    };
    Report {
        via: S::VIA,
        target: source.target(),
        round,
        outcome,
    }
}

/// Asks a source in every round, and now and then besides, until nobody listens any more. In trouble it is asked less
/// and less often, up to every 5 s.
pub(super) async fn serve<S: Source>(
    mut source: S,
    patience: Duration,
    mut rounds: watch::Receiver<u64>,
    reports: mpsc::Sender<Report>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let round = *rounds.borrow_and_update();
        let report = ask(&mut source, round, patience).await;
        let trouble = report.outcome.is_err();
        if reports.send(report).await.is_err() {
            return;
        }
        let asked = Instant::now();
        if trouble {
            sleep_until(asked + pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            continue;
        }
        pause = FIRST_PAUSE;
        tokio::select! {
            changed = rounds.changed() => if changed.is_err() {
                return;
            },
            () = sleep_until(asked + HEARTBEAT) => {}
        }
    }
}
