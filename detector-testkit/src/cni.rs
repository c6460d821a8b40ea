//! Real CNI plugins, run without a runtime: what kubelet's runtime does for a pod, as the CNI specification §"Protocol
//! parameters" has it.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    netns::{Netns, finish},
    node::POD_DEVICE,
};

/// Where Debian's `containernetworking-plugins` puts them.
pub const PLUGIN_DIRECTORY: &str = "/usr/lib/cni";

static NEXT_CONTAINER: AtomicU64 = AtomicU64::new(1);

/// A network configuration whose IPAM state stands in a directory of its own.
#[derive(Debug)]
pub struct Cni {
    plugin: PathBuf,
    config: Value,
    data: TempDir,
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
            data,
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
        Self::new(json!({
            "cniVersion": "0.3.1", "name": network, "type": "bridge", "bridge": bridge, "isGateway": true,
            "isDefaultGateway": true, "hairpinMode": true, "forceAddress": true, "mtu": 1450,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]]},
        }))
    }

    /// The IPAM state's directory.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        self.data.path()
    }

    /// A new pod on the node: a namespace, and ADD.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn add_pod(&self, node: &Netns, name: &str) -> Result<CniPod> {
        let netns = Netns::new("cni")?;
        let container_id = format!("{:064x}", NEXT_CONTAINER.fetch_add(1, Ordering::Relaxed));
        let answer = self.call(node, "ADD", netns.path(), &container_id, name)?;
        let result = serde_json::from_str(&answer)
            .with_context(|| format!("the plugin's answer {answer}"))?;
        Ok(CniPod {
            netns,
            container_id,
            name: name.to_owned(),
            result,
        })
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
        for entry in std::fs::read_dir(self.data.path()).context("reading the IPAM directory")? {
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
        let answer = node
            .run_in(run)
            .with_context(|| format!("CNI {verb} of {name}"))?;
        if verb == "ADD" && answer.trim().is_empty() {
            bail!("{} answered nothing to ADD", self.plugin.display());
        }
        Ok(answer)
    }
}
