//! What goes wrong in a cluster: servers and agents that are killed, nodes that are cut off, pods that change their addresses.

use std::{fs, net::IpAddr, process::Command};

use anyhow::{Context as _, Result, bail, ensure};

use super::{Cluster, ClusterNode};
use crate::command::run_command;

/// The state of `host-local` for the network of [`crate::Containerd`].
const ALLOCATIONS: &str = "/var/lib/cni/networks/testkit";

impl Cluster {
    /// Kills the API server and etcd at once, as when their machine fails; everything else keeps running.
    /// [`Cluster::start_api_server`] starts both.
    ///
    /// # Errors
    /// A process cannot be killed.
    pub fn crash_api_server(&mut self) -> Result<()> {
        self.plane.crash()
    }

    /// Kills etcd and starts it again while the API server runs.
    ///
    /// # Errors
    /// The API server does not run, or is not ready again in time.
    pub fn restart_etcd(&mut self) -> Result<()> {
        self.plane.restart_etcd()
    }

    /// Takes a node's network away, counted from 0: nothing on it reaches the API server, and its pods keep running.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn cut_off(&self, node: usize) -> Result<()> {
        self.plane.set_connected(node + 1, false)
    }

    /// Ends [`Cluster::cut_off`].
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn reconnect(&self, node: usize) -> Result<()> {
        self.plane.set_connected(node + 1, true)
    }
}

impl ClusterNode {
    /// Kills the running containers of this name, `name` of the container in its pod, with SIGKILL. Kubelet starts them again:
    /// at once the first time, later after a delay that doubles from 10 seconds.
    ///
    /// # Errors
    /// None of this name runs, or containerd fails.
    pub fn kill_containers(&self, name: &str) -> Result<()> {
        self.kill(&format!(r#"labels."io.kubernetes.container.name"=={name}"#))
    }

    /// Kills the sandbox of a pod with SIGKILL. Kubelet gives the pod a new one, with another address, also without the API
    /// server.
    ///
    /// # Errors
    /// The pod is not on this node, or containerd fails.
    pub fn kill_sandbox(&self, pod: &str) -> Result<()> {
        self.kill(&format!(
            r#"labels."io.cri-containerd.kind"==sandbox,labels."io.kubernetes.pod.name"=={pod}"#
        ))
    }

    /// Lets IPAM give out this address next, unless a pod of the node has it. Several nodes can give out one address if they
    /// have the same pod subnet.
    ///
    /// # Errors
    /// The state of IPAM cannot be written.
    pub fn give_next(&self, address: IpAddr) -> Result<()> {
        // host-local begins its search after the address that it gave out last.
        let last: IpAddr = match address {
            IpAddr::V4(address) => IpAddr::V4((address.to_bits() - 1).into()),
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() - 1).into()),
        };
        self.run_in(|| {
            fs::create_dir_all(ALLOCATIONS).context("the state of IPAM")?;
            fs::write(
                format!("{ALLOCATIONS}/last_reserved_ip.0"),
                last.to_string(),
            )
            .context("writing the state of IPAM")
        })
    }

    /// Runs lines of `ip -batch` in the network namespace of the pod that has an address.
    ///
    /// # Errors
    /// No pod of the node has it, or a line fails.
    pub fn pod_ip_batch(
        &self,
        address: &str,
        lines: impl IntoIterator<Item = String>,
    ) -> Result<()> {
        let batch: String = lines.into_iter().map(|line| line + "\n").collect();
        self.run_in(|| {
            for entry in fs::read_dir("/run/netns").context("the pods' namespaces")? {
                let path = entry?.path();
                let ip = |args: &[&str], input: Option<&str>| {
                    let mut command = Command::new("nsenter");
                    command.arg(format!("--net={}", path.display())).arg("ip");
                    command.args(args);
                    run_command(command, input)
                };
                // One that is being removed cannot be entered any more.
                let addresses = ip(&["-o", "address", "show", "dev", "eth0"], None);
                if addresses.is_ok_and(|all| all.contains(&format!(" {address}/"))) {
                    return ip(&["-batch", "-"], Some(&batch)).map(drop);
                }
            }
            bail!("no pod has the address {address}")
        })
    }

    fn kill(&self, filter: &str) -> Result<()> {
        self.run_in(|| {
            let listed = ctr(&["containers", "list", "--quiet", filter])?;
            let tasks = ctr(&["tasks", "list"])?;
            let is_running = |id: &&str| {
                tasks.lines().any(|line| {
                    let mut words = line.split_whitespace();
                    words.next() == Some(*id) && words.next_back() == Some("RUNNING")
                })
            };
            let running: Vec<&str> = listed.lines().filter(is_running).collect();
            ensure!(!running.is_empty(), "nothing that matches {filter} runs");
            for id in running {
                ctr(&["tasks", "kill", "--signal", "SIGKILL", id])?;
            }
            Ok(())
        })
    }
}

fn ctr(args: &[&str]) -> Result<String> {
    let mut command = Command::new("ctr");
    command.args(["--namespace", "k8s.io"]).args(args);
    run_command(command, None)
}
