//! Watches the `IPConflict`s that name this node, however many others there are, and this agent's own Node.
//!
//! The server selects both. A watch begins with a list from the server's watch cache; one that is too long for
//! [`MAX_BODY`] is read in pages, which come from etcd. An object that cannot be read, such as one of a later version, is skipped.
//!
//! Objects of an agent that knew no labels are labelled first, if they name this node.

use std::{fmt::Debug, pin::pin, sync::Arc, time::Duration};

use ::kube::{
    Api, Client, Error, Resource,
    api::{DynamicObject, ListParams, Patch, PatchParams},
    runtime::watcher::{self, Event},
};
use detector_engine::ConflictScope;
use detector_event::error_chain;
use detector_fleet::{
    Stored,
    objects::{ConflictSpec, SCOPE_LABEL, node_label},
};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tracing::debug;

use super::{
    health::Way,
    local_conflicts::is_within,
    registry::{Problem, Registry, conflicts, version},
};
use crate::{
    kube_client::{KubeClient, is_too_long, status_code, watch_config},
    process::timer::{DoublingDelay, sleep_until_some, with_jitter},
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

/// What the watches report.
#[derive(Debug)]
pub(super) enum WatchUpdate {
    /// This agent's Node as it is now; `None`: there is none.
    OwnNode(Option<OwnNode>),
    /// A list of conflicts begins; what it has follows as changed.
    ListBegan,
    /// These were all there are.
    Listed,
    /// One was created or replaced.
    Changed(Box<WatchedConflict>),
    /// One was deleted, or names this node no longer; with the version of that.
    Deleted(Box<WatchedConflict>),
    /// A watch works again after an error.
    Works(Way),
    /// It does not work.
    Failed(Way, Problem),
}

/// A conflict that names this node.
#[derive(Debug)]
pub(super) enum WatchedConflict {
    /// Between nodes.
    Fleet(Stored<ConflictSpec>),
    /// Within this node, with the name of its object.
    Local(String, Stored<ConflictSpec>),
}

/// This agent's Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnNode {
    pub(super) uid: String,
    /// `spec.podCIDRs`.
    pub(super) pod_cidrs: Vec<String>,
}

/// Watches the conflicts until the receiver of `updates` is gone.
pub(super) async fn watch_conflicts(
    kube: KubeClient,
    registry: Arc<Registry>,
    node: String,
    updates: mpsc::Sender<WatchUpdate>,
) {
    let mut watch = ConflictWatch {
        registry,
        node,
        page: None,
        watch: Watch::new(Way::Watch, updates),
    };
    loop {
        // After a 401 the new client reads a rotated token.
        let end = match kube.connect_bounded(MAX_BODY).await {
            Ok(client) => watch.follow(client).await,
            Err(why) => watch.watch.fail(Problem::away(why.to_string())).await,
        };
        if end.is_none() {
            return;
        }
    }
}

/// Watches this agent's Node until the receiver of `updates` is gone: its ranges of pod addresses may be assigned late, and it may be
/// deleted and made again while the machine runs.
pub(super) async fn watch_own_node(
    kube: KubeClient,
    registry: Arc<Registry>,
    node: String,
    updates: mpsc::Sender<WatchUpdate>,
) {
    let mut watch = Watch::new(Way::Node, updates);
    loop {
        let end = match kube.connect_bounded(MAX_BODY).await {
            Ok(client) => follow_own_node(&mut watch, &registry, &node, client).await,
            Err(why) => watch.fail(Problem::away(why.to_string())).await,
        };
        if end.is_none() {
            return;
        }
    }
}

async fn follow_own_node(
    watch: &mut Watch,
    registry: &Registry,
    node: &str,
    client: Client,
) -> Option<()> {
    let api: Api<Node> = Api::all(client);
    let config = watch_config(&format!("metadata.name={node}"), &mut watch.random);
    let read = |node: Node| {
        let own = OwnNode {
            uid: node.metadata.uid.unwrap_or_default(),
            pod_cidrs: node
                .spec
                .and_then(|spec| spec.pod_cidrs)
                .unwrap_or_default(),
        };
        registry.learn_node(&own.uid);
        own
    };
    let mut listed = None;
    let apply = |event| match event {
        Event::Init => {
            listed = None;
            None
        }
        Event::InitApply(node) => {
            listed = Some(read(node));
            None
        }
        Event::InitDone => Some(WatchUpdate::OwnNode(listed.take())),
        Event::Apply(node) => Some(WatchUpdate::OwnNode(Some(read(node)))),
        Event::Delete(_) => Some(WatchUpdate::OwnNode(None)),
    };
    match watch.follow(api, config, apply).await? {
        Ended::NewClient => Some(()),
        Ended::ListFailed(error) => watch.fail(watch.problem(&error)).await,
    }
}

/// One watch and its errors.
struct Watch {
    way: Way,
    updates: mpsc::Sender<WatchUpdate>,
    delay: DoublingDelay,
    random: fastrand::Rng,
}

/// Why a watch has to begin anew.
enum Ended {
    /// With another client.
    NewClient,
    /// Its list failed.
    ListFailed(watcher::Error),
}

