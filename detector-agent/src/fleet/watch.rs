//! Watches the `IPConflict`s that name this node, however many others there are, and this agent's own Node.
//!
//! The server selects both. A watch begins with a list from the server's watch cache; one that is too long for
//! [`MAX_BODY`] is read in pages, which come from etcd. An object that cannot be read, such as one of a later version, is skipped.
//!
//! Objects of an agent that knew no labels are labelled first, if they name this node.

use std::{sync::Arc, time::Duration};

use ::kube::{
    Api, Error,
    api::{DynamicObject, ListParams, Patch, PatchParams},
    runtime::watcher::{self, Event},
};
use detector_engine::ConflictScope;
use detector_event::error_chain;
use detector_fleet::{
    Stored,
    objects::{ConflictSpec, SCOPE_LABEL, node_label},
};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use tokio::sync::mpsc;
use tracing::debug;

use super::{
    health::Way,
    local_conflicts::is_within,
    registry::{Problem, Registry, conflicts, version},
};
use crate::{
    kube_client::{
        KubeClient,
        watch::{KubeUpdate, Watch, WatchError},
    },
    process::timer::with_jitter,
};

/// The longest response, in bytes: a list from the watch cache of some thousand objects, and more than the largest object, which is
/// what a page has at least (etcd takes 1.5 MiB).
const MAX_BODY: usize = 4 << 20;
/// Objects on a page. Half of that if they are too long.
const PAGE: u32 = 512;
/// Time between two looks for custom resources that are not installed.
pub(super) const RECHECK: Duration = Duration::from_secs(180);
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
    let mut watch = ConflictWatch::new(kube, registry, node);
    loop {
        let update = watch.next().await;
        if updates.send(update).await.is_err() {
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
    let config = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let mut watch = Watch::new(kube, MAX_BODY, Api::all, config);
    let mut listed = None;
    loop {
        let update = match watch.next().await {
            KubeUpdate::Event(Event::Init) => {
                listed = None;
                continue;
            }
            KubeUpdate::Event(Event::InitApply(node)) => {
                listed = Some(read(node));
                continue;
            }
            KubeUpdate::Event(Event::InitDone) => WatchUpdate::OwnNode(listed.take()),
            KubeUpdate::Event(Event::Apply(node)) => WatchUpdate::OwnNode(Some(read(node))),
            KubeUpdate::Event(Event::Delete(_)) => WatchUpdate::OwnNode(None),
            KubeUpdate::Works => WatchUpdate::Works(Way::Node),
            KubeUpdate::Failed(error) => {
                let why = error_chain::one_line(&error);
                let problem = match error.status_code() {
                    Some(403) => Problem::Rejected(why),
                    _ => Problem::away(why),
                };
                WatchUpdate::Failed(Way::Node, problem)
            }
        };
        if updates.send(update).await.is_err() {
            return;
        }
    }
}

struct ConflictWatch {
    reader: Reader,
    watch: Watch<DynamicObject>,
}

impl ConflictWatch {
    fn new(kube: KubeClient, registry: Arc<Registry>, node: String) -> Self {
        let config = watcher::Config::default().labels(&node_label(&node));
        let api = |client| Api::all_with(client, &conflicts());
        Self {
            reader: Reader { registry, node },
            watch: Watch::new(kube, MAX_BODY, api, config),
        }
    }

    async fn next(&mut self) -> WatchUpdate {
        loop {
            let mut update = Some(self.watch.next().await);
            if let Some(KubeUpdate::Event(Event::Init)) = update
                && let Some(api) = self.watch.api()
            {
                let page = self.watch.page_size();
                if let Err(error) = self.reader.label_earlier(&api, page).await {
                    update = self.watch.list_failed(error);
                }
            }
            if let Some(update) = update.and_then(|update| self.apply(update)) {
                return update;
            }
        }
    }

    fn apply(&mut self, update: KubeUpdate<DynamicObject>) -> Option<WatchUpdate> {
        match update {
            KubeUpdate::Event(event) => {
                if matches!(event, Event::InitDone) {
                    self.watch.set_page_size(None);
                }
                self.reader.apply(event)
            }
            KubeUpdate::Works => Some(WatchUpdate::Works(Way::Watch)),
            KubeUpdate::Failed(error) => self.failed(&error),
        }
    }

    /// Reports an error. A list that was too long is tried again in pages at once.
    fn failed(&mut self, error: &WatchError) -> Option<WatchUpdate> {
        let page = self.watch.page_size();
        if error.is_of_list() && error.is_too_long() && page != Some(1) {
            self.watch
                .set_page_size(Some(page.map_or(PAGE, |page| page / 2)));
            self.watch.restart_in(Duration::ZERO);
            return None;
        }
        let problem = match error.status_code() {
            Some(404) => {
                self.watch
                    .restart_in(with_jitter(RECHECK, &mut fastrand::Rng::new()));
                Problem::NoSuchResource
            }
            _ => Problem::away(error_chain::one_line(error)),
        };
        Some(WatchUpdate::Failed(Way::Watch, problem))
    }
}

/// Reads the objects of the watch.
struct Reader {
    registry: Arc<Registry>,
    node: String,
}

impl Reader {
    /// Labels what an agent that knew no labels wrote about this node.
    async fn label_earlier(
        &self,
        api: &Api<DynamicObject>,
        page: Option<u32>,
    ) -> Result<(), Error> {
        let mut params = ListParams::default().labels(&format!("!{SCOPE_LABEL}"));
        params = match page {
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
            "labels": stored.spec.labels(&self.node),
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
}

#[cfg(test)]
mod tests;
