//! etcd, API server, controller manager and scheduler, in a network namespace with the bridge that connects the nodes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use tempfile::TempDir;

use super::{
    Family,
    access::{ApiAccess, Controllers, Server},
    kubeconfig::{SERVER_NAME, kubeconfig},
    programs::Programs,
};
use crate::{daemon::Daemon, netns::Netns, wait::until};

/// How long a server may take to respond; the API server takes five seconds on an idle machine.
const START_TIMEOUT: Duration = Duration::from_secs(90);
/// The bridge.
const BRIDGE: &str = "cluster";
/// The credentials of the administrator, the controller manager and the scheduler: all of them may do everything.
const ADMIN_TOKEN: &str = "admin";

/// The controllers that work with Nodes that have no kubelet: none that watches whether they are alive.
const SIMULATED_NODES: &str = "garbagecollector,namespace,serviceaccount,serviceaccount-token";

/// The running servers.
#[derive(Debug)]
pub(super) struct ControlPlane {
    // Stopped in this order.
    api_server: Option<Daemon>,
    controller_manager: Option<Daemon>,
    _scheduler: Option<Daemon>,
    etcd: Option<Daemon>,
    netns: Netns,
    programs: Programs,
    family: Family,
    directory: TempDir,
}

impl ControlPlane {
    /// Starts the servers; `nodes` of these names may join.
    pub(super) fn start(
        programs: &Programs,
        family: Family,
        nodes: &[String],
        controllers: Controllers,
    ) -> Result<Self> {
        let directory = crate::leftovers::directory("cluster")?;
        let path = directory.path();
        let netns = Netns::new("control")?;
        netns.ip_batch([
            format!("link add {BRIDGE} type bridge"),
            format!(
                "address add {}/{} dev {BRIDGE}{}",
                family.control_address(),
                family.prefix_length(),
                family.no_dad()
            ),
            format!("link set {BRIDGE} up"),
            // Instead of kube-proxy: the service address of the API.
            format!(
                "address add {} dev lo{}",
                family.service_address(),
                family.no_dad()
            ),
        ])?;
        netns.sysctl(family.forwarding(), "1")?;
        fs::write(path.join("tokens.csv"), tokens(nodes))?;
        let mut plane = Self {
            api_server: None,
            controller_manager: None,
            _scheduler: None,
            etcd: None,
            netns,
            programs: programs.clone(),
            family,
            directory,
        };
        write_keys(plane.directory.path())?;
        plane.start_api_server()?;
        plane.start_controllers(controllers)?;
        Ok(plane)
    }

    /// The namespace of the servers, from which everything in the cluster can be reached.
    pub(super) fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The directory of all files of the servers.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The administrator's kubeconfig for use in [`ControlPlane::netns`].
    pub(super) fn admin_config(&self) -> PathBuf {
        self.directory().join("admin.kubeconfig")
    }

    /// Connects a node: `eth0` in `node`.
    pub(super) fn connect(&self, number: usize, node: &Netns) -> Result<()> {
        let family = self.family;
        self.netns.ip_batch([
            format!(
                "link add node{number} type veth peer name eth0 netns {}",
                node.name()
            ),
            format!("link set node{number} master {BRIDGE} up"),
            // The pods of the node.
            format!(
                "route add {} via {}",
                family.pod_subnet(number),
                family.node_address(number)
            ),
        ])?;
        node.ip_batch([
            format!(
                "address add {}/{} dev eth0{}",
                family.node_address(number),
                family.prefix_length(),
                family.no_dad()
            ),
            "link set eth0 up".to_owned(),
            format!("route add default via {}", family.control_address()),
        ])
    }

    /// Writes a kubeconfig for a server at `origin` and returns its path.
    pub(super) fn write_config(&self, name: &str, origin: &str, token: &str) -> Result<PathBuf> {
        let authority = fs::read_to_string(self.directory().join("certificates/apiserver.crt"))
            .context("the API server's certificate")?;
        let path = self.directory().join(format!("{name}.kubeconfig"));
        fs::write(&path, kubeconfig(origin, &authority, token))?;
        Ok(path)
    }

