//! Pods of this node from the Kubernetes API: watched by the agent, listed once by `check`.
//!
//! Required role: `list` and `watch` on `pods`.
//!
//! Invariants: only pods of this node are requested; of each only the fields in use are kept; the number of pods is
//! bounded. A server that is slow or absent delays nothing but its own snapshot.

mod plugins;
mod record;
mod watch;

use std::{io, sync::Arc};

use ::kube::{Api, Error, api::ListParams};
use detector_event::Via;
use detector_event::error_chain;
use http_body_util::LengthLimitError;
use k8s_openapi::api::core::v1::Pod as ApiPod;
use tokio::time::{Instant, timeout_at};

use super::source::{PodSource, SourceError, SourceSnapshot};
use crate::kube_client::{KubeClient, KubeClientError, MAX_BODY};
#[cfg(test)]
pub(crate) use plugins::PluginPod;
use plugins::plugin_pod;
pub(crate) use plugins::{PluginContainer, PluginPods};
pub(super) use record::pod_record;
pub(super) use watch::watch;

/// Most pods in a snapshot; kubelet runs 110 by default.
const MAX_PODS: usize = 8_192;
/// The status's target until the server's URL is known.
const TARGET: &str = "the Kubernetes API";

/// The pods of one node, from the API server.
#[derive(Clone, Debug)]
pub struct KubePods {
    client: KubeClient,
    node: String,
    labels: Vec<String>,
    plugins: Arc<PluginPods>,
}

impl KubePods {
    /// The pods of `node`, with these of their labels.
    #[must_use]
    pub fn new(client: KubeClient, node: &str, labels: &[String]) -> Self {
        Self {
            client,
            node: node.to_owned(),
            labels: labels.to_vec(),
            plugins: Arc::default(),
        }
    }

    /// The pods of network plugins, which are known once pods were listed.
    pub(super) fn plugins(&self) -> Arc<PluginPods> {
        Arc::clone(&self.plugins)
    }

    /// Field selector for the pods of this node.
    fn selector(&self) -> String {
        format!("spec.nodeName={}", self.node)
    }
}

/// A single list.
impl PodSource for KubePods {
    const VIA: Via = Via::Kube;

    fn target(&self) -> String {
        TARGET.to_owned()
    }

    async fn snapshot(&mut self, deadline: Instant) -> Result<SourceSnapshot, SourceError> {
        let connected = self.client.connect().await;
        let (client, server) = connected.map_err(|error| connect_error(&error))?;
        let api: Api<ApiPod> = Api::all(client);
        // From the watch cache, which has no pages and costs etcd nothing.
        let all = ListParams::default().match_any().fields(&self.selector());
        let list = timeout_at(deadline, api.list(&all))
            .await
            .map_err(|_| SourceError::Silent(format!("{server} did not answer in time")))?
            .map_err(|error| source_error(&server, &error))?;
        self.plugins.set(list.items.iter().filter_map(plugin_pod));
        let records = list.items.iter();
        let mut records: Vec<_> = records
            .filter_map(|pod| pod_record(pod, &self.labels))
            .collect();
        records.truncate(MAX_PODS);
        Ok(SourceSnapshot {
            records,
            warning: String::new(),
        })
    }
}

fn connect_error(error: &KubeClientError) -> SourceError {
    match error {
        KubeClientError::NoConfig(_) | KubeClientError::ServiceAccount(_) => {
            SourceError::Missing(error.to_string())
        }
        KubeClientError::Setup { server, source } => source_error(server, source),
    }
}

/// Classifies an error of the client library.
fn source_error(server: &str, error: &Error) -> SourceError {
    if let Error::Api(status) = error {
        let message = &status.message;
        return match status.code {
            401 => SourceError::Refused(format!(
                "{server} does not accept the credentials (401): {message}"
            )),
            403 => SourceError::Refused(format!(
                "{server} denies access (403): {message}; the role needs list and watch on pods"
            )),
            code => SourceError::Failing(format!("{server} returned {code}: {message}")),
        };
    }
    if let Some(cause) = error_chain::find::<io::Error>(error) {
        return match cause.kind() {
            io::ErrorKind::ConnectionRefused => {
                SourceError::Refused(format!("{server} refused the connection"))
            }
            io::ErrorKind::TimedOut => {
                SourceError::Silent(format!("{server} cannot be reached: {cause}"))
            }
            _ => SourceError::Failing(format!("{server}: {cause}")),
        };
    }
    if error_chain::find::<LengthLimitError>(error).is_some() {
        return SourceError::Failing(format!(
            "{server} sent a response of more than {MAX_BODY} bytes"
        ));
    }
    let cause = error_chain::root_cause(error);
    match error {
        Error::SerdeError(_) => SourceError::Foreign(format!(
            "{server} does not answer like a Kubernetes API: {cause}"
        )),
        _ => SourceError::Failing(format!("{server}: {cause}")),
    }
}