impl Watch {
    fn new(way: Way, updates: mpsc::Sender<WatchUpdate>) -> Self {
        Self {
            way,
            updates,
            delay: DoublingDelay::new(FIRST_DELAY, LONGEST_DELAY),
            random: fastrand::Rng::new(),
        }
    }

    /// Follows until the watch has to begin anew; `None` if the receiver is gone.
    async fn follow<K>(
        &mut self,
        api: Api<K>,
        config: watcher::Config,
        mut apply: impl FnMut(Event<K>) -> Option<WatchUpdate>,
    ) -> Option<Ended>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let mut stream = pin!(watcher::watcher(api, config));
        let mut recovered_at = None;
        loop {
            let event = tokio::select! {
                event = stream.next() => match event {
                    Some(event) => event,
                    None => return Some(Ended::NewClient),
                },
                () = sleep_until_some(recovered_at) => {
                    recovered_at = None;
                    self.send(WatchUpdate::Works(self.way)).await?;
                    continue;
                }
            };
            match event {
                Ok(event) => {
                    self.delay.reset();
                    if let Some(update) = apply(event) {
                        self.send(update).await?;
                    }
                }
                // 410 Gone is part of the protocol: the watcher lists again.
                Err(error) if status_code(&error) == Some(410) => {
                    sleep(with_jitter(self.delay.current(), &mut self.random)).await;
                }
                Err(error @ watcher::Error::InitialListFailed(_)) => {
                    return Some(Ended::ListFailed(error));
                }
                // It has lasted long: it goes on where it ended.
                Err(error) if is_too_long(&error) => {
                    sleep(with_jitter(self.delay.current(), &mut self.random)).await;
                }
                Err(error) => {
                    self.fail(self.problem(&error)).await?;
                    recovered_at = Some(Instant::now() + RECOVERY);
                    if status_code(&error) == Some(401) {
                        return Some(Ended::NewClient);
                    }
                }
            }
        }
    }

    fn problem(&self, error: &watcher::Error) -> Problem {
        let why = error_chain::one_line(error);
        match (self.way, status_code(error)) {
            (Way::Node, Some(403)) => Problem::Rejected(why),
            (Way::Watch, Some(404)) => Problem::NoSuchResource,
            _ => Problem::away(why),
        }
    }

    /// Reports an error and waits; `None` if the receiver is gone.
    async fn fail(&mut self, problem: Problem) -> Option<()> {
        let delay = match problem {
            Problem::NoSuchResource => with_jitter(RECHECK, &mut self.random),
            _ => self.delay.advance_with_jitter(&mut self.random),
        };
        self.send(WatchUpdate::Failed(self.way, problem)).await?;
        sleep(delay).await;
        Some(())
    }

    async fn send(&self, update: WatchUpdate) -> Option<()> {
        self.updates.send(update).await.ok()
    }
}

struct ConflictWatch {
    registry: Arc<Registry>,
    node: String,
    /// Objects on a page; `None`: the list comes from the watch cache, which has no pages.
    page: Option<u32>,
    watch: Watch,
}

impl ConflictWatch {
    /// Follows the watch until a new client or another list is needed; `None` if the receiver is gone.
    async fn follow(&mut self, client: Client) -> Option<()> {
        let api: Api<DynamicObject> = Api::all_with(client, &conflicts());
        if let Err(error) = self.label_earlier_objects(&api).await {
            return self
                .list_failed(watcher::Error::InitialListFailed(error))
                .await;
        }
        let mut config = watch_config("", &mut self.watch.random).labels(&node_label(&self.node));
        config.page_size = self.page;
        let reader = Reader {
            registry: &self.registry,
            node: &self.node,
        };
        let page = &mut self.page;
        let apply = |event| {
            if matches!(event, Event::InitDone) {
                *page = None;
            }
            reader.apply(event)
        };
        match self.watch.follow(api, config, apply).await? {
            Ended::NewClient => Some(()),
            Ended::ListFailed(error) => self.list_failed(error).await,
        }
    }

    /// A list that was too long is tried again in pages at once, everything else after a while.
    async fn list_failed(&mut self, error: watcher::Error) -> Option<()> {
        if is_too_long(&error) && self.page != Some(1) {
            self.page = Some(self.page.map_or(PAGE, |page| page / 2));
            return Some(());
        }
        if status_code(&error) == Some(410) {
            // So many pages were read that the next one is not there any more.
            let delay = self.watch.delay.current();
            sleep(with_jitter(delay, &mut self.watch.random)).await;
            return Some(());
        }
        self.watch.fail(self.watch.problem(&error)).await
    }

    /// Labels what an agent that knew no labels wrote about this node.
    async fn label_earlier_objects(&self, api: &Api<DynamicObject>) -> Result<(), Error> {
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
            self.reader().read(object)
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

    fn reader(&self) -> Reader<'_> {
        Reader {
            registry: &self.registry,
            node: &self.node,
        }
    }
}

/// Reads the objects of the watch.
struct Reader<'a> {
    registry: &'a Registry,
    node: &'a str,
}

impl Reader<'_> {
    fn apply(&self, event: Event<DynamicObject>) -> Option<WatchUpdate> {
        match event {
            Event::Init => Some(WatchUpdate::ListBegan),
            Event::InitDone => Some(WatchUpdate::Listed),
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
                } else if is_within(&spec, self.node) {
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
}

#[cfg(test)]
mod tests;
