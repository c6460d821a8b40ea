//! The open conflicts according to three sources that must agree: an agent's events, its HTTP API, and `check`.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    agent::{AgentCommand, LOOK_ARGS, ReceivedEvent},
    barrier,
    event::{Conflict, RAISED, RESOLVED, UPDATED},
    http::TestClient,
    netns::Netns,
};

/// Open conflicts by address and kind, each with the sorted devices of its present claimants. Conflicts of a
/// [`Barrier`](crate::Barrier) are left out.
pub type OpenConflicts = BTreeMap<(String, String), Vec<String>>;

/// The conflicts that these events leave open.
///
/// # Errors
/// A conflict is raised twice, or is updated or resolved without having been raised.
pub fn conflicts_from_events(events: &[ReceivedEvent]) -> Result<OpenConflicts> {
    let mut open = BTreeMap::new();
    for received in events {
        let Some(conflict) = received.event.conflict() else {
            continue;
        };
        if barrier::is_own(&conflict.address) {
            continue;
        }
        let id = conflict.conflict_id.clone();
        let is_open = open.contains_key(&id);
        let describe = || format!("{} of {id} on {}", received.event.kind, conflict.address);
        match received.event.kind.as_str() {
            RAISED => ensure!(!is_open, "a second {}", describe()),
            UPDATED | RESOLVED => ensure!(is_open, "{} that was not open", describe()),
            _ => continue,
        }
        if received.event.kind == RESOLVED {
            open.remove(&id);
        } else {
            open.insert(id, conflict);
        }
    }
    Ok(open.into_values().map(entry).collect())
}

/// The conflicts that `check` reports from a snapshot of its own.
///
/// # Errors
/// `check` fails or reports an incomplete result.
pub fn conflicts_from_check(
    agent: &Path,
    netns: &Netns,
    deadline: Duration,
) -> Result<OpenConflicts> {
    let outcome = AgentCommand::new(agent, LOOK_ARGS)
        .args(["--format", "json", "--allow-no-devices"])
        .run_to_end(netns, deadline)?;
    ensure!(matches!(outcome.code()?, 0 | 1), "{outcome:?}");
    let document: Value =
        serde_json::from_str(&outcome.stdout).context("the output is not valid JSON")?;
    ensure!(
        document.get("incomplete").is_some_and(Value::is_null),
        "the check is incomplete: {document}"
    );
    parse_conflicts(&document)
}

/// The conflicts that the agent behind `client` lists at `/api/v1/conflicts`.
///
/// # Errors
/// The request fails.
pub fn conflicts_from_api(client: &TestClient<'_>) -> Result<OpenConflicts> {
    let response = client.get("/api/v1/conflicts")?;
    ensure!(response.status == 200, "{response:?}");
    parse_conflicts(&response.json()?)
}

fn parse_conflicts(document: &Value) -> Result<OpenConflicts> {
    let conflicts = document
        .get("conflicts")
        .and_then(Value::as_array)
        .context("no list of conflicts")?;
    let mut open = OpenConflicts::new();
    for conflict in conflicts {
        let conflict: Conflict = serde_json::from_value(conflict.clone()).context("a conflict")?;
        if !barrier::is_own(&conflict.address) {
            open.extend([entry(conflict)]);
        }
    }
    Ok(open)
}

fn entry(conflict: Conflict) -> ((String, String), Vec<String>) {
    let present = conflict.claimants.iter().filter(|c| c.left.is_none());
    let mut devices: Vec<_> = present.map(|claimant| claimant.device.clone()).collect();
    devices.sort_unstable();
    ((conflict.address, conflict.kind), devices)
}
