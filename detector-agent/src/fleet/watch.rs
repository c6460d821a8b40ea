//! Watches the `IPConflict`s that name this node, however many others there are.
//!
//! The server selects them by their label. The watch begins with a list from the server's watch cache; one that is too long for
//! [`MAX_BODY`] is read in pages, which come from etcd. An object that cannot be read, such as one of a later version, is skipped.
//!
//! Objects of an agent that knew no labels are labelled first, if they name this node.

use std::{pin::pin, sync::Arc, time::Duration};

use ::kube::{
    Api, Client, Error,
    api::{DynamicObject, ListParams, Patch, PatchParams},
    runtime::watcher::{self, Event},
};
use futures_util::StreamExt as _;
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tracing::debug;

use super::{
    local_conflicts::is_within,
    objects::{ConflictSpec, SCOPE_LABEL, node_label},
    protocol::Stored,
    registry::{Problem, Registry, conflicts, version},
};
use crate::{
    engine::ConflictScope,
    error_chain,
    kube_client::{KubeClient, is_too_long, status_code, watch_config},
    timer::{DoublingDelay, sleep_until_some, with_jitter},
};

/// The longest response, in bytes: a list from the watch cache of some thousand objects, and more than the largest object, which is
/// what a page has at least (etcd takes 1.5 MiB).
const MAX_BODY: usize = 4 << 20;
/// Objects on a page. Half of that if they are too long.
const PAGE: u32 = 512;
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
    /// A list begins; what it has follows as changed.
    ListBegan,
    /// These were all there are.
    Listed,
    /// One was created or replaced.
    Changed(Box<WatchedConflict>),
    /// One was deleted, or names this node no longer; with the version of that.
    Deleted(Box<WatchedConflict>),
    /// It works again after an error.
    Works,
    /// It does not work.
    Failed(Problem),
}

/// A conflict that names this node.
#[derive(Debug)]
pub(super) enum WatchedConflict {
    /// Between nodes.
    Fleet(Stored<ConflictSpec>),
    /// Within this node, with the name of its object.
    Local(String, Stored<ConflictSpec>),
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
        page: None,
        delay: DoublingDelay::new(FIRST_DELAY, LONGEST_DELAY),
        random: fastrand::Rng::new(),
    };
    loop {
        // After a 401 the new client reads a rotated token.
        let end = match kube.connect_bounded(MAX_BODY).await {
            Ok(client) => watch.follow(client).await,
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
    /// Objects on a page; `None`: the list comes from the watch cache, which has no pages.
    page: Option<u32>,
    delay: DoublingDelay,
    random: fastrand::Rng,
}

impl ConflictWatch {
    /// Follows the watch until a new client or another list is needed; `None` if the receiver is gone.
    async fn follow(&mut self, client: Client) -> Option<()> {
        let api: Api<DynamicObject> = Api::all_with(client, &conflicts());
        if let Err(error) = self.label_earlier_objects(&api).await {
            return self.list_failed(&watcher::Error::InitialListFailed(error)).await;
        }
        let mut config = watch_config("", &mut self.random).labels(&node_label(&self.node));
        config.page_size = self.page;
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
                    if let Some(update) = self.apply(event) {
                        self.send(update).await?;
                    }
                }
                // 410 Gone is part of the protocol: the watcher lists again.
                Err(error) if status_code(&error) == Some(410) => {
                    sleep(with_jitter(self.delay.current(), &mut self.random)).await;
                }
                Err(error @ watcher::Error::InitialListFailed(_)) => {
                    return self.list_failed(&error).await;
                }
                // It has lasted long: it goes on where it ended.
                Err(error) if is_too_long(&error) => {
                    sleep(with_jitter(self.delay.current(), &mut self.random)).await;
                }
                Err(error) => {
                    self.fail(problem(&error)).await?;
                    recovered_at = Some(Instant::now() + RECOVERY);
                    if status_code(&error) == Some(401) {
                        return Some(());
                    }
                }
            }
        }
    }

    /// A list that was too long is tried again in pages at once, everything else after a while.
    async fn list_failed(&mut self, error: &watcher::Error) -> Option<()> {
        if is_too_long(error) && self.page != Some(1) {
            self.page = Some(self.page.map_or(PAGE, |page| page / 2));
            return Some(());
        }
        if status_code(error) == Some(410) {
            // So many pages were read that the next one is not there any more.
            sleep(with_jitter(self.delay.current(), &mut self.random)).await;
            return Some(());
        }
        self.fail(problem(error)).await
    }

    /// Labels what an agent that knew no labels wrote about this node.
    async fn label_earlier_objects(&mut self, api: &Api<DynamicObject>) -> Result<(), Error> {
        let mut params = ListParams::default().labels(&format!("!{SCOPE_LABEL}"));
        params = match self.page {
            None => params.match_any(),
            Some(page) => params.limit(page),
        };
        loop {
            let list = api.list(&params).await?;
            for object in list.items {
                self.label(api, object).await?;
            }
            let next = list.metadata.continue_.filter(|token| !token.is_empty());
            let Some(next) = next else {
                return Ok(());
            };
            params.continue_token = Some(next);
        }
    }

    async fn label(&self, api: &Api<DynamicObject>, object: DynamicObject) -> Result<(), Error> {
        let metadata = object.metadata.clone();
        let Some(WatchedConflict::Fleet(stored) | WatchedConflict::Local(_, stored)) =
            self.read(object)
        else {
            return Ok(());
        };
        let (name, version) = (metadata.name.unwrap_or_default(), stored.version);
        // If it has another version by now, its writer labels it, or the next agent that starts.
        let patch = json!({"metadata": {
            "resourceVersion": version.resource_version,
            "labels": stored.spec.labels(),
        }});
        match api
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Err(Error::Api(status)) if matches!(status.code, 403 | 404 | 409 | 422) => {
                debug!(name, "could not label an IPConflict: {status}");
                Ok(())
            }
            result => result.map(drop),
        }
    }

    fn apply(&mut self, event: Event<DynamicObject>) -> Option<WatchUpdate> {
        match event {
            Event::Init => Some(WatchUpdate::ListBegan),
            Event::InitDone => {
                self.page = None;
                Some(WatchUpdate::Listed)
            }
            Event::InitApply(object) | Event::Apply(object) => {
                let conflict = self.read(object)?;
                Some(WatchUpdate::Changed(Box::new(conflict)))
            }
            Event::Delete(object) => {
                let conflict = self.read(object)?;
                Some(WatchUpdate::Deleted(Box::new(conflict)))
            }
        }
    }

    /// A conflict between nodes or within this node; `None` if it does not name this one, whatever its labels are, or is none at all.
    fn read(&self, mut object: DynamicObject) -> Option<WatchedConflict> {
        let spec = object.data.get_mut("spec").map(serde_json::Value::take);
        let spec: Result<ConflictSpec, _> = serde_json::from_value(spec.unwrap_or_default());
        let name = object.metadata.name.clone().unwrap_or_default();
        match spec {
            Ok(spec) => {
                let version = version(&object.metadata)?;
                let mut claimants = spec.claimants.iter();
                let is_fleet = spec.scope == ConflictScope::Fleet
                    && name == spec.address.object_name()
                    && claimants.any(|claimant| claimant.party.node == self.node);
                if is_fleet {
                    self.registry.learn(&object.metadata);
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

fn problem(error: &watcher::Error) -> Problem {
    match status_code(error) {
        Some(404) => Problem::NoSuchResource,
        _ => Problem::away(error_chain::one_line(error)),
    }
}

#[cfg(test)]
mod tests;
