//! One look at IPAM's books, for `check`.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{
    config,
    reader::Reader,
    settings::{IpamSettings, IpamSwitch},
};
use crate::{
    engine::{Pool, PoolId},
    kube_client::KubeClient,
};

/// What was recognised and read.
#[derive(Debug, Default)]
pub struct Recognised {
    /// The books.
    pub pools: Vec<Arc<Pool>>,
    /// What was read and what not, a sentence each.
    pub told: Vec<String>,
}

/// Reads all there is to read now; each network's books have `patience`.
#[must_use]
pub fn look_once(
    settings: &IpamSettings,
    node: &str,
    kube: Option<KubeClient>,
    patience: Duration,
) -> Recognised {
    let mut seen = Recognised::default();
    if settings.ipam == IpamSwitch::Off {
        return seen;
    }
    let config = config::read(&settings.cni_conf_dir);
    let (_, told) = config::tell(&settings.cni_conf_dir, &config);
    seen.told.push(told);
    let networks = config.unwrap_or_default().networks();
    if networks.is_empty() {
        return seen;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            seen.told
                .push(format!("IPAM's books are not read: {error}"));
            return seen;
        }
    };
    for (number, network) in (0..).zip(networks) {
        let mut reader = Reader::of(network, PoolId(number), settings, node, kube.as_ref());
        match runtime.block_on(async { timeout(patience, reader.read(true)).await }) {
            // The first reading is never too soon.
            Ok(None) => {}
            Ok(Some(read)) => {
                seen.told.push(read.told);
                seen.pools.push(read.pool);
            }
            Err(_) => seen
                .told
                .push(format!("{}: no answer within {patience:?}", reader.name())),
        }
    }
    seen
}
