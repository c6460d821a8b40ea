//! A single read of all IPAM sources, for `check`.

use std::{sync::Arc, time::Duration};

use detector_engine::{Pool, PoolId};
use tokio::time::timeout;

use super::{
    cni_config,
    reader::PoolReader,
    settings::{IpamMode, IpamSettings},
};
use crate::kube_client::KubeClient;

/// The allocations of all pools.
#[derive(Debug, Default)]
pub struct IpamSnapshot {
    /// The pools that could be read.
    pub pools: Vec<Arc<Pool>>,
    /// What was read and what was not, one sentence each.
    pub summaries: Vec<String>,
}

/// Reads all pools in the CNI configuration, each for at most `limit`.
#[must_use]
pub fn read_once(
    settings: &IpamSettings,
    node: &str,
    kube: Option<KubeClient>,
    limit: Duration,
) -> IpamSnapshot {
    let mut snapshot = IpamSnapshot::default();
    if settings.ipam == IpamMode::Off {
        return snapshot;
    }
    let config = cni_config::read(&settings.cni_conf_dir);
    let (_, summary) = cni_config::summary(&settings.cni_conf_dir, &config);
    snapshot.summaries.push(summary);
    let networks = config.unwrap_or_default().networks();
    if networks.is_empty() {
        return snapshot;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            snapshot
                .summaries
                .push(format!("cannot read IPAM allocations: {error}"));
            return snapshot;
        }
    };
    for (number, network) in (0..).zip(networks) {
        let mut reader = PoolReader::new(network, PoolId(number), settings, node, kube.clone());
        match runtime.block_on(async { timeout(limit, reader.read(true)).await }) {
            // Cannot happen: only what is followed has to wait for something to read.
            Ok(None) => {}
            Ok(Some(read)) => {
                snapshot.summaries.push(read.summary);
                snapshot.pools.push(read.pool);
            }
            Err(_) => snapshot
                .summaries
                .push(format!("{}: no answer within {limit:?}", reader.name())),
        }
    }
    snapshot
}
