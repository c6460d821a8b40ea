//! An HTTP/1.1 client for one server: TLS by rustls, credentials from files, one deadline over the whole request.
//!
//! Invariants: redirects are not followed; secrets stand in files alone and are read anew before each request, so that
//! a rotation needs no restart; no message, log line or `Debug` output holds one; an answer's body is read only as far
//! as it takes to use the connection again. There is no proxy support: what the agent talks to is near it.

mod files;
mod tls;

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode, Uri,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT},
};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use tokio::time::timeout;

use super::retry::retry_after;
use crate::{error_chain, sinks::settings::Endpoint};
pub use files::{FileError, secret};
use files::{Material, read};

/// An answer's body is read up to here, for the sake of the connection.
const BODY: usize = 64 << 10;
/// And so long.
const BODY_TIME: Duration = Duration::from_secs(1);
/// An idle connection is kept so long.
const IDLE: Duration = Duration::from_secs(90);

/// What a server answered.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The wait that `Retry-After` asks for.
    pub retry_after: Option<Duration>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// A file with credentials cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// No request can be made of what the settings and files hold.
    #[error("{0}")]
    Setup(String),
    /// No answer in time.
    #[error("no answer within {}", humantime::format_duration(*.0))]
    Timeout(Duration),
    /// The connection could not be made, or broke.
    #[error("{0}")]
    Connection(String),
}

/// The client of one server. Cheap to share; it has a pool of connections of its own.
pub struct HttpClient {
    endpoint: Endpoint,
    /// What follows the URL's path.
    suffix: &'static str,
    current: Mutex<Option<(Material, Ready)>>,
}

#[derive(Clone)]
struct Ready {
    uri: Uri,
    headers: HeaderMap,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").finish_non_exhaustive()
    }
}

impl HttpClient {
    /// A client for `endpoint`; `suffix` follows its path.
    #[must_use]
    pub fn new(endpoint: Endpoint, suffix: &'static str) -> Self {
        Self {
            endpoint,
            suffix,
            current: Mutex::default(),
        }
    }

    /// Reads all files, so that a mistake shows at the start.
    ///
    /// # Errors
    /// Where one cannot be used.
    pub fn check(&self) -> Result<(), RequestError> {
        self.ready().map(drop)
    }

    /// Posts `body`.
    ///
    /// # Errors
    /// Where no answer comes.
    pub async fn post(
        &self,
        content_type: &'static str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Answer, RequestError> {
        let ready = self.ready()?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = ready.uri;
        let all = request.headers_mut();
        *all = ready.headers;
        all.extend(headers);
        all.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        all.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("ip-conflict-detector/", env!("CARGO_PKG_VERSION"))),
        );
        let limit = self.endpoint.timeout;
        let response = timeout(limit, ready.client.request(request))
            .await
            .map_err(|_| RequestError::Timeout(limit))?
            // No cause contains a URL or a header.
            .map_err(|error| RequestError::Connection(error_chain::one_line(&error)))?;
        let answer = answer(&response);
        // Whatever becomes of the body, the answer stands.
        let body = Limited::new(response.into_body(), BODY).collect();
        let _ = timeout(BODY_TIME, body).await;
        Ok(answer)
    }

    /// The client for what the files hold now.
    fn ready(&self) -> Result<Ready, RequestError> {
        let material = read(&self.endpoint)?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, ready)) = &*current
            && *known == material
        {
            return Ok(ready.clone());
        }
        let ready = Ready {
            uri: with_suffix(&material.url, self.suffix)?,
            headers: material.headers.clone(),
            client: connect(&material)?,
        };
        *current = Some((material, ready.clone()));
        Ok(ready)
    }
}

/// A header that is not to be shown.
///
/// # Errors
/// Where it has characters that a header cannot have.
pub fn sensitive(text: &str) -> Result<HeaderValue, hyper::header::InvalidHeaderValue> {
    let mut value = HeaderValue::from_str(text)?;
    value.set_sensitive(true);
    Ok(value)
}

/// One header.
///
/// # Errors
/// Where the value has characters that a header cannot have.
pub fn header(
    headers: &mut HeaderMap,
    name: &'static str,
    value: &str,
) -> Result<(), hyper::header::InvalidHeaderValue> {
    headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value)?);
    Ok(())
}

fn connect(
    material: &Material,
) -> Result<Client<HttpsConnector<HttpConnector>, Full<Bytes>>, RequestError> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    let tls = tls::config(material).map_err(RequestError::Setup)?;
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(http);
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .build(connector))
}

fn with_suffix(url: &Uri, suffix: &str) -> Result<Uri, RequestError> {
    if suffix.is_empty() {
        return Ok(url.clone());
    }
    let mut parts = url.clone().into_parts();
    let path = format!("{}{suffix}", url.path().trim_end_matches('/'));
    let wrong = |_| RequestError::Setup("the URL has a path that cannot be continued".to_owned());
    parts.path_and_query = Some(path.parse().map_err(wrong)?);
    Uri::from_parts(parts)
        .map_err(|_| RequestError::Setup("the URL has a path that cannot be continued".to_owned()))
}

fn answer(response: &Response<Incoming>) -> Answer {
    let asked = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok());
    Answer {
        status: response.status(),
        retry_after: asked.and_then(|value| retry_after(value, SystemTime::now())),
    }
}
