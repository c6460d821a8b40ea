//! The reader of one network's books, whichever IPAM it is.

use std::path::Path;

use tokio::time::Instant;

use super::{
    Read, aws::Aws, calico::Calico, config::Network, host_local::HostLocal, pace::Pace,
    settings::IpamSettings,
};
use crate::{engine::PoolId, kube_client::KubeClient};

/// Knows where the books of a network are, and what they held when they were read last.
#[derive(Debug)]
pub(super) enum Reader {
    HostLocal(HostLocal),
    Aws(Aws),
    Calico(Calico, Pace),
}

impl Reader {
    pub(super) fn of(
        network: Network,
        id: PoolId,
        settings: &IpamSettings,
        node: &str,
        kube: Option<&KubeClient>,
    ) -> Self {
        match network {
            Network::HostLocal(network) => Self::HostLocal(HostLocal::new(id, network)),
            Network::Aws { name, prefix } => {
                let file = settings.aws_ipam_file.clone();
                let port = settings.aws_introspection;
                Self::Aws(Aws::new(id, (name, prefix), file, port))
            }
            Network::Calico(name) => {
                let calico = Calico::new(id, name, node.to_owned(), kube.cloned());
                Self::Calico(calico, Pace::default())
            }
        }
    }

    /// What a person calls it.
    pub(super) fn name(&self) -> String {
        match self {
            Self::HostLocal(pool) => format!("host-local: {}", pool.network.name),
            Self::Aws(_) => "aws-ipamd".to_owned(),
            Self::Calico(..) => "calico-ipam".to_owned(),
        }
    }

    /// Where something happens when the books change.
    pub(super) fn directory(&self) -> Option<&Path> {
        match self {
            Self::HostLocal(pool) => Some(&pool.directory),
            Self::Aws(aws) => Some(aws.directory()),
            Self::Calico(..) => None,
        }
    }

    /// Reads them; `None` where it is too soon for that. `thoroughly`: also what looks unchanged.
    pub(super) async fn read(&mut self, thoroughly: bool) -> Option<Read> {
        match self {
            Self::HostLocal(pool) => Some(pool.read(thoroughly)),
            Self::Aws(aws) => Some(aws.read().await),
            Self::Calico(calico, pace) => {
                if pace.begin(Instant::now()) {
                    Some(calico.read().await)
                } else {
                    None
                }
            }
        }
    }
}
