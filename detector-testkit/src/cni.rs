//! Runs real CNI plugins without a container runtime, with the parameters of the CNI specification, section "Parameters".

mod result_cache;

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{command::run_command, mounts::PrivateMounts, netns::Netns, node::POD_DEVICE};

use result_cache::CacheEntry;
pub use result_cache::cache_result_of;

/// The plugin directory of Debian's package `containernetworking-plugins`.
pub const PLUGIN_DIRECTORY: &str = "/usr/lib/cni";

static NEXT_CONTAINER: AtomicU64 = AtomicU64::new(1);

/// The default `dataDir` of `host-local`.
const DEFAULT_DATA: &str = "/var/lib/cni/networks";
/// The state of `host-local` and all other CNI state; a node restore wipes it.
const DEFAULT_STATE: &str = "/var/lib/cni";

/// A network configuration with IPAM state of its own.
#[derive(Debug)]
pub struct Cni {
    plugin: PathBuf,
    config: Value,
    data: IpamData,
}

/// Where IPAM keeps its state.
#[derive(Debug)]
enum IpamData {
    /// In a directory that the configuration names.
    Directory(TempDir),
    /// In the default directory, inside this mount namespace.
    DefaultDirectory(PrivateMounts),
}

/// A pod whose network a plugin set up. Dropping it removes the namespace, and the kernel then removes the veth pair; IPAM keeps
/// the allocation, as after a crash. [`Cni::remove_pod`] also releases the address.
#[derive(Debug)]
pub struct CniPod {
    netns: Netns,
    container_id: String,
    name: String,
    /// The plugin's result.
    pub result: AddResult,
    /// The same, as the plugin wrote it.
    result_json: Value,
}

/// The result of ADD; only the fields that tests need.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct AddResult {
    /// Devices that it created or uses.
    #[serde(default)]
    pub interfaces: Vec<CniInterface>,
    /// Addresses of the pod.
    #[serde(default)]
    pub ips: Vec<CniAddress>,
}

/// A device of a [`AddResult`].
#[derive(Clone, Debug, Deserialize)]
pub struct CniInterface {
    /// The device name.
    pub name: String,
    /// The MAC.
    #[serde(default)]
    pub mac: String,
    /// The path of the pod's namespace; empty or absent for a device on the host.
    #[serde(default)]
    pub sandbox: String,
}

/// An address of a [`AddResult`].
#[derive(Clone, Debug, Deserialize)]
pub struct CniAddress {
    /// With prefix length: `10.244.2.2/24`.
    pub address: String,
}

impl CniPod {
    /// The namespace.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The container id that IPAM records.
    #[must_use]
    pub fn container_id(&self) -> &str {
        &self.container_id
    }

    /// The host end of its veth pair.
    ///
    /// # Errors
    /// The result contains none.
    pub fn device(&self) -> Result<&str> {
        self.result
            .interfaces
            .iter()
            .find(|interface| interface.sandbox.is_empty() && interface.name.starts_with("veth"))
            .map(|interface| interface.name.as_str())
            .with_context(|| format!("no host veth in the result: {:?}", self.result))
    }

    /// Its first address.
    ///
    /// # Errors
    /// The result contains none.
    pub fn address(&self) -> Result<IpAddr> {
        let first = self
            .result
            .ips
            .first()
            .context("no address in the result")?;
        let (host, _) = first
            .address
            .split_once('/')
            .unwrap_or((&first.address, ""));
        host.parse()
            .with_context(|| format!("{host:?} is not a valid IP address"))
    }
}

impl CniPod {
    fn with_result(mut self, result: &str) -> Result<Self> {
        let context = || format!("the plugin's result {result}");
        self.result = serde_json::from_str(result).with_context(context)?;
        self.result_json = serde_json::from_str(result).with_context(context)?;
        Ok(self)
    }
}

impl Cni {
    /// A network with this plugin configuration and a new data directory for its `host-local` IPAM.
    ///
    /// # Errors
    /// The plugin is not installed, or the configuration has no type or no IPAM.
    pub fn new(mut config: Value) -> Result<Self> {
        let plugin = plugin(&config)?;
        let data = tempfile::Builder::new()
            .prefix("ipconflict-cni-")
            .tempdir()
            .context("creating a data directory")?;
        let ipam = config
            .get_mut("ipam")
            .and_then(Value::as_object_mut)
            .context("the CNI configuration has no ipam")?;
        ipam.insert(
            "dataDir".to_owned(),
            data.path().to_string_lossy().into_owned().into(),
        );
        Ok(Self {
            plugin,
            config,
            data: IpamData::Directory(data),
        })
    }

