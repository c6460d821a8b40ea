//! An HTTP/1.1 client for one server: credentials from files, one deadline over the whole request. A proxy is used as the environment
//! says (`HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY`).
//!
//! Invariants: redirects are not followed; secrets are only in files and are read again before each request, so that a
//! rotation needs no restart; no error, log line or `Debug` output contains one; a response's body is read only so far
//! as the connection's reuse requires.

mod files;
mod tls;

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use detector_event::error_chain;
use hyper::{
    StatusCode, Uri,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
};
use reqwest::{Client, Response, redirect::Policy};
use tokio::time::timeout;

use super::{retry::retry_after, settings::Endpoint};
pub use files::{CredentialFileError, secret};
use files::{Credentials, read};

/// A response's body is read up to this size so that the connection can be reused.
const BODY: usize = 64 << 10;
/// And for this long.
const BODY_TIME: Duration = Duration::from_secs(1);
/// How long an idle connection is kept.
const IDLE: Duration = Duration::from_secs(90);

/// The response to a POST.
#[derive(Clone, Copy, Debug)]
pub struct PostResponse {
    /// The status.
    pub status: StatusCode,
    /// The wait requested by `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl PostResponse {
    /// Whether the receiver refuses this body. Any other error concerns the receiver, or all requests.
    #[must_use]
    pub fn is_rejection(&self) -> bool {
        is_rejection(self.status.as_u16())
    }
}

/// Whether a server that answers this status refuses the content of the request.
#[must_use]
pub fn is_rejection(status: u16) -> bool {
    matches!(status, 400 | 413 | 422)
}

/// Why something was not accepted, in words.
#[derive(Debug)]
pub enum PostFailure {
    /// The receiver refuses this content; others may be accepted.
    Rejected(String),
    /// For another reason.
    Failed(String),
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// A file with credentials cannot be used.
    #[error(transparent)]
    File(#[from] CredentialFileError),
    /// The settings and files make no valid request.
    #[error("{0}")]
    Setup(String),
    /// No response in time.
    #[error("no response within {}", humantime::format_duration(*.0))]
    Timeout(Duration),
    /// The connection failed.
    #[error("{0}")]
    Connection(String),
}

/// The client of one server, with a pool of connections.
pub struct HttpClient {
    endpoint: Endpoint,
    /// Appended to the URL's path.
    suffix: &'static str,
    current: Mutex<Option<(Credentials, PreparedClient)>>,
}

#[derive(Clone)]
struct PreparedClient {
    url: String,
    client: Client,
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").finish_non_exhaustive()
    }
}

impl HttpClient {
    /// A client for `endpoint`; `suffix` is appended to its path.
    #[must_use]
    pub fn new(endpoint: Endpoint, suffix: &'static str) -> Self {
        Self {
            endpoint,
            suffix,
            current: Mutex::default(),
        }
    }

    /// Reads all files, so that mistakes show at the start.
    ///
    /// # Errors
    /// If one cannot be used.
    pub fn check(&self) -> Result<(), PostError> {
        self.prepare().map(drop)
    }

    /// Posts `body`.
    ///
    /// # Errors
    /// If there is no response.
    pub async fn post(
        &self,
        content_type: &'static str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<PostResponse, PostError> {
        let PreparedClient { url, client } = self.prepare()?;
        let request = client.post(url).headers(headers);
        let request = request.header(CONTENT_TYPE, content_type).body(body);
        let limit = self.endpoint.timeout;
        let mut response = timeout(limit, request.send())
            .await
            .map_err(|_| PostError::Timeout(limit))?
            // The URL may be a secret; no other cause contains it, or a header.
            .map_err(|error| PostError::Connection(error_chain::one_line(&error.without_url())))?;
        let summary = summary(&response);
        // The response counts even if reading its body fails.
        let _ = timeout(BODY_TIME, skip_body(&mut response)).await;
        Ok(summary)
    }

    /// The client for the present content of the files.
    fn prepare(&self) -> Result<PreparedClient, PostError> {
        let credentials = read(&self.endpoint)?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, prepared)) = &*current
            && *known == credentials
        {
            return Ok(prepared.clone());
        }
        let prepared = PreparedClient {
            url: with_suffix(&credentials.url, self.suffix)?.to_string(),
            client: connect(&credentials)?,
        };
        *current = Some((credentials, prepared.clone()));
        Ok(prepared)
    }
}

/// A header value that is not shown in `Debug` output.
///
/// # Errors
/// If it has invalid characters.
pub fn sensitive(text: &str) -> Result<HeaderValue, hyper::header::InvalidHeaderValue> {
    let mut value = HeaderValue::from_str(text)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Adds one header.
///
/// # Errors
/// If the value has invalid characters.
pub fn header(
    headers: &mut HeaderMap,
    name: &'static str,
    value: &str,
) -> Result<(), hyper::header::InvalidHeaderValue> {
    headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value)?);
    Ok(())
}

fn connect(credentials: &Credentials) -> Result<Client, PostError> {
    let tls = tls::config(credentials).map_err(PostError::Setup)?;
    Client::builder()
        .tls_backend_preconfigured(tls)
        .default_headers(credentials.headers.clone())
        .user_agent(concat!("ip-conflict-detector/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .pool_idle_timeout(IDLE)
        .build()
        .map_err(|error| PostError::Setup(error_chain::one_line(&error.without_url())))
}

/// Reads the body up to [`BODY`] bytes.
async fn skip_body(response: &mut Response) {
    let mut length = 0;
    while let Ok(Some(chunk)) = response.chunk().await {
        length += chunk.len();
        if length > BODY {
            return;
        }
    }
}

fn with_suffix(url: &Uri, suffix: &str) -> Result<Uri, PostError> {
    if suffix.is_empty() {
        return Ok(url.clone());
    }
    let mut parts = url.clone().into_parts();
    let path = format!("{}{suffix}", url.path().trim_end_matches('/'));
    let wrong = |_| PostError::Setup("the URL's path cannot be extended".to_owned());
    parts.path_and_query = Some(path.parse().map_err(wrong)?);
    Uri::from_parts(parts)
        .map_err(|_| PostError::Setup("the URL's path cannot be extended".to_owned()))
}

fn summary(response: &Response) -> PostResponse {
    let requested = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok());
    PostResponse {
        status: response.status(),
        retry_after: requested.and_then(|value| retry_after(value, SystemTime::now())),
    }
}
