//! A real Kubernetes cluster on one machine: etcd, API server, controller manager and scheduler in one network namespace, and
//! for each node a network and a mount namespace with containerd and kubelet.
//!
//! There is no DNS and no kube-proxy; of all services, only the API server's can be reached. Everything ends with the value,
//! also while a panic unwinds, and the next run removes what a killed one left. Clusters can run side by side.

mod access;
mod chart;
mod control_plane;
mod family;
mod faults;
mod kubeconfig;
mod node;
mod programs;

use std::{
    ffi::OsString,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::{command::run_command, netns::Netns, node::Node, proxy::Proxy};
pub use access::{ApiAccess, Controllers, Server};
pub use chart::{chart_image, copy_chart, copy_deployment};
use control_plane::ControlPlane;
pub use family::Family;
pub use node::ClusterNode;
pub use programs::Programs;

/// The image of pods that do nothing; every node has it.
pub use crate::containerd::PAUSE_IMAGE;

/// How a cluster is made.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The number of nodes.
    pub nodes: usize,
    /// The address family.
    pub family: Family,
    /// All nodes have the pod subnet of the first one: pods on different nodes get the same addresses.
    pub same_pod_subnet: bool,
    /// The controllers.
    pub controllers: Controllers,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            nodes: 1,
            family: Family::V4,
            same_pod_subnet: false,
            controllers: Controllers::All,
        }
    }
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    // The API server is needed until the nodes have ended.
    nodes: Vec<ClusterNode>,
    proxy: Option<Proxy>,
    plane: ControlPlane,
    programs: Programs,
    family: Family,
}

impl Cluster {
    /// Starts it and waits until all nodes are ready.
    ///
    /// # Errors
    /// A program is missing, or does not become ready in time.
    pub fn start(programs: &Programs, options: &ClusterOptions) -> Result<Self> {
        let family = options.family;
        let names: Vec<String> = (1..=options.nodes).map(node_name).collect();
        let plane = ControlPlane::start(programs, family, &names, options.controllers)?;
        let mut cluster = Self {
            nodes: Vec::new(),
            proxy: None,
            plane,
            programs: programs.clone(),
            family,
        };
        for number in 1..=options.nodes {
            let subnet = family.pod_subnet(if options.same_pod_subnet { 1 } else { number });
            let node = ClusterNode::start(&cluster.plane, programs, family, number, &subnet)?;
            cluster.nodes.push(node);
        }
        cluster.wait_nodes()?;
        Ok(cluster)
    }

    /// The nodes; `node-1` is the first.
    #[must_use]
    pub fn nodes(&self) -> &[ClusterNode] {
        &self.nodes
    }

