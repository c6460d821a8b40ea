//! Which sandboxes a container runtime has, for threads that may wait.

use std::{collections::HashMap, io, path::PathBuf, time::Duration};

use tokio::{runtime::Runtime, time::Instant};

use super::{PodSandbox, PodSandboxState, client::CriClient};
use crate::pods::SourceError;

/// How long the runtime may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The sandboxes that the runtime lists, by id, and whether each is ready; a stopped one is not.
pub(crate) type ListedSandboxes = HashMap<String, bool>;

/// Asks container runtimes. Each call blocks for a second at most.
#[derive(Debug)]
pub(crate) struct SandboxList(Runtime);

impl SandboxList {
    /// # Errors
    /// If the system refuses the resources of a tokio runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().map(Self)
    }

    /// The sandboxes of the runtime at this socket.
    ///
    /// # Errors
    /// If the runtime does not answer.
    pub(crate) fn read(&self, socket: PathBuf) -> Result<ListedSandboxes, SourceError> {
        let deadline = Instant::now() + PATIENCE;
        let listed = self.0.block_on(async {
            let (client, _) = CriClient::open(socket, deadline).await?;
            client.sandboxes(deadline).await
        })?;
        let is_ready = |sandbox: &PodSandbox| sandbox.state == PodSandboxState::Ready as i32;
        let entries = listed.into_iter().map(|s| (s.id.clone(), is_ready(&s)));
        Ok(entries.collect())
    }
}
