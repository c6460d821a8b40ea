//! The watch on this node's pods, for as long as the agent runs.

use std::{collections::HashMap, ops::ControlFlow, pin::pin, time::Duration};

use ::kube::{
    Api, Client, ResourceExt as _,
    runtime::watcher::{self, Event},
};
use detector_event::{Via, counted};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod as ApiPod;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::{KubePods, MAX_PODS, TARGET, pod_record, source_error};
use crate::{
    kube_client::{status_code, watch_config},
    pods::{
        PodRecord,
        source::{SourceError, SourceReport, SourceSnapshot},
    },
    process::timer::{DoublingDelay, sleep_until_some, with_jitter},
};

/// Changes within this time are reported together.
const BATCH: Duration = Duration::from_millis(50);
/// A watch that had an error counts as working again after this long without another: a resumed watch is silent until
/// something changes.
const RECOVERY: Duration = Duration::from_secs(2);
/// The server counts as silent if the first list takes longer. The list is not cancelled.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after an error: the first, and the longest.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// The node's pods, from the events of the watch.
#[derive(Debug, Default)]
struct WatchedPods {
    pods: HashMap<String, PodRecord>,
    /// The pods of a list in progress.
    listed: HashMap<String, PodRecord>,
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
                self.skipped = 0;
                false
            }
            Event::InitApply(pod) => {
                self.skipped += put(&mut self.listed, &pod, labels);
                false
            }
            Event::InitDone => {
                self.pods = std::mem::take(&mut self.listed);
                self.is_complete = true;
                true
            }
            Event::Apply(pod) => {
                self.skipped += put(&mut self.pods, &pod, labels);
                true
            }
            Event::Delete(pod) => self.pods.remove(&key(&pod)).is_some(),
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
    let mut watch = PodWatch {
        source,
        pods: WatchedPods::default(),
        delay: DoublingDelay::new(FIRST_DELAY, LONGEST_DELAY),
        random: fastrand::Rng::new(),
        reporter: WatchReporter {
            reports,
            target: TARGET.to_owned(),
        },
    };
    loop {
        // After a 401 the new client reads a rotated token.
        let end = match watch.source.connect().await {
            Ok((client, server)) => {
                watch.reporter.target = server;
                watch.follow(client).await
            }
            Err(error) => watch.fail(error).await,
        };
        if end.is_break() {
            return;
        }
    }
}

struct PodWatch {
    source: KubePods,
    pods: WatchedPods,
    delay: DoublingDelay,
    random: fastrand::Rng,
    reporter: WatchReporter,
}

impl PodWatch {
    /// Reports an error and waits; breaks if the resolver is gone.
    async fn fail(&mut self, error: SourceError) -> ControlFlow<()> {
        self.reporter.report(Err(error)).await?;
        sleep(self.delay.advance_with_jitter(&mut self.random)).await;
        ControlFlow::Continue(())
    }

    /// Follows the watch until a new client is needed; breaks if the resolver is gone.
    async fn follow(&mut self, client: Client) -> ControlFlow<()> {
        let api: Api<ApiPod> = Api::all(client);
        let config = watch_config(&self.source.selector(), &mut self.random);
        let mut stream = pin!(watcher::watcher(api, config));
        let mut report_at: Option<Instant> = None;
        let mut recovered_at: Option<Instant> = None;
        let mut silent_at = Some(Instant::now() + FIRST_LIST_TIMEOUT);
        loop {
            tokio::select! {
                event = stream.next() => match event {
                    Some(Ok(event)) => {
                        let has_changed = self.pods.apply(event, &self.source.labels);
                        if has_changed && self.pods.is_complete {
                            self.delay.reset();
                            silent_at = None;
                            recovered_at = None;
                            report_at.get_or_insert_with(|| Instant::now() + BATCH);
                        }
                    }
                    Some(Err(error)) => {
                        silent_at = None;
                        let status = status_code(&error);
                        // 410 Gone is part of the protocol: the watcher lists again.
                        if status == Some(410) {
                            let delay = self.delay.current();
                            sleep(with_jitter(delay, &mut self.random)).await;
                            continue;
                        }
                        report_at = None;
                        recovered_at = Some(Instant::now() + self.delay.current() + RECOVERY);
                        let error = watch_error(&self.reporter.target, &error);
                        self.fail(error).await?;
                        if status == Some(401) {
                            return ControlFlow::Continue(());
                        }
                    }
                    None => return ControlFlow::Continue(()),
                },
                () = sleep_until_some(report_at) => {
                    report_at = None;
                    self.reporter.report(Ok(self.pods.snapshot())).await?;
                }
                () = sleep_until_some(recovered_at), if self.pods.is_complete => {
                    recovered_at = None;
                    self.reporter.report(Ok(self.pods.snapshot())).await?;
                }
                () = sleep_until_some(silent_at) => {
                    silent_at = None;
                    let error = SourceError::Silent(format!("{} does not answer", self.reporter.target));
                    self.reporter.report(Err(error)).await?;
                }
            }
        }
    }
}

struct WatchReporter {
    reports: mpsc::Sender<SourceReport>,
    target: String,
}

impl WatchReporter {
    /// Sends a report; breaks if the resolver is gone.
    async fn report(&self, outcome: Result<SourceSnapshot, SourceError>) -> ControlFlow<()> {
        let report = SourceReport {
            via: Via::Kube,
            target: self.target.clone(),
            // Newer than any round: API records are not matched by namespace ids, which are reused.
            round: u64::MAX,
            outcome,
        };
        match self.reports.send(report).await {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

fn watch_error(server: &str, error: &watcher::Error) -> SourceError {
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
