//! HTTP client for the endpoints of a running agent, used by `watch` and `check`. It opens one connection per request, and
//! bounds the size of a response and the time without data.

use std::{future::poll_fn, io, path::Path, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::{
    Request, Response, StatusCode, Uri,
    body::{Body as _, Incoming},
    header,
};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::{
    cli::AgentArgs,
    event::{AnomalyData, ConflictData},
    health::PartReport,
};

/// Limit for connecting and for receiving the head of a response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for the time without data; the agent sends a heartbeat every ten seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(25);
/// Largest accepted response, in bytes.
const MAX_RESPONSE: usize = 256 << 20;

/// Why the agent cannot be queried.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL is invalid.
    #[error("`{0}` is not a valid agent URL; give one such as http://127.0.0.1:9842 with --url")]
    Url(String),
    /// An https URL without a CA certificate.
    #[error("an https:// URL requires --ca-file with the CA certificate of the agent")]
    NoCa,
    /// A file cannot be used.
    #[error("cannot use the file {path}: {reason}; check {flag}")]
    File {
        /// Path of the file.
        path: String,
        /// The cause.
        reason: String,
        /// The flag that named it.
        flag: &'static str,
    },
    /// No connection.
    #[error(
        "cannot reach the agent at {url}: {reason}; check that `detector-agent run` is running with --listen on this address"
    )]
    Unreachable {
        /// URL of the agent.
        url: String,
        /// The cause.
        reason: String,
    },
    /// A connection, but no response in time.
    #[error("the agent at {url} does not respond: {reason}")]
    NoResponse {
        /// URL of the agent.
        url: String,
        /// The cause.
        reason: String,
    },
    /// The token is missing or invalid.
    #[error("the agent at {0} requires a valid token; give its file with --token-file")]
    Token(String),
    /// An unexpected status code.
    #[error("the agent at {url} responded with {status}")]
    Status {
        /// URL of the agent.
        url: String,
        /// The status code.
        status: StatusCode,
    },
    /// The response cannot be parsed.
    #[error("invalid response from {url}, which may not be an agent of this version: {reason}")]
    InvalidResponse {
        /// URL of the agent.
        url: String,
        /// The cause.
        reason: String,
    },
    /// The connection ended during a response.
    #[error("lost the connection to the agent: {0}")]
    ConnectionLost(String),
}

/// The response of `/api/v1/conflicts`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Overview {
    pub(crate) node: String,
    #[serde(default)]
    pub(crate) ready: bool,
    pub(crate) conflicts: Vec<ConflictData>,
    #[serde(default)]
    pub(crate) resolved: Vec<ConflictData>,
    /// Added by [`Client::overview`].
    #[serde(skip)]
    pub(crate) anomalies: Vec<AnomalyData>,
}

/// The response of `/api/v1/anomalies`.
#[derive(Deserialize)]
struct OpenAnomalies {
    anomalies: Vec<AnomalyData>,
}

/// The response of `/readyz`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct AgentStatus {
    pub(crate) ready: bool,
    #[serde(default)]
    pub(crate) version: String,
    /// Pod devices; `None` until they are known.
    #[serde(default)]
    pub(crate) devices: Option<usize>,
    #[serde(default)]
    pub(crate) parts: Vec<PartReport>,
}

/// Client for one agent.
pub(crate) struct Client {
    url: String,
    host: String,
    port: u16,
    prefix: String,
    tls: Option<TlsConnector>,
    authorization: Option<header::HeaderValue>,
}

trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Transport for T {}

