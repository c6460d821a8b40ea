//! What is kept over a restart: given to the engine at the start, and kept up to date by two threads from then on.

use std::{sync::Arc, time::Duration};

use tracing::info;

use super::AgentError;
use crate::{
    engine::Engine,
    health::{Health, Role},
    metrics::Metrics,
    persist::{AnomalyKeeper, AnomalyState, Keeper, State, store::Store},
};

/// How often what only frames said of an open conflict is kept anew, at most.
const REFRESH: Duration = Duration::from_secs(30);

/// The ends of it that detection has; without `--state-dir` none.
#[derive(Default)]
pub(super) struct Keepers {
    pub(super) conflicts: Option<Keeper>,
    pub(super) anomalies: Option<AnomalyKeeper>,
}

/// The threads that write.
#[derive(Default)]
pub(super) struct Kept {
    conflicts: Option<State>,
    anomalies: Option<AnomalyState>,
}

/// Gives the engine what an earlier agent left open, and starts to keep what this one has.
pub(super) fn go_on(
    engine: &mut Engine,
    store: Option<Arc<Store>>,
    claim_ttl: Duration,
    health: &Health,
    metrics: &Arc<Metrics>,
) -> Result<(Kept, Keepers), AgentError> {
    let Some(store) = store else {
        return Ok(Default::default());
    };
    let (anomaly_keeper, anomalies, open) =
        AnomalyKeeper::start(Arc::clone(&store)).map_err(AgentError::Start)?;
    engine.restore_anomalies(open);
    let part = health.part(Role::Sink, "open conflicts");
    // What was only heard must not look lapsed to the next agent.
    let refresh = (claim_ttl / 4).min(REFRESH);
    let started = State::start(store, refresh, part, metrics).map_err(AgentError::Start)?;
    let kept = started.kept.len();
    if kept > 0 {
        info!(
            kept,
            "going on with {kept} conflicts that an earlier agent left open"
        );
    }
    engine.restore(started.kept);
    Ok((
        Kept {
            conflicts: Some(started.state),
            anomalies: Some(anomalies),
        },
        Keepers {
            conflicts: Some(started.keeper),
            anomalies: Some(anomaly_keeper),
        },
    ))
}

impl Kept {
    /// Writes what is left, once the [`Keepers`] are gone.
    pub(super) fn finish(self) {
        if let Some(conflicts) = self.conflicts {
            conflicts.finish();
        }
        if let Some(anomalies) = self.anomalies {
            anomalies.finish();
        }
    }
}
