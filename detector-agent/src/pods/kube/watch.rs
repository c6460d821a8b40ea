//! The watch on this node's pods, for as long as the agent runs.

use std::{collections::HashMap, ops::ControlFlow, pin::pin, time::Duration};

use ::kube::{
    Api, Client, ResourceExt as _,
    runtime::watcher::{self, Config, Event},
};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod as ApiPod;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use super::{Kube, MAX_PODS, PAGE, pods, problem};
use crate::pods::{
    Record, Via,
    source::{Problem, Report, SourceSnapshot},
};

/// Changes that come close together are told once.
const TOGETHER: Duration = Duration::from_millis(50);
/// A watch that broke and went this long without another error works again. (A watch that is resumed says nothing
/// until something changes.)
const MENDED: Duration = Duration::from_secs(2);
/// The first list may take this long before the server counts as silent; it is waited for all the same.
const FIRST_LIST: Duration = Duration::from_secs(10);
/// After an error: at first, doubled each time, at most.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The pods of the node as the watch tells them.
#[derive(Debug, Default)]
struct Pods {
    known: HashMap<String, Record>,
    /// Those of a list that is under way.
    listed: HashMap<String, Record>,
    /// A list was whole once.
    ready: bool,
    omitted: usize,
}

impl Pods {
    /// Takes an event; `true` where what is known changed.
    fn take(&mut self, event: Event<ApiPod>, labels: &[String]) -> bool {
        match event {
            Event::Init => {
                self.listed.clear();
                self.omitted = 0;
                false
            }
            Event::InitApply(pod) => {
                let listed = std::mem::take(&mut self.listed);
                self.listed = self.put(listed, &pod, labels);
                false
            }
            Event::InitDone => {
                self.known = std::mem::take(&mut self.listed);
                self.ready = true;
                true
            }
            Event::Apply(pod) => {
                let known = std::mem::take(&mut self.known);
                self.known = self.put(known, &pod, labels);
                true
            }
            Event::Delete(pod) => self.known.remove(&key(&pod)).is_some(),
        }
    }

    fn put(
        &mut self,
        mut pods: HashMap<String, Record>,
        pod: &ApiPod,
        labels: &[String],
    ) -> HashMap<String, Record> {
        let key = key(pod);
        match pods::record(pod, labels) {
            Some(record) if pods.len() < MAX_PODS || pods.contains_key(&key) => {
                pods.insert(key, record);
            }
            Some(_) => self.omitted += 1,
            None => drop(pods.remove(&key)),
        }
        pods
    }

    fn told(&self) -> SourceSnapshot {
        SourceSnapshot {
            records: self.known.values().cloned().collect(),
            remark: match self.omitted {
                0 => String::new(),
                omitted => format!("{omitted} pods beyond {MAX_PODS} were left out"),
            },
        }
    }
}

fn key(pod: &ApiPod) -> String {
    pod.uid()
        .unwrap_or_else(|| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()))
}

/// Reports the node's pods whenever they change, and how the server fares, until nobody listens any more.
pub(in crate::pods) async fn watch(kube: Kube, reports: mpsc::Sender<Report>) {
    let mut following = Following {
        kube,
        pods: Pods::default(),
        pause: FIRST_PAUSE,
        reporting: Reporting {
            reports,
            target: "the Kubernetes API".to_owned(),
        },
    };
    loop {
        // Anew after a 401, too: a token that was replaced is read again then.
        let end = match following.kube.client().await {
            Ok((client, server)) => {
                following.reporting.target = server;
                following.follow(client).await
            }
            Err(problem) => following.trouble(problem).await,
        };
        if end.is_break() {
            return;
        }
    }
}

struct Following {
    kube: Kube,
    pods: Pods,
    pause: Duration,
    reporting: Reporting,
}

impl Following {
    /// Says what is wrong and rests; breaks where nobody listens any more.
    async fn trouble(&mut self, problem: Problem) -> ControlFlow<()> {
        self.reporting.say(Err(problem)).await?;
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        ControlFlow::Continue(())
    }

    /// Follows with one client, until another is needed or nobody listens any more.
    async fn follow(&mut self, client: Client) -> ControlFlow<()> {
        let api: Api<ApiPod> = Api::all(client);
        let config = Config::default()
            .fields(&self.kube.selector())
            .page_size(PAGE);
        let mut stream = pin!(watcher::watcher(api, config));
        let mut say_at: Option<Instant> = None;
        let mut mended_at: Option<Instant> = None;
        let mut silent_at = Some(Instant::now() + FIRST_LIST);
        loop {
            tokio::select! {
                event = stream.next() => match event {
                    Some(Ok(event)) => {
                        let changed = self.pods.take(event, &self.kube.labels);
                        if changed && self.pods.ready {
                            self.pause = FIRST_PAUSE;
                            silent_at = None;
                            mended_at = None;
                            say_at.get_or_insert_with(|| Instant::now() + TOGETHER);
                        }
                    }
                    Some(Err(error)) => {
                        silent_at = None;
                        let problem = match code(&error) {
                            // Part of the protocol: everything is listed anew.
                            Some(410) => {
                                sleep(self.pause).await;
                                continue;
                            }
                            _ => meaning(&self.reporting.target, &error),
                        };
                        say_at = None;
                        mended_at = Some(Instant::now() + self.pause + MENDED);
                        self.trouble(problem).await?;
                        if code(&error) == Some(401) {
                            return ControlFlow::Continue(());
                        }
                    }
                    None => return ControlFlow::Continue(()),
                },
                () = at(say_at) => {
                    say_at = None;
                    self.reporting.say(Ok(self.pods.told())).await?;
                }
                () = at(mended_at), if self.pods.ready => {
                    mended_at = None;
                    self.reporting.say(Ok(self.pods.told())).await?;
                }
                () = at(silent_at) => {
                    silent_at = None;
                    let problem = Problem::Silent(format!("{} does not answer", self.reporting.target));
                    self.reporting.say(Err(problem)).await?;
                }
            }
        }
    }
}

struct Reporting {
    reports: mpsc::Sender<Report>,
    target: String,
}

impl Reporting {
    /// Breaks where nobody listens any more.
    async fn say(&self, outcome: Result<SourceSnapshot, Problem>) -> ControlFlow<()> {
        let report = Report {
            via: Via::Kube,
            target: self.target.clone(),
            // Pods are told by what does not change hands within a device's life.
            round: u64::MAX,
            outcome,
        };
        match self.reports.send(report).await {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

fn meaning(server: &str, error: &watcher::Error) -> Problem {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => problem(server, error),
        watcher::Error::WatchError(status) => problem(server, &::kube::Error::Api(status.clone())),
        watcher::Error::NoResourceVersion => Problem::Foreign(format!(
            "{server} does not answer as a Kubernetes API: {error}"
        )),
    }
}

/// The server's status code, where it gave one.
fn code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(::kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(::kube::Error::Api(status))
        | watcher::Error::WatchFailed(::kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status.code),
        _ => None,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
