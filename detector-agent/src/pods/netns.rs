//! Kernel queries about network namespaces: a namespace file's id relative to the agent's namespace, which connects a
//! pod to its device, and the addresses on a pod's end of a device.

use std::{net::IpAddr, os::fd::AsFd as _, path::Path};

use detector_engine::{NsId, Peer};
use tracing::debug;

use crate::observe::netlink::{NetlinkReader, OpenError, open_namespace};

/// Netlink queries; the socket is opened with the first one.
#[derive(Debug, Default)]
pub(super) struct NetnsQueries {
    requests: Option<NetlinkReader>,
}

impl NetnsQueries {
    /// The id of the namespace at `path`; `None` if there is none (any more), or the agent may not open it.
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
            debug!(path = %path.display(), error, "cannot read a namespace's id");
            None
        })
    }

    /// The addresses on the pod's end of a device; empty if they cannot be read.
    pub(super) fn addresses_at(&mut self, peer: Peer) -> Vec<IpAddr> {
        let addresses = self
            .requests()
            .map_err(|error| error.to_string())
            .and_then(|requests| {
                requests
                    .addresses_at(peer)
                    .map_err(|error| error.to_string())
            });
        addresses.unwrap_or_else(|error| {
            debug!(
                nsid = peer.nsid,
                ifindex = peer.ifindex,
                error,
                "cannot read a pod's addresses"
            );
            Vec::new()
        })
    }

    fn requests(&mut self) -> Result<&mut NetlinkReader, OpenError> {
        match &mut self.requests {
            Some(requests) => Ok(requests),
            none => Ok(none.insert(NetlinkReader::open()?)),
        }
    }
}