    /// The namespace of the control plane, from which nodes and pods can be reached.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        self.plane.netns()
    }

    /// The control plane's address, which nodes can reach.
    #[must_use]
    pub fn control_address(&self) -> String {
        self.family.control_address()
    }

    /// The programs.
    #[must_use]
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// The address family.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// A directory that is removed with the cluster; it contains the servers' logs.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.plane.directory()
    }

    /// A command for [`Cluster::run`], with `KUBECONFIG` and with `kubectl` and `helm` in `PATH`.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        self.set_environment(&mut command, &self.plane.admin_config());
        command
    }

    fn set_environment(&self, command: &mut Command, config: &Path) {
        let mut path = OsString::from(self.programs.clients());
        if let Some(inherited) = std::env::var_os("PATH") {
            path.push(":");
            path.push(inherited);
        }
        command
            .env("PATH", path)
            .env("KUBECONFIG", config)
            // What Helm keeps between runs.
            .env("HELM_CACHE_HOME", self.directory().join("helm/cache"))
            .env("HELM_CONFIG_HOME", self.directory().join("helm/config"))
            .env("HELM_DATA_HOME", self.directory().join("helm/data"));
    }

    /// Runs a command in the control plane's namespace to completion and returns its stdout.
    ///
    /// # Errors
    /// It cannot be started or fails; the error contains its output.
    pub fn run(&self, command: Command) -> Result<String> {
        self.netns().run_in(|| run_command(command, None))
    }

    /// Runs a command like [`Cluster::run`]; its exit status and output are for the caller to judge.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn output(&self, mut command: Command) -> Result<Output> {
        self.netns()
            .run_in(|| command.output().context("starting a command"))
    }

    /// Runs `kubectl`.
    ///
    /// # Errors
    /// As [`Cluster::run`].
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut command = self.command("kubectl");
        command.args(args);
        self.run(command)
    }

    /// Runs `helm`.
    ///
    /// # Errors
    /// As [`Cluster::run`].
    pub fn helm(&self, args: &[&str]) -> Result<String> {
        let mut command = self.command("helm");
        command.args(args);
        self.run(command)
    }

    /// Creates or changes objects.
    ///
    /// # Errors
    /// As [`Cluster::run`].
    pub fn apply(&self, yaml: &str) -> Result<String> {
        let mut command = self.command("kubectl");
        command.args(["apply", "-f", "-"]);
        self.netns().run_in(|| run_command(command, Some(yaml)))
    }

    /// Imports an image on every node.
    ///
    /// # Errors
    /// As [`crate::Containerd::import`].
    pub fn import(&self, archive: &Path) -> Result<()> {
        self.nodes.iter().try_for_each(|node| node.import(archive))
    }

    /// Imports an image on every node, also under another name than it has in the archive.
    ///
    /// # Errors
    /// As [`crate::Containerd::import`].
    pub fn import_as(&self, archive: &Path, name: &str) -> Result<()> {
        self.nodes
            .iter()
            .try_for_each(|node| node.import_as(archive, name))
    }

    /// A kubeconfig for the machine's own network namespace; it works as long as the cluster runs.
    ///
    /// # Errors
    /// No port is free.
    pub fn host_config(&mut self) -> Result<PathBuf> {
        let control: SocketAddr = format!(
            "{}:443",
            self.family.bracketed(&self.family.control_address())
        )
        .parse()?;
        let listener = TcpListener::bind("127.0.0.1:0").context("listening on the loopback")?;
        let proxy = Proxy::start(listener, self.plane.netns(), control)?;
        let origin = format!("https://{}", proxy.address());
        self.proxy = Some(proxy);
        self.plane.write_admin_config("host", &origin)
    }

    /// The administrator's kubeconfig, for [`Cluster::netns`] and the nodes.
    #[must_use]
    pub fn admin_config(&self) -> PathBuf {
        self.plane.admin_config()
    }

    /// How a client of its own reaches the API server from [`Cluster::netns`].
    #[must_use]
    pub fn api_access(&self) -> ApiAccess {
        self.plane.api_access()
    }

    /// Connects a namespace that acts as a node without kubelet and container runtime. Its Node object is the caller's to create.
    ///
    /// # Errors
    /// The number is in use.
    pub fn connect(&self, number: usize, node: &Node) -> Result<()> {
        self.plane.connect(number, node)
    }

    /// The id of a server's process; `None` if it does not run.
    #[must_use]
    pub fn server_process_id(&self, server: Server) -> Option<u32> {
        self.plane.process_id(server)
    }

    /// The file of etcd's database.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.plane.database()
    }

    /// Stops the API server; everything else keeps running.
    ///
    /// # Errors
    /// It cannot be stopped.
    pub fn stop_api_server(&mut self) -> Result<()> {
        self.plane.stop_api_server()
    }

    /// Starts the API server again, and etcd if it does not run, and waits until they are ready.
    ///
    /// # Errors
    /// One does not become ready; the error contains the end of its log.
    pub fn start_api_server(&mut self) -> Result<()> {
        self.plane.start_api_server()
    }

    fn wait_nodes(&self) -> Result<()> {
        for node in &self.nodes {
            let object = format!("node/{}", node.name());
            crate::until(NODE_TIMEOUT, format!("{object} to be registered"), || {
                self.kubectl(&["get", &object])
            })?;
            self.kubectl(&["wait", "--for=condition=Ready", "--timeout=90s", &object])
                .with_context(|| format!("logs are in {}", self.directory().display()))?;
        }
        crate::until(NODE_TIMEOUT, "the default service account", || {
            self.kubectl(&["get", "serviceaccount", "default"])
        })
        .map(drop)
    }
}

/// How long a node may take to register.
const NODE_TIMEOUT: Duration = Duration::from_secs(60);

fn node_name(number: usize) -> String {
    format!("node-{number}")
}
