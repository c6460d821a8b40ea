//! Real CNI plugins, run without a runtime: what kubelet's runtime does for a pod, as the CNI specification §"Protocol
//! parameters" has it.

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

use crate::{
    mounts::PrivateMounts,
    netns::{Netns, finish},
    node::POD_DEVICE,
};

/// Where Debian's `containernetworking-plugins` puts them.
pub const PLUGIN_DIRECTORY: &str = "/usr/lib/cni";

static NEXT_CONTAINER: AtomicU64 = AtomicU64::new(1);

/// Where `host-local` keeps its state when the configuration does not say.
const DEFAULT_DATA: &str = "/var/lib/cni/networks";
/// What a restore wipes: `host-local`'s state and everything else that CNI remembers.
const DEFAULT_STATE: &str = "/var/lib/cni";

/// A network configuration whose IPAM state stands in a directory of its own.
#[derive(Debug)]
pub struct Cni {
    plugin: PathBuf,
    config: Value,
    data: Data,
}

/// Where IPAM keeps its state.
#[derive(Debug)]
enum Data {
    /// In a directory that the configuration names.
    Own(TempDir),
    /// At the default place, which is an empty one in these mounts.
    Default(PrivateMounts),
}

/// A pod whose network a plugin set up. Dropping it removes the namespace, and the kernel then its veth; IPAM keeps the
/// address, as after a crash. [`Cni::remove_pod`] is the orderly way.
#[derive(Debug)]
pub struct CniPod {
    netns: Netns,
    container_id: String,
    name: String,
    /// What the plugin said.
    pub result: CniResult,
}

/// The plugin's answer to ADD, as far as tests need it.
#[derive(Clone, Debug, Deserialize)]
pub struct CniResult {
    /// Devices it made or uses.
    #[serde(default)]
    pub interfaces: Vec<CniInterface>,
    /// Addresses it gave to the pod.
    #[serde(default)]
    pub ips: Vec<CniAddress>,
}

/// A device of a [`CniResult`].
#[derive(Clone, Debug, Deserialize)]
pub struct CniInterface {
    /// Its name.
    pub name: String,
    /// Its hardware address.
    #[serde(default)]
    pub mac: String,
    /// The namespace's path for the pod's own; empty or absent on the host.
    #[serde(default)]
    pub sandbox: String,
}

/// An address of a [`CniResult`].
#[derive(Clone, Debug, Deserialize)]
pub struct CniAddress {
    /// With prefix length: `10.244.2.2/24`.
    pub address: String,
}

impl CniPod {
    /// Its namespace.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The container id that IPAM knows it by.
    #[must_use]
    pub fn container_id(&self) -> &str {
        &self.container_id
    }

    /// The host end of its veth.
    ///
    /// # Errors
    /// Where the plugin named none.
    pub fn device(&self) -> Result<&str> {
        self.result
            .interfaces
            .iter()
            .find(|interface| interface.sandbox.is_empty() && interface.name.starts_with("veth"))
            .map(|interface| interface.name.as_str())
            .with_context(|| format!("the plugin named no host veth: {:?}", self.result))
    }

    /// Its first address.
    ///
    /// # Errors
    /// Where the plugin gave none.
    pub fn address(&self) -> Result<IpAddr> {
        let first = self
            .result
            .ips
            .first()
            .context("the plugin gave no address")?;
        let (host, _) = first
            .address
            .split_once('/')
            .unwrap_or((&first.address, ""));
        host.parse()
            .with_context(|| format!("{host:?} is not an address"))
    }
}

