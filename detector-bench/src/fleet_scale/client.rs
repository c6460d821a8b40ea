//! A client of the API server that speaks as an agent does: HTTP/1.1 over TLS, one request at a time on a connection.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use detector_testkit::cluster::ApiAccess;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, StatusCode,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header::{AUTHORIZATION, CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    client::Resumption,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The API server's port.
const PORT: u16 = 443;

/// How the API server is reached.
#[derive(Clone)]
pub(super) struct Api {
    address: SocketAddr,
    host: &'static str,
    server_name: ServerName<'static>,
    tls: TlsConnector,
    authorization: String,
}

/// One connection.
pub(super) struct Connection {
    requests: SendRequest<Full<Bytes>>,
    api: Api,
}

/// A request with the status that it has to be answered with.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Vec<u8>,
    pub(super) expected: StatusCode,
}

impl Call {
    /// Reads an object that exists.
    pub(super) fn get(path: String) -> Self {
        Self {
            method: Method::GET,
            path,
            body: Vec::new(),
            expected: StatusCode::OK,
        }
    }

    /// Creates an object that does not exist.
    pub(super) fn create(path: &str, body: Vec<u8>) -> Self {
        Self {
            method: Method::POST,
            path: path.to_owned(),
            body,
            expected: StatusCode::CREATED,
        }
    }

    /// The same for an object that exists.
    pub(super) fn create_again(path: &str, body: Vec<u8>) -> Self {
        Self {
            expected: StatusCode::CONFLICT,
            ..Self::create(path, body)
        }
    }

    /// Replaces a part of an object.
    pub(super) fn replace(path: String, body: Vec<u8>) -> Self {
        Self {
            method: Method::PUT,
            path,
            body,
            expected: StatusCode::OK,
        }
    }
}

impl Api {
    /// The API server of a cluster.
    pub(super) fn new(access: &ApiAccess) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(&access.authority)? {
            roots.add(certificate?)?;
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Each agent is another process: none resumes the session of another.
        config.resumption = Resumption::disabled();
        Ok(Self {
            address: SocketAddr::new(access.address.parse()?, PORT),
            host: access.server_name,
            server_name: ServerName::try_from(access.server_name)?,
            tls: TlsConnector::from(Arc::new(config)),
            authorization: format!("Bearer {}", access.token),
        })
    }

    /// A new connection.
    pub(super) async fn connect(&self) -> Result<Connection> {
        let stream = TcpStream::connect(self.address)
            .await
            .context("connecting to the API server")?;
        stream.set_nodelay(true)?;
        let stream = self.tls.connect(self.server_name.clone(), stream).await?;
        let (requests, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Its error is also the error of the request.
        tokio::spawn(connection);
        Ok(Connection {
            requests,
            api: self.clone(),
        })
    }
}

impl Connection {
    /// Sends a request and reads its answer.
    pub(super) async fn send(&mut self, call: &Call) -> Result<Bytes> {
        let (status, body) = self.open(call).await?;
        let body = body.collect().await?.to_bytes();
        if status != call.expected {
            let text = String::from_utf8_lossy(&body);
            bail!("{} {}: {status}: {text}", call.method, call.path);
        }
        Ok(body)
    }

    /// Sends a request; its answer is read by the caller, such as that of a watch.
    pub(super) async fn open(&mut self, call: &Call) -> Result<(StatusCode, Incoming)> {
        let request = Request::builder()
            .method(call.method.clone())
            .uri(&call.path)
            .header(HOST, self.api.host)
            .header(AUTHORIZATION, &self.api.authorization)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(call.body.clone())))?;
        self.requests.ready().await?;
        let (parts, body) = self.requests.send_request(request).await?.into_parts();
        Ok((parts.status, body))
    }
}
