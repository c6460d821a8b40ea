//! Which networks the node's CNI configuration has, and which IPAM hands out their addresses.
//!
//! Every `.conf`, `.conflist` and `.json` of the directory is read, as libcni does, in the order of their names; the
//! first that names a plugin is the one that container runtimes use. Delegated configurations (flannel, multus) are
//! followed. A file that cannot be read costs itself only and is told.

use std::{
    fs, io,
    net::IpAddr,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use serde_json::Value;

use super::files::{self, FileError};
use crate::health::State;

/// Files that are looked at.
const MAX_FILES: usize = 256;
/// Bytes of one file.
const MAX_BYTES: u64 = 1 << 20;
/// Networks that are followed.
pub(super) const MAX_NETWORKS: usize = 64;
/// Ranges of one network.
pub(super) const MAX_RANGES: usize = 256;
/// Delegates inside delegates.
const MAX_DEPTH: usize = 4;
/// Where `host-local` keeps its reservations unless told otherwise.
const HOST_LOCAL_DATA: &str = "/var/lib/cni/networks";
/// Where flanneld says which subnet is this node's.
const FLANNEL_SUBNET: &str = "/run/flannel/subnet.env";

/// A network whose addresses `host-local` hands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostLocalNetwork {
    /// The network's name.
    pub(super) name: String,
    /// The directory that holds a directory for each network.
    pub(super) data_dir: PathBuf,
    /// The addresses it hands out; empty where the configuration leaves that to another program.
    pub(super) ranges: Vec<RangeInclusive<IpAddr>>,
    /// The plugin that makes the pods' devices.
    pub(super) plugin: String,
    /// It stands in the file that container runtimes use.
    pub(super) is_first: bool,
}

/// A network whose books this agent knows how to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Network {
    HostLocal(HostLocalNetwork),
    /// The AWS VPC CNI's, and what its devices' names begin with.
    Aws {
        name: String,
        prefix: String,
    },
    /// The one that Calico's own IPAM serves.
    Calico(String),
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) host_local: Vec<HostLocalNetwork>,
    /// The network that Calico's own IPAM serves.
    pub(super) calico: Option<String>,
    /// The network of the AWS VPC CNI, and what its devices' names begin with.
    pub(super) aws: Option<(String, String)>,
    /// IPAM plugins whose books this agent does not know.
    pub(super) others: Vec<String>,
    /// Files that could not be used, and why.
    pub(super) problems: Vec<String>,
    /// Networks beyond the bound.
    pub(super) omitted: usize,
}

/// Reads the directory.
///
/// # Errors
/// One sentence, where there is no configuration to be read.
pub(super) fn read(directory: &Path) -> Result<Config, String> {
    let shown = directory.display();
    let entries = fs::read_dir(directory).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            format!("{shown} is not there: no CNI configuration to tell IPAM by")
        }
        _ => format!("{shown} cannot be read: {error}"),
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
    let mut config = Config::default();
    let mut first = true;
    for path in paths {
        match one(&path) {
            Ok(value) => {
                let before = config.count();
                config.file(&value, first);
                first &= config.count() == before;
            }
            Err(why) => config.problems.push(format!("{}: {why}", path.display())),
        }
    }
    Ok(config)
}

/// What was recognised, in a sentence, and whether all of it could be used.
pub(super) fn tell(directory: &Path, config: &Result<Config, String>) -> (State, String) {
    let config = match config {
        Ok(config) => config,
        Err(why) => return (State::Off, why.clone()),
    };
    let known: Vec<String> = config
        .networks()
        .iter()
        .map(|network| match network {
            Network::HostLocal(n) => format!("host-local ({})", n.name),
            Network::Aws { name, .. } => format!("aws-ipamd ({name})"),
            Network::Calico(name) => format!("calico-ipam ({name})"),
        })
        .collect();
    let mut told = if known.is_empty() {
        format!("no IPAM recognised in {}", directory.display())
    } else {
        format!(
            "recognised in {}: {}",
            directory.display(),
            known.join(", ")
        )
    };
    if !config.others.is_empty() {
        told.push_str(&format!(
            "; not known to this agent: {}",
            config.others.join(", ")
        ));
    }
    if config.omitted > 0 {
        told.push_str(&format!(
            "; {} networks more than are followed",
            config.omitted
        ));
    }
    for problem in &config.problems {
        told.push_str(&format!("; {problem}"));
    }
    let whole = config.problems.is_empty() && config.omitted == 0;
    let state = if whole { State::Works } else { State::Degraded };
    (state, told)
}

fn one(path: &Path) -> Result<Value, String> {
    let bytes = files::read(path, MAX_BYTES).map_err(|error: FileError| error.to_string())?;
    serde_json::from_slice(&bytes).map_err(|error| format!("it is no JSON: {error}"))
}

fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.get(key).and_then(Value::as_str)
}

impl Config {
    /// The networks whose books can be read.
    pub(super) fn networks(&self) -> Vec<Network> {
        let host_local = self.host_local.iter().cloned().map(Network::HostLocal);
        let aws = self.aws.iter().map(|(name, prefix)| Network::Aws {
            name: name.clone(),
            prefix: prefix.clone(),
        });
        let calico = self.calico.iter().cloned().map(Network::Calico);
        host_local.chain(aws).chain(calico).collect()
    }

    /// Networks found, also those whose books are not known.
    pub(super) fn count(&self) -> usize {
        self.host_local.len()
            + usize::from(self.calico.is_some())
            + usize::from(self.aws.is_some())
            + self.others.len()
    }

    /// Takes what one file holds.
    pub(super) fn file(&mut self, value: &Value, is_first: bool) {
        let name = text(value, "name").unwrap_or_default();
        self.take(value, name, is_first, 0);
    }

