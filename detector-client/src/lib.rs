//! HTTP client for the endpoints of a running agent, used by `watch`, `check` and `kubectl ipconflict`. It bounds the size of a
//! response and the time without data.

mod answers;
mod error;
mod explained;
mod files;
#[cfg(unix)]
mod local;
pub mod name_service;
pub mod packaging;

use std::{
    future::poll_fn,
    io,
    net::{IpAddr, Ipv6Addr},
    path::PathBuf,
    pin::Pin,
    time::Duration,
};

use bytes::Bytes;
use detector_event::{
    AnomalyData, ClaimData, ConflictData, SubjectId,
    answers::{AnomalyList, ClaimList, ConflictList, HistoryList, OneAnomaly, OneConflict},
};
use http_body_util::Empty;
use hyper::{
    Request, Response, StatusCode, Uri,
    body::{Body as _, Incoming},
    client::conn::http1::{SendRequest, handshake},
    header,
};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

pub use answers::{AgentStatus, Gap, Overview};
pub use error::ClientError;
pub use explained::Timelines;
use files::{connector, token};

/// Limit for connecting and for receiving the head of a response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for the time without data; the agent sends a heartbeat every ten seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(25);
/// Largest accepted response, in bytes.
const MAX_RESPONSE: usize = 256 << 20;

/// How to reach an agent.
#[derive(Clone, Debug)]
pub struct AgentAddress {
    /// Its URL.
    pub url: String,
    /// File with the token that it requires.
    pub token_file: Option<PathBuf>,
    /// CA certificates that verify an https:// agent.
    pub ca_file: Option<PathBuf>,
}

/// Client for one agent.
pub struct Client {
    url: String,
    host: String,
    port: u16,
    prefix: String,
    tls: Option<TlsConnector>,
    authorization: Option<header::HeaderValue>,
    /// The agent's socket, instead of its port.
    #[cfg(unix)]
    socket: Option<PathBuf>,
}

/// A connection to an agent: TCP, or whatever leads there.
pub trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Transport for T {}

/// An open connection, for one request after the other.
pub struct Connection<'c> {
    client: &'c Client,
    sender: SendRequest<Empty<Bytes>>,
}

impl Client {
    /// A client that is not connected yet.
    ///
    /// # Errors
    /// If the URL or a file is unusable.
    pub fn new(address: &AgentAddress) -> Result<Self, ClientError> {
        let AgentAddress {
            url,
            token_file,
            ca_file,
        } = address;
        let invalid = || ClientError::Url(url.to_owned());
        let uri = parse(url).ok_or_else(invalid)?;
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
            #[cfg(unix)]
            socket: None,
        })
    }

    /// URL of the agent, for errors.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The port that the agent listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// All conflicts, active and recently resolved, and the open anomalies.
    ///
    /// # Errors
    /// If there is no connection or no valid answer. The same holds for the methods below.
    pub async fn overview(&self) -> Result<Overview, ClientError> {
        self.connect().await?.overview(None).await
    }

    /// Readiness and the state of the agent's parts.
    pub async fn status(&self) -> Result<AgentStatus, ClientError> {
        self.connect().await?.status().await
    }

    /// The body of the event stream, resumed after the event `last_id`.
    pub async fn events(&self, last_id: Option<&str>) -> Result<Incoming, ClientError> {
        let mut connection = self.connect().await?;
        let response = connection.get("/api/v1/events", last_id).await?;
        Ok(response.into_body())
    }

    /// Connects to the agent, for several requests.
    pub async fn connect(&self) -> Result<Connection<'_>, ClientError> {
        #[cfg(unix)]
        if let Some(socket) = &self.socket {
            return self.connect_over(local::connect(socket).await?).await;
        }
        let unreachable = |reason: String| ClientError::Unreachable {
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
        self.connect_over(tcp).await
    }

    /// Connects over a stream that leads to the agent's port.
    ///
    /// # Errors
    /// If TLS fails.
    pub async fn connect_over(
        &self,
        stream: impl Transport + 'static,
    ) -> Result<Connection<'_>, ClientError> {
        let connect = async {
            let stream = self.secure(stream).await?;
            handshake(TokioIo::new(stream))
                .await
                .map_err(io::Error::other)
        };
        let (sender, connection) = self.in_time(connect).await?;
        tokio::spawn(connection);
        Ok(Connection {
            client: self,
            sender,
        })
    }

    async fn in_time<T>(
        &self,
        exchange: impl Future<Output = io::Result<T>>,
    ) -> Result<T, ClientError> {
        let no_response = |reason: String| ClientError::NoResponse {
            url: self.url.clone(),
            reason,
        };
        timeout(REQUEST_TIMEOUT, exchange)
            .await
            .map_err(|_| no_response("no response in time".to_owned()))?
            .map_err(|e| no_response(e.to_string()))
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

    async fn secure(&self, stream: impl Transport + 'static) -> io::Result<Box<dyn Transport>> {
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
        Ok(Box::new(tls.connect(name, stream).await?))
    }

    fn request(&self, path: &str, last_id: Option<&str>) -> io::Result<Request<Empty<Bytes>>> {
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
        request.body(Empty::new()).map_err(io::Error::other)
    }
}

