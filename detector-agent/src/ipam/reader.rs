//! The reader of one pool, for any IPAM.

use std::{path::Path, sync::Arc};

use detector_engine::PoolId;
use tokio::sync::mpsc;

use super::{
    PoolRead,
    aws::AwsReader,
    calico::{CalicoReader, FollowedBlocks},
    cni_config::IpamNetwork,
    host_local::HostLocalReader,
    settings::IpamSettings,
};
use crate::kube_client::KubeClient;

/// Reads a pool's allocations; keeps its last snapshot.
#[derive(Debug)]
pub(super) enum PoolReader {
    HostLocal(HostLocalReader),
    Aws(AwsReader),
    Calico(CalicoReader),
}

impl PoolReader {
    pub(super) fn new(
        network: IpamNetwork,
        id: PoolId,
        settings: &IpamSettings,
        node: &str,
        kube: Option<KubeClient>,
    ) -> Self {
        match network {
            IpamNetwork::HostLocal(network) => Self::HostLocal(HostLocalReader::new(id, network)),
            IpamNetwork::Aws { name, prefix } => {
                let file = settings.aws_ipam_file.clone();
                let introspection = settings.aws_introspection;
                Self::Aws(AwsReader::new(id, (name, prefix), file, introspection))
            }
            IpamNetwork::Calico(name) => {
                Self::Calico(CalicoReader::new(id, name, node.to_owned(), kube))
            }
        }
    }

    /// Its name in logs and `/readyz`.
    pub(super) fn name(&self) -> String {
        match self {
            Self::HostLocal(reader) => format!("host-local: {}", reader.network.name),
            Self::Aws(_) => "aws-ipamd".to_owned(),
            Self::Calico(_) => "calico-ipam".to_owned(),
        }
    }

    /// The directory in which files change when the allocations do; `None` if they are not in files.
    pub(super) fn directory(&self) -> Option<&Path> {
        match self {
            Self::HostLocal(reader) => Some(&reader.directory),
            Self::Aws(reader) => Some(reader.directory()),
            Self::Calico(_) => None,
        }
    }

    /// Follows an IPAM that is not in files; `changed` gets the pool's id when there is something to read.
    pub(super) fn follow(
        &mut self,
        changed: mpsc::UnboundedSender<PoolId>,
        blocks: &Arc<FollowedBlocks>,
    ) {
        if let Self::Calico(reader) = self {
            reader.follow(changed, Arc::clone(blocks));
        }
    }

    /// Reads the pool; `None` if there is nothing to read yet. `thorough`: reads files again that look unchanged.
    pub(super) async fn read(&mut self, thorough: bool) -> Option<PoolRead> {
        match self {
            Self::HostLocal(reader) => Some(reader.read(thorough)),
            Self::Aws(reader) => Some(reader.read().await),
            Self::Calico(reader) => reader.read().await,
        }
    }
}
