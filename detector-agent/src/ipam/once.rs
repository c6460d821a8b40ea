//! One look at IPAM's books, for `check`.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{
    aws::Aws,
    calico::Calico,
    config,
    host_local::{HostLocal, State},
    settings::{IpamSettings, IpamSwitch},
    task::tell_config,
};
use crate::{
    detect::{Pool, PoolId},
    identify::Kube,
};

/// What was recognised and read.
#[derive(Debug, Default)]
pub struct Recognised {
    /// The books.
    pub pools: Vec<Arc<Pool>>,
    /// What was read and what not, a sentence each.
    pub told: Vec<String>,
}

/// Reads all there is to read now.
#[must_use]
pub fn look_once(
    settings: &IpamSettings,
    node: &str,
    kube: Option<Kube>,
    patience: Duration,
) -> Recognised {
    let mut seen = Recognised::default();
    if settings.ipam == IpamSwitch::Off {
        return seen;
    }
    let config = config::read(&settings.cni_conf_dir);
    seen.told
        .push(tell_config(&settings.cni_conf_dir, &config).1);
    let config = config.unwrap_or_default();
    let (aws, calico) = (config.aws, config.calico);
    for (number, network) in (0..).zip(config.host_local) {
        let mut reader = HostLocal::new(PoolId(number), network);
        let read = reader.read(true);
        let place = reader.directory.display();
        seen.told.push(match read.state {
            State::Read { reservations, .. } => format!("{reservations} reservations in {place}"),
            State::Deleted => format!("{place} is not there: no address is reserved"),
            State::Orphaned => {
                format!("{place} was deleted on the node; restart the container that checks")
            }
            State::NeverSeen(why) => why,
            State::Unreadable(why) => {
                format!("{place} cannot be read: {why}; drift is not judged by it")
            }
        });
        seen.pools.push(read.pool);
    }
    if aws.is_none() && calico.is_none() {
        return seen;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            seen.told
                .push(format!("ipamd and Calico are not read: {error}"));
            return seen;
        }
    };
    if let Some(network) = aws {
        let id = PoolId(u32::MAX);
        let file = settings.aws_ipam_file.clone();
        let mut reader = Aws::new(id, network, file, settings.aws_introspection);
        let read = runtime.block_on(reader.read());
        seen.told.push(read.told);
        seen.pools.push(read.pool);
    }
    if let Some(network) = calico {
        let mut reader = Calico::new(PoolId(u32::MAX - 1), network, node.to_owned(), kube);
        match runtime.block_on(async { timeout(patience, reader.read()).await }) {
            Ok(read) => {
                seen.told.push(read.told);
                seen.pools.push(read.pool);
            }
            Err(_) => seen.told.push(format!(
                "calico-ipam: the Kubernetes API did not answer within {patience:?}"
            )),
        }
    }
    seen
}
