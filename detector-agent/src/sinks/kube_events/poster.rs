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
use tokio::time::{sleep, timeout};

use super::{
    ledger::{Request, RequestKind},
    notices::truncated,
};
use crate::{
    kube_client::KubeClient,
    sinks::{
        client::{PostFailure, is_rejection},
        retry::RetryPolicy,
    },
};

/// The reporting controller, a qualified name as the API requires.
const CONTROLLER: &str = "ipconflict.io/detector-agent";
/// The same as `kubectl describe` shows it.
const COMPONENT: &str = "ip-conflict-detector";
/// The longest name of an instance, in bytes.
const INSTANCE: usize = 128;
/// Attempts for one Event; with the pauses, the server may be unreachable for a minute.
const ATTEMPTS: u32 = 12;
/// Attempts while the server denies access; with the pauses, eight seconds at least. A server that has just started denies
/// everything until it has read its roles.
const DENIED_ATTEMPTS: u32 = 7;
const PAUSES: RetryPolicy = RetryPolicy {
    first: Duration::from_millis(250),
    longest: Duration::from_secs(10),
};
/// The longest time of one attempt.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Posts Events; reconnects when its token is no longer valid.
pub(super) struct EventPoster {
    kube: KubeClient,
    instance: String,
    client: Option<Client>,
    /// Access was denied for so long that the role lacks a rule.
    is_denied: bool,
    random: fastrand::Rng,
}

impl EventPoster {
    /// `instance` identifies this agent.
    pub(super) fn new(kube: KubeClient, instance: String) -> Self {
        Self {
            kube,
            instance: truncated(instance, INSTANCE),
            client: None,
            is_denied: false,
            random: fastrand::Rng::new(),
        }
    }

    /// Posts one Event; retries unless the server rejects it.
    pub(super) async fn post(&mut self, request: &Request) -> Result<(), PostFailure> {
        let mut failures = 0;
        loop {
            let why = match self.client().await {
                Err(why) => why,
                Ok(client) => match timeout(TIMEOUT, self.send(client, request)).await {
                    Ok(Ok(())) => {
                        self.is_denied = false;
                        return Ok(());
                    }
                    Ok(Err(Error::Api(status))) if status.code == 401 => {
                        // The token was rotated: a new client reads it again.
                        self.client = None;
                        Error::Api(status).to_string()
                    }
                    Ok(Err(Error::Api(status))) if is_rejection(status.code) => {
                        return Err(PostFailure::Rejected(Error::Api(status).to_string()));
                    }
                    Ok(Err(Error::Api(status)))
                        if status.code == 403
                            && !self.is_denied
                            && failures + 1 < DENIED_ATTEMPTS =>
                    {
                        Error::Api(status).to_string()
                    }
                    Ok(Err(Error::Api(status))) if is_final(status.code) => {
                        self.is_denied = status.code == 403;
                        return Err(PostFailure::Failed(Error::Api(status).to_string()));
                    }
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => format!("no response within {TIMEOUT:?}"),
                },
            };
            failures += 1;
            if failures == ATTEMPTS {
                return Err(PostFailure::Failed(why));
            }
            sleep(PAUSES.wait(failures, &mut self.random)).await;
        }
    }

    async fn client(&mut self) -> Result<Client, String> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let (client, _) = self.kube.connect().await.map_err(|why| why.to_string())?;
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

/// Whether a retry would get the same response.
fn is_final(code: u16) -> bool {
    (400..500).contains(&code) && !matches!(code, 408 | 429)
}
