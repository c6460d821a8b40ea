//! The addresses that IPAM plugins gave to pods of this node, as libcni's result cache has them. The networks of Multus are in no
//! file of the node but these: each has the configuration that the plugin was called with.
//!
//! Invariants: as for [`CacheFiles`], and at most [`MAX_BYTES`] of a file are read. A file that is not
//! understood is skipped: it is being written, or of another format.

use std::{collections::BTreeMap, io, net::IpAddr, path::Path, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use detector_engine::Ipam;
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use super::{files, sources::SOURCES, whole_pool::MAX_ADDRESSES};
use crate::pods::CacheFiles;

/// Longest file in bytes; most of it is the plugin's configuration.
const MAX_BYTES: u64 = 256 << 10;

/// What a plugin returned for an interface of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) ipam: Ipam,
    pub(super) namespace: String,
    pub(super) pod: String,
    /// `ipam` in the configuration of the network.
    pub(super) config: Value,
    addresses: Vec<IpAddr>,
}

/// The leases of each address; several if a file of an earlier pod was left, or if it was given twice.
pub(super) type Leases = BTreeMap<IpAddr, Vec<Arc<Lease>>>;

/// The cache in one directory.
#[derive(Debug)]
pub(super) struct ResultCache(CacheFiles<Option<Arc<Lease>>>);

impl ResultCache {
    pub(super) fn new(directory: &Path) -> Self {
        Self(CacheFiles::new(directory))
    }

    pub(super) fn directory(&self) -> &Path {
        &self.0.directory
    }

