//! Which conflicts are open, told in two ways that must agree: by an agent's events so far, and by a fresh look.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    agent::{AgentCommand, Received},
    barrier,
    event::{Conflict, RAISED, RESOLVED, UPDATED},
    http::Client,
    netns::Netns,
};

/// The open conflicts but those of a [`Barrier`](crate::Barrier): address and kind, with the devices of those who claim it
/// now, sorted.
pub type Open = BTreeMap<(String, String), Vec<String>>;

/// What the events so far leave open.
///
/// # Errors
/// Where a conflict is raised twice, or is updated or resolved without having been raised.
pub fn open_conflicts(events: &[Received]) -> Result<Open> {
    let mut open = BTreeMap::new();
    for received in events {
        let Some(conflict) = received.event.conflict() else {
            continue;
        };
        if barrier::is_own(&conflict.address) {
            continue;
        }
        let id = conflict.conflict_id.clone();
        let known = open.contains_key(&id);
        let story = || format!("{} of {id} on {}", received.event.kind, conflict.address);
        match received.event.kind.as_str() {
            RAISED => ensure!(!known, "a second {}", story()),
            UPDATED | RESOLVED => ensure!(known, "{} that was not open", story()),
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

/// What `check` finds, looking afresh.
///
/// # Errors
/// Where it cannot tell.
pub fn fresh_look(agent: &Path, netns: &Netns, deadline: Duration) -> Result<Open> {
    let outcome =
        AgentCommand::new(agent, ["check", "--format", "json"]).run_to_end(netns, deadline)?;
    ensure!(matches!(outcome.code()?, 0 | 1), "{outcome:?}");
    let document: Value = serde_json::from_str(&outcome.stdout).context("the answer is no JSON")?;
    ensure!(
        document.get("incomplete").is_some_and(Value::is_null),
        "an incomplete look: {document}"
    );
    listed(&document)
}

/// What a running agent says at `/api/v1/conflicts`; `client` leads to it.
///
/// # Errors
/// Where it does not answer.
pub fn told_open(client: &Client<'_>) -> Result<Open> {
    let answer = client.get("/api/v1/conflicts")?;
    ensure!(answer.status == 200, "{answer:?}");
    listed(&answer.json()?)
}

fn listed(document: &Value) -> Result<Open> {
    let conflicts = document
        .get("conflicts")
        .and_then(Value::as_array)
        .context("no list of conflicts")?;
    let mut open = Open::new();
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
