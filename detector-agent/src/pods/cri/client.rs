//! A connection to a container runtime, and the meaning of its errors.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use detector_cri::{
    ListPodSandboxRequest, ListPodSandboxResponse, PodSandbox, PodSandboxStatusRequest,
    PodSandboxStatusResponse, RuntimeService, VersionRequest, VersionResponse,
};
use detector_event::error_chain;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status};

use crate::pods::source::SourceError;

/// A connection; clones share it, for concurrent calls.
#[derive(Clone, Debug)]
pub(super) struct CriClient {
    path: Arc<Path>,
    service: RuntimeService,
}

impl CriClient {
    /// Connects and verifies that a CRI v1 answers. Also returns the runtime's name and version.
    pub(super) async fn open(
        path: PathBuf,
        deadline: Instant,
    ) -> Result<(Self, String), SourceError> {
        let path: Arc<Path> = path.into();
        let service = timeout_at(deadline, RuntimeService::connect(&path))
            .await
            .map_err(|_| no_answer(&path))?
            .map_err(|error| transport_error(&path, &error))?;
        let client = Self { path, service };
        let request = VersionRequest {
            version: "v1".to_owned(),
        };
        let version: VersionResponse = client.call("Version", request, deadline).await?;
        let runtime = format!("{} {}", version.runtime_name, version.runtime_version);
        Ok((client, runtime))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// All pod sandboxes, in any state.
    pub(super) async fn sandboxes(
        &self,
        deadline: Instant,
    ) -> Result<Vec<PodSandbox>, SourceError> {
        let response: ListPodSandboxResponse = self
            .call("ListPodSandbox", ListPodSandboxRequest {}, deadline)
            .await?;
        Ok(response.items)
    }

    /// The status of a sandbox, verbose if the runtime has that.
    pub(super) async fn status(
        &self,
        id: String,
        deadline: Instant,
    ) -> Result<PodSandboxStatusResponse, SourceError> {
        let request = PodSandboxStatusRequest {
            pod_sandbox_id: id,
            verbose: true,
        };
        self.call("PodSandboxStatus", request, deadline).await
    }

    async fn call<Q, R>(
        &self,
        method: &'static str,
        request: Q,
        deadline: Instant,
    ) -> Result<R, SourceError>
    where
        Q: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        timeout_at(deadline, self.service.call(method, request))
            .await
            .map_err(|_| no_answer(&self.path))?
            .map_err(|status| status_error(&self.path, &status))
    }
}

fn no_answer(path: &Path) -> SourceError {
    SourceError::Silent(format!(
        "{} accepts connections but does not answer",
        path.display()
    ))
}

fn status_error(path: &Path, status: &Status) -> SourceError {
    if let Some(cause) = status.source() {
        // The status is tonic's: the connection failed before the runtime answered.
        return transport_error(path, cause);
    }
    let path = path.display();
    let message = status.message();
    match status.code() {
        Code::Unimplemented => SourceError::Foreign(format!(
            "{path} does not serve CRI v1: {message}; is the runtime's CRI plugin disabled?"
        )),
        Code::PermissionDenied | Code::Unauthenticated => {
            SourceError::Refused(format!("{path} denies access: {message}"))
        }
        code => SourceError::Failing(format!("{path} returned {code:?}: {message}")),
    }
}

fn transport_error(path: &Path, error: &(dyn Error + 'static)) -> SourceError {
    let path = path.display();
    let Some(cause) = error_chain::find::<io::Error>(error) else {
        return SourceError::Foreign(format!(
            "{path} is not a container runtime socket: no gRPC there ({})",
            error_chain::root_cause(error)
        ));
    };
    match cause.kind() {
        io::ErrorKind::NotFound => SourceError::Missing(format!("{path} does not exist")),
        io::ErrorKind::ConnectionRefused => SourceError::Refused(format!(
            "{path} refused the connection; is the runtime running?"
        )),
        io::ErrorKind::PermissionDenied => {
            SourceError::Refused(format!("no permission to connect to {path}"))
        }
        io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::UnexpectedEof => {
            SourceError::Refused(format!("{path} closed the connection"))
        }
        _ => SourceError::Failing(format!("{path}: {cause}")),
    }
}
