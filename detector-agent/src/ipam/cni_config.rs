//! The networks in the node's CNI configuration, and which IPAM assigns their addresses.
//!
//! Like libcni, reads every `.conf`, `.conflist` and `.json` of the directory in the order of their names; container
//! runtimes use the first that has a plugin. Delegated configurations (flannel, multus) are followed. An unreadable file
//! is reported and skipped.

use std::{
    fs, io,
    net::IpAddr,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use detector_engine::{Ipam, diagnosis::NetworkConfig};
use detector_event::State;
use detector_event::counted;
use ipnet::IpNet;
use serde_json::Value;

use super::{
    files::{self, FileError},
    host_local,
    network::Network,
    settings::{IpamMode, IpamSettings},
    sources::SOURCES,
};

/// Most files that are read.
const MAX_FILES: usize = 256;
/// Longest file in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Most networks.
pub(super) const MAX_NETWORKS: usize = 64;
/// Most address ranges of one network.
pub(super) const MAX_RANGES: usize = 256;
/// Deepest nesting of delegates.
const MAX_DEPTH: usize = 4;
/// Default file in which flanneld writes this node's subnet.
const FLANNEL_SUBNET: &str = "/run/flannel/subnet.env";

/// The networks of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CniConfig {
    pub(super) networks: Vec<Network>,
    /// Files that could not be used, and why.
    pub(super) problems: Vec<String>,
    /// Networks beyond [`MAX_NETWORKS`].
    pub(super) skipped: usize,
}

/// Reads the directory.
///
/// # Errors
/// One sentence, if there is no configuration.
pub(super) fn read(directory: &Path) -> Result<CniConfig, String> {
    let shown = directory.display();
    let entries = fs::read_dir(directory).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            format!("{shown} does not exist: no CNI configuration")
        }
        _ => format!("cannot read {shown}: {error}"),
    })?;
    let is_config = |path: &PathBuf| {
        let extension = path.extension().and_then(|e| e.to_str());
        matches!(extension, Some("conf" | "conflist" | "json"))
    };
    let mut paths: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(is_config)
        .take(MAX_FILES)
        .collect();
    paths.sort();
    let mut config = CniConfig::default();
    let mut is_first = true;
    for path in paths {
        match read_file(&path) {
            Ok(value) => {
                let before = config.networks.len();
                config.add_file(&value, is_first);
                is_first &= config.networks.len() == before;
            }
            Err(reason) => config.problems.push(format!("{} {reason}", path.display())),
        }
    }
    Ok(config)
}

/// The configured networks, for a diagnosis.
///
/// # Errors
/// One sentence, if not all of the configuration can be read.
pub(crate) fn configured_networks(settings: &IpamSettings) -> Result<Vec<NetworkConfig>, String> {
    if settings.ipam == IpamMode::Off {
        return Err("--ipam is off".to_owned());
    }
    let config = read(&settings.cni_conf_dir)?;
    match config.problems.first() {
        Some(problem) => Err(problem.clone()),
        None => Ok(config.for_diagnosis()),
    }
}

/// The network of a configuration that a plugin was called with. `host-local` of the AWS VPC CNI's second plugin (`egress-cni`) does
/// not assign the pod's own address.
pub(crate) fn network_config(value: &Value) -> Option<NetworkConfig> {
    let mut config = CniConfig::default();
    config.add_file(value, true);
    let networks = config.for_diagnosis();
    let aws = networks.iter().find(|network| network.ipam == "aws-cni");
    aws.or(networks.first()).cloned()
}

/// The networks that were found, in a sentence, and whether all of them could be used.
pub(super) fn summary(directory: &Path, config: &Result<CniConfig, String>) -> (State, String) {
    let config = match config {
        Ok(config) => config,
        Err(reason) => return (State::Off, reason.clone()),
    };
    let supported: Vec<_> = config
        .supported()
        .map(|(ipam, network)| format!("{} ({})", ipam.name(), network.name))
        .collect();
    let unsupported = config.networks.iter().filter(|n| n.ipam.is_none());
    let unsupported: Vec<_> = unsupported
        .map(|network| format!("{} ({})", network.ipam_type, network.name))
        .collect();
    let shown = directory.display();
    let mut summary = if supported.is_empty() {
        format!("no supported IPAM found in {shown}")
    } else {
        format!("found in {shown}: {}", supported.join(", "))
    };
    if !unsupported.is_empty() {
        summary.push_str("; not supported: ");
        summary.push_str(&unsupported.join(", "));
    }
    if config.skipped > 0 {
        summary.push_str(&format!(
            "; skipped {} beyond the limit of {MAX_NETWORKS}",
            counted(config.skipped, "network", "networks")
        ));
    }
    for problem in &config.problems {
        summary.push_str(&format!("; {problem}"));
    }
    let is_complete = config.problems.is_empty() && config.skipped == 0;
    let state = if is_complete {
        State::Works
    } else {
        State::Degraded
    };
    (state, summary)
}

