//! A node: its own network and mount namespace, containerd and kubelet.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::{Family, control_plane::ControlPlane, programs::Programs};
use crate::{containerd::Containerd, daemon::Daemon, node::Node};

/// A running node. On drop, kubelet stops first, so that it does not start again what is removed; then the pods, then
/// containerd.
#[derive(Debug)]
pub struct ClusterNode {
    kubelet: Option<Daemon>,
    containerd: Containerd,
    node: Node,
    name: String,
    address: String,
}

impl ClusterNode {
    /// Starts a node; it joins the cluster by itself.
    pub(super) fn start(
        plane: &ControlPlane,
        programs: &Programs,
        family: Family,
        number: usize,
        subnet: &str,
    ) -> Result<Self> {
        let name = super::node_name(number);
        let node = Node::new(&name)?;
        plane.connect(number, &node)?;
        node.sysctl(family.forwarding(), "1")?;
        // As kindnetd configures it.
        let plugins = json!([{"type": "ptp", "ipMasq": false, "mtu": 1500, "ipam": {
            "type": "host-local",
            "routes": [{"dst": family.default_route()}],
            "ranges": [[{"subnet": subnet}]],
        }}]);
        let containerd = Containerd::start_for_kubelet(&node, plugins)?;
        let mut node = Self {
            kubelet: None,
            containerd,
            node,
            name,
            address: family.node_address(number),
        };
        node.start_kubelet(plane, programs)?;
        Ok(node)
    }

    /// The network namespace.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The name in the cluster.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address in the cluster.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The id of a process in the node's namespaces, for `nsenter`.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.kubelet.as_ref().map(Daemon::process_id)
    }

    /// Imports an image from an archive.
    ///
    /// # Errors
    /// As [`Containerd::import`].
    pub fn import(&self, archive: &Path) -> Result<()> {
        self.containerd.import(archive)
    }

    /// Imports an image from an archive, also under another name than it has there.
    ///
    /// # Errors
    /// As [`Containerd::import`].
    pub(super) fn import_as(&self, archive: &Path, name: &str) -> Result<()> {
        self.containerd.import_as(archive, name)
    }

    /// Deletes all state of IPAM while pods run, as in the incidents.
    ///
    /// # Errors
    /// There is none.
    pub fn wipe_ipam(&self) -> Result<()> {
        self.run_in(|| fs::remove_dir_all("/var/lib/cni/networks").context("wiping the IPAM state"))
    }

    /// Runs `body` on a new thread in the node's network and mount namespace.
    ///
    /// # Errors
    /// A namespace cannot be entered, or `body` fails.
    pub fn run_in<T: Send>(&self, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.containerd.run_in(body)
    }

    fn start_kubelet(&mut self, plane: &ControlPlane, programs: &Programs) -> Result<()> {
        let config = plane.write_node_config(&self.name)?;
        let mut kubelet = Command::new(programs.server("kubelet"));
        kubelet
            .arg("--kubeconfig")
            .arg(config)
            .args(["--hostname-override", &self.name])
            .args(["--node-ip", &self.address])
            .args(["--container-runtime", "remote"])
            .args([
                "--container-runtime-endpoint",
                "unix:///run/containerd/containerd.sock",
            ])
            .args(["--root-dir", "/var/lib/kubelet"])
            .args(["--cert-dir", "/var/lib/kubelet/pki"])
            .args(["--volume-plugin-dir", "/var/lib/kubelet/volume-plugins"])
            .args(["--resolv-conf", "/etc/resolv.conf"])
            .arg("--fail-swap-on=false")
            // The machine's own cgroups stay as they are.
            .args(["--cgroups-per-qos=false", "--enforce-node-allocatable="])
            .arg("--oom-score-adj=0")
            // The defaults since Kubernetes 1.27; with those of before, a few pods at once wait for their status.
            .args(["--kube-api-qps", "50", "--kube-api-burst", "100"])
            // The machine's memory and disk are not the cluster's to manage.
            .args(["--eviction-hard", "memory.available<1Mi"])
            .args(["--image-gc-high-threshold", "100"]);
        let log = plane.directory().join(format!("{}.log", self.name));
        self.kubelet = Some(self.run_in(|| Daemon::start(kubelet, &log))?);
        Ok(())
    }
}