    /// A network with this plugin configuration whose IPAM uses its default data directory, inside a private mount namespace:
    /// the machine's own state is neither read nor changed.
    ///
    /// # Errors
    /// As [`Cni::new`], and the mount namespace cannot be created.
    pub fn with_default_data_dir(config: Value) -> Result<Self> {
        Ok(Self {
            plugin: plugin(&config)?,
            config,
            data: IpamData::DefaultDirectory(PrivateMounts::new()?),
        })
    }

    /// `ptp` with `host-local`, configured as by kind's kindnetd.
    ///
    /// # Errors
    /// As [`Cni::new`].
    pub fn ptp(network: &str, subnet: &str) -> Result<Self> {
        Self::new(json!({
            "cniVersion": "0.3.1", "name": network, "type": "ptp", "ipMasq": false, "mtu": 1500,
            "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": subnet}]]},
        }))
    }

    /// `bridge` with `host-local`, configured as by flannel.
    ///
    /// # Errors
    /// As [`Cni::new`].
    pub fn bridge(network: &str, bridge: &str, subnet: &str) -> Result<Self> {
        Self::new(bridge_config(network, bridge, subnet))
    }

    /// [`Cni::bridge`] with the default data directory, as on a node; see [`Cni::with_default_data_dir`].
    ///
    /// # Errors
    /// As [`Cni::with_default_data_dir`].
    pub fn bridge_with_default_data_dir(network: &str, bridge: &str, subnet: &str) -> Result<Self> {
        Self::with_default_data_dir(bridge_config(network, bridge, subnet))
    }

    /// The IPAM data directory, as seen by the plugin.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        match &self.data {
            IpamData::Directory(directory) => directory.path(),
            IpamData::DefaultDirectory(_) => Path::new(DEFAULT_DATA),
        }
    }

    /// Writes the configuration as a plugin list for a container runtime into `directory`, and returns the path.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_config(&self, directory: &Path) -> Result<PathBuf> {
        let mut plugin = self.config.clone();
        let object = plugin
            .as_object_mut()
            .context("the plugin is not an object")?;
        let name = object.remove("name").unwrap_or_default();
        let version = object.remove("cniVersion").unwrap_or_default();
        let list = json!({"cniVersion": version, "name": name, "plugins": [plugin,
            {"type": "portmap", "capabilities": {"portMappings": true}}]});
        let path = directory.join("10-testkit.conflist");
        std::fs::write(&path, list.to_string())
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Writes the result of ADD into the CNI result cache in `directory`, as a container runtime does.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn cache_result(&self, directory: &Path, pod: &CniPod) -> Result<()> {
        let network = self.config.get("name").and_then(Value::as_str);
        let entry = CacheEntry {
            network: network.unwrap_or_default(),
            container_id: &pod.container_id,
            pod: ("default", &pod.name),
            netns: &pod.netns,
            result: pod.result_json.clone(),
        };
        entry.write(directory)
    }

    /// The addresses that IPAM has recorded as allocated: those with a file.
    ///
    /// # Errors
    /// The data directory cannot be read.
    pub fn allocated_addresses(&self) -> Result<Vec<IpAddr>> {
        let network = self.config.get("name").and_then(Value::as_str);
        let directory = self.data_dir().join(network.unwrap_or_default());
        let names = match &self.data {
            IpamData::DefaultDirectory(mounts) => mounts.list(&directory)?,
            IpamData::Directory(_) => match std::fs::read_dir(&directory) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
                entries => entries
                    .with_context(|| format!("reading {}", directory.display()))?
                    .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                    .collect::<Result<_>>()?,
            },
        };
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Creates a pod on the node: a namespace, then ADD.
    ///
    /// # Errors
    /// The plugin fails.
    pub fn add_pod(&self, node: &Netns, name: &str) -> Result<CniPod> {
        self.add_pod_when_free(node, name, Duration::ZERO)
    }

    /// [`Cni::add_pod`] that retries while IPAM has no free address, as kubelet does; ADDs do not overlap.
    ///
    /// # Errors
    /// The plugin fails, or no address is free before the deadline.
    pub fn add_pod_when_free(
        &self,
        node: &Netns,
        name: &str,
        deadline: Duration,
    ) -> Result<CniPod> {
        let end = Instant::now() + deadline;
        let pod = self.new_pod(name)?;
        let result = loop {
            match self.call(node, "ADD", &pod) {
                Err(error)
                    if format!("{error:#}").contains("no IP addresses available")
                        && Instant::now() < end => {}
                other => break other?,
            }
        };
        pod.with_result(&result)
    }

    /// [`Cni::add_pod`] that also returns how long ADD took, without the creation of the namespace.
    ///
    /// # Errors
    /// The plugin fails.
    pub fn add_pod_timed(&self, node: &Netns, name: &str) -> Result<(CniPod, Duration)> {
        let pod = self.new_pod(name)?;
        let started = Instant::now();
        let result = self.call(node, "ADD", &pod)?;
        let took = started.elapsed();
        Ok((pod.with_result(&result)?, took))
    }

    /// A pod without a network.
    fn new_pod(&self, name: &str) -> Result<CniPod> {
        Ok(CniPod {
            netns: Netns::new("cni")?,
            container_id: format!("{:064x}", NEXT_CONTAINER.fetch_add(1, Ordering::Relaxed)),
            name: name.to_owned(),
            result: AddResult::default(),
            result_json: Value::Null,
        })
    }

    /// Runs DEL, then removes the namespace.
    ///
    /// # Errors
    /// The plugin fails.
    pub fn remove_pod(&self, node: &Netns, pod: CniPod) -> Result<()> {
        self.call(node, "DEL", &pod).map(drop)
    }

    /// Deletes all IPAM state while pods run, as in the incidents.
    ///
    /// # Errors
    /// The directory cannot be emptied.
    pub fn wipe(&self) -> Result<()> {
        let directory = match &self.data {
            IpamData::Directory(directory) => directory,
            IpamData::DefaultDirectory(mounts) => return mounts.remove(Path::new(DEFAULT_STATE)),
        };
        for entry in std::fs::read_dir(directory.path()).context("reading the IPAM directory")? {
            let path = entry?.path();
            let removed = if path.is_dir() {
                std::fs::remove_dir_all(&path)
            } else {
                std::fs::remove_file(&path)
            };
            removed.with_context(|| format!("removing {}", path.display()))?;
        }
        Ok(())
    }

    /// Runs the plugin with a command of the specification and returns its stdout.
    fn call(&self, node: &Netns, verb: &str, pod: &CniPod) -> Result<String> {
        let CniPod {
            netns,
            container_id,
            name,
            ..
        } = pod;
        let config = self.config.to_string();
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name};K8S_POD_UID=uid-{name}"
        );
        let run = || {
            let mut command = Command::new(&self.plugin);
            command
                .env_clear()
                .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
                .envs([
                    ("CNI_COMMAND", verb),
                    ("CNI_CONTAINERID", container_id.as_str()),
                    ("CNI_IFNAME", POD_DEVICE),
                    ("CNI_PATH", PLUGIN_DIRECTORY),
                    ("CNI_ARGS", &args),
                ]);
            command.env("CNI_NETNS", netns.path());
            run_command(command, Some(&config))
        };
        let result = match &self.data {
            IpamData::Directory(_) => node.run_in(run),
            IpamData::DefaultDirectory(mounts) => mounts.run_in(Some(node), run),
        };
        let result = result.with_context(|| format!("CNI {verb} of {name}"))?;
        if verb == "ADD" && result.trim().is_empty() {
            bail!("{} returned no result for ADD", self.plugin.display());
        }
        Ok(result)
    }
}

fn plugin(config: &Value) -> Result<PathBuf> {
    let kind = config
        .get("type")
        .and_then(Value::as_str)
        .context("the CNI configuration has no type")?;
    let plugin = Path::new(PLUGIN_DIRECTORY).join(kind);
    ensure!(
        plugin.exists(),
        "{} does not exist: install the Debian package containernetworking-plugins (`cargo xtask setup` does)",
        plugin.display()
    );
    Ok(plugin)
}

fn bridge_config(network: &str, bridge: &str, subnet: &str) -> Value {
    json!({
        "cniVersion": "0.3.1", "name": network, "type": "bridge", "bridge": bridge, "isGateway": true,
        "isDefaultGateway": true, "hairpinMode": true, "forceAddress": true, "mtu": 1450,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]]},
    })
}