fn read_file(path: &Path) -> Result<Value, String> {
    let bytes = files::read(path, MAX_BYTES).map_err(|error: FileError| error.to_string())?;
    serde_json::from_slice(&bytes).map_err(|error| format!("is not valid JSON: {error}"))
}

fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.get(key).and_then(Value::as_str)
}

impl CniConfig {
    fn for_diagnosis(&self) -> Vec<NetworkConfig> {
        let networks = self.networks.iter().map(|network| NetworkConfig {
            name: network.name.clone(),
            ipam: network.ipam_type.clone(),
            data_dir: network.data_dir.as_ref().map(|d| d.display().to_string()),
            ranges: network.ranges.clone(),
        });
        networks.collect()
    }

    /// Adds a network of each IPAM that is found by leases and has some, unless there is one.
    pub(super) fn add_leased(&mut self, has_leases: impl Fn(Ipam) -> bool) {
        let sources = SOURCES.iter().filter(|source| source.is_found_by_leases);
        for ipam in sources.map(|source| source.ipam) {
            let is_known = self.networks.iter().any(|n| n.ipam == Some(ipam));
            if !is_known && has_leases(ipam) {
                self.networks.push(Network {
                    name: ipam.name().to_owned(),
                    ipam: Some(ipam),
                    ipam_type: ipam.name().to_owned(),
                    plugin: String::new(),
                    device_prefix: None,
                    data_dir: None,
                    ranges: Vec::new(),
                    is_first: false,
                });
            }
        }
    }

    /// The networks whose IPAM can be read.
    pub(super) fn supported(&self) -> impl Iterator<Item = (Ipam, &Network)> {
        let networks = self.networks.iter();
        networks.filter_map(|network| Some((network.ipam?, network)))
    }

    /// Adds the networks of one file.
    pub(super) fn add_file(&mut self, value: &Value, is_first: bool) {
        let name = text(value, "name").unwrap_or_default();
        self.add_network(value, name, is_first, 0);
    }

    /// Adds a network: a list of plugins, of delegates, or a single plugin.
    fn add_network(&mut self, value: &Value, network: &str, is_first: bool, depth: usize) {
        if depth > MAX_DEPTH {
            return;
        }
        let network = text(value, "name").filter(|_| depth > 0).unwrap_or(network);
        for list in ["plugins", "delegates"] {
            let inner = value.get(list).and_then(Value::as_array);
            for (position, plugin) in inner.into_iter().flatten().enumerate() {
                // A chained plugin leaves the addresses to the first one, whatever it does alone.
                if list == "plugins" && position > 0 && plugin.get("ipam").is_none() {
                    continue;
                }
                // The network's name is next to the list; a delegate has a name of its own.
                let name = if list == "delegates" {
                    text(plugin, "name").unwrap_or(network)
                } else {
                    network
                };
                self.add_delegate(plugin, name, is_first, depth + 1);
            }
        }
        if value.get("plugins").is_none() {
            self.add_plugin(value, network, is_first);
        }
    }

    fn add_delegate(&mut self, value: &Value, network: &str, is_first: bool, depth: usize) {
        if value.get("plugins").is_some() || value.get("delegates").is_some() {
            self.add_network(value, network, is_first, depth);
        } else {
            self.add_plugin(value, network, is_first);
        }
    }

    fn add_plugin(&mut self, value: &Value, network: &str, is_first: bool) {
        let Some(plugin) = text(value, "type") else {
            return;
        };
        if self.networks.len() >= MAX_NETWORKS {
            self.skipped += 1;
            return;
        }
        if plugin == "flannel" {
            self.add_flannel(value, network, is_first);
            return;
        }
        let ipam = value.get("ipam").unwrap_or(&Value::Null);
        self.add_ipam(value, ipam, network, plugin, is_first);
    }

