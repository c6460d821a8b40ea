//! A connection to a container runtime, and what its errors mean.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::{
    net::UnixStream,
    time::{Instant, timeout_at},
};
use tonic::{
    Code, Request, Status,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::proto::{
    LIST_POD_SANDBOX, ListPodSandboxRequest, ListPodSandboxResponse, POD_SANDBOX_STATUS,
    PodSandbox, PodSandboxStatusRequest, VERSION, VersionRequest, VersionResponse,
};
use crate::pods::source::Problem;

/// Bytes of one answer: a list takes some 600 for a pod, a verbose status some 20,000.
const MAX_ANSWER: usize = 16 << 20;

/// A connection; cheap to clone, for questions side by side.
#[derive(Clone, Debug)]
pub(super) struct Client {
    path: Arc<Path>,
    channel: Channel,
}

impl Client {
    /// Connects and makes sure that a CRI answers. Gives the runtime's name and version, too.
    pub(super) async fn open(path: PathBuf, deadline: Instant) -> Result<(Self, String), Problem> {
        let path: Arc<Path> = path.into();
        let socket = Arc::clone(&path);
        let connector = service_fn(move |_| {
            let socket = Arc::clone(&socket);
            async move { UnixStream::connect(&socket).await.map(TokioIo::new) }
        });
        // The address only fills a header; the connector knows the socket.
        let endpoint = Endpoint::from_static("http://localhost");
        let connecting = endpoint.connect_with_connector(connector);
        let channel = timeout_at(deadline, connecting)
            .await
            .map_err(|_| silent(&path))?
            .map_err(|error| transport_problem(&path, &error))?;
        let client = Self { path, channel };
        let request = VersionRequest {
            version: "v1".to_owned(),
        };
        let version: VersionResponse = client.call(VERSION, request, deadline).await?;
        let name = format!("{} {}", version.runtime_name, version.runtime_version);
        Ok((client, name))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// All pod sandboxes, whatever their state.
    pub(super) async fn sandboxes(&self, deadline: Instant) -> Result<Vec<PodSandbox>, Problem> {
        let answer: ListPodSandboxResponse = self
            .call(LIST_POD_SANDBOX, ListPodSandboxRequest {}, deadline)
            .await?;
        Ok(answer.items)
    }

    /// The runtime's own words about a sandbox, JSON; `None` where it says none.
    pub(super) async fn info(
        &self,
        id: String,
        deadline: Instant,
    ) -> Result<Option<String>, Problem> {
        let request = PodSandboxStatusRequest {
            pod_sandbox_id: id,
            verbose: true,
        };
        let mut answer: super::proto::PodSandboxStatusResponse =
            self.call(POD_SANDBOX_STATUS, request, deadline).await?;
        Ok(answer.info.remove("info"))
    }

    async fn call<Q, A>(
        &self,
        method: &'static str,
        request: Q,
        deadline: Instant,
    ) -> Result<A, Problem>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER);
        let answering = async {
            grpc.ready()
                .await
                .map_err(|error| transport_problem(&self.path, &error))?;
            grpc.unary(
                Request::new(request),
                PathAndQuery::from_static(method),
                ProstCodec::<Q, A>::default(),
            )
            .await
            .map_err(|status| status_problem(&self.path, &status))
        };
        let answer = timeout_at(deadline, answering)
            .await
            .map_err(|_| silent(&self.path))??;
        Ok(answer.into_inner())
    }
}

fn silent(path: &Path) -> Problem {
    Problem::Silent(format!(
        "{} takes connections but does not answer",
        path.display()
    ))
}

fn status_problem(path: &Path, status: &Status) -> Problem {
    if let Some(cause) = status.source() {
        // Not the runtime's word: the connection's.
        return transport_problem(path, cause);
    }
    let shown = path.display();
    match status.code() {
        Code::Unimplemented => Problem::Foreign(format!(
            "{shown} is no socket of a runtime with CRI v1 (is the CRI plugin off, or is it another runtime's?): {}",
            status.message()
        )),
        Code::PermissionDenied | Code::Unauthenticated => {
            Problem::Refused(format!("{shown} refuses: {}", status.message()))
        }
        code => Problem::Failing(format!("{shown} answers {code:?}: {}", status.message())),
    }
}

fn transport_problem(path: &Path, error: &(dyn Error + 'static)) -> Problem {
    let shown = path.display();
    let Some(cause) = io_error(error) else {
        return Problem::Foreign(format!(
            "{shown} is no container runtime's socket: what answers does not speak gRPC ({})",
            innermost(error)
        ));
    };
    match cause.kind() {
        io::ErrorKind::NotFound => Problem::Missing(format!("{shown} does not exist")),
        io::ErrorKind::ConnectionRefused => Problem::Refused(format!(
            "nobody listens at {shown}; is the runtime running?"
        )),
        io::ErrorKind::PermissionDenied => {
            Problem::Refused(format!("{shown} may not be used by this process"))
        }
        io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::UnexpectedEof => {
            Problem::Refused(format!("{shown} closes the connection"))
        }
        _ => Problem::Failing(format!("{shown}: {cause}")),
    }
}

fn io_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e io::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return Some(io);
        }
        next = error.source();
    }
    None
}

fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut error = error;
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}
