//! A single read of all IPAM sources, for `check`.

use std::{path::Path, sync::Arc, time::Duration};

use detector_engine::{Pool, PoolId};
use tokio::time::timeout;

use super::{
    cni_config,
    leases::ResultCache,
    settings::{IpamMode, IpamSettings},
    source::Context,
    sources::{open, part_name},
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

/// Reads all pools in the CNI configuration, and those with leases in the CNI result cache (`results`), each for at most `limit`.
#[must_use]
pub fn read_once(
    settings: &IpamSettings,
    node: &str,
    kube: Option<KubeClient>,
    results: Option<&Path>,
    limit: Duration,
) -> IpamSnapshot {
    let mut snapshot = IpamSnapshot::default();
    if settings.ipam == IpamMode::Off {
        return snapshot;
    }
    let mut config = cni_config::read(&settings.cni_conf_dir);
    if let (Ok(config), Some(directory)) = (&mut config, results) {
        let mut results = ResultCache::new(directory);
        // The reader of a network reports what is wrong with its leases.
        let _ = results.refresh();
        config.add_leased(|ipam| results.has(ipam));
    }
    let (_, summary) = cni_config::summary(&settings.cni_conf_dir, &config);
    snapshot.summaries.push(summary);
    let config = config.unwrap_or_default();
    let context = Context {
        settings,
        node,
        kube: kube.as_ref(),
        results,
        blocks: &Arc::default(),
    };
    let readers: Vec<_> = (0..)
        .zip(config.supported())
        .filter_map(|(number, (_, network))| {
            Some((part_name(network), open(PoolId(number), network, &context)?))
        })
        .collect();
    if readers.is_empty() {
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
    for (name, mut reader) in readers {
        match runtime.block_on(async { timeout(limit, reader.read(true)).await }) {
            // Cannot happen: only what is followed has to wait for something to read.
            Ok(None) => {}
            Ok(Some(read)) => {
                snapshot.summaries.push(read.summary);
                snapshot.pools.push(read.pool);
            }
            Err(_) => snapshot
                .summaries
                .push(format!("{name}: no answer within {limit:?}")),
        }
    }
    snapshot
}