    /// Adds a network, unless its plugin assigns no addresses.
    fn add_ipam(
        &mut self,
        value: &Value,
        ipam: &Value,
        network: &str,
        plugin: &str,
        is_first: bool,
    ) {
        let ipam_type = text(ipam, "type").unwrap_or_default();
        let is_host_local = ipam_type == "host-local";
        // The name becomes a directory's.
        let is_valid_name =
            !network.is_empty() && !network.contains('/') && network != "." && network != "..";
        if is_host_local && !is_valid_name {
            self.problems
                .push(format!("{network:?} is not a valid network name"));
            return;
        }
        let source = SOURCES.iter().find(|s| (s.serves)(plugin, ipam_type));
        let ipam_type = match (source, ipam_type) {
            (None, "") => return,
            (Some(_), "") => plugin,
            (_, ipam_type) => ipam_type,
        };
        self.add(Network {
            name: network.to_owned(),
            ipam: source.map(|source| source.ipam),
            ipam_type: ipam_type.to_owned(),
            plugin: plugin.to_owned(),
            device_prefix: text(value, "vethPrefix").map(str::to_owned),
            data_dir: is_host_local.then(|| host_local::data_dir(ipam, plugin)),
            ranges: if is_host_local {
                ranges(ipam)
            } else {
                Vec::new()
            },
            is_first,
        });
    }

    /// Adds a network. Those of one `host-local` directory are one, and every other IPAM serves one network of the node.
    fn add(&mut self, new: Network) {
        let is_same = |known: &&mut Network| {
            known.ipam == new.ipam
                && match new.ipam {
                    Some(Ipam::HostLocal) => {
                        known.name == new.name && known.data_dir == new.data_dir
                    }
                    Some(_) => true,
                    None => known.name == new.name && known.ipam_type == new.ipam_type,
                }
        };
        match self.networks.iter_mut().find(is_same) {
            Some(known) if new.ipam == Some(Ipam::HostLocal) => {
                known.ranges.extend(new.ranges);
                known.ranges.truncate(MAX_RANGES);
                known.is_first |= new.is_first;
            }
            Some(known) => *known = new,
            None => self.networks.push(new),
        }
    }

    /// flannel delegates to `bridge` with `host-local`, for the subnet that flanneld leased.
    fn add_flannel(&mut self, value: &Value, network: &str, is_first: bool) {
        let configured = value.get("ipam").unwrap_or(&Value::Null);
        let mut ipam = configured.as_object().cloned().unwrap_or_default();
        ipam.insert("type".to_owned(), "host-local".into());
        let plugin = value
            .get("delegate")
            .and_then(|d| text(d, "type"))
            .unwrap_or("bridge")
            .to_owned();
        let file = text(value, "subnetFile").unwrap_or(FLANNEL_SUBNET);
        if ranges(configured).is_empty() {
            match flannel_subnets(Path::new(file)) {
                Ok(subnets) => {
                    let subnets = subnets.into_iter();
                    let ranges: Vec<_> = subnets
                        .map(|s| serde_json::json!([{ "subnet": s.trunc().to_string() }]))
                        .collect();
                    ipam.insert("ranges".to_owned(), ranges.into());
                }
                Err(error) => self.problems.push(format!("{file} {error}")),
            }
        }
        self.add_ipam(value, &ipam.into(), network, &plugin, is_first);
    }
}

fn flannel_subnets(path: &Path) -> Result<Vec<IpNet>, FileError> {
    Ok(leased_subnets(&files::read(path, MAX_BYTES)?))
}

/// This node's subnets in flanneld's file, one per address family.
pub(super) fn leased_subnets(bytes: &[u8]) -> Vec<IpNet> {
    let text = String::from_utf8_lossy(bytes);
    let subnets = text.lines().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        let is_subnet = matches!(key.trim(), "FLANNEL_SUBNET" | "FLANNEL_IPV6_SUBNET");
        is_subnet.then(|| value.trim().parse().ok()).flatten()
    });
    subnets.take(2).collect()
}

/// The address ranges of a `host-local` configuration, in both of its forms.
fn ranges(ipam: &Value) -> Vec<RangeInclusive<IpAddr>> {
    let sets = ipam.get("ranges").and_then(Value::as_array);
    let in_sets = sets
        .into_iter()
        .flatten()
        .filter_map(Value::as_array)
        .flatten();
    std::iter::once(ipam)
        .chain(in_sets)
        .filter_map(range)
        .take(MAX_RANGES)
        .collect()
}

fn range(value: &Value) -> Option<RangeInclusive<IpAddr>> {
    // Calico also allows "usePodCidr", which is not a subnet.
    let subnet: IpNet = text(value, "subnet")?.parse().ok()?;
    let within = |key| {
        let address: IpAddr = text(value, key)?.parse().ok()?;
        subnet.contains(&address).then_some(address)
    };
    let start = within("rangeStart").unwrap_or(subnet.network());
    let end = within("rangeEnd").unwrap_or(subnet.broadcast());
    (start <= end).then_some(start..=end)
}