    /// The administrator's kubeconfig for a server at `origin`.
    pub(super) fn write_admin_config(&self, name: &str, origin: &str) -> Result<PathBuf> {
        self.write_config(name, origin, ADMIN_TOKEN)
    }

    /// The kubeconfig of a node.
    pub(super) fn write_node_config(&self, node: &str) -> Result<PathBuf> {
        self.write_config(node, &self.family.api_origin(), &node_token(node))
    }

    /// Cuts a node off from everything else, or connects it again.
    pub(super) fn set_connected(&self, number: usize, is_connected: bool) -> Result<()> {
        let state = if is_connected { "up" } else { "down" };
        let set = format!("link set node{number} {state}");
        self.netns.ip(&set).map(drop)
    }

    /// Kills etcd and the API server; everything else keeps running.
    pub(super) fn crash(&mut self) -> Result<()> {
        let servers = [self.api_server.take(), self.etcd.take()];
        servers
            .into_iter()
            .flatten()
            .try_for_each(|mut server| server.kill())
    }

    /// Kills etcd and starts it again, with what it has written; waits until the API server reads from it.
    pub(super) fn restart_etcd(&mut self) -> Result<()> {
        let api = self.api_server.take();
        let api = api.context("the API server does not run")?;
        if let Some(mut etcd) = self.etcd.take() {
            etcd.kill()?;
        }
        self.start_etcd()?;
        self.wait_ready(api)
    }

    fn start_etcd(&mut self) -> Result<()> {
        let path = self.directory.path();
        let mut command = Command::new(self.programs.server("etcd"));
        command
            .arg("--data-dir")
            .arg(path.join("etcd"))
            .args([
                "--listen-client-urls",
                ETCD,
                "--advertise-client-urls",
                ETCD,
            ])
            .args(["--listen-peer-urls", "http://127.0.0.1:2380"])
            .args(["--log-outputs", "stderr", "--logger", "zap"]);
        let log = path.join("etcd.log");
        self.etcd = Some(self.netns.run_in(|| Daemon::start(command, &log))?);
        Ok(())
    }

    /// Stops the API server; everything else keeps running.
    pub(super) fn stop_api_server(&mut self) -> Result<()> {
        self.api_server.take().map_or(Ok(()), |mut api| api.stop())
    }

    /// Starts the API server, and etcd if it does not run, and waits until they are ready.
    pub(super) fn start_api_server(&mut self) -> Result<()> {
        if self.etcd.is_none() {
            self.start_etcd()?;
        }
        let family = self.family;
        let path = self.directory();
        let mut command = Command::new(self.programs.server("kube-apiserver"));
        command
            .args(["--etcd-servers", ETCD])
            .arg("--cert-dir")
            .arg(path.join("certificates"))
            .args(["--service-cluster-ip-range", family.service_subnet()])
            .args(["--service-account-issuer", "https://kubernetes.default.svc"])
            .arg("--service-account-signing-key-file")
            .arg(path.join("service-accounts.key"))
            .arg("--service-account-key-file")
            .arg(path.join("service-accounts.pub"))
            .arg("--token-auth-file")
            .arg(path.join("tokens.csv"))
            .args(["--authorization-mode", "Node,RBAC"])
            .arg("--allow-privileged")
            .args(["--bind-address", family.unspecified()])
            .args(["--secure-port", "443"])
            .args(["--advertise-address", &family.control_address()])
            .args(["--kubelet-preferred-address-types", "InternalIP"]);
        let log = path.join("kube-apiserver.log");
        let api = self.netns.run_in(|| Daemon::start(command, &log))?;
        self.wait_ready(api)
    }

