//! Posts Kubernetes Events.

use std::time::Duration;

use ::kube::{
    Api, Client, Error,
    api::{Patch, PatchParams, PostParams},
    runtime::events::EventType,
};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event as ApiEvent, EventSource},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde_json::json;
use tokio::time::timeout;

use super::{
    ledger::{Request, RequestKind},
    notices::truncated,
};
use crate::{kube_client::KubeClient, sinks::client::PostFailure};

/// The reporting controller, a qualified name as the API requires.
const CONTROLLER: &str = "ipconflict.io/detector-agent";
/// The same as `kubectl describe` shows it.
const COMPONENT: &str = "ip-conflict-detector";
/// The longest name of an instance, in bytes.
const INSTANCE: usize = 128;
/// The longest time of one attempt.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Posts Events; reconnects when its token is no longer valid.
pub(super) struct EventPoster {
    kube: KubeClient,
    instance: String,
    client: Option<Client>,
}

impl EventPoster {
    /// `instance` identifies this agent.
    pub(super) fn new(kube: KubeClient, instance: String) -> Self {
        Self {
            kube,
            instance: truncated(instance, INSTANCE),
            client: None,
        }
    }

    /// Posts one Event, once.
    pub(super) async fn post(&mut self, request: &Request) -> Result<(), PostFailure> {
        let client = self.client().await.map_err(PostFailure::Failed)?;
        match timeout(TIMEOUT, self.send(client, request)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Error::Api(status))) => {
                let (code, why) = (status.code, Error::Api(status).to_string());
                if code == 401 {
                    // The token was rotated: a new client reads it again.
                    self.client = None;
                }
                Err(if is_final(code) {
                    PostFailure::Rejected(why)
                } else {
                    PostFailure::Failed(why)
                })
            }
            Ok(Err(error)) => Err(PostFailure::Failed(error.to_string())),
            Err(_) => {
                let why = format!("no response within {TIMEOUT:?}");
                Err(PostFailure::Failed(why))
            }
        }
    }

    async fn client(&mut self) -> Result<Client, String> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let client = self.kube.connect_without_retries().await;
        let client = client.map_err(|why| why.to_string())?;
        Ok(self.client.insert(client).clone())
    }

    /// Sends one request. Through `v1`, because `events.k8s.io/v1` does not allow a message to be corrected, and with
    /// `firstTimestamp` and `count` instead of `eventTime` and `series`, because with these Kubernetes 1.20 rejects an
    /// Event on a Node in the namespace `default`. Both APIs show the same Events.
    async fn send(&self, client: Client, request: &Request) -> Result<(), Error> {
        let events: Api<ApiEvent> = Api::namespaced(client, request.notice.namespace());
        let event = self.event(request);
        let correction = json!({"message": event.message, "related": event.related});
        let params = PatchParams::default();
        if request.kind != RequestKind::Create {
            let mut patch = correction.clone();
            if let RequestKind::Repeat(_) = request.kind {
                patch["count"] = json!(event.count);
                patch["lastTimestamp"] = json!(event.last_timestamp);
            }
            match events
                .patch(&request.name, &params, &Patch::Merge(patch))
                .await
            {
                // The server keeps Events for an hour.
                Err(Error::Api(status)) if status.code == 404 => {}
                result => return result.map(|_| ()),
            }
        }
        match events.create(&PostParams::default(), &event).await {
            // An earlier agent, or an attempt without a response, created it, perhaps when a name was unknown.
            Err(Error::Api(status)) if status.code == 409 => {
                let patch = Patch::Merge(correction);
                let patched = events.patch(&request.name, &params, &patch).await;
                patched.map(|_| ())
            }
            result => result.map(|_| ()),
        }
    }

    fn event(&self, request: &Request) -> ApiEvent {
        let notice = &request.notice;
        let now = Time(Timestamp::now());
        ApiEvent {
            metadata: ObjectMeta {
                namespace: Some(notice.namespace().to_owned()),
                name: Some(request.name.clone()),
                ..ObjectMeta::default()
            },
            involved_object: notice.regarding.clone(),
            related: notice.related.clone(),
            reason: Some(notice.reason.to_owned()),
            message: Some(notice.message.clone()),
            type_: Some(
                match notice.event_type {
                    EventType::Normal => "Normal",
                    EventType::Warning => "Warning",
                }
                .to_owned(),
            ),
            action: Some("Observed".to_owned()),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            count: Some(match request.kind {
                RequestKind::Repeat(count) => count,
                RequestKind::Create | RequestKind::Correct => 1,
            }),
            source: Some(EventSource {
                component: Some(COMPONENT.to_owned()),
                host: Some(self.instance.clone()),
            }),
            reporting_component: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..ApiEvent::default()
        }
    }
}

/// Whether a retry would get the same response. A server that has just started denies everything until it has read its roles.
fn is_final(code: u16) -> bool {
    (400..500).contains(&code) && !matches!(code, 401 | 403 | 408 | 409 | 429)
}
