//! One block of Calico and the watch on its name.

use std::sync::Arc;

use ::kube::{
    api::DynamicObject,
    runtime::watcher::{self, Event},
};
use detector_engine::Timestamp;
use ipnet::IpNet;
use serde_json::Value;
use tokio::{sync::mpsc, task::AbortHandle, time::Instant};

use super::{block_name, blocks_api, created, spec};
use crate::ipam::{kube_objects::version, read_budget::ReadBudget};
use crate::kube_client::{
    KubeClient, MAX_BODY,
    watch::{KubeUpdate, Watch},
};

/// A block with the task that watches it.
pub(super) struct FollowedBlock {
    pub(super) task: AbortHandle,
    /// `None` until it was read.
    pub(super) spec: Option<Arc<Value>>,
    pub(super) created: Option<jiff::Timestamp>,
    /// The resource version of `spec`; 0 if it is not a number.
    pub(super) version: u64,
    pub(super) confirmed_at: Option<Timestamp>,
    pub(super) is_own: bool,
    pub(super) used_at: Instant,
    pub(super) budget: ReadBudget,
    pub(super) failing: Option<Failing>,
}

impl Drop for FollowedBlock {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The errors of a watch.
pub(super) struct Failing {
    pub(super) since: Instant,
    pub(super) why: String,
}

/// What a watch reports.
pub(super) struct BlockChange {
    pub(super) range: IpNet,
    pub(super) kind: ChangeKind,
}

pub(super) enum ChangeKind {
    /// The state in a list; `None` if there is no such block.
    Listed(Option<Box<DynamicObject>>),
    Changed(Box<DynamicObject>),
    Deleted(Box<DynamicObject>),
    /// The watch works again.
    Works,
    Failed(String),
}

impl FollowedBlock {
    pub(super) fn set(&mut self, found: Option<DynamicObject>) {
        if let Some(found) = &found {
            self.version = version(found);
        }
        self.created = found.as_ref().and_then(created);
        self.spec = Some(Arc::new(found.map(spec).unwrap_or_default()));
    }
}

/// Watches one block until the receiver of `changes` is gone, or the task is aborted.
pub(super) async fn follow(
    range: IpNet,
    kube: KubeClient,
    changes: mpsc::UnboundedSender<BlockChange>,
) {
    let fields = format!("metadata.name={}", block_name(&range));
    let config = watcher::Config::default().fields(&fields);
    let mut watch = Watch::new(kube, MAX_BODY, blocks_api, config);
    let mut listed = None;
    loop {
        let kind = match watch.next().await {
            KubeUpdate::Event(Event::Init) => {
                listed = None;
                continue;
            }
            KubeUpdate::Event(Event::InitApply(block)) => {
                listed = Some(Box::new(block));
                continue;
            }
            KubeUpdate::Event(Event::InitDone) => ChangeKind::Listed(listed.take()),
            KubeUpdate::Event(Event::Apply(block)) => ChangeKind::Changed(Box::new(block)),
            KubeUpdate::Event(Event::Delete(block)) => ChangeKind::Deleted(Box::new(block)),
            KubeUpdate::Works => ChangeKind::Works,
            KubeUpdate::Failed(why) => ChangeKind::Failed(why.to_string()),
        };
        if changes.send(BlockChange { range, kind }).is_err() {
            return;
        }
    }
}
