//! What the server's answers mean.

use std::time::Duration;

use ::kube::core::Status;
use bytes::Bytes;
use detector_fleet::Outcome;
use http::StatusCode;
use serde::de::DeserializeOwned;

use super::Answer;

/// The longest part of a server's text in an error, in characters.
const TEXT: usize = 300;

/// Why a request was not executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum Problem {
    /// There was no answer, or one that says to try again later.
    Away {
        why: String,
        /// How long the server wants to be left alone.
        retry_after: Option<Duration>,
    },
    /// The custom resources are not installed.
    NoSuchResource,
    /// The server does not accept the request, or its answer cannot be used.
    Rejected(String),
}

impl Problem {
    pub(in crate::fleet) fn away(why: String) -> Self {
        Self::Away {
            why: shortened(&why),
            retry_after: None,
        }
    }
}

impl From<Problem> for Answer {
    fn from(problem: Problem) -> Self {
        let outcome = match problem {
            Problem::Away { .. } | Problem::NoSuchResource => Outcome::Failed,
            Problem::Rejected(_) => Outcome::Rejected,
        };
        Self {
            outcome,
            problem: Some(problem),
        }
    }
}

impl Answer {
    pub(super) fn rejected(why: String) -> Self {
        Problem::Rejected(why).into()
    }
}

/// An answer as it came.
#[derive(Debug)]
pub(super) struct RawAnswer {
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<Duration>,
    pub(super) body: Bytes,
    /// A refusal of a server that may not have read its roles yet.
    pub(super) is_starting: bool,
}

impl RawAnswer {
    pub(super) fn is_success(&self) -> bool {
        self.status.is_success()
    }

    /// Whether to try again later.
    pub(super) fn is_overloaded(&self) -> bool {
        self.status.is_server_error() || matches!(self.status.as_u16(), 408 | 429)
    }

    /// # Errors
    /// If the body is not what was asked for.
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        serde_json::from_slice(&self.body)
            .map_err(|why| Problem::Rejected(format!("cannot read the server's answer: {why}")))
    }

    /// The body of a refusal; empty if it has another form, such as that of a proxy.
    pub(super) fn kubernetes_status(&self) -> Status {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// What a refusal without a meaning of its own is.
    pub(super) fn problem(&self) -> Problem {
        let message = self.kubernetes_status().message;
        let text = if message.is_empty() {
            String::from_utf8_lossy(&self.body).trim().to_owned()
        } else {
            message
        };
        let why = shortened(&format!("{}: {text}", self.status));
        // 409 without a meaning of its own: the server changed something at the same time.
        let is_temporary = self.is_overloaded()
            || self.is_starting
            || matches!(self.status.as_u16(), 401 | 409)
            || self.status.is_redirection()
            || self.status.is_informational();
        if is_temporary {
            Problem::Away {
                why,
                retry_after: self.retry_after,
            }
        } else {
            Problem::Rejected(why)
        }
    }
}

/// Whether a "not found" is about an object: of a resource that does not exist, the server names none.
pub(super) fn is_named(status: &Status) -> bool {
    let details = status.details.as_ref();
    status.reason == "NotFound" && details.is_some_and(|details| !details.name.is_empty())
}

fn shortened(text: &str) -> String {
    text.chars().take(TEXT).collect()
}
