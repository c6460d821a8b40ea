//! Kubernetes events on the pods of a conflict: what `kubectl describe pod` and every event exporter show.
//!
//! `IPConflict` (Warning) once for each pod of a conflict, as soon as the pod is known, with another claimant's pod as
//! the related object; `IPConflictResolved` (Normal) on the same pods when it is over. The same word on the same pods
//! within 6 minutes is counted up in the event that is there (its `series`), not posted anew.
//!
//! Invariants: taking an event never waits; the queue, the memory of conflicts and the rate per pod are bounded.

mod limit;
mod pod_events;

use std::{sync::Arc, time::Duration};

use ::kube::{
    Error,
    runtime::events::{Recorder, Reporter},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use self::{
    limit::Limit,
    pod_events::{Notice, NotifiedPods},
};
use crate::kube_client::KubeClient;
use crate::{
    event::{AnyEvent, Event},
    health::Part,
    metrics::Metrics,
    sinks::EventSink,
    timer::DoublingDelay,
};

/// The sink's name in metrics.
const SINK: &str = "kubernetes";
/// Who reports, a qualified name as the API wants it.
const CONTROLLER: &str = "ipconflict.io/detector-agent";
/// Events that wait for the server.
const QUEUE: usize = 1024;
/// How often one is tried; with the pauses, a server may be away for a minute.
const ATTEMPTS: u32 = 12;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How long the server may take for one.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes the agent's events for the API server.
#[derive(Debug)]
pub struct KubeEvents {
    queue: mpsc::Sender<Arc<Event>>,
    metrics: Arc<Metrics>,
}

impl KubeEvents {
    /// A sink, and the task that posts what it takes. `instance` names this agent among others (the node).
    pub fn new(
        kube: KubeClient,
        instance: String,
        metrics: Arc<Metrics>,
        health: Part,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (queue, queued) = mpsc::channel(QUEUE);
        let sink = Self {
            queue,
            metrics: Arc::clone(&metrics),
        };
        health.works("nothing to post yet");
        let poster = Poster {
            kube,
            instance,
            recorder: None,
        };
        (sink, post_all(poster, metrics, health, queued))
    }
}

impl EventSink for KubeEvents {
    fn offer(&mut self, event: &AnyEvent) {
        // Not for anomalies: a pod's owner cannot act on them, only the node's operator can.
        if let AnyEvent::Conflict(event) = event
            && self.queue.try_send(Arc::clone(event)).is_err()
        {
            count(&self.metrics, "dropped");
        }
    }
}

fn count(metrics: &Metrics, outcome: &'static str) {
    metrics.count_deliveries(SINK, outcome, 1);
}

async fn post_all(
    mut poster: Poster,
    metrics: Arc<Metrics>,
    health: Part,
    mut queued: mpsc::Receiver<Arc<Event>>,
) {
    let mut told = NotifiedPods::default();
    let mut limit = Limit::default();
    let mut in_trouble = false;
    while let Some(event) = queued.recv().await {
        for notice in told.notices(&event.data) {
            if !limit.allows(&notice.key(), Instant::now()) {
                count(&metrics, "limited");
                continue;
            }
            match poster.post(&notice).await {
                Ok(()) => {
                    count(&metrics, "delivered");
                    health.works("events on the pods of conflicts are posted");
                    if std::mem::take(&mut in_trouble) {
                        info!("events on pods are posted again");
                    }
                }
                Err(why) => {
                    count(&metrics, "failed");
                    if !std::mem::replace(&mut in_trouble, true) {
                        warn!("events on pods cannot be posted: {why}");
                    }
                    health.failed(why);
                }
            }
        }
    }
}

/// Posts, with a client that is made anew when the server no longer knows who asks.
struct Poster {
    kube: KubeClient,
    instance: String,
    recorder: Option<Recorder>,
}

impl Poster {
    /// Posts one, again where the server is in trouble; what it refuses is not tried again.
    async fn post(&mut self, notice: &Notice) -> Result<(), String> {
        let event = notice.event();
        let mut pause = DoublingDelay::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut attempt = 1;
        loop {
            let why = match self.recorder().await {
                Err(why) => why,
                Ok(recorder) => {
                    let publishing = recorder.publish(&event, &notice.regarding);
                    match timeout(PATIENCE, publishing).await {
                        Ok(Ok(())) => return Ok(()),
                        Ok(Err(Error::Api(status))) if status.code == 401 => {
                            // The token was replaced: a new client reads it again.
                            self.recorder = None;
                            Error::Api(status).to_string()
                        }
                        Ok(Err(Error::Api(status))) if is_final(status.code) => {
                            return Err(Error::Api(status).to_string());
                        }
                        Ok(Err(error)) => error.to_string(),
                        Err(_) => format!("the server did not answer within {PATIENCE:?}"),
                    }
                }
            };
            if attempt == ATTEMPTS {
                return Err(why);
            }
            sleep(pause.advance()).await;
            attempt += 1;
        }
    }

    async fn recorder(&mut self) -> Result<&Recorder, String> {
        match &mut self.recorder {
            Some(recorder) => Ok(recorder),
            none => {
                let (client, _) = self.kube.connect().await.map_err(|why| why.to_string())?;
                let reporter = Reporter {
                    controller: CONTROLLER.to_owned(),
                    instance: Some(self.instance.clone()),
                };
                Ok(none.insert(Recorder::new(client, reporter)))
            }
        }
    }
}

/// Whether asking again leads to the same answer.
fn is_final(code: u16) -> bool {
    (400..500).contains(&code) && !matches!(code, 408 | 429)
}
