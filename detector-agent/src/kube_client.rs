//! The connection to the Kubernetes API server that pod lookups, Calico's IPAM, Kubernetes Events and the comparison across
//! nodes share.
//!
//! Connecting and reading have deadlines, and one response is at most [`MAX_BODY`] bytes long. Each new client reads its
//! credentials again, so callers connect again after a 401 to pick up a rotated token.

#[cfg(test)]
pub(crate) mod simulated;
pub(crate) mod watch;

use std::time::Duration;

use ::kube::{
    Client, Config, Error,
    client::{ClientBuilder, DynBody},
};
use clap::ValueEnum;
use http_body_util::Limited;
use hyper::Response;
use sha2::{Digest as _, Sha256};
use tower::util::MapResponseLayer;

/// Deadline for connecting to the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Deadline for the next bytes of a response. The server ends an idle watch after 290 s.
const READ_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest response, in bytes, unless a caller has another bound. A pod takes a few thousand, so a page of a list, or a watch of some minutes, stays far
/// below.
pub const MAX_BODY: usize = 32 << 20;

/// Whether to use the Kubernetes API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KubeMode {
    /// In a pod of a cluster.
    Auto,
    /// With a kubeconfig (`KUBECONFIG`, `~/.kube/config`), else as in a pod.
    On,
    /// Not at all.
    Off,
}

/// Why there is no client; one sentence.
pub(crate) const NOT_USED: &str = "the Kubernetes API is not used; enable it with --kube";

/// Where the API server's address and credentials come from.
#[derive(Clone, Debug)]
pub struct KubeClient {
    source: ConfigSource,
}

#[derive(Clone, Debug)]
enum ConfigSource {
    /// As in a pod.
    InCluster,
    /// A kubeconfig if there is one, else as in a pod.
    Kubeconfig,
    /// A server inside the process.
    #[cfg(test)]
    Simulated(simulated::SimulatedApi),
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum KubeClientError {
    /// There is neither a kubeconfig nor a service account.
    #[error("no usable Kubernetes API configuration: {0}")]
    NoConfig(String),
    /// The files that kubelet mounts into a pod are missing or unusable.
    #[error("the pod's service account cannot be used: {0}; is its token mounted?")]
    ServiceAccount(String),
    /// The configuration has something that no client can be made of, such as a bad certificate.
    #[error("cannot set up a client for {server}: {source}")]
    Setup {
        /// The server's URL.
        server: String,
        /// The client library's error.
        source: Error,
    },
}

impl KubeClient {
    /// A client of a server inside the process.
    #[cfg(test)]
    pub(crate) fn simulated(api: &simulated::SimulatedApi) -> Self {
        Self {
            source: ConfigSource::Simulated(api.clone()),
        }
    }

    /// `None` if the API is not to be used: with [`KubeMode::Off`], and with [`KubeMode::Auto`] outside a cluster.
    #[must_use]
    pub fn new(mode: KubeMode) -> Option<Self> {
        let source = match mode {
            KubeMode::Off => None,
            KubeMode::On => Some(ConfigSource::Kubeconfig),
            // kubelet sets this variable in every pod.
            KubeMode::Auto => std::env::var_os("KUBERNETES_SERVICE_HOST")
                .is_some()
                .then_some(ConfigSource::InCluster),
        };
        source.map(|source| Self { source })
    }

    /// A client with current credentials, and the server's URL. Sends nothing yet.
    ///
    /// # Errors
    /// If the configuration or the credentials are unusable.
    pub async fn connect(&self) -> Result<(Client, String), KubeClientError> {
        self.connect_with(MAX_BODY, |_| {}).await
    }

    /// The same with a bound of its own for each response, in bytes.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub(crate) async fn connect_bounded(
        &self,
        max_body: usize,
    ) -> Result<(Client, String), KubeClientError> {
        self.connect_with(max_body, |_| {}).await
    }

    /// The same for requests whose pace the caller decides: what fails is not sent again.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_without_retries(&self) -> Result<Client, KubeClientError> {
        let connected = self.connect_with(MAX_BODY, |config| config.default_retry = false);
        connected.await.map(|(client, _)| client)
    }

    /// What distinguishes the cluster from another one that the node was in before: a hash of its URL and of the certificates of its
    /// authority. A cluster that is restored from a backup keeps both.
    ///
    /// # Errors
    /// If the configuration is unusable.
    pub(crate) async fn cluster_identity(&self) -> Result<String, KubeClientError> {
        let config = self.config().await?;
        let mut hash = Sha256::new_with_prefix(config.cluster_url.to_string());
        for certificate in config.root_cert.iter().flatten() {
            hash.update(certificate);
        }
        let hash = hash.finalize();
        Ok(hash.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    async fn config(&self) -> Result<Config, KubeClientError> {
        match &self.source {
            ConfigSource::Kubeconfig => Config::infer()
                .await
                .map_err(|error| KubeClientError::NoConfig(error.to_string())),
            ConfigSource::InCluster => Config::incluster()
                .map_err(|error| KubeClientError::ServiceAccount(error.to_string())),
            #[cfg(test)]
            ConfigSource::Simulated(_) => {
                Ok(Config::new(hyper::Uri::from_static("http://simulated")))
            }
        }
    }

    async fn connect_with(
        &self,
        max_body: usize,
        adapt: impl FnOnce(&mut Config),
    ) -> Result<(Client, String), KubeClientError> {
        #[cfg(test)]
        if let ConfigSource::Simulated(api) = &self.source {
            return Ok((api.bounded_client(max_body), "simulated".to_owned()));
        }
        let mut config = self.config().await?;
        adapt(&mut config);
        let server = config.cluster_url.to_string();
        match bounded_client(config, max_body) {
            Ok(client) => Ok((client, server)),
            Err(source) => Err(KubeClientError::Setup { server, source }),
        }
    }
}

fn bounded_client(mut config: Config, max_body: usize) -> Result<Client, Error> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    let bounded = MapResponseLayer::new(move |response: Response<Box<DynBody>>| {
        response.map(|body| Limited::new(body, max_body))
    });
    Ok(ClientBuilder::try_from(config)?
        .with_layer(&bounded)
        .build())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use ::kube::{Api, api::ListParams};
    use k8s_openapi::api::core::v1::Pod;
    use rustls::{ServerConfig, crypto::ring};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// Serves one empty list over TLS with a self-signed certificate.
    async fn server() -> (Config, tokio::task::JoinHandle<()>) {
        let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.cert.der().clone()],
                certificate.signing_key.serialize_der().try_into().unwrap(),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut client = Config::new(format!("https://localhost:{port}").parse().unwrap());
        client.root_cert = Some(vec![certificate.cert.der().to_vec()]);
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = TlsAcceptor::from(Arc::new(config)).accept(stream).await else {
                return;
            };
            let mut request = vec![0; 8192];
            let _ = stream.read(&mut request).await.unwrap();
            let body = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}"#;
            let response = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(response.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        });
        (client, serving)
    }

    #[tokio::test]
    async fn tls_accepts_the_clusters_own_authority() {
        let (config, serving) = server().await;
        let api: Api<Pod> = Api::all(bounded_client(config, MAX_BODY).unwrap());
        let list = api.list(&ListParams::default()).await.unwrap();
        assert!(list.items.is_empty());
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn tls_rejects_another_authority() {
        let (mut config, _serving) = server().await;
        let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        config.root_cert = Some(vec![other.cert.der().to_vec()]);
        let api: Api<Pod> = Api::all(bounded_client(config, MAX_BODY).unwrap());
        assert!(api.list(&ListParams::default()).await.is_err());
    }
}
