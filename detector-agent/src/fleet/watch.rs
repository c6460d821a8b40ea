//! Watches the `IPConflict`s of the cluster. They are few; what most agents do not need is not kept.
//!
//! Begins with a list from the server's watch cache, and continues from bookmarks. An object that cannot be read, such as one of a
//! later version, is skipped.

use std::{pin::pin, sync::Arc, time::Duration};

use ::kube::{
    Api, Client,
    api::DynamicObject,
    runtime::watcher::{self, Event},
};
use futures_util::StreamExt as _;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tracing::debug;

use super::{
    local_conflicts::is_within,
    objects::ConflictSpec,
    protocol::Stored,
    registry::{Problem, Registry, conflicts, version},
};
use crate::{
    engine::ConflictScope,
    error_chain,
    kube_client::{KubeClient, status_code, watch_config},
    timer::{DoublingDelay, sleep_until_some, with_jitter},
};

/// The most conflicts of other nodes that a list passes on. Those of this node always are.
const LISTED: usize = 10_000;
/// Delay after an error: the first, and the longest.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const LONGEST_DELAY: Duration = Duration::from_secs(30);
/// Time between two looks for custom resources that are not installed.
pub(super) const RECHECK: Duration = Duration::from_secs(180);
/// A watch that had an error counts as working again after this long without another: a resumed watch is silent until something
/// changes.
const RECOVERY: Duration = Duration::from_secs(2);

/// What the watch reports.
#[derive(Debug)]
pub(super) enum WatchUpdate {
    /// All there are.
    Listed(ListedConflicts),
    /// One was created or replaced.
    Changed(Box<WatchedConflict>),
    /// One was deleted, with the version of the deletion.
    Deleted(Box<WatchedConflict>),
    /// It works again after an error.
    Works,
    /// It does not work.
    Failed(Problem),
}

/// A conflict that matters to this agent.
#[derive(Debug)]
pub(super) enum WatchedConflict {
    /// Between nodes.
    Fleet(Stored<ConflictSpec>),
    /// Within this node, with the name of its object.
    Local(String, Stored<ConflictSpec>),
}

/// All conflicts that matter to this agent.
#[derive(Debug, Default)]
pub(super) struct ListedConflicts {
    /// Between nodes.
    pub(super) fleet: Vec<Stored<ConflictSpec>>,
    /// Within this node, with the names of their objects.
    pub(super) local: Vec<(String, Stored<ConflictSpec>)>,
}

/// Watches until the receiver of `updates` is gone.
pub(super) async fn watch(
    kube: KubeClient,
    registry: Arc<Registry>,
    node: String,
    updates: mpsc::Sender<WatchUpdate>,
) {
    let mut watch = ConflictWatch {
        registry,
        node,
        updates,
        listed: ListedConflicts::default(),
        delay: DoublingDelay::new(FIRST_DELAY, LONGEST_DELAY),
        random: fastrand::Rng::new(),
    };
    loop {
        // After a 401 the new client reads a rotated token.
        let end = match kube.connect().await {
            Ok((client, _)) => watch.follow(client).await,
            Err(why) => watch.fail(Problem::away(why.to_string())).await,
        };
        if end.is_none() {
            return;
        }
    }
}

struct ConflictWatch {
    registry: Arc<Registry>,
    node: String,
    updates: mpsc::Sender<WatchUpdate>,
    /// The conflicts of a list in progress.
    listed: ListedConflicts,
    delay: DoublingDelay,
    random: fastrand::Rng,
}

