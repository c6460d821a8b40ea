//! The agent's endpoints, read. One connection for each request; every answer is bounded in size and in silence.

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
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{Present, stream::Events};

/// To connect, and for the head of an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The agent gives a sign of life every ten seconds.
const SILENCE: Duration = Duration::from_secs(25);
/// An answer larger than this is not the agent's.
const ANSWER: usize = 256 << 20;

/// Why the agent could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is none.
    #[error("`{0}` is no address of an agent; give one such as http://127.0.0.1:9842 with --url")]
    Url(String),
    /// TLS needs somebody to vouch for the agent.
    #[error("an https:// agent needs --ca-file with the certificate that vouches for it")]
    NoCa,
    /// A file is of no use.
    #[error("cannot use the file {path}: {reason}; check {flag}")]
    File {
        /// Which file.
        path: String,
        /// Why.
        reason: String,
        /// Where it was given.
        flag: &'static str,
    },
    /// Nothing answers there.
    #[error(
        "cannot reach the agent at {url}: {reason}; is `detector-agent run` running, with --listen there?"
    )]
    Unreachable {
        /// Where.
        url: String,
        /// Why.
        reason: String,
    },
    /// It asks for a token.
    #[error("the agent at {0} asks for its token; give the file with --token-file")]
    Token(String),
    /// It answers otherwise than expected.
    #[error("the agent at {url} answered {status}")]
    Status {
        /// Where.
        url: String,
        /// What.
        status: StatusCode,
    },
    /// The answer is not an agent's.
    #[error("what answers at {url} does not speak as this version's agent: {reason}")]
    Foreign {
        /// Where.
        url: String,
        /// Why.
        reason: String,
    },
    /// The connection broke.
    #[error("the connection to the agent broke: {0}")]
    Broken(String),
}

/// One agent.
pub(super) struct Client {
    url: String,
    host: String,
    port: u16,
    prefix: String,
    tls: Option<TlsConnector>,
    authorization: Option<header::HeaderValue>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Client {
    pub(super) fn new(
        url: &str,
        token_file: Option<&Path>,
        ca_file: Option<&Path>,
    ) -> Result<Self, ClientError> {
        let wrong = || ClientError::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let host = uri.host().ok_or_else(wrong)?;
        let (tls, default_port) = match uri.scheme_str() {
            Some("http") => (None, 80),
            Some("https") => (Some(connector(ca_file.ok_or(ClientError::NoCa)?)?), 443),
            _ => return Err(wrong()),
        };
        let authorization = token_file.map(token).transpose()?;
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(default_port),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            tls,
            authorization,
        })
    }

    /// All there is.
    pub(super) async fn present(&self) -> Result<Present, ClientError> {
        let mut answer = self.get("/api/v1/conflicts", None).await?.into_body();
        let mut text = Vec::new();
        while let Some(bytes) = piece(&mut answer).await? {
            if text.len() + bytes.len() > ANSWER {
                return Err(self.foreign("the answer is too large"));
            }
            text.extend_from_slice(&bytes);
        }
        serde_json::from_slice(&text).map_err(|e| self.foreign(&e.to_string()))
    }

    /// The stream of events, after the one of this id.
    pub(super) async fn events(&self, last_id: Option<&str>) -> Result<Events, ClientError> {
        let answer = self.get("/api/v1/events", last_id).await?;
        Ok(Events::over(self.url.clone(), answer.into_body()))
    }

    fn foreign(&self, reason: &str) -> ClientError {
        ClientError::Foreign {
            url: self.url.clone(),
            reason: reason.to_owned(),
        }
    }

    async fn get(
        &self,
        path: &str,
        last_id: Option<&str>,
    ) -> Result<Response<Incoming>, ClientError> {
        let unreachable = |reason: String| ClientError::Unreachable {
            url: self.url.clone(),
            reason,
        };
        let exchange = async {
            let stream = self.connect().await?;
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
        let answer = timeout(PATIENCE, exchange)
            .await
            .map_err(|_| unreachable("no answer in time".to_owned()))?
            .map_err(|e| unreachable(e.to_string()))?;
        match answer.status() {
            StatusCode::OK => Ok(answer),
            StatusCode::UNAUTHORIZED => Err(ClientError::Token(self.url.clone())),
            status => Err(ClientError::Status {
                url: self.url.clone(),
                status,
            }),
        }
    }

    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
        Ok(Box::new(tls.connect(name, stream).await?))
    }

    fn request(&self, path: &str, last_id: Option<&str>) -> io::Result<Request<Nothing>> {
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
        request.body(Nothing).map_err(io::Error::other)
    }
}

/// A request has no body.
struct Nothing;

impl hyper::body::Body for Nothing {
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

/// The next piece of an answer; `None` at its end.
pub(super) async fn piece(body: &mut Incoming) -> Result<Option<Bytes>, ClientError> {
    loop {
        let next = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
        let frame = timeout(SILENCE, next)
            .await
            .map_err(|_| ClientError::Broken("no sign of life".to_owned()))?;
        match frame {
            None => return Ok(None),
            Some(Err(e)) => return Err(ClientError::Broken(e.to_string())),
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
        return Err(file("it holds no certificate".to_owned()));
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
        .map_err(|_| file("it holds no token".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood_or_named() {
        for url in [
            "http://127.0.0.1:9842",
            "http://[::1]:9842/",
            "http://node/agent/",
        ] {
            assert!(Client::new(url, None, None).is_ok(), "{url}");
        }
        for url in ["", "127.0.0.1:9842", "ftp://node", "/path", "http://"] {
            let error = Client::new(url, None, None).err().map(|e| e.to_string());
            assert!(error.is_some_and(|e| e.contains("--url")), "{url}");
        }
        assert!(matches!(
            Client::new("https://node", None, None),
            Err(ClientError::NoCa)
        ));
    }
}
