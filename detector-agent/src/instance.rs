//! One agent per node: a second one would attach again and report everything twice.
//!
//! The lock is an abstract Unix socket: it belongs to the network namespace that the agent observes, needs no file system,
//! and is released the moment the process ends, however it ends.

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
    /// Another agent holds the lock.
    #[error("another ip-conflict-detector is running in this network namespace; stop it first")]
    Taken,
    /// The lock failed for another reason.
    #[error("cannot check for other agents on this node: {0}")]
    Io(#[from] io::Error),
}

/// The lock, held until dropped.
#[derive(Debug)]
pub struct Instance(#[allow(dead_code)] UnixListener);

impl Instance {
    /// Takes the node's lock.
    ///
    /// # Errors
    /// If another agent holds it.
    pub fn take() -> Result<Self, InstanceError> {
        let address = SocketAddr::from_abstract_name(NAME)?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(Self(listener)),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => Err(InstanceError::Taken),
            Err(e) => Err(e.into()),
        }
    }
}
