//! Webhooks: signed as specified by Standard Webhooks, retried for a day, in order for each conflict or anomaly.
//!
//! [`Webhook`] makes one attempt; [`sender::Sender`] schedules the attempts.

pub mod format;
pub mod sender;
pub mod sign;

use std::{fmt, path::PathBuf, sync::Arc};

use bytes::Bytes;
use detector_event::{WallTime, guidance::StatusPageUrl};
use hyper::{StatusCode, header::HeaderMap};

use super::{
    client::{CredentialFileError, HttpClient, PostError, PostResponse, header, secret},
    message::Message,
    settings::{Format, WebhookSettings},
};
use sender::{DeliveryOutcome, DeliveryTarget};
use sign::{Secret, SecretError, signature};

/// Why a webhook cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// Its files or its TLS.
    #[error(transparent)]
    Request(#[from] PostError),
    /// A file with a secret.
    #[error(transparent)]
    File(#[from] CredentialFileError),
    /// A file has no valid secret.
    #[error("{} {source}", .path.display())]
    Secret {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        source: SecretError,
    },
    /// The event cannot be encoded as a request.
    #[error("cannot encode the event as a request: {0}")]
    Body(String),
}

/// One webhook's receiver.
pub struct Webhook {
    client: HttpClient,
    format: Format,
    secret_files: Vec<PathBuf>,
    routing_key_file: Option<PathBuf>,
    status_page: Option<StatusPageUrl>,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook")
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl Webhook {
    /// The receiver with these settings; messages to people link to the status page.
    #[must_use]
    pub fn new(settings: &WebhookSettings, status_page: Option<StatusPageUrl>) -> Self {
        Self {
            client: HttpClient::new(settings.endpoint.clone(), ""),
            format: settings.format,
            secret_files: settings.secret_files.clone(),
            routing_key_file: settings.routing_key_file.clone(),
            status_page,
        }
    }

    /// Reads all files, so that mistakes show at the start.
    ///
    /// # Errors
    /// If one cannot be used.
    pub fn check(&self) -> Result<(), WebhookError> {
        self.secrets()?;
        self.routing_key()?;
        Ok(self.client.check()?)
    }

    async fn post(&self, message: &Message) -> Result<PostResponse, WebhookError> {
        let now = WallTime::now().as_second();
        let body = self
            .format
            .body(message, &self.routing_key()?, self.status_page.as_ref())
            .map_err(|e| WebhookError::Body(e.to_string()))?;
        let mut headers = HeaderMap::new();
        let mut put = |name, value: &str| {
            header(&mut headers, name, value).map_err(|e| WebhookError::Body(e.to_string()))
        };
        put("webhook-id", &message.id)?;
        put("webhook-timestamp", &now.to_string())?;
        if let Some(signature) = signature(&self.secrets()?, &message.id, now, &body) {
            put("webhook-signature", &signature)?;
        }
        let content_type = self.format.content_type();
        Ok(self
            .client
            .post(content_type, headers, Bytes::from(body))
            .await?)
    }

    /// Read each time, so that a rotation needs no restart.
    fn secrets(&self) -> Result<Vec<Secret>, WebhookError> {
        self.secret_files
            .iter()
            .map(|path| {
                Secret::parse(&secret(path)?).map_err(|source| WebhookError::Secret {
                    path: path.clone(),
                    source,
                })
            })
            .collect()
    }

    fn routing_key(&self) -> Result<Arc<str>, WebhookError> {
        match &self.routing_key_file {
            Some(path) => Ok(secret(path)?),
            None => Ok(Arc::from("")),
        }
    }
}

impl DeliveryTarget for Webhook {
    async fn attempt(&self, message: Message) -> DeliveryOutcome {
        let response = match self.post(&message).await {
            Ok(response) => response,
            Err(WebhookError::Body(why)) => {
                let why = format!("cannot encode the event as a request: {why}");
                return DeliveryOutcome::Rejected { wait: None, why };
            }
            Err(why) => {
                return DeliveryOutcome::Failed {
                    wait: None,
                    why: why.to_string(),
                };
            }
        };
        let is_rejected = response.is_rejection();
        match response.status {
            status if status.is_success() => DeliveryOutcome::Delivered,
            StatusCode::GONE => DeliveryOutcome::Gone,
            status if is_rejected => DeliveryOutcome::Rejected {
                wait: response.retry_after,
                why: format!("answered {status}"),
            },
            status => DeliveryOutcome::Failed {
                wait: response.retry_after,
                why: if status.is_redirection() {
                    format!(
                        "answered {status}; redirects are not followed, configure the final URL"
                    )
                } else {
                    format!("answered {status}")
                },
            },
        }
    }
}
