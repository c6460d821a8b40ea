//! From a namespace's file to the id that the agent's namespace gives it, which ties a pod to its device; and what stands
//! on a pod's end of a device.

use std::{net::IpAddr, os::fd::AsFd as _, path::Path};

use tracing::debug;

use crate::{
    engine::{NsId, Peer},
    observe::netlink::{OpenError, Requests, open_namespace},
};

/// Asks the kernel about namespaces; opens its socket when it is first asked.
#[derive(Debug, Default)]
pub(super) struct Namespaces {
    requests: Option<Requests>,
}

impl Namespaces {
    /// The id of the namespace at a path; `None` where there is none (any more), or the agent may not look at it.
    pub(super) fn id_at(&mut self, path: &Path) -> Option<NsId> {
        let file = open_namespace(path)?;
        let id = self
            .requests()
            .map_err(|error| error.to_string())
            .and_then(|requests| {
                requests
                    .namespace_id(file.as_fd())
                    .map_err(|error| error.to_string())
            });
        id.unwrap_or_else(|error| {
            debug!("the id of {} is not known: {error}", path.display());
            None
        })
    }

    /// The addresses on a pod's end of a device; none where they cannot be read.
    pub(super) fn addresses_at(&mut self, peer: Peer) -> Vec<IpAddr> {
        let read = self
            .requests()
            .map_err(|error| error.to_string())
            .and_then(|requests| {
                requests
                    .addresses_at(peer)
                    .map_err(|error| error.to_string())
            });
        read.unwrap_or_else(|error| {
            debug!("the addresses of a pod are not known: {error}");
            Vec::new()
        })
    }

    fn requests(&mut self) -> Result<&mut Requests, OpenError> {
        match &mut self.requests {
            Some(requests) => Ok(requests),
            none => Ok(none.insert(Requests::open()?)),
        }
    }
}
