//! The part of the CRI that makes pods: what kubelet asks of a runtime. Messages by hand, as few as are needed.

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

/// Longest that one call may take.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, PartialEq, prost::Message)]
struct RunPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PodSandboxConfig {
    #[prost(message, optional, tag = "1")]
    metadata: Option<PodSandboxMetadata>,
    #[prost(string, tag = "2")]
    hostname: String,
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
struct LinuxPodSandboxConfig {}

/// The id alone: the first field of `RunPodSandboxResponse`, `StopPodSandboxRequest`, `RemovePodSandboxRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct SandboxId {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Nothing {}

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

/// A client of a runtime's socket.
#[derive(Debug)]
pub(crate) struct Client {
    runtime: Runtime,
    channel: Channel,
}

impl Client {
    /// Connects, and makes sure that the CRI answers.
    pub(crate) fn open(socket: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let path = socket.to_owned();
        let connector = service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://localhost").timeout(PATIENCE);
        let channel = runtime.block_on(endpoint.connect_with_connector(connector))?;
        let client = Self { runtime, channel };
        let _: Nothing = client.call("Version", Nothing {})?;
        Ok(client)
    }

    /// `RunPodSandbox`; gives the sandbox's id.
    pub(crate) fn run(&self, namespace: &str, name: &str, uid: &str) -> Result<String> {
        let config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: name.to_owned(),
                uid: uid.to_owned(),
                namespace: namespace.to_owned(),
            }),
            hostname: name.to_owned(),
            linux: Some(LinuxPodSandboxConfig {}),
        };
        let request = RunPodSandboxRequest {
            config: Some(config),
        };
        let answer: SandboxId = self.call("RunPodSandbox", request)?;
        Ok(answer.id)
    }

    /// `StopPodSandbox`, which removes its network, and `RemovePodSandbox`.
    pub(crate) fn remove(&self, id: &str) -> Result<()> {
        for method in ["StopPodSandbox", "RemovePodSandbox"] {
            let _: Nothing = self.call(method, SandboxId { id: id.to_owned() })?;
        }
        Ok(())
    }

    /// What the runtime says of a sandbox in its verbose answer, JSON.
    pub(crate) fn info(&self, id: &str) -> Result<String> {
        let request = PodSandboxStatusRequest {
            id: id.to_owned(),
            verbose: true,
        };
        let mut answer: PodSandboxStatusResponse = self.call("PodSandboxStatus", request)?;
        answer
            .info
            .remove("info")
            .context("the runtime says nothing")
    }

    fn call<Q, A>(&self, method: &str, request: Q) -> Result<A>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let path: PathAndQuery = format!("/runtime.v1.RuntimeService/{method}").parse()?;
        let mut grpc = Grpc::new(self.channel.clone());
        self.runtime.block_on(async {
            grpc.ready().await?;
            let codec = ProstCodec::<Q, A>::default();
            let answer = grpc.unary(Request::new(request), path, codec).await;
            answer
                .map(tonic::Response::into_inner)
                .with_context(|| format!("CRI {method}"))
        })
    }
}