impl Cni {
    /// From a plugin's configuration; its `host-local` IPAM gets a data directory of its own.
    ///
    /// # Errors
    /// Where the plugin is not installed, or the configuration has no type or no IPAM.
    pub fn new(mut config: Value) -> Result<Self> {
        let plugin = plugin(&config)?;
        let data = tempfile::Builder::new()
            .prefix("ipconflict-cni-")
            .tempdir()
            .context("making a data directory")?;
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
            data: Data::Own(data),
        })
    }

    /// From a plugin's configuration; IPAM keeps its state at its default place, which is private to this value: the
    /// machine's own is neither seen nor touched.
    ///
    /// # Errors
    /// As [`Cni::new`], and where no mount namespace can be made.
    pub fn at_default_place(config: Value) -> Result<Self> {
        Ok(Self {
            plugin: plugin(&config)?,
            config,
            data: Data::Default(PrivateMounts::new()?),
        })
    }

    /// `ptp` with `host-local`, as kind's kindnetd sets it up.
    ///
    /// # Errors
    /// As [`Cni::new`].
    pub fn ptp(network: &str, subnet: &str) -> Result<Self> {
        Self::new(json!({
            "cniVersion": "0.3.1", "name": network, "type": "ptp", "ipMasq": false, "mtu": 1500,
            "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": subnet}]]},
        }))
    }

    /// `bridge` with `host-local`, as flannel's delegate sets it up.
    ///
    /// # Errors
    /// As [`Cni::new`].
    pub fn bridge(network: &str, bridge: &str, subnet: &str) -> Result<Self> {
        Self::new(bridge_config(network, bridge, subnet))
    }

    /// The same with `host-local` at its default place, as on a node; see [`Cni::at_default_place`].
    ///
    /// # Errors
    /// As [`Cni::at_default_place`].
    pub fn bridge_at_default_place(network: &str, bridge: &str, subnet: &str) -> Result<Self> {
        Self::at_default_place(bridge_config(network, bridge, subnet))
    }

    /// The IPAM state's directory, as the plugin sees it.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        match &self.data {
            Data::Own(directory) => directory.path(),
            Data::Default(_) => Path::new(DEFAULT_DATA),
        }
    }

    /// Writes the configuration as a container runtime reads it: a list of plugins in a file of `directory`.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn write_config(&self, directory: &Path) -> Result<PathBuf> {
        let mut plugin = self.config.clone();
        let object = plugin.as_object_mut().context("the plugin is no object")?;
        let name = object.remove("name").unwrap_or_default();
        let version = object.remove("cniVersion").unwrap_or_default();
        let list = json!({"cniVersion": version, "name": name, "plugins": [plugin,
            {"type": "portmap", "capabilities": {"portMappings": true}}]});
        let path = directory.join("10-testkit.conflist");
        std::fs::write(&path, list.to_string())
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// What IPAM has handed out, by its own books: the addresses it holds a file for.
    ///
    /// # Errors
    /// Where its directory cannot be read.
    pub fn handed_out(&self) -> Result<Vec<IpAddr>> {
        let network = self.config.get("name").and_then(Value::as_str);
        let directory = self.data_dir().join(network.unwrap_or_default());
        let names = match &self.data {
            Data::Default(mounts) => mounts.list(&directory)?,
            Data::Own(_) => match std::fs::read_dir(&directory) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
                entries => entries
                    .with_context(|| format!("reading {}", directory.display()))?
                    .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                    .collect::<Result<_>>()?,
            },
        };
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// A new pod on the node: a namespace, and ADD.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn add_pod(&self, node: &Netns, name: &str) -> Result<CniPod> {
        self.add_pod_once_free(node, name, Duration::ZERO)
    }

    /// The same, asking again while IPAM has no address left, as kubelet does: each ADD is over before the next begins.
    ///
    /// # Errors
    /// What the plugin says, also where no address became free before the deadline.
    pub fn add_pod_once_free(
        &self,
        node: &Netns,
        name: &str,
        deadline: Duration,
    ) -> Result<CniPod> {
        let netns = Netns::new("cni")?;
        let container_id = format!("{:064x}", NEXT_CONTAINER.fetch_add(1, Ordering::Relaxed));
        let until = Instant::now() + deadline;
        let answer = loop {
            match self.call(node, "ADD", netns.path(), &container_id, name) {
                Err(error)
                    if format!("{error:#}").contains("no IP addresses available")
                        && Instant::now() < until => {}
                other => break other?,
            }
        };
        let result = serde_json::from_str(&answer)
            .with_context(|| format!("the plugin's answer {answer}"))?;
        Ok(CniPod {
            netns,
            container_id,
            name: name.to_owned(),
            result,
        })
    }

    /// A new pod, and how long the plugin took for ADD, without the making of the namespace.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn add_pod_timed(&self, node: &Netns, name: &str) -> Result<(CniPod, Duration)> {
        let netns = Netns::new("cni")?;
        let container_id = format!("{:064x}", NEXT_CONTAINER.fetch_add(1, Ordering::Relaxed));
        let begun = Instant::now();
        let answer = self.call(node, "ADD", netns.path(), &container_id, name)?;
        let took = begun.elapsed();
        let pod = CniPod {
            netns,
            container_id,
            name: name.to_owned(),
            result: serde_json::from_str(&answer)
                .with_context(|| format!("the plugin's answer {answer}"))?,
        };
        Ok((pod, took))
    }

    /// DEL, then removes the namespace.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn remove_pod(&self, node: &Netns, pod: CniPod) -> Result<()> {
        self.call(node, "DEL", pod.netns.path(), &pod.container_id, &pod.name)
            .map(drop)
    }

    /// Deletes all IPAM state while pods run: what the incidents were made of.
    ///
    /// # Errors
    /// Where the directory cannot be emptied.
    pub fn wipe(&self) -> Result<()> {
        let directory = match &self.data {
            Data::Own(directory) => directory,
            Data::Default(mounts) => return mounts.remove(Path::new(DEFAULT_STATE)),
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

    fn call(
        &self,
        node: &Netns,
        verb: &str,
        netns: &Path,
        container_id: &str,
        name: &str,
    ) -> Result<String> {
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
                    ("CNI_CONTAINERID", container_id),
                    ("CNI_IFNAME", POD_DEVICE),
                    ("CNI_PATH", PLUGIN_DIRECTORY),
                    ("CNI_ARGS", &args),
                ]);
            command.env("CNI_NETNS", netns);
            finish(command, Some(&config))
        };
        let answer = match &self.data {
            Data::Own(_) => node.run_in(run),
            Data::Default(mounts) => mounts.run_in(Some(node), run),
        };
        let answer = answer.with_context(|| format!("CNI {verb} of {name}"))?;
        if verb == "ADD" && answer.trim().is_empty() {
            bail!("{} answered nothing to ADD", self.plugin.display());
        }
        Ok(answer)
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
        "{} is not there: install Debian's containernetworking-plugins (cargo xtask setup does)",
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
