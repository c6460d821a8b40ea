//! The watch on this node's pods, for as long as the agent runs.

use std::{collections::HashMap, time::Duration};

use ::kube::{
    Api, ResourceExt as _,
    runtime::watcher::{self, Event},
};
use detector_event::{Via, counted};
use k8s_openapi::api::core::v1::Pod as ApiPod;
use tokio::{sync::mpsc, time::Instant};

use super::{
    KubePods, MAX_PODS, TARGET, connect_error, plugins::WatchedPlugins, pod_record, source_error,
};
use crate::{
    kube_client::{
        MAX_BODY,
        watch::{KubeUpdate, Watch, WatchError},
    },
    pods::{
        PodRecord,
        source::{SourceError, SourceReport, SourceSnapshot},
    },
    process::timer::sleep_until_some,
};

/// Changes within this time are reported together.
const BATCH: Duration = Duration::from_millis(50);
/// The server counts as silent if the first list takes longer. The list is not cancelled.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// The node's pods, from the events of the watch.
#[derive(Debug, Default)]
struct WatchedPods {
    pods: HashMap<String, PodRecord>,
    /// The pods of a list in progress.
    listed: HashMap<String, PodRecord>,
    plugins: WatchedPlugins,
    listed_plugins: WatchedPlugins,
    /// A list was completed.
    is_complete: bool,
    skipped: usize,
}

impl WatchedPods {
    /// Applies an event; `true` if the pods may have changed.
    fn apply(&mut self, event: Event<ApiPod>, labels: &[String]) -> bool {
        match event {
            Event::Init => {
                self.listed.clear();
                self.listed_plugins = WatchedPlugins::default();
                self.skipped = 0;
                false
            }
            Event::InitApply(pod) => {
                self.listed_plugins.put(key(&pod), &pod);
                self.skipped += put(&mut self.listed, &pod, labels);
                false
            }
            Event::InitDone => {
                self.pods = std::mem::take(&mut self.listed);
                self.plugins = std::mem::take(&mut self.listed_plugins);
                self.is_complete = true;
                true
            }
            Event::Apply(pod) => {
                self.plugins.put(key(&pod), &pod);
                self.skipped += put(&mut self.pods, &pod, labels);
                true
            }
            Event::Delete(pod) => {
                self.plugins.remove(&key(&pod));
                self.pods.remove(&key(&pod)).is_some()
            }
        }
    }

    fn snapshot(&self) -> SourceSnapshot {
        SourceSnapshot {
            records: self.pods.values().cloned().collect(),
            warning: match self.skipped {
                0 => String::new(),
                skipped => format!(
                    "skipped {} beyond the limit of {MAX_PODS}",
                    counted(skipped, "pod", "pods")
                ),
            },
        }
    }
}

/// Adds, replaces or (if it has no record) removes a pod. Returns the number of pods skipped because of the limit.
fn put(pods: &mut HashMap<String, PodRecord>, pod: &ApiPod, labels: &[String]) -> usize {
    let key = key(pod);
    match pod_record(pod, labels) {
        Some(record) if pods.len() < MAX_PODS || pods.contains_key(&key) => {
            pods.insert(key, record);
        }
        Some(_) => return 1,
        None => drop(pods.remove(&key)),
    }
    0
}

fn key(pod: &ApiPod) -> String {
    pod.uid()
        .unwrap_or_else(|| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()))
}

/// Reports the node's pods whenever they change, and errors of the server, until the resolver is gone.
pub(in crate::pods) async fn watch(source: KubePods, reports: mpsc::Sender<SourceReport>) {
    let config = watcher::Config::default().fields(&source.selector());
    let mut watch = Watch::<ApiPod>::new(source.client.clone(), MAX_BODY, Api::all, config);
    let mut pods = WatchedPods::default();
    let mut target = TARGET.to_owned();
    let mut report_at: Option<Instant> = None;
    let mut silent_at = Some(Instant::now() + FIRST_LIST_TIMEOUT);
    loop {
        let outcome = tokio::select! {
            update = watch.next() => {
                if let Some(server) = watch.server() {
                    server.clone_into(&mut target);
                }
                match update {
                    KubeUpdate::Event(event) => {
                        let has_changed = pods.apply(event, &source.labels) && pods.is_complete;
                        if has_changed {
                            pods.plugins.publish(&source.plugins);
                            silent_at = None;
                            report_at.get_or_insert_with(|| Instant::now() + BATCH);
                        }
                        continue;
                    }
                    KubeUpdate::Works => Ok(pods.snapshot()),
                    KubeUpdate::Failed(error) => {
                        silent_at = None;
                        report_at = None;
                        Err(watch_error(&target, &error))
                    }
                }
            }
            () = sleep_until_some(report_at) => {
                report_at = None;
                Ok(pods.snapshot())
            }
            () = sleep_until_some(silent_at) => {
                silent_at = None;
                Err(SourceError::Silent(format!("{target} does not answer")))
            }
        };
        let report = SourceReport {
            via: Via::Kube,
            target: target.clone(),
            // Newer than any round: API records are not matched by namespace ids, which are reused.
            round: u64::MAX,
            outcome,
        };
        if reports.send(report).await.is_err() {
            return;
        }
    }
}

fn watch_error(server: &str, error: &WatchError) -> SourceError {
    let error = match error {
        WatchError::Connect(error) => return connect_error(error),
        WatchError::Watch(error) => error,
    };
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => source_error(server, error),
        watcher::Error::WatchError(status) => {
            source_error(server, &::kube::Error::Api(status.clone()))
        }
        watcher::Error::NoResourceVersion => SourceError::Foreign(format!(
            "{server} does not answer like a Kubernetes API: {error}"
        )),
    }
}

#[cfg(test)]
mod tests;