impl ConflictWatch {
    /// Follows the watch until a new client is needed; `None` if the receiver is gone.
    async fn follow(&mut self, client: Client) -> Option<()> {
        let api: Api<DynamicObject> = Api::all_with(client, &conflicts());
        let config = watch_config("", &mut self.random);
        let mut stream = pin!(watcher::watcher(api, config));
        let mut recovered_at = None;
        loop {
            let event = tokio::select! {
                event = stream.next() => match event {
                    Some(event) => event,
                    None => return Some(()),
                },
                () = sleep_until_some(recovered_at) => {
                    recovered_at = None;
                    self.send(WatchUpdate::Works).await?;
                    continue;
                }
            };
            match event {
                Ok(event) => {
                    self.delay.reset();
                    let update = self.apply(event);
                    if let Some(update) = update {
                        self.send(update).await?;
                    }
                }
                // 410 Gone is part of the protocol: the watcher lists again.
                Err(error) if status_code(&error) == Some(410) => {
                    sleep(with_jitter(self.delay.current(), &mut self.random)).await;
                }
                Err(error) => {
                    let status = status_code(&error);
                    let is_listing = matches!(error, watcher::Error::InitialListFailed(_));
                    let problem = match status {
                        Some(404) => Problem::NoSuchResource,
                        _ => Problem::away(error_chain::one_line(&error)),
                    };
                    self.fail(problem).await?;
                    // A list that works shows itself.
                    recovered_at = (!is_listing).then(|| Instant::now() + RECOVERY);
                    if status == Some(401) {
                        return Some(());
                    }
                }
            }
        }
    }

    fn apply(&mut self, event: Event<DynamicObject>) -> Option<WatchUpdate> {
        match event {
            Event::Init => {
                self.listed = ListedConflicts::default();
                None
            }
            Event::InitApply(object) => {
                match self.read(object)? {
                    WatchedConflict::Fleet(conflict) => {
                        let mut claimants = conflict.spec.claimants.iter();
                        let is_own = claimants.any(|claimant| claimant.party.node == self.node);
                        if self.listed.fleet.len() < LISTED || is_own {
                            self.listed.fleet.push(conflict);
                        }
                    }
                    WatchedConflict::Local(name, conflict) => {
                        if self.listed.local.len() < LISTED {
                            self.listed.local.push((name, conflict));
                        }
                    }
                }
                None
            }
            Event::InitDone => Some(WatchUpdate::Listed(std::mem::take(&mut self.listed))),
            Event::Apply(object) => {
                let conflict = self.read(object)?;
                Some(WatchUpdate::Changed(Box::new(conflict)))
            }
            Event::Delete(object) => {
                let conflict = self.read(object)?;
                Some(WatchUpdate::Deleted(Box::new(conflict)))
            }
        }
    }

    /// A conflict between nodes or within this node; `None` if it is within another one, or none at all.
    fn read(&self, mut object: DynamicObject) -> Option<WatchedConflict> {
        self.registry.learn(&object.metadata);
        let spec = object.data.get_mut("spec").map(serde_json::Value::take);
        let spec: Result<ConflictSpec, _> = serde_json::from_value(spec.unwrap_or_default());
        let name = object.metadata.name.clone().unwrap_or_default();
        match spec {
            Ok(spec) => {
                let version = version(&object.metadata)?;
                let is_fleet =
                    spec.scope == ConflictScope::Fleet && name == spec.address.object_name();
                if is_fleet {
                    Some(WatchedConflict::Fleet(Stored { version, spec }))
                } else if is_within(&spec, &self.node) {
                    Some(WatchedConflict::Local(name, Stored { version, spec }))
                } else {
                    None
                }
            }
            Err(why) => {
                debug!(name, "ignored an IPConflict that cannot be read: {why}");
                None
            }
        }
    }

    /// Reports an error and waits; `None` if the receiver is gone.
    async fn fail(&mut self, problem: Problem) -> Option<()> {
        let delay = match problem {
            Problem::NoSuchResource => with_jitter(RECHECK, &mut self.random),
            _ => self.delay.advance_with_jitter(&mut self.random),
        };
        self.send(WatchUpdate::Failed(problem)).await?;
        sleep(delay).await;
        Some(())
    }

    async fn send(&self, update: WatchUpdate) -> Option<()> {
        self.updates.send(update).await.ok()
    }
}

#[cfg(test)]
mod tests;
