//! Open conflicts and anomalies, and those that ended, across a restart: restored at the start, stored from then on.

use std::{sync::Arc, time::Duration};

use detector_event::{Role, counted};
use tracing::info;

use super::AgentError;
use crate::{
    health::Health,
    metrics::Metrics,
    persist::{self, Persistence, PersistenceThread, history::History, store::Store},
};

/// The longest time between two writes of evidence seen only in frames.
const REFRESH: Duration = Duration::from_secs(30);

/// Restores what the previous run left open and starts the thread that stores what is open from now on. `None` without
/// `--state-dir`.
pub(super) fn restore(
    store: Option<Arc<Store>>,
    history: Arc<History>,
    claim_ttl: Duration,
    health: &Health,
    metrics: &Arc<Metrics>,
) -> Result<Option<(Persistence, PersistenceThread)>, AgentError> {
    let Some(store) = store else {
        return Ok(None);
    };
    let part = health.part(Role::Sink, "state");
    // Evidence seen only in frames must not look expired to the next run.
    let refresh = (claim_ttl / 4).min(REFRESH);
    let (persistence, thread) =
        persist::start(store, history, refresh, part, metrics).map_err(AgentError::Start)?;
    let open = persistence.restored.conflicts.len();
    if open > 0 {
        let conflicts = counted(open, "open conflict", "open conflicts");
        info!("restored {conflicts} from the previous run");
    }
    Ok(Some((persistence, thread)))
}
