//! What network plugins returned to a sandbox: libcni's result cache, one file for each network, whose name contains the sandbox's id.

use std::{fs, io, net::IpAddr, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use detector_engine::diagnosis::{CniResult, Known, NetworkConfig};
use ipnet::IpNet;
use serde::Deserialize;

use super::files::{not_checked, source, unix_time};
use crate::ipam::{self, read_file};

/// Longest file in bytes; most of it is the plugin's configuration.
const MAX_BYTES: u64 = 256 << 10;
/// Most files whose names are looked at.
const MAX_FILES: usize = 16_384;
/// The interface of the network that every pod has.
const PRIMARY_INTERFACE: &str = "eth0";
/// Most networks of one pod.
const MAX_RESULTS: usize = 16;

/// The fields in use of `cniCacheV1`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CacheFile {
    container_id: String,
    #[serde(default)]
    network_name: String,
    #[serde(default)]
    if_name: String,
    /// The configuration in base64.
    #[serde(default)]
    config: String,
    #[serde(default)]
    result: CacheResult,
}

#[derive(Default, Deserialize)]
struct CacheResult {
    #[serde(default)]
    ips: Vec<CacheAddress>,
}

#[derive(Deserialize)]
struct CacheAddress {
    address: String,
}

/// The results of a sandbox in this directory.
pub(super) fn of_sandbox(directory: &Path, id: &str) -> Known<Vec<CniResult>> {
    let what = || format!("the results of network plugins in {}", directory.display());
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return not_checked(what(), "the directory does not exist");
        }
        Err(error) => return not_checked(what(), error.to_string()),
    };
    let (mut results, mut has_primary) = (Vec::new(), false);
    for (number, entry) in entries.flatten().enumerate() {
        if number >= MAX_FILES {
            return not_checked(what(), format!("there are more than {MAX_FILES}"));
        }
        let name = entry.file_name();
        if !name.to_string_lossy().contains(id) || results.len() >= MAX_RESULTS {
            continue;
        }
        match read(&entry.path(), id) {
            Ok(Some((interface, result))) => {
                has_primary |= interface == PRIMARY_INTERFACE;
                results.push(result);
            }
            Ok(None) => {}
            Err(why) => return not_checked(entry.path().display().to_string(), why),
        }
    }
    match (results.is_empty(), has_primary) {
        (true, _) => Known::Absent(source(directory)),
        (false, true) => Known::Value(results, source(directory)),
        // That of `lo` is written first, that of the pod's network once its plugins have returned.
        (false, false) => not_checked(what(), "the result of eth0 is not written yet"),
    }
}

/// The result with the name of its interface; `None` if it is another sandbox's.
fn read(path: &Path, id: &str) -> Result<Option<(String, CniResult)>, String> {
    let bytes = read_file(path, MAX_BYTES).map_err(|error| error.to_string())?;
    let file: CacheFile = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if file.container_id != id {
        return Ok(None);
    }
    let config = STANDARD.decode(file.config.trim()).ok();
    let config = config.and_then(|config| serde_json::from_slice(&config).ok());
    let network = config
        .as_ref()
        .and_then(ipam::network_config)
        .unwrap_or_else(|| NetworkConfig {
            name: file.network_name.clone(),
            ipam: String::new(),
            data_dir: None,
            ranges: Vec::new(),
        });
    let addresses = file.result.ips.iter();
    let addresses = addresses.filter_map(|ip| ip.address.parse::<IpNet>().ok());
    let stored = fs::metadata(path).and_then(|metadata| metadata.modified());
    let result = CniResult {
        stored_at: stored.ok().and_then(unix_time),
        network,
        addresses: addresses.map(|net| net.addr()).collect::<Vec<IpAddr>>(),
    };
    Ok(Some((file.if_name, result)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use super::*;

    const PTP: &str = include_str!("../pods/fixtures/containerd-1.6-ptp.json");
    const LOOPBACK: &str = include_str!("../pods/fixtures/containerd-1.6-loopback.json");
    const SANDBOX: &str = "37666bd171fae7a154b9fc4f4f1e362890a99ee08640589643bd69a8c254672d";

    #[test]
    fn result_names_the_network_and_its_ranges() {
        let cache = tempfile::tempdir().unwrap();
        fs::write(cache.path().join(format!("testkit-{SANDBOX}-eth0")), PTP).unwrap();
        let results = of_sandbox(cache.path(), SANDBOX);
        let [result] = results.value().unwrap().as_slice() else {
            unreachable!("one result: {results:?}");
        };
        assert_eq!(result.network.name, "testkit");
        assert_eq!(result.network.ipam, "host-local");
        assert_eq!(result.addresses, ["10.244.2.2".parse::<IpAddr>().unwrap()]);
        let is_in = |address: &str| {
            let address: IpAddr = address.parse().unwrap();
            result
                .network
                .ranges
                .iter()
                .any(|range| range.contains(&address))
        };
        assert!(is_in("10.244.2.2") && !is_in("10.244.3.2"), "{result:?}");
        assert!(result.stored_at.is_some());
        assert!(of_sandbox(cache.path(), "another").is_absent());
    }

    #[test]
    fn results_before_that_of_the_pods_network_are_incomplete() {
        let cache = tempfile::tempdir().unwrap();
        let sandbox: CacheFile = serde_json::from_str(LOOPBACK).unwrap();
        let id = sandbox.container_id;
        fs::write(cache.path().join(format!("cni-loopback-{id}-lo")), LOOPBACK).unwrap();
        assert!(of_sandbox(cache.path(), &id).not_checked().is_some());
        fs::write(cache.path().join(format!("testkit-{id}-eth0")), &PTP[..200]).unwrap();
        assert!(of_sandbox(cache.path(), &id).not_checked().is_some());
        assert!(
            of_sandbox(&cache.path().join("none"), &id)
                .not_checked()
                .is_some()
        );
    }
}