    /// Reads what has changed. A directory that does not exist has nothing.
    ///
    /// # Errors
    /// One sentence.
    pub(super) fn refresh(&mut self) -> Result<(), String> {
        let read = self.0.refresh(|path| {
            let bytes = files::read(path, MAX_BYTES).ok()?;
            parse(&bytes).map(Arc::new)
        });
        match read {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Lease>> {
        self.0.iter().filter_map(|file| file.content.as_ref())
    }

    /// Whether there are leases of this IPAM.
    pub(super) fn has(&self, ipam: Ipam) -> bool {
        self.all().any(|lease| lease.ipam == ipam)
    }

    /// The leases of this IPAM, of at most [`MAX_ADDRESSES`] addresses.
    pub(super) fn of(&self, ipam: Ipam) -> Leases {
        let mut leases = Leases::new();
        let ours = self.all().filter(|lease| lease.ipam == ipam);
        for lease in ours {
            for address in &lease.addresses {
                if leases.len() < MAX_ADDRESSES || leases.contains_key(address) {
                    leases.entry(*address).or_default().push(Arc::clone(lease));
                }
            }
        }
        for leases in leases.values_mut() {
            leases.sort_by(|a, b| (&a.namespace, &a.pod).cmp(&(&b.namespace, &b.pod)));
        }
        leases
    }
}

/// The lease in a file, if its IPAM is one whose records are found by leases.
pub(super) fn parse(bytes: &[u8]) -> Option<Lease> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct File {
        config: String,
        cni_args: Vec<(String, String)>,
        result: CacheResult,
    }
    #[derive(Deserialize)]
    struct CacheResult {
        ips: Vec<CacheAddress>,
    }
    #[derive(Deserialize)]
    struct CacheAddress {
        address: IpNet,
    }
    let file: File = serde_json::from_slice(bytes).ok()?;
    let config = STANDARD.decode(file.config.trim()).ok()?;
    let config: Value = serde_json::from_slice(&config).ok()?;
    let plugins = config.get("plugins").and_then(Value::as_array);
    let mut plugins = plugins.into_iter().flatten().chain([&config]);
    let config = plugins.find_map(|plugin| plugin.get("ipam"))?.clone();
    let kind = config.get("type")?.as_str()?;
    let mut sources = SOURCES.iter().filter(|source| source.is_found_by_leases);
    let ipam = sources.find(|source| (source.serves)("", kind))?.ipam;
    let argument = |name: &str| {
        let mut arguments = file.cni_args.iter();
        let (_, value) = arguments.find(|(key, _)| key == name)?;
        is_name(value).then(|| value.clone())
    };
    Some(Lease {
        ipam,
        namespace: argument("K8S_POD_NAMESPACE")?,
        pod: argument("K8S_POD_NAME")?,
        config,
        addresses: file.result.ips.iter().map(|ip| ip.address.addr()).collect(),
    })
}

/// Whether it may be the name of an object in the Kubernetes API.
pub(super) fn is_name(text: &str) -> bool {
    let is_allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b".-".contains(&c);
    (1..=253).contains(&text.len()) && text.bytes().all(is_allowed)
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs;

    use serde_json::json;

    use super::*;

    /// A file of the cache, as Multus lets libcni write it for a second interface.
    pub(in crate::ipam) fn cache_file(config: &Value, pod: &str, address: &str) -> String {
        let config = STANDARD.encode(config.to_string());
        json!({"kind": "cniCacheV1", "containerId": "0".repeat(64), "config": config, "ifName": "net1", "networkName": "lan",
            "cniArgs": [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", pod]],
            "result": {"cniVersion": "0.3.1", "interfaces": [{"name": "net1"}], "ips": [{"address": address, "version": "4"}]}})
        .to_string()
    }

    fn bridge(ipam: &str) -> Value {
        json!({"cniVersion": "0.3.1", "name": "lan", "type": "bridge", "ipam": {"type": ipam, "range": "10.9.0.0/24"}})
    }

    #[test]
    fn results_name_the_pod_and_the_configuration() {
        let list = json!({"name": "lan", "plugins": [bridge("whereabouts"), {"type": "tuning"}]});
        for config in [bridge("whereabouts"), list] {
            let file = cache_file(&config, "web-1", "10.9.0.5/24");
            let lease = parse(file.as_bytes()).unwrap();
            assert_eq!(lease.ipam, Ipam::Whereabouts);
            assert_eq!((&*lease.namespace, &*lease.pod), ("shop", "web-1"));
            assert_eq!(lease.config["range"], "10.9.0.0/24");
            assert_eq!(lease.addresses, ["10.9.0.5".parse::<IpAddr>().unwrap()]);
        }
        for (config, pod, address) in [
            (bridge("host-local"), "web-1", "10.9.0.5/24"),
            (bridge("whereabouts"), "../web", "10.9.0.5/24"),
            (bridge("whereabouts"), "web-1", "10.9.0.5"),
            (json!(7), "web-1", "10.9.0.5/24"),
        ] {
            let file = cache_file(&config, pod, address);
            assert_eq!(parse(file.as_bytes()), None, "{file}");
        }
    }

    #[test]
    fn directory_is_read_again_where_it_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results");
        let mut cache = ResultCache::new(&path);
        assert_eq!(cache.refresh(), Ok(()), "before the first pod");
        fs::create_dir(&path).unwrap();
        for (name, pod) in [("a", "web-1"), ("b", "web-2")] {
            let file = cache_file(&bridge("spiderpool"), pod, "10.9.0.5/24");
            fs::write(path.join(name), file).unwrap();
        }
        fs::write(path.join("half"), "{").unwrap();
        cache.refresh().unwrap();
        assert!(cache.has(Ipam::Spiderpool) && !cache.has(Ipam::Whereabouts));
        let leases = cache.of(Ipam::Spiderpool);
        let pods: Vec<_> = leases.values().flatten().map(|lease| &*lease.pod).collect();
        assert_eq!(pods, ["web-1", "web-2"], "one address was given twice");
        fs::remove_file(path.join("a")).unwrap();
        cache.refresh().unwrap();
        assert_eq!(
            cache.of(Ipam::Spiderpool)[&"10.9.0.5".parse().unwrap()].len(),
            1
        );
    }
}