    fn wait_ready(&mut self, mut api: Daemon) -> Result<()> {
        let certificate = self.directory().join("certificates/apiserver.crt");
        until(START_TIMEOUT, "the API server's certificate", || {
            if let Some(status) = api.exit_status()? {
                return Ok(Err(anyhow!("the API server exited: {status}")));
            }
            fs::metadata(&certificate)?;
            Ok(Ok(()))
        })
        .flatten()
        .with_context(|| api.log_tail())?;
        let config = self.write_admin_config("admin", &self.family.api_origin())?;
        until(START_TIMEOUT, "the API server to be ready", || {
            if let Some(status) = api.exit_status()? {
                return Ok(Err(anyhow!("the API server exited: {status}")));
            }
            self.kubectl(&config, &["get", "--raw", "/readyz"])?;
            // Created by the API server itself after its start.
            self.kubectl(&config, &["get", "priorityclass", "system-node-critical"])?;
            Ok(Ok(()))
        })
        .flatten()
        .with_context(|| api.log_tail())?;
        self.api_server = Some(api);
        Ok(())
    }

    fn start_controllers(&mut self, controllers: Controllers) -> Result<()> {
        let path = self.directory.path();
        let mut manager = Command::new(self.programs.server("kube-controller-manager"));
        manager
            .arg("--service-account-private-key-file")
            .arg(path.join("service-accounts.key"))
            // Pods trust the API server by this certificate.
            .arg("--root-ca-file")
            .arg(path.join("certificates/apiserver.crt"));
        if controllers == Controllers::ForSimulatedNodes {
            manager.args(["--controllers", SIMULATED_NODES]);
        }
        self.controller_manager = Some(self.start_controller("controller-manager", manager)?);
        if controllers == Controllers::All {
            let scheduler = Command::new(self.programs.server("kube-scheduler"));
            self._scheduler = Some(self.start_controller("scheduler", scheduler)?);
        }
        Ok(())
    }

    fn start_controller(&self, name: &str, mut command: Command) -> Result<Daemon> {
        command
            .arg("--kubeconfig")
            .arg(self.admin_config())
            .arg("--leader-elect=false")
            .arg("--cert-dir")
            .arg(self.directory().join(name));
        let log = self.directory().join(format!("{name}.log"));
        self.netns.run_in(|| Daemon::start(command, &log))
    }

    /// How a client of its own reaches the API server.
    pub(super) fn api_access(&self) -> ApiAccess {
        ApiAccess {
            address: self.family.control_address(),
            authority: self.directory().join("certificates/apiserver.crt"),
            server_name: SERVER_NAME,
            token: ADMIN_TOKEN,
        }
    }

    /// The id of a server's process.
    pub(super) fn process_id(&self, server: Server) -> Option<u32> {
        match server {
            Server::Etcd => self.etcd.as_ref().map(Daemon::process_id),
            Server::ApiServer => self.api_server.as_ref().map(Daemon::process_id),
            Server::ControllerManager => self.controller_manager.as_ref().map(Daemon::process_id),
        }
    }

    /// The file of etcd's database.
    pub(super) fn database(&self) -> PathBuf {
        self.directory().join("etcd/member/snap/db")
    }

    fn kubectl(&self, config: &Path, args: &[&str]) -> Result<()> {
        let mut command = Command::new(self.programs.client("kubectl"));
        command.arg("--kubeconfig").arg(config).args(args);
        self.netns
            .run_in(|| crate::command::run_command(command, None))
            .map(drop)
    }
}

/// etcd is reached in the namespace only.
const ETCD: &str = "http://127.0.0.1:2379";

fn tokens(nodes: &[String]) -> String {
    let mut text = format!("{ADMIN_TOKEN},admin,admin,system:masters\n");
    for node in nodes {
        text.push_str(&format!(
            "{},system:node:{node},{node},system:nodes\n",
            node_token(node)
        ));
    }
    text
}

fn node_token(node: &str) -> String {
    format!("token-{node}")
}

/// The keys that service account tokens are signed with and verified by.
fn write_keys(directory: &Path) -> Result<()> {
    let key = rcgen::KeyPair::generate().context("generating a key")?;
    fs::write(directory.join("service-accounts.key"), key.serialize_pem())?;
    fs::write(directory.join("service-accounts.pub"), key.public_key_pem())?;
    Ok(())
}
