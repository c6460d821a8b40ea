//! An IPAM that can be read, and what the reader of one does.

use std::{fmt::Debug, net::IpAddr, path::Path, sync::Arc, time::Duration};

use detector_engine::{ChangedAddresses, Ipam, Pool, PoolId};
use detector_event::State;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use super::{calico::FollowedBlocks, network::Network, settings::IpamSettings};
use crate::kube_client::KubeClient;

/// An IPAM that can be read.
pub(super) struct Source {
    pub(super) ipam: Ipam,
    /// Whether it assigns the addresses of a network in the CNI configuration with these types of the plugin and of its
    /// `ipam` (empty if there is none).
    pub(super) serves: fn(plugin: &str, ipam: &str) -> bool,
    /// Whether the allocations are found by what the plugin returned for pods, so the network need not be in the node's
    /// configuration: Multus has its networks in the API.
    pub(super) is_found_by_leases: bool,
    /// The reader of such a network.
    pub(super) reader: fn(PoolId, &Network, &Context<'_>) -> Box<dyn PoolReader>,
}

/// What readers may use.
pub(super) struct Context<'a> {
    pub(super) settings: &'a IpamSettings,
    pub(super) node: &'a str,
    pub(super) kube: Option<&'a KubeClient>,
    /// The directory of the CNI result cache.
    pub(super) results: Option<&'a Path>,
    /// Gets Calico's blocks, for others.
    pub(super) blocks: &'a Arc<FollowedBlocks>,
}

/// Reads a pool's allocations; keeps its last snapshot.
pub(super) trait PoolReader: Debug + Send {
    /// The directory in which files change when the allocations do; `None` if they are not in files.
    fn directory(&self) -> Option<&Path> {
        None
    }

    /// The longest time between two reads, if it has to be shorter than that of other pools.
    fn recheck(&self) -> Option<Duration> {
        None
    }

    /// Follows an IPAM that is not in files; `changed` gets the pool's id when there is something to read.
    fn follow(&mut self, _changed: mpsc::UnboundedSender<PoolId>) {}

    /// Requests the newest state of an address from what is followed. `false`: nothing is, so the pool has to be read.
    fn request(&self, _address: IpAddr) -> bool {
        false
    }

    /// Reads the pool; `None` if there is nothing to read yet. `thorough`: reads files again that look unchanged.
    fn read(&mut self, thorough: bool) -> BoxFuture<'_, Option<PoolRead>>;
}

/// The outcome of reading one pool.
#[derive(Debug)]
pub(super) struct PoolRead {
    pub(super) pool: Arc<Pool>,
    /// Addresses whose allocation changed since the last read.
    pub(super) changed: ChangedAddresses,
    /// How the pool's part is shown in `/readyz`.
    pub(super) state: State,
    /// The reason for `state` in one sentence, for people.
    pub(super) summary: String,
}