impl Connection<'_> {
    /// The conflicts and the open anomalies, all or those of an address.
    ///
    /// # Errors
    /// If the agent gives no valid answer. The same holds for the methods below.
    pub async fn overview(&mut self, address: Option<IpAddr>) -> Result<Overview, ClientError> {
        let query = address.map(|address| format!("?address={address}"));
        let query = query.unwrap_or_default();
        let list: ConflictList = self.list(&format!("/api/v1/conflicts{query}")).await?;
        let open: AnomalyList = self.list(&format!("/api/v1/anomalies{query}")).await?;
        Ok(Overview {
            node: list.head.node,
            ready: list.head.ready,
            conflicts: list.conflicts,
            resolved: list.resolved,
            anomalies: open.anomalies,
        })
    }

    /// The claims of an address.
    pub async fn claims(&mut self, address: IpAddr) -> Result<Vec<ClaimData>, ClientError> {
        let path = format!("/api/v1/claims?address={address}");
        let open: ClaimList = self.list(&path).await?;
        Ok(open.claims)
    }

    /// The newest conflicts and anomalies that ended, at most `limit`; all or those of an address.
    pub async fn history(
        &mut self,
        address: Option<IpAddr>,
        limit: usize,
    ) -> Result<HistoryList, ClientError> {
        let address = address.map(|address| format!("&address={address}"));
        let address = address.unwrap_or_default();
        self.list(&format!("/api/v1/history?limit={limit}{address}"))
            .await
    }

    /// A conflict with its timeline; `None` if it is not known.
    pub async fn conflict(&mut self, id: SubjectId) -> Result<Option<ConflictData>, ClientError> {
        let one: Option<OneConflict> = self.one(&format!("/api/v1/conflicts/{id}")).await?;
        Ok(one.map(|one| one.conflict))
    }

    /// An anomaly with its timeline; `None` if it is not known.
    pub async fn anomaly(&mut self, id: SubjectId) -> Result<Option<AnomalyData>, ClientError> {
        let one: Option<OneAnomaly> = self.one(&format!("/api/v1/anomalies/{id}")).await?;
        Ok(one.map(|one| one.anomaly))
    }

    /// Readiness and the state of the agent's parts.
    pub async fn status(&mut self) -> Result<AgentStatus, ClientError> {
        let response = self.send("/readyz", None).await?;
        match response.status() {
            // Answered with details even while the agent is not ready.
            StatusCode::SERVICE_UNAVAILABLE => self.client.json(response).await,
            _ => self.client.json(self.client.accepted(response)?).await,
        }
    }

    async fn one<T: DeserializeOwned>(&mut self, path: &str) -> Result<Option<T>, ClientError> {
        match self.list(path).await {
            Ok(one) => Ok(Some(one)),
            Err(ClientError::Status { status, .. }) if status == StatusCode::NOT_FOUND => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, ClientError> {
        let response = self.get(path, None).await?;
        self.client.json(response).await
    }

    async fn get(
        &mut self,
        path: &str,
        last_id: Option<&str>,
    ) -> Result<Response<Incoming>, ClientError> {
        let response = self.send(path, last_id).await?;
        self.client.accepted(response)
    }

    async fn send(
        &mut self,
        path: &str,
        last_id: Option<&str>,
    ) -> Result<Response<Incoming>, ClientError> {
        let client = self.client;
        let exchange = async {
            let request = client.request(path, last_id)?;
            self.sender.ready().await.map_err(io::Error::other)?;
            let response = self.sender.send_request(request).await;
            response.map_err(io::Error::other)
        };
        client.in_time(exchange).await
    }
}

/// The next chunk of a response; `None` at its end.
pub async fn next_chunk(body: &mut Incoming) -> Result<Option<Bytes>, ClientError> {
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

/// Accepts an IPv6 address without brackets before the port, as `$(NODE_IP)` in a manifest gives it.
fn parse(url: &str) -> Option<Uri> {
    url.parse().ok().or_else(|| {
        let (scheme, rest) = url.split_once("://")?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = authority.rsplit_once(':')?;
        let host: Ipv6Addr = host.parse().ok()?;
        let port: u16 = port.parse().ok()?;
        format!("{scheme}://[{host}]:{port}{path}").parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(url: &str) -> Result<Client, ClientError> {
        Client::new(&AgentAddress {
            url: url.to_owned(),
            token_file: None,
            ca_file: None,
        })
    }

    #[test]
    fn bare_ipv6_address_before_a_port_is_the_host() -> Result<(), ClientError> {
        for url in ["http://fd00::1:9842/a", "http://[fd00::1]:9842/a"] {
            let client = client(url)?;
            let target = (client.host.as_str(), client.port, client.prefix.as_str());
            assert_eq!(target, ("fd00::1", 9842, "/a"), "{url}");
        }
        Ok(())
    }

    #[test]
    fn invalid_urls_are_rejected_with_the_flag_name() {
        for url in [
            "http://127.0.0.1:9842",
            "http://[::1]:9842/",
            "http://fd00::1:9842",
            "http://fd00::1:9842/agent/",
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
            "http://fd00::1",
            "http://fd00::1:port",
        ] {
            let error = client(url).err().map(|e| e.to_string());
            assert!(error.is_some_and(|e| e.contains("--url")), "{url}");
        }
        assert!(matches!(client("https://node"), Err(ClientError::NoCa)));
    }
}
