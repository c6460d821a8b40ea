//! One file of the CNI result cache, as libcni writes it.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    net::IpAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use detector_event::{MAX_PRIMARY_ADDRESSES, MAX_SECONDARY_ADDRESSES, Pod, Via};
use ipnet::IpNet;
use nix::libc;
use serde::Deserialize;

/// Longest file in bytes; most of it is the plugin's configuration.
pub(super) const MAX_BYTES: u64 = 256 * 1024;
/// Longest pod name, namespace, uid and container id.
const MAX_NAME: usize = 253;
/// Most interfaces of one result.
const MAX_INTERFACES: usize = 64;
/// The name that containerd and CRI-O give a pod's primary interface; Multus names secondary ones `net1`, `net2`, ….
const PRIMARY_INTERFACE: &str = "eth0";

/// The content of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pods) struct CacheEntry {
    pub(in crate::pods) pod: Pod,
    pub(super) namespace: Option<PathBuf>,
    pub(in crate::pods) devices: Vec<String>,
    /// The addresses of the pod's end, if that is the pod's primary interface.
    pub(in crate::pods) addresses: Vec<IpAddr>,
    /// The other addresses of the result.
    pub(in crate::pods) secondary_addresses: Vec<IpAddr>,
    /// The name of the network that the result is about.
    pub(super) network: Option<String>,
}

/// Why a file has no pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pods) enum Unusable {
    /// It cannot be read, is incomplete, or is not from libcni.
    Broken,
    /// No pod name: written by another user of CNI, or by libcni before 0.8.
    Nameless,
}

/// Reads a file. Never blocks on something that is not a regular file.
pub(super) fn read(path: &Path) -> Result<CacheEntry, Unusable> {
    let file = open(path).map_err(|_| Unusable::Broken)?;
    let mut text = Vec::new();
    let outcome = file.take(MAX_BYTES + 1).read_to_end(&mut text);
    if outcome.is_err() || text.len() as u64 > MAX_BYTES {
        return Err(Unusable::Broken);
    }
    parse(&text)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
}

/// The fields in use of libcni's `cniCacheV1`. Results of versions 0.3 to 1.1 have `interfaces`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CacheFile {
    kind: Option<String>,
    container_id: Option<String>,
    netns: Option<String>,
    network_name: Option<String>,
    if_name: Option<String>,
    cni_args: Option<Vec<(String, String)>>,
    result: Option<CacheResult>,
}

#[derive(Debug, Deserialize)]
struct CacheResult {
    interfaces: Option<Vec<CacheInterface>>,
    ips: Option<Vec<CacheAddress>>,
}

#[derive(Debug, Deserialize)]
struct CacheInterface {
    #[serde(default)]
    name: String,
    #[serde(default)]
    sandbox: String,
}

#[derive(Debug, Deserialize)]
struct CacheAddress {
    #[serde(default)]
    address: String,
    /// Index in `interfaces`.
    interface: Option<i64>,
}

