//! The reader of one pool, for any IPAM.

use std::path::Path;

use tokio::time::Instant;

use super::{
    PoolRead, aws::AwsReader, calico::CalicoReader, cni_config::IpamNetwork,
    host_local::HostLocalReader, list_schedule::ListSchedule, settings::IpamSettings,
};
use crate::{engine::PoolId, kube_client::KubeClient};

/// Reads a pool's allocations; keeps its last snapshot.
#[derive(Debug)]
pub(super) enum PoolReader {
    HostLocal(HostLocalReader),
    Aws(AwsReader),
    Calico(CalicoReader, ListSchedule),
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
                let calico = CalicoReader::new(id, name, node.to_owned(), kube);
                Self::Calico(calico, ListSchedule::default())
            }
        }
    }

    /// Its name in logs and `/readyz`.
    pub(super) fn name(&self) -> String {
        match self {
            Self::HostLocal(reader) => format!("host-local: {}", reader.network.name),
            Self::Aws(_) => "aws-ipamd".to_owned(),
            Self::Calico(..) => "calico-ipam".to_owned(),
        }
    }

    /// The directory in which files change when the allocations do; `None` if they are not in files.
    pub(super) fn directory(&self) -> Option<&Path> {
        match self {
            Self::HostLocal(reader) => Some(&reader.directory),
            Self::Aws(reader) => Some(reader.directory()),
            Self::Calico(..) => None,
        }
    }

    /// Reads the pool; `None` if the schedule does not allow it yet. `thorough`: reads files again that look unchanged.
    pub(super) async fn read(&mut self, thorough: bool) -> Option<PoolRead> {
        match self {
            Self::HostLocal(reader) => Some(reader.read(thorough)),
            Self::Aws(reader) => Some(reader.read().await),
            Self::Calico(reader, schedule) => {
                if schedule.try_begin(Instant::now()) {
                    Some(reader.read().await)
                } else {
                    None
                }
            }
        }
    }
}
