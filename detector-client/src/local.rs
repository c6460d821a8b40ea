//! The agent in this network namespace, at the socket beside its lock.

use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use tokio::{net::UnixStream, time::timeout};

use super::{Client, ClientError, REQUEST_TIMEOUT};

impl Client {
    /// A client of the agent that listens at this socket. It needs no token: only the agent's user can connect.
    #[must_use]
    pub fn local(socket: PathBuf) -> Self {
        Self {
            url: format!("unix:{}", socket.display()),
            host: "localhost".to_owned(),
            port: 0,
            prefix: String::new(),
            tls: None,
            authorization: None,
            socket: Some(socket),
        }
    }
}

/// Connects to the socket, and verifies that a process of this user listens there.
pub(super) async fn connect(socket: &Path) -> Result<UnixStream, ClientError> {
    let no_agent = |reason: String| ClientError::NoAgent {
        socket: socket.display().to_string(),
        reason,
    };
    let stream = timeout(REQUEST_TIMEOUT, UnixStream::connect(socket))
        .await
        .map_err(|_| no_agent("no connection in time".to_owned()))?
        .map_err(|error| no_agent(error.to_string()))?;
    let peer = stream
        .peer_cred()
        .map_err(|error| no_agent(error.to_string()))?;
    if peer.uid() != geteuid().as_raw() {
        return Err(no_agent(format!("user {} listens there", peer.uid())));
    }
    Ok(stream)
}
