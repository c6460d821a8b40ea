//! One agent per node: a second one would attach twice and report everything twice.
//!
//! The lock is an abstract Unix socket: it belongs to the network namespace the agent watches, needs no file system,
//! and is free again the moment the process ends, however it ends.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
};

const NAME: &str = "ip-conflict-detector";

/// Why the agent may not start.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// Another one is there.
    #[error("another ip-conflict-detector already watches this network namespace; stop it first")]
    Taken,
    /// The kernel refused the lock for another reason.
    #[error("cannot make sure that no other agent runs on this node: {0}")]
    Io(#[from] io::Error),
}

/// Held while the agent runs.
#[derive(Debug)]
pub struct Instance(#[allow(dead_code)] UnixListener);

impl Instance {
    /// Takes the node's lock.
    ///
    /// # Errors
    /// Where another agent holds it.
    pub fn take() -> Result<Self, InstanceError> {
        let address = SocketAddr::from_abstract_name(NAME)?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(Self(listener)),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => Err(InstanceError::Taken),
            Err(e) => Err(e.into()),
        }
    }
}