    /// Takes a network's configuration, or a plugin's of it.
    fn take(&mut self, value: &Value, network: &str, is_first: bool, depth: usize) {
        if depth > MAX_DEPTH {
            return;
        }
        let network = text(value, "name").filter(|_| depth > 0).unwrap_or(network);
        for list in ["plugins", "delegates"] {
            let inner = value.get(list).and_then(Value::as_array);
            for plugin in inner.into_iter().flatten() {
                // The network's name stands beside the list; a delegate has one of its own.
                let name = if list == "delegates" {
                    text(plugin, "name").unwrap_or(network)
                } else {
                    network
                };
                self.plugin_or_more(plugin, name, is_first, depth + 1);
            }
        }
        if value.get("plugins").is_none() {
            self.plugin(value, network, is_first);
        }
    }

    fn plugin_or_more(&mut self, value: &Value, network: &str, is_first: bool, depth: usize) {
        if value.get("plugins").is_some() || value.get("delegates").is_some() {
            self.take(value, network, is_first, depth);
        } else {
            self.plugin(value, network, is_first);
        }
    }

    fn plugin(&mut self, value: &Value, network: &str, is_first: bool) {
        let Some(plugin) = text(value, "type") else {
            return;
        };
        if self.count() >= MAX_NETWORKS {
            self.omitted += 1;
            return;
        }
        match plugin {
            "flannel" => {
                self.flannel(value, network, is_first);
                return;
            }
            "aws-cni" => {
                let prefix = text(value, "vethPrefix").unwrap_or("eni");
                // The plugin's own device names have at most four characters before the hash.
                self.aws = Some((network.to_owned(), prefix.chars().take(4).collect()));
                return;
            }
            _ => {}
        }
        let Some(ipam) = value.get("ipam").filter(|ipam| ipam.is_object()) else {
            return;
        };
        match text(ipam, "type") {
            Some("host-local") => self.host_local(ipam, network, plugin, is_first),
            Some("calico-ipam") => self.calico = Some(network.to_owned()),
            Some(other) => {
                let other = format!("{other} ({network})");
                if !self.others.contains(&other) {
                    self.others.push(other);
                }
            }
            None => {}
        }
    }

    fn host_local(&mut self, ipam: &Value, network: &str, plugin: &str, is_first: bool) {
        let data_dir = text(ipam, "dataDir").filter(|d| !d.is_empty());
        let found = HostLocalNetwork {
            name: network.to_owned(),
            data_dir: data_dir.unwrap_or(HOST_LOCAL_DATA).into(),
            ranges: ranges(ipam),
            plugin: plugin.to_owned(),
            is_first,
        };
        // A network's name is a directory's.
        let usable =
            !network.is_empty() && !network.contains('/') && network != "." && network != "..";
        if !usable {
            self.problems
                .push(format!("a network cannot be named {network:?}"));
        } else if let Some(known) = self
            .host_local
            .iter_mut()
            .find(|known| known.name == found.name && known.data_dir == found.data_dir)
        {
            known.ranges.extend(found.ranges);
            known.ranges.truncate(MAX_RANGES);
            known.is_first |= is_first;
        } else {
            self.host_local.push(found);
        }
    }

    /// Flannel delegates to `bridge` with `host-local`, for the subnet that flanneld leased.
    fn flannel(&mut self, value: &Value, network: &str, is_first: bool) {
        let mut ipam = value.get("ipam").cloned().unwrap_or_default();
        if let Value::Null = ipam {
            ipam = Value::Object(serde_json::Map::new());
        }
        let plugin = value
            .get("delegate")
            .and_then(|d| text(d, "type"))
            .unwrap_or("bridge")
            .to_owned();
        let file = text(value, "subnetFile").unwrap_or(FLANNEL_SUBNET);
        if ranges(&ipam).is_empty()
            && let Some(ipam) = ipam.as_object_mut()
        {
            match flannel_subnets(Path::new(file)) {
                Ok(subnets) => {
                    let subnets = subnets.into_iter();
                    let ranges: Vec<_> = subnets
                        .map(|s| serde_json::json!([{ "subnet": s.trunc().to_string() }]))
                        .collect();
                    ipam.insert("ranges".to_owned(), ranges.into());
                }
                Err(why) => self.problems.push(format!("{file}: {why}")),
            }
        }
        self.host_local(&ipam, network, &plugin, is_first);
    }
}

fn flannel_subnets(path: &Path) -> Result<Vec<IpNet>, FileError> {
    Ok(leased_subnets(&files::read(path, MAX_BYTES)?))
}

/// The subnets that flanneld's file says are this node's, one of each family.
pub(super) fn leased_subnets(bytes: &[u8]) -> Vec<IpNet> {
    let text = String::from_utf8_lossy(bytes);
    let subnets = text.lines().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        let wanted = matches!(key.trim(), "FLANNEL_SUBNET" | "FLANNEL_IPV6_SUBNET");
        wanted.then(|| value.trim().parse().ok()).flatten()
    });
    subnets.take(2).collect()
}

/// The addresses that `host-local` hands out by this configuration; both forms of it.
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
    // "usePodCidr", as Calico allows, is no subnet.
    let subnet: IpNet = text(value, "subnet")?.parse().ok()?;
    let within = |key| {
        let address: IpAddr = text(value, key)?.parse().ok()?;
        subnet.contains(&address).then_some(address)
    };
    let start = within("rangeStart").unwrap_or(subnet.network());
    let end = within("rangeEnd").unwrap_or(subnet.broadcast());
    (start <= end).then_some(start..=end)
}
