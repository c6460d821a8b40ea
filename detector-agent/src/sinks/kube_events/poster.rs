//! Posts Kubernetes Events through kube's `Recorder`, one attempt at a time.

use std::{sync::Arc, time::Duration};

use ::kube::{
    Client, Error,
    runtime::events::{Event, Recorder, Reporter},
};
use tokio::{sync::Mutex, time::timeout};

use super::object_events::{ObjectEvent, truncated};
use crate::{kube_client::KubeClient, sinks::client::PostFailure};

/// The reporting controller, a qualified name as the API requires.
const CONTROLLER: &str = "ipconflict.io/detector-agent";
/// The longest name of an instance, in bytes.
const INSTANCE: usize = 128;
/// The longest time of one attempt.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Posts Events; reconnects when its token is no longer valid. Cheap to clone.
#[derive(Clone)]
pub(super) struct EventPoster {
    kube: KubeClient,
    reporter: Reporter,
    connected: Arc<Mutex<Option<(Client, Recorder)>>>,
}

impl EventPoster {
    /// `instance` identifies this agent.
    pub(super) fn new(kube: KubeClient, instance: String) -> Self {
        let reporter = Reporter {
            controller: CONTROLLER.to_owned(),
            instance: Some(truncated(instance, INSTANCE)),
        };
        Self {
            kube,
            reporter,
            connected: Arc::default(),
        }
    }

    /// Posts one Event, once. A repetition within six minutes is counted in the existing Event.
    pub(super) async fn post(&self, object_event: &ObjectEvent) -> Result<(), PostFailure> {
        // Boxed, because many tasks wait with this future.
        match Box::pin(timeout(TIMEOUT, self.publish(object_event))).await {
            Ok(result) => result,
            Err(_) => {
                let why = format!("no response within {TIMEOUT:?}");
                Err(PostFailure::Failed(why))
            }
        }
    }

    async fn publish(&self, object_event: &ObjectEvent) -> Result<(), PostFailure> {
        let (client, recorder) = self.connect().await.map_err(PostFailure::Failed)?;
        let event = event(object_event);
        let mut result = recorder.publish(&event, &object_event.regarding).await;
        if status_code(&result) == Some(404) {
            // The Event that this one repeats may have been deleted; another recorder remembers none.
            let recorder = self.reconnect(client).await;
            result = recorder.publish(&event, &object_event.regarding).await;
        }
        let code = status_code(&result);
        if code == Some(401) {
            // The token was rotated: a new client reads it again.
            *self.connected.lock().await = None;
        }
        result.map_err(|error| {
            if code.is_some_and(is_final) {
                PostFailure::Rejected(error.to_string())
            } else {
                PostFailure::Failed(error.to_string())
            }
        })
    }

    async fn connect(&self) -> Result<(Client, Recorder), String> {
        let mut connected = self.connected.lock().await;
        if let Some(connected) = &*connected {
            return Ok(connected.clone());
        }
        let client = self.kube.connect_without_retries().await;
        let client = client.map_err(|why| why.to_string())?;
        let recorder = Recorder::new(client.clone(), self.reporter.clone());
        Ok(connected.insert((client, recorder)).clone())
    }

    /// A recorder that remembers no Event, on the same connection.
    async fn reconnect(&self, client: Client) -> Recorder {
        let recorder = Recorder::new(client.clone(), self.reporter.clone());
        *self.connected.lock().await = Some((client, recorder.clone()));
        recorder
    }
}

fn event(object_event: &ObjectEvent) -> Event {
    Event {
        type_: object_event.event_type,
        reason: object_event.reason.to_owned(),
        note: Some(object_event.message.clone()),
        // The recorder compares it, but not the note, to recognise a repetition. `kubectl` does not show it.
        action: object_event.about.clone(),
        secondary: object_event.related.clone(),
    }
}

fn status_code(result: &Result<(), Error>) -> Option<u16> {
    match result {
        Err(Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

/// Whether a retry would get the same response. A server that has just started denies everything until it has read its roles.
fn is_final(code: u16) -> bool {
    (400..500).contains(&code) && !matches!(code, 401 | 403 | 408 | 409 | 429)
}
