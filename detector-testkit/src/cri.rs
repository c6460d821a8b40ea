//! What kubelet calls to create pods.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};
use detector_cri::{
    Empty, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, ListPodSandboxRequest,
    ListPodSandboxResponse, NODE_NETWORK, NamespaceOption, PodSandboxConfig, PodSandboxMetadata,
    PodSandboxStatusRequest, PodSandboxStatusResponse, RunPodSandboxRequest, RuntimeService,
    SandboxId,
};
use tokio::{runtime::Runtime, time::timeout};

/// Timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A client of a container runtime's CRI socket.
#[derive(Debug)]
pub(crate) struct CriClient {
    runtime: Runtime,
    service: RuntimeService,
}

impl CriClient {
    /// Connects and checks that the runtime responds.
    pub(crate) fn open(socket: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let service = runtime.block_on(RuntimeService::connect(socket))?;
        let client = Self { runtime, service };
        let _: Empty = client.call("Version", Empty {})?;
        Ok(client)
    }

    /// Calls `RunPodSandbox` and returns the sandbox id.
    pub(crate) fn run(&self, namespace: &str, name: &str, uid: &str) -> Result<String> {
        let context = None;
        self.run_config(config(namespace, name, uid, String::new(), context))
            .map(|(id, _)| id)
    }

    /// Runs a sandbox in the node's network, with its container logs in `logs`. Also returns the configuration, which each
    /// `CreateContainer` must repeat.
    pub(crate) fn run_on_node(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        logs: &Path,
        privileged: bool,
    ) -> Result<(String, PodSandboxConfig)> {
        let context = LinuxSandboxSecurityContext {
            namespaces: Some(NamespaceOption {
                network: NODE_NETWORK,
                pid: 1,
            }),
            privileged,
        };
        let logs = logs.display().to_string();
        self.run_config(config(namespace, name, uid, logs, Some(context)))
    }

    fn run_config(&self, config: PodSandboxConfig) -> Result<(String, PodSandboxConfig)> {
        let request = RunPodSandboxRequest {
            config: Some(config.clone()),
        };
        let response: SandboxId = self.call("RunPodSandbox", request)?;
        Ok((response.id, config))
    }

    /// The ids of all sandboxes.
    pub(crate) fn list(&self) -> Result<Vec<String>> {
        let response: ListPodSandboxResponse =
            self.call("ListPodSandbox", ListPodSandboxRequest {})?;
        Ok(response.items.into_iter().map(|item| item.id).collect())
    }

    /// Calls `StopPodSandbox`, which removes the network, and `RemovePodSandbox`.
    pub(crate) fn remove(&self, id: &str) -> Result<()> {
        for method in ["StopPodSandbox", "RemovePodSandbox"] {
            let _: Empty = self.call(method, SandboxId { id: id.to_owned() })?;
        }
        Ok(())
    }

    /// The JSON in the runtime's verbose status of a sandbox.
    pub(crate) fn info(&self, id: &str) -> Result<String> {
        let request = PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose: true,
        };
        let mut response: PodSandboxStatusResponse = self.call("PodSandboxStatus", request)?;
        response
            .info
            .remove("info")
            .context("the verbose status is empty")
    }

    /// Calls a method of the runtime service.
    pub(crate) fn call<Q, A>(&self, method: &str, request: Q) -> Result<A>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let call = self.service.call(method, request);
        let response = self
            .runtime
            .block_on(async { timeout(CALL_TIMEOUT, call).await });
        let response = response.with_context(|| format!("CRI {method}"))?;
        response.with_context(|| format!("CRI {method}"))
    }
}

fn config(
    namespace: &str,
    name: &str,
    uid: &str,
    log_directory: String,
    security_context: Option<LinuxSandboxSecurityContext>,
) -> PodSandboxConfig {
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_owned(),
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
        }),
        // As kubelet: a pod in the node's network has no hostname of its own.
        hostname: match security_context {
            None => name.to_owned(),
            Some(_) => String::new(),
        },
        log_directory,
        linux: Some(LinuxPodSandboxConfig { security_context }),
    }
}