pub(in crate::pods) fn parse(text: &[u8]) -> Result<CacheEntry, Unusable> {
    let file: CacheFile = serde_json::from_slice(text).map_err(|_| Unusable::Broken)?;
    if file.kind.as_deref() != Some("cniCacheV1") {
        return Err(Unusable::Nameless);
    }
    let args = file.cni_args.unwrap_or_default();
    let arg = |name: &str| {
        args.iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.clone())
            .filter(|value| is_name(value))
    };
    let (Some(pod_namespace), Some(name)) = (arg("K8S_POD_NAMESPACE"), arg("K8S_POD_NAME")) else {
        return Err(Unusable::Nameless);
    };
    let container_id = file
        .container_id
        .or_else(|| arg("K8S_POD_INFRA_CONTAINER_ID"));
    let (interfaces, ips) = file
        .result
        .map(|result| (result.interfaces, result.ips))
        .unwrap_or_default();
    let interfaces = interfaces.unwrap_or_default();
    let is_primary = file.if_name.as_deref() == Some(PRIMARY_INTERFACE);
    let (mut addresses, mut secondary_addresses) = (Vec::new(), Vec::new());
    for ip in ips.into_iter().flatten() {
        let Ok(net) = ip.address.parse::<IpNet>() else {
            continue;
        };
        // The result for `lo` is written first: it gives the pod none of its addresses.
        if net.addr().is_loopback() {
            continue;
        }
        // Without an index the plugin has one interface.
        let is_on_primary = |index| {
            let interface = usize::try_from(index).ok().and_then(|i| interfaces.get(i));
            interface.is_some_and(|i: &CacheInterface| i.name == PRIMARY_INTERFACE)
        };
        if is_primary && ip.interface.is_none_or(is_on_primary) {
            addresses.push(net.addr());
        } else {
            secondary_addresses.push(net.addr());
        }
    }
    addresses.truncate(MAX_PRIMARY_ADDRESSES);
    secondary_addresses.truncate(MAX_SECONDARY_ADDRESSES);
    // Older libcni writes the namespace's path with the pod's own interface only.
    let sandbox = interfaces.iter().map(|interface| &interface.sandbox);
    let namespace = file.netns.iter().chain(sandbox);
    Ok(CacheEntry {
        pod: Pod {
            uid: arg("K8S_POD_UID"),
            container_id: container_id.filter(|id| is_name(id)),
            ..Pod::named(pod_namespace, name, Via::CniCache)
        },
        namespace: namespace
            .filter(|path| path.starts_with('/') && path.len() <= 4096)
            .map(PathBuf::from)
            .next(),
        devices: interfaces
            .into_iter()
            .filter(|interface| interface.sandbox.is_empty())
            .map(|interface| interface.name)
            .filter(|name| (1..=15).contains(&name.len()))
            .take(MAX_INTERFACES)
            .collect(),
        addresses,
        secondary_addresses,
        network: file.network_name.filter(|name| is_name(name)),
    })
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const PTP: &str = include_str!("../fixtures/containerd-1.6-ptp.json");
    const LOOPBACK: &str = include_str!("../fixtures/containerd-1.6-loopback.json");
    const OLD: &str = include_str!("../fixtures/libcni-0.7-result.json");
    const PODMAN: &str = include_str!("../fixtures/podman-4.json");

    #[test]
    fn containerd_entry_has_pod_namespace_and_device() {
        let entry = parse(PTP.as_bytes()).unwrap();
        let pod = &entry.pod;
        assert_eq!((&*pod.namespace, &*pod.name), ("default", "new-1"));
        assert_eq!(pod.uid.as_deref(), Some("uid-new-1"));
        assert_eq!(
            pod.container_id.as_deref(),
            Some("37666bd171fae7a154b9fc4f4f1e362890a99ee08640589643bd69a8c254672d")
        );
        assert_eq!(pod.via, Via::CniCache);
        assert_eq!(entry.devices, ["veth63a506ba"]);
        assert_eq!(entry.network.as_deref(), Some("testkit"));
        assert_eq!(entry.addresses, ["10.244.2.2".parse::<IpAddr>().unwrap()]);
        let file = "/var/run/netns/cni-5fcc2183-6c3d-1ab3-fc21-09b463aafe79";
        assert_eq!(entry.namespace.as_deref(), Some(Path::new(file)));
    }

    #[test]
    fn only_addresses_of_the_primary_interface_are_primary() {
        let count = |from: &str, to: &str| {
            assert!(PTP.contains(from), "{from}");
            let entry = parse(PTP.replace(from, to).as_bytes()).unwrap();
            entry.addresses.len()
        };
        // Multus names secondary interfaces.
        assert_eq!(count(r#""ifName":"eth0""#, r#""ifName":"net1""#), 0);
        for elsewhere in ["0", "7", "-1"] {
            let index = format!(r#""interface":{elsewhere}"#);
            assert_eq!(count(r#""interface":1"#, &index), 0, "{index}");
        }
        assert_eq!(count(r#""interface":1"#, r#""x":1"#), 1);
        let secondary = parse(PTP.replace("eth0", "net1").as_bytes()).unwrap();
        assert_eq!(
            secondary.secondary_addresses,
            ["10.244.2.2".parse::<IpAddr>().unwrap()]
        );
        assert_eq!(count("10.244.2.2/24", "10.244.2.2"), 0);
    }

    #[test]
    fn loopback_entry_has_neither_host_device_nor_addresses() {
        let entry = parse(LOOPBACK.as_bytes()).unwrap();
        assert_eq!(entry.devices, [""; 0]);
        assert_eq!(
            (entry.addresses, entry.secondary_addresses),
            (vec![], vec![])
        );
    }

    #[test]
    fn nameless_entries_are_not_broken_and_truncated_ones_are() {
        assert_eq!(parse(OLD.as_bytes()), Err(Unusable::Nameless));
        assert_eq!(parse(PODMAN.as_bytes()), Err(Unusable::Nameless));
        for length in [0, 1, PTP.len() / 2, PTP.trim_end().len() - 1] {
            let truncated = PTP.get(..length).unwrap();
            assert_eq!(
                parse(truncated.as_bytes()),
                Err(Unusable::Broken),
                "{length}"
            );
        }
        for broken in [
            "[]",
            "null",
            r#"{"kind":7}"#,
            r#"{"kind":"cniCacheV1","cniArgs":[["a"]]}"#,
        ] {
            assert_eq!(parse(broken.as_bytes()), Err(Unusable::Broken), "{broken}");
        }
    }

    #[test]
    fn invalid_names_are_rejected() {
        let long = "x".repeat(MAX_NAME + 1);
        for name in ["", "a b", "a\\u0007b", &long] {
            let text = PTP.replace("\"new-1\"", &format!("\"{name}\""));
            assert_eq!(parse(text.as_bytes()), Err(Unusable::Nameless), "{name}");
        }
    }
}
