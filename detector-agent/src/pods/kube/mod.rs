//! The Kubernetes API: which pods this node has, told by a watch; and events on the pods of a conflict.
//!
//! What it needs is this role, nothing more:
//!
//! ```yaml
//! rules:
//! - {apiGroups: [""], resources: [pods], verbs: [list, watch]}
//! - {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}
//! ```
//!
//! Invariants: only pods of this node are asked for; of each only what is used is kept; the pods that are kept and the
//! bytes of one answer are bounded; a server that is slow, silent or away costs its own words only.

pub(super) mod pods;
mod watch;

use std::{io, time::Duration};

use ::http::Response;
use ::kube::{
    Api, Client, Config, Error,
    api::ListParams,
    client::{ClientBuilder, DynBody},
};
use http_body_util::{LengthLimitError, Limited};
use k8s_openapi::api::core::v1::Pod as ApiPod;
use tokio::time::{Instant, timeout_at};
use tower::util::MapResponseLayer;

use super::{
    KubeSetting, Via,
    source::{Problem, Source, SourceSnapshot},
};
pub(super) use watch::watch;

/// Longest that connecting to the server may take.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest that an answer's next piece may be waited for: a quiet watch is ended by the server after 290 s.
const READ: Duration = Duration::from_secs(300);
/// Pods of one page of a list.
const PAGE: u32 = 100;
/// Bytes of one answer. A pod has a few thousand, so a page, or a watch of some minutes, stays far below it.
const MAX_BODY: usize = 32 << 20;
/// Pods that are kept; kubelet runs 110 of them by default.
const MAX_PODS: usize = 8_192;

/// The API server, for the pods of one node.
#[derive(Clone, Debug)]
pub struct Kube {
    node: String,
    labels: Vec<String>,
    /// `on`: a kubeconfig serves, too.
    kubeconfig: bool,
}

impl Kube {
    /// The API as the operator wants it; `None` where it is not to be used.
    #[must_use]
    pub fn new(setting: KubeSetting, node: &str, labels: &[String]) -> Option<Self> {
        let kubeconfig = match setting {
            KubeSetting::Off => return None,
            KubeSetting::On => true,
            // What kubelet sets in every pod.
            KubeSetting::Auto if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() => false,
            KubeSetting::Auto => return None,
        };
        Some(Self {
            node: node.to_owned(),
            labels: labels.to_vec(),
            kubeconfig,
        })
    }

    /// A client, and the server's address.
    pub(crate) async fn client(&self) -> Result<(Client, String), Problem> {
        let config = if self.kubeconfig {
            Config::infer().await.map_err(|error| {
                Problem::Missing(format!("no way to the Kubernetes API is known: {error}"))
            })?
        } else {
            Config::incluster().map_err(|error| {
                Problem::Missing(format!(
                    "the pod's service account cannot be used: {error}; is its token mounted?"
                ))
            })?
        };
        let server = config.cluster_url.to_string();
        let client = client(config).map_err(|error| problem(&server, &error))?;
        Ok((client, server))
    }

    /// A client for other readers of the API; where there is none, why.
    pub(crate) async fn api_client(&self) -> Result<Client, String> {
        let client = self.client().await.map_err(|problem| problem.to_string())?;
        Ok(client.0)
    }

    /// Selects the pods of this node.
    fn selector(&self) -> String {
        format!("spec.nodeName={}", self.node)
    }
}

/// A client with the bounds above.
fn client(mut config: Config) -> Result<Client, Error> {
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(READ);
    let bounded = MapResponseLayer::new(|answer: Response<Box<DynBody>>| {
        answer.map(|body| Limited::new(body, MAX_BODY))
    });
    Ok(ClientBuilder::try_from(config)?
        .with_layer(&bounded)
        .build())
}

/// A single list, for `check`; an agent that stays watches.
impl Source for Kube {
    const VIA: Via = Via::Kube;

    fn target(&self) -> String {
        "the Kubernetes API".to_owned()
    }

    async fn records(&mut self, deadline: Instant) -> Result<SourceSnapshot, Problem> {
        let (client, server) = self.client().await?;
        let api: Api<ApiPod> = Api::all(client);
        let mut records = Vec::new();
        let mut page = ListParams::default().fields(&self.selector()).limit(PAGE);
        loop {
            let list = timeout_at(deadline, api.list(&page))
                .await
                .map_err(|_| Problem::Silent(format!("{server} did not answer in time")))?
                .map_err(|error| problem(&server, &error))?;
            records.extend(
                list.items
                    .iter()
                    .filter_map(|p| pods::record(p, &self.labels)),
            );
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) if records.len() < MAX_PODS => page.continue_token = Some(token),
                _ => break,
            }
        }
        records.truncate(MAX_PODS);
        Ok(SourceSnapshot {
            records,
            remark: String::new(),
        })
    }
}

/// What a client's error means.
fn problem(server: &str, error: &Error) -> Problem {
    if let Error::Api(status) = error {
        let said = &status.message;
        return match status.code {
            401 => Problem::Refused(format!("{server} does not know who asks (401): {said}")),
            403 => Problem::Refused(format!(
                "{server} forbids it (403): {said}; the role needs list and watch on pods"
            )),
            code => Problem::Failing(format!("{server} answers {code}: {said}")),
        };
    }
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    let mut innermost = error.to_string();
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return match io.kind() {
                io::ErrorKind::ConnectionRefused => {
                    Problem::Refused(format!("nobody listens at {server}"))
                }
                io::ErrorKind::TimedOut => {
                    Problem::Silent(format!("{server} cannot be reached: {io}"))
                }
                _ => Problem::Failing(format!("{server}: {io}")),
            };
        }
        if error.is::<LengthLimitError>() {
            return Problem::Failing(format!(
                "{server} sends more than {MAX_BODY} bytes in one answer"
            ));
        }
        innermost = error.to_string();
        cause = error.source();
    }
    match error {
        Error::SerdeError(_) => Problem::Foreign(format!(
            "{server} does not answer as a Kubernetes API: {innermost}"
        )),
        _ => Problem::Failing(format!("{server}: {innermost}")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use rustls::{ServerConfig, crypto::ring};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// Serves one empty list over TLS with a certificate of its own making.
    async fn server() -> (Config, tokio::task::JoinHandle<()>) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![made.cert.der().clone()],
                made.signing_key.serialize_der().try_into().unwrap(),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut client = Config::new(format!("https://localhost:{port}").parse().unwrap());
        client.root_cert = Some(vec![made.cert.der().to_vec()]);
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = TlsAcceptor::from(Arc::new(config)).accept(stream).await else {
                return;
            };
            let mut request = vec![0; 8192];
            let _ = stream.read(&mut request).await.unwrap();
            let body = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}"#;
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        });
        (client, serving)
    }

    #[tokio::test]
    async fn the_client_speaks_tls_with_the_clusters_own_authority() {
        let (config, serving) = server().await;
        let api: Api<ApiPod> = Api::all(client(config).unwrap());
        let list = api.list(&ListParams::default()).await.unwrap();
        assert!(list.items.is_empty());
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn a_server_of_another_authority_is_not_spoken_to() {
        let (mut config, _serving) = server().await;
        let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        config.root_cert = Some(vec![other.cert.der().to_vec()]);
        let api: Api<ApiPod> = Api::all(client(config).unwrap());
        assert!(api.list(&ListParams::default()).await.is_err());
    }
}