impl Client {
    pub(crate) fn new(args: &AgentArgs) -> Result<Self, ClientError> {
        let AgentArgs {
            url,
            token_file,
            ca_file,
        } = args;
        let invalid = || ClientError::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| invalid())?;
        let host = uri.host().ok_or_else(invalid)?;
        let (tls, default_port) = match uri.scheme_str() {
            Some("http") => (None, 80),
            Some("https") => {
                let ca_file = ca_file.as_deref().ok_or(ClientError::NoCa)?;
                (Some(connector(ca_file)?), 443)
            }
            _ => return Err(invalid()),
        };
        let authorization = token_file.as_deref().map(token).transpose()?;
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(default_port),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            tls,
            authorization,
        })
    }

    /// All conflicts, active and recently resolved, and the open anomalies.
    pub(crate) async fn overview(&self) -> Result<Overview, ClientError> {
        let mut overview: Overview = self
            .json(self.get("/api/v1/conflicts", None).await?)
            .await?;
        let open: OpenAnomalies = self
            .json(self.get("/api/v1/anomalies", None).await?)
            .await?;
        overview.anomalies = open.anomalies;
        Ok(overview)
    }

    /// Readiness and the state of the agent's parts.
    pub(crate) async fn status(&self) -> Result<AgentStatus, ClientError> {
        let response = self.send("/readyz", None).await?;
        match response.status() {
            // Answered with details also while the agent is not ready.
            StatusCode::SERVICE_UNAVAILABLE => self.json(response).await,
            _ => self.json(self.accepted(response)?).await,
        }
    }

    /// The body of the event stream, resumed after the event `last_id`.
    pub(crate) async fn events(&self, last_id: Option<&str>) -> Result<Incoming, ClientError> {
        let response = self.get("/api/v1/events", last_id).await?;
        Ok(response.into_body())
    }

    /// URL of the agent, for errors.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    async fn json<T: DeserializeOwned>(
        &self,
        response: Response<Incoming>,
    ) -> Result<T, ClientError> {
        let mut body = response.into_body();
        let mut text = Vec::new();
        while let Some(bytes) = next_chunk(&mut body).await? {
            if text.len() + bytes.len() > MAX_RESPONSE {
                return Err(self.invalid_response("the response is too large"));
            }
            text.extend_from_slice(&bytes);
        }
        serde_json::from_slice(&text).map_err(|e| self.invalid_response(&e.to_string()))
    }

    fn invalid_response(&self, reason: &str) -> ClientError {
        ClientError::InvalidResponse {
            url: self.url.clone(),
            reason: reason.to_owned(),
        }
    }

    async fn get(
        &self,
        path: &str,
        last_id: Option<&str>,
    ) -> Result<Response<Incoming>, ClientError> {
        self.accepted(self.send(path, last_id).await?)
    }

    fn accepted(&self, response: Response<Incoming>) -> Result<Response<Incoming>, ClientError> {
        match response.status() {
            StatusCode::OK => Ok(response),
            StatusCode::UNAUTHORIZED => Err(ClientError::Token(self.url.clone())),
            status => Err(ClientError::Status {
                url: self.url.clone(),
                status,
            }),
        }
    }

    async fn send(
        &self,
        path: &str,
        last_id: Option<&str>,
    ) -> Result<Response<Incoming>, ClientError> {
        let unreachable = |reason: String| ClientError::Unreachable {
            url: self.url.clone(),
            reason,
        };
        let no_response = |reason: String| ClientError::NoResponse {
            url: self.url.clone(),
            reason,
        };
        let tcp = timeout(
            REQUEST_TIMEOUT,
            TcpStream::connect((self.host.as_str(), self.port)),
        )
        .await
        .map_err(|_| unreachable("no connection in time".to_owned()))?
        .map_err(|e| unreachable(e.to_string()))?;
        let exchange = async {
            let stream = self.secure(tcp).await?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream))
                    .await
                    .map_err(io::Error::other)?;
            tokio::spawn(connection);
            sender
                .send_request(self.request(path, last_id)?)
                .await
                .map_err(io::Error::other)
        };
        timeout(REQUEST_TIMEOUT, exchange)
            .await
            .map_err(|_| no_response("no response in time".to_owned()))?
            .map_err(|e| no_response(e.to_string()))
    }

    async fn secure(&self, stream: TcpStream) -> io::Result<Box<dyn Transport>> {
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
        Ok(Box::new(tls.connect(name, stream).await?))
    }

    fn request(&self, path: &str, last_id: Option<&str>) -> io::Result<Request<EmptyBody>> {
        let host = if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        };
        let mut request = Request::get(format!("{}{path}", self.prefix)).header(header::HOST, host);
        if let Some(token) = &self.authorization {
            request = request.header(header::AUTHORIZATION, token);
        }
        if let Some(id) = last_id {
            request = request.header("last-event-id", id);
        }
        request.body(EmptyBody).map_err(io::Error::other)
    }
}

/// The body of a GET request.
struct EmptyBody;

impl hyper::body::Body for EmptyBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }
}

/// The next chunk of a response; `None` at its end.
pub(crate) async fn next_chunk(body: &mut Incoming) -> Result<Option<Bytes>, ClientError> {
    loop {
        let next = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
        let frame = timeout(IDLE_TIMEOUT, next)
            .await
            .map_err(|_| ClientError::ConnectionLost("no data in time".to_owned()))?;
        match frame {
            None => return Ok(None),
            Some(Err(e)) => return Err(ClientError::ConnectionLost(e.to_string())),
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

fn connector(ca: &Path) -> Result<TlsConnector, ClientError> {
    let file = |reason: String| ClientError::File {
        path: ca.display().to_string(),
        reason,
        flag: "--ca-file",
    };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(ca).map_err(|e| file(e.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|e| file(e.to_string()))?;
        roots.add(certificate).map_err(|e| file(e.to_string()))?;
    }
    if roots.is_empty() {
        return Err(file("it contains no certificate".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| file(e.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn token(path: &Path) -> Result<header::HeaderValue, ClientError> {
    let file = |reason: String| ClientError::File {
        path: path.display().to_string(),
        reason,
        flag: "--token-file",
    };
    let text = std::fs::read_to_string(path).map_err(|e| file(e.to_string()))?;
    let mut value = header::HeaderValue::from_str(&format!("Bearer {}", text.trim()))
        .map_err(|_| file("it contains no valid token".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(url: &str) -> Result<Client, ClientError> {
        Client::new(&AgentArgs {
            url: url.to_owned(),
            token_file: None,
            ca_file: None,
        })
    }

    #[test]
    fn invalid_urls_are_rejected_with_the_flag_name() {
        for url in [
            "http://127.0.0.1:9842",
            "http://[::1]:9842/",
            "http://node/agent/",
        ] {
            assert!(client(url).is_ok(), "{url}");
        }
        for url in [
            "",
            "127.0.0.1:9842",
            "ftp://node",
            "/path",
            "http://",
            "none",
        ] {
            let error = client(url).err().map(|e| e.to_string());
            assert!(error.is_some_and(|e| e.contains("--url")), "{url}");
        }
        assert!(matches!(client("https://node"), Err(ClientError::NoCa)));
    }
}
