//! What all pod sources share: queries with a deadline, and their status.

use std::{future::Future, time::Duration};

use detector_engine::Timestamp;
use detector_event::Via;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{info, warn};

use super::PodRecord;
use crate::process::{
    clock,
    timer::{DoublingDelay, RetryPolicy},
};

/// A working source is queried at least this often, so that its status stays current.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// Delays before a failing source is queried again.
const DELAYS: RetryPolicy = RetryPolicy {
    first: Duration::from_millis(250),
    longest: Duration::from_secs(5),
};

/// A source of pods.
pub trait PodSource: Send + 'static {
    /// How events and metrics name it.
    const VIA: Via;

    /// What it reads: a socket, a directory, a URL.
    fn target(&self) -> String;

    /// Every pod it knows now. May be dropped at any await point and called again.
    fn snapshot(
        &mut self,
        deadline: Instant,
    ) -> impl Future<Output = Result<SourceSnapshot, SourceError>> + Send;
}

/// All pods that a source knew at one time.
#[derive(Debug, Default)]
pub struct SourceSnapshot {
    /// The pods.
    pub records: Vec<PodRecord>,
    /// What was skipped, for people; empty if nothing was.
    pub warning: String,
}

/// Why a query failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The socket, directory or configuration does not exist.
    #[error("{0}")]
    Missing(String),
    /// Connection refused, or permission denied.
    #[error("{0}")]
    Refused(String),
    /// Something else answers there.
    #[error("{0}")]
    Foreign(String),
    /// No answer within the deadline.
    #[error("{0}")]
    Silent(String),
    /// It answered with an error.
    #[error("{0}")]
    Failing(String),
}

impl SourceError {
    fn state(&self) -> SourceState {
        match self {
            Self::Missing(_) => SourceState::Missing,
            Self::Refused(_) => SourceState::Refused,
            Self::Foreign(_) => SourceState::Foreign,
            Self::Silent(_) => SourceState::Silent,
            Self::Failing(_) => SourceState::Failing,
        }
    }
}

/// The state of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// Switched off.
    Off,
    /// No query has finished yet.
    Untried,
    /// It answers.
    Working,
    /// As [`SourceError::Missing`].
    Missing,
    /// As [`SourceError::Refused`].
    Refused,
    /// As [`SourceError::Foreign`].
    Foreign,
    /// As [`SourceError::Silent`].
    Silent,
    /// As [`SourceError::Failing`].
    Failing,
}

impl SourceState {
    /// Its name in metrics and the API.
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

    /// Whether the next query may identify a pod.
    #[must_use]
    pub fn is_usable(self) -> bool {
        matches!(self, Self::Working | Self::Untried)
    }
}

/// The status of one source, for the status page, `/readyz` and `pod_unknown_because`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceStatus {
    /// Which source.
    pub via: Via,
    /// What it reads.
    pub target: String,
    /// Its state.
    pub state: SourceState,
    /// The error, or what was skipped; may be empty.
    pub detail: String,
    /// Number of pods in its last snapshot.
    pub pods: usize,
    /// When the state last changed, monotonic.
    pub since: Timestamp,
}

impl SourceStatus {
    /// A source before its first query.
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

    /// A source that is switched off.
    pub(super) fn off(via: Via) -> Self {
        Self {
            state: SourceState::Off,
            ..Self::untried(via, String::new())
        }
    }

    /// Applies the outcome of a query.
    pub(super) fn update(
        &mut self,
        target: &str,
        outcome: &Result<SourceSnapshot, SourceError>,
    ) -> StatusChange {
        let (state, detail, pods) = match outcome {
            Ok(snapshot) => (
                SourceState::Working,
                snapshot.warning.clone(),
                snapshot.records.len(),
            ),
            Err(error) => (error.state(), error.to_string(), 0),
        };
        let change = if self.state != state {
            StatusChange::State
        } else if self.detail != detail {
            StatusChange::Detail
        } else if self.pods != pods || self.target != target {
            StatusChange::Count
        } else {
            StatusChange::None
        };
        target.clone_into(&mut self.target);
        self.detail = detail;
        self.pods = pods;
        if change == StatusChange::State {
            self.state = state;
            self.since = clock::now();
        }
        change
    }

    /// Logs a change of state or detail.
    pub(super) fn log(&self, change: StatusChange) {
        let Self {
            via,
            target,
            state,
            detail,
            ..
        } = self;
        let via = via.name();
        match (change, state) {
            (StatusChange::None | StatusChange::Count, _) => {}
            (StatusChange::State, SourceState::Working) if detail.is_empty() => {
                info!(via, target, "pod source ready");
            }
            (_, SourceState::Working) if detail.is_empty() => {}
            (_, SourceState::Working) => {
                warn!(via, target, reason = detail, "pod source incomplete");
            }
            // Not every node has every source.
            (_, SourceState::Missing) => info!(via, reason = detail, "pod source not available"),
            _ => warn!(
                via,
                state = state.name(),
                reason = detail,
                "pod source not available"
            ),
        }
    }
}

/// What the outcome of a query changed, most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusChange {
    /// The state.
    State,
    /// The error, or what was skipped.
    Detail,
    /// The number of pods, or the target.
    Count,
    /// Nothing.
    None,
}

/// The outcome of one query.
#[derive(Debug)]
pub(super) struct SourceReport {
    pub(super) via: Via,
    pub(super) target: String,
    /// The newest round that had begun before the query.
    pub(super) round: u64,
    pub(super) outcome: Result<SourceSnapshot, SourceError>,
}

/// Queries a source once, for at most `limit`.
pub(super) async fn query<S: PodSource>(
    source: &mut S,
    round: u64,
    limit: Duration,
) -> SourceReport {
    // A source that gives up shortly before the limit can report what it was waiting for.
    let deadline = Instant::now() + limit.mul_f32(0.9);
    let outcome = match timeout(limit, source.snapshot(deadline)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(SourceError::Silent(format!(
            "{} did not answer within {limit:?}",
            source.target()
        ))),
    };
    SourceReport {
        via: S::VIA,
        target: source.target(),
        round,
        outcome,
    }
}

/// Queries a source in every round and at every heartbeat, until the resolver is gone. After errors the delay grows up
/// to five seconds.
pub(super) async fn serve<S: PodSource>(
    mut source: S,
    limit: Duration,
    mut rounds: watch::Receiver<u64>,
    reports: mpsc::Sender<SourceReport>,
) {
    let mut delay = DoublingDelay::new(DELAYS);
    loop {
        let round = *rounds.borrow_and_update();
        let report = query(&mut source, round, limit).await;
        let failed = report.outcome.is_err();
        if reports.send(report).await.is_err() {
            return;
        }
        if failed {
            sleep(delay.advance()).await;
            continue;
        }
        delay.reset();
        let heartbeat = Instant::now() + HEARTBEAT;
        tokio::select! {
            changed = rounds.changed() => if changed.is_err() {
                return;
            },
            () = sleep_until(heartbeat) => {}
        }
    }
}
