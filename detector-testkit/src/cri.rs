//! The part of the CRI that kubelet uses to create pods. The messages are declared by hand and contain only the fields used
//! here.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::{net::UnixStream, runtime::Runtime};
use tonic::{
    Request,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// Timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, PartialEq, prost::Message)]
struct RunPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PodSandboxConfig {
    #[prost(message, optional, tag = "1")]
    metadata: Option<PodSandboxMetadata>,
    #[prost(string, tag = "2")]
    hostname: String,
    #[prost(string, tag = "3")]
    log_directory: String,
    #[prost(message, optional, tag = "8")]
    linux: Option<LinuxPodSandboxConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    namespace: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LinuxPodSandboxConfig {
    #[prost(message, optional, tag = "2")]
    security_context: Option<LinuxSandboxSecurityContext>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LinuxSandboxSecurityContext {
    #[prost(message, optional, tag = "1")]
    namespaces: Option<NamespaceOption>,
    #[prost(bool, tag = "6")]
    privileged: bool,
}

/// `NamespaceMode.NODE`: the network namespace of the node.
pub(crate) const NODE_NETWORK: i32 = 2;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NamespaceOption {
    #[prost(int32, tag = "1")]
    pub(crate) network: i32,
    #[prost(int32, tag = "2")]
    pub(crate) pid: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CreateContainerRequest {
    #[prost(string, tag = "1")]
    pub(crate) sandbox_id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    pub(crate) sandbox_config: Option<PodSandboxConfig>,
}

/// The id alone: the first field of `CreateContainerResponse` and `StartContainerRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerId {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(string, repeated, tag = "4")]
    pub(crate) args: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) env: Vec<KeyValue>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) mounts: Vec<Mount>,
    #[prost(string, tag = "11")]
    pub(crate) log_path: String,
    #[prost(message, optional, tag = "15")]
    pub(crate) linux: Option<LinuxContainerConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ImageSpec {
    #[prost(string, tag = "1")]
    pub(crate) image: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Mount {
    #[prost(string, tag = "1")]
    pub(crate) container_path: String,
    #[prost(string, tag = "2")]
    pub(crate) host_path: String,
    #[prost(bool, tag = "3")]
    pub(crate) read_only: bool,
    #[prost(int32, tag = "5")]
    pub(crate) propagation: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LinuxContainerConfig {
    #[prost(message, optional, tag = "2")]
    pub(crate) security_context: Option<LinuxContainerSecurityContext>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LinuxContainerSecurityContext {
    #[prost(message, optional, tag = "1")]
    pub(crate) capabilities: Option<Capability>,
    #[prost(bool, tag = "2")]
    pub(crate) privileged: bool,
    #[prost(message, optional, tag = "3")]
    pub(crate) namespaces: Option<NamespaceOption>,
    #[prost(message, optional, tag = "5")]
    pub(crate) run_as_user: Option<Int64Value>,
    #[prost(bool, tag = "7")]
    pub(crate) read_only_root: bool,
    #[prost(bool, tag = "11")]
    pub(crate) no_new_privileges: bool,
    #[prost(message, optional, tag = "12")]
    pub(crate) run_as_group: Option<Int64Value>,
    #[prost(string, repeated, tag = "13")]
    pub(crate) masked_paths: Vec<String>,
    #[prost(string, repeated, tag = "14")]
    pub(crate) read_only_paths: Vec<String>,
    #[prost(message, optional, tag = "15")]
    pub(crate) seccomp: Option<SecurityProfile>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Capability {
    #[prost(string, repeated, tag = "1")]
    pub(crate) add: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) drop: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Int64Value {
    #[prost(int64, tag = "1")]
    pub(crate) value: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SecurityProfile {
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    #[prost(string, tag = "2")]
    pub(crate) file: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StopContainerRequest {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(int64, tag = "2")]
    pub(crate) timeout: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerStatusRequest {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(bool, tag = "2")]
    pub(crate) verbose: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<ContainerStatus>,
    #[prost(map = "string, string", tag = "2")]
    pub(crate) info: std::collections::HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerStatus {
    #[prost(int32, tag = "3")]
    pub(crate) state: i32,
    #[prost(int32, tag = "7")]
    pub(crate) exit_code: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ExecSyncRequest {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) command: Vec<String>,
    #[prost(int64, tag = "3")]
    pub(crate) timeout: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ExecSyncResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) stdout: Vec<u8>,
    #[prost(int32, tag = "3")]
    pub(crate) exit_code: i32,
}

/// The id alone: the first field of `RunPodSandboxResponse`, `StopPodSandboxRequest`, `RemovePodSandboxRequest`, `PodSandbox`.
#[derive(Clone, PartialEq, prost::Message)]
struct SandboxId {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
struct ListPodSandboxResponse {
    #[prost(message, repeated, tag = "1")]
    items: Vec<SandboxId>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PodSandboxStatusRequest {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(bool, tag = "2")]
    verbose: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PodSandboxStatusResponse {
    #[prost(map = "string, string", tag = "2")]
    info: std::collections::HashMap<String, String>,
}

/// A client of a container runtime's CRI socket.
#[derive(Debug)]
pub(crate) struct CriClient {
    runtime: Runtime,
    channel: Channel,
}

impl CriClient {
    /// Connects and checks that the runtime responds.
    pub(crate) fn open(socket: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let path = socket.to_owned();
        let connector = service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://localhost").timeout(CALL_TIMEOUT);
        let channel = runtime.block_on(endpoint.connect_with_connector(connector))?;
        let client = Self { runtime, channel };
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
        let response: ListPodSandboxResponse = self.call("ListPodSandbox", Empty {})?;
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
            id: id.to_owned(),
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
        let path: PathAndQuery = format!("/runtime.v1.RuntimeService/{method}").parse()?;
        let mut grpc = Grpc::new(self.channel.clone());
        self.runtime.block_on(async {
            grpc.ready().await?;
            let codec = ProstCodec::<Q, A>::default();
            let response = grpc.unary(Request::new(request), path, codec).await;
            response
                .map(tonic::Response::into_inner)
                .with_context(|| format!("CRI {method}"))
        })
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
