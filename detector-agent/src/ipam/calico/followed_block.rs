//! One block of Calico and the watch on its name.

use std::{pin::pin, sync::Arc, time::Duration};

use ::kube::{
    api::DynamicObject,
    runtime::watcher::{self, Event},
};
use detector_engine::Timestamp;
use futures_util::StreamExt as _;
use ipnet::IpNet;
use serde_json::Value;
use tokio::{
    sync::mpsc,
    task::AbortHandle,
    time::{Instant, sleep},
};

use super::{block_name, blocks_api, read_budget::ReadBudget, spec};
use crate::{
    kube_client::{KubeClient, status_code, watch_config},
    process::timer::DoublingDelay,
};

/// Delays after errors.
pub(super) const RETRY: DoublingDelay =
    DoublingDelay::new(Duration::from_millis(500), Duration::from_secs(30));

/// A block with the task that watches it.
pub(super) struct FollowedBlock {
    pub(super) task: AbortHandle,
    /// `None` until it was read.
    pub(super) spec: Option<Arc<Value>>,
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
    /// It counts as working from then on.
    pub(super) until: Instant,
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
    Failed {
        why: String,
        delay: Duration,
    },
}

impl FollowedBlock {
    pub(super) fn set(&mut self, found: Option<DynamicObject>) {
        if let Some(found) = &found {
            self.version = version(found);
        }
        self.spec = Some(Arc::new(found.map(spec).unwrap_or_default()));
    }
}

/// The resource version of an object; 0 if it is not a number.
pub(super) fn version(object: &DynamicObject) -> u64 {
    let version = object.metadata.resource_version.as_deref();
    version.and_then(|v| v.parse().ok()).unwrap_or_default()
}

/// Watches one block until the receiver of `changes` is gone, or the task is aborted.
pub(super) async fn follow(
    range: IpNet,
    kube: KubeClient,
    changes: mpsc::UnboundedSender<BlockChange>,
) {
    let mut random = fastrand::Rng::new();
    let mut delays = RETRY;
    let fields = format!("metadata.name={}", block_name(&range));
    let send = |kind| changes.send(BlockChange { range, kind }).is_ok();
    loop {
        let client = match kube.connect().await {
            Ok((client, _)) => client,
            Err(why) => {
                let (why, delay) = (why.to_string(), delays.advance_with_jitter(&mut random));
                if !send(ChangeKind::Failed { why, delay }) {
                    return;
                }
                sleep(delay).await;
                continue;
            }
        };
        let config = watch_config(&fields, &mut random);
        let mut stream = pin!(watcher::watcher(blocks_api(client), config));
        let mut listed = None;
        // After a 401 the new client reads a rotated token.
        let mut is_authorized = true;
        while is_authorized && let Some(event) = stream.next().await {
            let change = match event {
                Ok(Event::Init) => {
                    listed = None;
                    continue;
                }
                Ok(Event::InitApply(block)) => {
                    listed = Some(Box::new(block));
                    continue;
                }
                Ok(Event::InitDone) => ChangeKind::Listed(listed.take()),
                Ok(Event::Apply(block)) => ChangeKind::Changed(Box::new(block)),
                Ok(Event::Delete(block)) => ChangeKind::Deleted(Box::new(block)),
                Err(error) => {
                    let code = status_code(&error);
                    is_authorized = code != Some(401);
                    let delay = delays.advance_with_jitter(&mut random);
                    // 410 Gone is part of the protocol: the watcher lists again.
                    let why = error.to_string();
                    if code != Some(410) && !send(ChangeKind::Failed { why, delay }) {
                        return;
                    }
                    sleep(delay).await;
                    continue;
                }
            };
            delays.reset();
            if !send(change) {
                return;
            }
        }
    }
}
