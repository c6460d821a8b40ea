//! Allocations of Azure's CNS, which azure-ipam and azure-vnet ask for addresses: the endpoints in the file that it writes
//! before it answers (`EndpointInfo` in azure-container-networking's `cns/restserver`).
//!
//! CNS keeps it only where it manages the endpoints' state, as with Azure CNI Powered by Cilium; versions that keep it in a
//! database rename the file.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use detector_engine::{Allocation, Ipam};
use futures_util::future::BoxFuture;
use serde::Deserialize;

use super::{
    files::{self, FileError},
    is_container_id,
    snapshot_history::SnapshotHistory,
    source::{PoolRead, PoolReader, Source},
    whole_pool::{self, Allocations, Found, MAX_ADDRESSES, WholePool},
};
use crate::process::clock;

/// Longest file in bytes; an endpoint takes some hundred.
const MAX_BYTES: u64 = 8 << 20;

pub(super) const SOURCE: Source = Source {
    ipam: Ipam::Azure,
    serves: |_, ipam| matches!(ipam, "azure-ipam" | "azure-cns"),
    is_found_by_leases: false,
    reader: |id, network, context| {
        let device_prefix = match network.plugin.as_str() {
            "cilium-cni" => "lxc",
            _ => "azv",
        };
        Box::new(AzureReader {
            pool: WholePool {
                id,
                ipam: Ipam::Azure,
                network: network.name.clone(),
                device_prefixes: vec![device_prefix.to_owned()],
                can_detect_leaks: true,
                can_detect_deletion: true,
                record_delay: Duration::ZERO,
                history: SnapshotHistory::new(MAX_ADDRESSES),
            },
            file: context.settings.azure_endpoints_file.clone(),
        })
    },
};

/// Reads the file.
#[derive(Debug)]
struct AzureReader {
    pool: WholePool,
    file: PathBuf,
}

impl PoolReader for AzureReader {
    fn directory(&self) -> Option<&Path> {
        self.file.parent()
    }

    fn read(&mut self, _thorough: bool) -> BoxFuture<'_, Option<PoolRead>> {
        Box::pin(async move {
            let read_at = clock::now();
            let place = self.file.display().to_string();
            let found = match files::read(&self.file, MAX_BYTES) {
                Ok(bytes) => parse(&bytes).map_or_else(Found::Failed, Found::All),
                Err(FileError::Missing) => Found::Absent(format!(
                    "{place} does not exist, or is not mounted into the agent: drift is not checked"
                )),
                Err(error) => Found::Failed(format!("it {error}")),
            };
            Some(self.pool.apply(place, found, read_at, None))
        })
    }
}

/// The addresses in the file.
pub(super) fn parse(bytes: &[u8]) -> Result<Allocations, String> {
    #[derive(Deserialize)]
    struct Store {
        /// By container id.
        #[serde(rename = "Endpoints")]
        endpoints: Option<BTreeMap<String, Option<Endpoint>>>,
    }
    #[derive(Deserialize)]
    struct Endpoint {
        #[serde(rename = "IfnameToIPMap")]
        interfaces: Option<BTreeMap<String, Option<Interface>>>,
    }
    #[derive(Deserialize)]
    struct Interface {
        #[serde(rename = "IPv4")]
        ipv4: Option<Vec<Prefix>>,
        #[serde(rename = "IPv6")]
        ipv6: Option<Vec<Prefix>>,
    }
    /// Go's `net.IPNet`.
    #[derive(Deserialize)]
    struct Prefix {
        #[serde(rename = "IP")]
        address: IpAddr,
    }
    let store: Store =
        serde_json::from_slice(bytes).map_err(|error| format!("not valid JSON: {error}"))?;
    let endpoints = store.endpoints.ok_or("it has no `Endpoints`")?;
    let mut allocated = Allocations::new();
    for (id, endpoint) in endpoints {
        let owner: Option<Arc<str>> = is_container_id(&id).then(|| id.as_str().into());
        let interfaces = endpoint.and_then(|e| e.interfaces).unwrap_or_default();
        for interface in interfaces.into_values().flatten() {
            let prefixes = [interface.ipv4, interface.ipv6];
            for prefix in prefixes.into_iter().flatten().flatten() {
                let allocation = Allocation {
                    owner: owner.clone(),
                    ..Allocation::default()
                };
                whole_pool::add(&mut allocated, prefix.address, allocation);
                if allocated.len() > MAX_ADDRESSES {
                    return Err(format!("it has more than {MAX_ADDRESSES} addresses"));
                }
            }
        }
    }
    Ok(allocated)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn addresses_of_all_interfaces_are_read() {
        let found = parse(include_bytes!("../../../fuzz/corpus/ipam_azure/endpoints")).unwrap();
        let addresses: Vec<_> = found.keys().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.241.0.65", "10.241.0.66", "fd00::42"]);
        let first = found.values().next().unwrap();
        assert_eq!(first.owner.as_deref().map(str::len), Some(64));
        assert_eq!(first.second_owner, None);
    }

    #[test]
    fn address_of_two_endpoints_has_two_owners() {
        let found = parse(include_bytes!("../../../fuzz/corpus/ipam_azure/twice")).unwrap();
        assert!(found.values().all(|a| a.second_owner.is_some()));
    }

    #[test]
    fn file_that_is_not_understood_is_refused() {
        for broken in [
            &b"{"[..],
            b"{}",
            br#"{"Endpoints":null}"#,
            br#"{"Endpoints":{"a":{"IfnameToIPMap":{"eth0":{"IPv4":[{"IP":"nonsense"}]}}}}}"#,
        ] {
            assert!(parse(broken).is_err());
        }
        assert!(parse(br#"{"Endpoints":{}}"#).unwrap().is_empty());
    }
}
