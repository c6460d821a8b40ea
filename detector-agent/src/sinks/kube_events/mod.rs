//! Kubernetes events on the pods of a conflict, shown by `kubectl describe pod` and by event exporters.
//!
//! `IPConflict` (Warning) once for each pod of a conflict, as soon as the pod is known, with another claimant's pod as
//! the related object; `IPConflictResolved` (Normal) on the same pods when it is resolved. A repetition within 6 minutes
//! increments the count of the existing event (its `series`).
//!
//! Of an address sweep, the pod that sweeps gets `AddressSweep` (Warning) and `AddressSweepEnded` (Normal), and the other
//! pods of its conflicts get none.
//!
//! Invariants: offering an event never waits; the queue, the notified pods and the rate per pod are bounded.

mod pod_events;
mod spam_filter;

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
    pod_events::{NotifiedPods, PodEvent},
    spam_filter::SpamFilter,
};
use crate::{
    clock,
    engine::AnomalyKind,
    event::AnyEvent,
    health::Part,
    kube_client::KubeClient,
    log_budget::LogBudget,
    metrics::Metrics,
    sinks::{
        EventSink,
        client::{PostFailure, is_rejection},
    },
    timer::DoublingDelay,
};

/// The sink's name in metrics.
const SINK: &str = "kubernetes";
/// The reporting controller, a qualified name as the API requires.
const CONTROLLER: &str = "ipconflict.io/detector-agent";
/// The most events that wait for the server.
const QUEUE: usize = 1024;
/// Attempts for one event; with the pauses, the server may be unreachable for a minute.
const ATTEMPTS: u32 = 12;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The longest time of one attempt.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The sink for events on pods.
#[derive(Debug)]
pub struct KubeEvents {
    queue: mpsc::Sender<AnyEvent>,
    metrics: Arc<Metrics>,
}

impl KubeEvents {
    /// The sink, and the task that posts its events. `instance` identifies this agent (the node's name).
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
        let poster = EventPoster {
            kube,
            instance,
            recorder: None,
        };
        (sink, post_all(poster, metrics, health, queued))
    }
}

impl EventSink for KubeEvents {
    fn offer(&mut self, event: &AnyEvent) {
        // Of anomalies only a sweep: on the others a pod's owner cannot act, only the node's operator can.
        let is_for_pods = match event {
            AnyEvent::Conflict(_) => true,
            AnyEvent::Anomaly(event) => event.data.kind == AnomalyKind::AddressSweep,
        };
        if is_for_pods && self.queue.try_send(event.clone()).is_err() {
            count(&self.metrics, "dropped");
        }
    }
}

fn count(metrics: &Metrics, outcome: &'static str) {
    metrics.count_deliveries(SINK, outcome, 1);
}

async fn post_all(
    mut poster: EventPoster,
    metrics: Arc<Metrics>,
    health: Part,
    mut queued: mpsc::Receiver<AnyEvent>,
) {
    let mut notified = NotifiedPods::default();
    let mut spam_filter = SpamFilter::default();
    let mut is_failing = false;
    let mut log_budget = LogBudget::new();
    while let Some(event) = queued.recv().await {
        let pod_events = match &event {
            AnyEvent::Conflict(event) => notified.pod_events(&event.data),
            AnyEvent::Anomaly(event) => Vec::from_iter(notified.sweep_event(&event.data)),
        };
        for pod_event in pod_events {
            if !spam_filter.take_token(&pod_event.key(), Instant::now()) {
                count(&metrics, "limited");
                continue;
            }
            match poster.post(&pod_event).await {
                Ok(()) => {
                    count(&metrics, "delivered");
                    health.works("posts events on the pods of conflicts");
                    if std::mem::take(&mut is_failing) {
                        info!("Kubernetes events are posted again");
                    }
                }
                Err(PostFailure::Rejected(why)) => {
                    count(&metrics, "rejected");
                    if log_budget.take(clock::now()) {
                        let pod = pod_event.key();
                        warn!(
                            pod,
                            "Kubernetes event not accepted, others are posted: {why}"
                        );
                    }
                    health.degraded(format!("an event was not accepted: {why}"));
                }
                Err(PostFailure::Failed(why)) => {
                    count(&metrics, "failed");
                    if !std::mem::replace(&mut is_failing, true) {
                        warn!("cannot post Kubernetes events: {why}");
                    }
                    health.failed(why);
                }
            }
        }
    }
}

/// Posts events; reconnects when its token is no longer valid.
struct EventPoster {
    kube: KubeClient,
    instance: String,
    recorder: Option<Recorder>,
}

impl EventPoster {
    /// Posts one event; retries unless the server rejects it.
    async fn post(&mut self, pod_event: &PodEvent) -> Result<(), PostFailure> {
        let event = pod_event.event();
        let mut pause = DoublingDelay::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut attempt = 1;
        loop {
            let why = match self.recorder().await {
                Err(why) => why,
                Ok(recorder) => {
                    let publishing = recorder.publish(&event, &pod_event.regarding);
                    match timeout(TIMEOUT, publishing).await {
                        Ok(Ok(())) => return Ok(()),
                        Ok(Err(Error::Api(status))) if status.code == 401 => {
                            // The token was rotated: a new client reads it again.
                            self.recorder = None;
                            Error::Api(status).to_string()
                        }
                        Ok(Err(Error::Api(status))) if is_rejection(status.code) => {
                            return Err(PostFailure::Rejected(Error::Api(status).to_string()));
                        }
                        Ok(Err(Error::Api(status))) if is_final(status.code) => {
                            return Err(PostFailure::Failed(Error::Api(status).to_string()));
                        }
                        Ok(Err(error)) => error.to_string(),
                        Err(_) => format!("no response within {TIMEOUT:?}"),
                    }
                }
            };
            if attempt == ATTEMPTS {
                return Err(PostFailure::Failed(why));
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

/// Whether a retry would get the same response.
fn is_final(code: u16) -> bool {
    (400..500).contains(&code) && !matches!(code, 408 | 429)
}
