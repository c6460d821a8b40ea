//! Which sandboxes the container runtime has, for threads that may wait.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{runtime::Runtime, time::Instant};

use super::{Cri, PodSandbox, PodSandboxState};
use crate::pods::{CriSetting, SourceError};

/// How long the runtime may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The sandboxes that the runtime lists, by id, and whether each is ready; a stopped one is not.
pub(crate) type ListedSandboxes = HashMap<String, bool>;

/// Asks the container runtime. Each call blocks for a second at most.
#[derive(Debug)]
pub(crate) struct SandboxList {
    cri: Cri,
    runtime: Runtime,
    socket: Option<PathBuf>,
}

impl SandboxList {
    /// At the configured socket, or at a well-known one; `None` if switched off.
    ///
    /// # Errors
    /// If the system refuses the resources of a tokio runtime.
    pub(crate) fn new(setting: &CriSetting) -> io::Result<Option<Self>> {
        let Some(cri) = Cri::new(setting) else {
            return Ok(None);
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(Some(Self {
            cri,
            runtime,
            socket: None,
        }))
    }

    /// The sandboxes that there are now.
    ///
    /// # Errors
    /// If the runtime does not answer.
    pub(crate) fn read(&mut self) -> Result<ListedSandboxes, SourceError> {
        let (cri, deadline) = (&self.cri, Instant::now() + PATIENCE);
        let (client, listed) = self.runtime.block_on(cri.connect_and_list(deadline))?;
        self.socket = Some(client.path().to_owned());
        let is_ready = |sandbox: &PodSandbox| sandbox.state == PodSandboxState::Ready as i32;
        Ok(listed
            .into_iter()
            .map(|sandbox| (sandbox.id.clone(), is_ready(&sandbox)))
            .collect())
    }

    /// The socket of the runtime that answered last.
    pub(crate) fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }
}
