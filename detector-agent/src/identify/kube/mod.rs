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
//! Invariants: only pods of this node are asked for; of each only what is used is kept; a server that is slow, silent
//! or away costs its own words only.

mod events;
mod pods;
mod watch;

use std::{io, time::Duration};

use ::kube::{Api, Client, Config, Error, api::ListParams};
use k8s_openapi::api::core::v1::Pod as ApiPod;
use tokio::time::{Instant, timeout_at};

use super::{
    KubeSetting, Via,
    source::{Problem, Source, Told},
};
pub use events::KubeEvents;
pub(super) use watch::watch;

/// Longest that connecting to the server may take.
const CONNECT: Duration = Duration::from_secs(5);
/// Pods of one page of a list.
const PAGE: u32 = 500;
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
    async fn client(&self) -> Result<(Client, String), Problem> {
        let mut config = if self.kubeconfig {
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
        config.connect_timeout = Some(CONNECT);
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config).map_err(|error| problem(&server, &error))?;
        Ok((client, server))
    }

    /// Selects the pods of this node.
    fn selector(&self) -> String {
        format!("spec.nodeName={}", self.node)
    }
}

/// A single list, for `check`; an agent that stays watches.
impl Source for Kube {
    const VIA: Via = Via::Kube;

    fn target(&self) -> String {
        "the Kubernetes API".to_owned()
    }

    async fn records(&mut self, deadline: Instant) -> Result<Told, Problem> {
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
        Ok(Told {
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
