//! A node with an agent that notifies a chat and a pager, and what people received of it.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use detector_testkit::{
    Agent, AgentCommand, Containerd, DEADLINE, Netns, Node, Pod, PodSpec, RUN_ARGS, Receiver,
    cni::cache_result_of, containerd::Sandbox, http::TestClient, proxy::Proxy, until,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::messages::{Message, Way, normalised};
use crate::{AGENT, host_local::HostLocal};

/// The data directory of `host-local` on a node.
const NETWORKS: &str = "/var/lib/cni/networks";

/// A network plugin that runs before `ptp`: the kernel does not check IPv6 addresses for duplicates, which takes a second or two.
const WITHOUT_DAD: &str = r#"#!/bin/sh
cat > /dev/null
[ "$CNI_COMMAND" = ADD ] || exit 0
nsenter --net="$CNI_NETNS" sysctl -q -w net.ipv6.conf.default.accept_dad=0
echo '{"cniVersion": "0.3.1"}'
"#;

/// A node with an agent and receivers.
pub(super) struct Site<'m> {
    /// Before its node, which it needs for its end.
    runtime: Option<Containerd>,
    pub(super) node: Node,
    cluster: String,
    folder: TempDir,
    agent: Option<Agent>,
    /// Of chat and pager.
    receiver: Receiver,
    /// Of Alertmanager.
    alerts: &'m Receiver,
    proxy: Proxy,
    /// What differs from run to run, and what stands for it.
    replacements: Vec<(String, String)>,
    /// What is entered on the node when people were notified, and what it printed.
    printed: BTreeMap<&'static str, String>,
}

impl<'m> Site<'m> {
    /// The node's name.
    pub(super) const NODE: &'static str = "worker-7";

    /// A node on which these commands are entered when people were notified.
    pub(super) fn new(
        name: &str,
        commands: Vec<&'static str>,
        monitoring: &Netns,
        alerts: &'m Receiver,
    ) -> Result<Self> {
        let node = Node::new(name)?;
        let listener = monitoring.run_in(|| Ok(TcpListener::bind("127.0.0.1:0")?))?;
        let folder = tempfile::tempdir()?;
        for directory in ["cache", "net.d"] {
            fs::create_dir(folder.path().join(directory))?;
        }
        let cluster = format!("cluster-{name}");
        Ok(Self {
            runtime: None,
            proxy: Proxy::start(listener, &node, SocketAddr::from(([127, 0, 0, 1], 9842)))?,
            receiver: node.run_in(Receiver::start)?,
            node,
            replacements: vec![
                (cluster.clone(), "east".to_owned()),
                (
                    folder.path().join("net.d").display().to_string(),
                    "/etc/cni/net.d".to_owned(),
                ),
            ],
            cluster,
            folder,
            agent: None,
            alerts,
            printed: commands.into_iter().map(|c| (c, String::new())).collect(),
        })
    }

    /// The cluster that this node is in, alone.
    pub(super) fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Where Prometheus reaches the agent.
    pub(super) fn target(&self) -> SocketAddr {
        self.proxy.address()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Pods with these names and a CNI result that gives them their addresses.
    pub(super) fn add_pods(&self, specs: &[(&str, PodSpec)]) -> Vec<Pod> {
        let only: Vec<_> = specs.iter().map(|(_, spec)| spec.clone()).collect();
        let pods = self.node.add_pods(&only).unwrap();
        for (pod, (name, _)) in pods.iter().zip(specs) {
            self.give(name, pod, &pod.addresses());
        }
        pods
    }

    /// Writes a CNI result that gives a pod these addresses.
    pub(super) fn give(&self, name: &str, pod: &Pod, addresses: &[IpAddr]) {
        cache_result_of(&self.path("cache"), pod, ("shop", name), addresses).unwrap();
    }

    /// A network whose allocations the agent reads, without a plugin.
    pub(super) fn add_host_local(&mut self, subnets: &[&str]) -> HostLocal {
        let network = HostLocal::new(&self.path("net.d"), subnets);
        self.name_data_dir(network.data_dir());
        network
    }

    fn name_data_dir(&mut self, directory: &Path) {
        let directory = directory.display().to_string();
        self.replacements.push((directory, NETWORKS.to_owned()));
    }

    /// Starts a container runtime with `ptp` and these ranges of `host-local`, which has had a pod before: the first pod of a node
    /// makes the plugins create their directories.
    pub(super) fn start_runtime(&mut self, ranges: &Value) {
        let ipam =
            json!({"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}], "ranges": ranges});
        let ptp = json!({"type": "ptp", "ipMasq": false, "mtu": 1500, "ipam": ipam});
        let plugins = json!([{"type": "without-dad"}, ptp]);
        let mut runtime = Containerd::start(&self.node, plugins).unwrap();
        runtime.add_plugin("without-dad", WITHOUT_DAD).unwrap();
        runtime.mount_opt().unwrap();
        let first = runtime.run_pods(["first"]).unwrap().remove(0);
        runtime.remove_pod(&first).unwrap();
        let (net_d, socket) = (runtime.directory().join("net.d"), runtime.socket());
        for (path, on_node) in [
            (net_d, "/etc/cni/net.d"),
            (socket, "/run/containerd/containerd.sock"),
        ] {
            let path = path.display().to_string();
            self.replacements.push((path, on_node.to_owned()));
        }
        self.name_data_dir(&runtime.ipam_dir());
        self.replacements
            .push(("testkit".to_owned(), "kindnet".to_owned()));
        self.runtime = Some(runtime);
        // The next pod gets the first address as well.
        fs::remove_file(self.reservations().join("last_reserved_ip.0")).unwrap();
    }

    fn runtime(&mut self) -> &mut Containerd {
        self.runtime.as_mut().unwrap()
    }

    /// Pods of the container runtime; in what is recorded, their devices are called after them.
    pub(super) fn run_pods(&mut self, names: &[String]) -> Vec<Sandbox> {
        let pods = self.runtime().run_pods(names).unwrap();
        for pod in &pods {
            let info = self.runtime().info(pod).unwrap();
            let interfaces = info["cniResult"]["Interfaces"].as_object().unwrap();
            let mut devices = interfaces.keys().filter(|name| name.starts_with("veth"));
            // As long as the plugin's, which tables are aligned with.
            let name = format!("veth{:0>8}", pod.name.replace('-', ""));
            self.replacements
                .push((devices.next().unwrap().clone(), name));
        }
        pods
    }

    pub(super) fn remove_pod(&mut self, pod: &Sandbox) {
        self.runtime().remove_pod(pod).unwrap();
    }

    /// The directory of the reservations of `host-local`.
    pub(super) fn reservations(&mut self) -> PathBuf {
        self.runtime().ipam_dir().join("testkit")
    }

    /// Removes the directory of the reservations at once, and waits until the agent has noticed; returns where it is now.
    pub(super) fn remove_reservations(&mut self) -> PathBuf {
        let removed = self.path("removed");
        fs::rename(self.reservations(), &removed).unwrap();
        let agent = self.agent.as_ref().unwrap();
        agent.wait_log(DEADLINE, "ipam_drift").unwrap();
        removed
    }

    /// Starts the agent, or the next one.
    pub(super) fn start_agent(&mut self) {
        let url = |way: Way| format!("http://{}{}", self.receiver.address(), way.path());
        let settings = json!({
            "state-dir": self.path("state"), "cluster-name": self.cluster, "status-page-url": "https://ip.example.org/{node}/",
            "webhooks": [
                {"name": "chat", "format": "slack", "url": url(Way::Chat)},
                {"name": "pager", "format": "pagerduty", "url": url(Way::Pager), "routing-key-file": self.path("key")},
            ],
        });
        fs::write(self.path("config.yaml"), settings.to_string()).unwrap();
        fs::write(self.path("key"), "R0UT1NG").unwrap();
        let [socket, net_d, cache] = match &self.runtime {
            None => ["off".into(), self.path("net.d"), self.path("cache")],
            Some(runtime) => [
                runtime.socket(),
                runtime.directory().join("net.d"),
                "/var/lib/cni/results".into(),
            ],
        };
        let run = RUN_ARGS.map(|arg| if arg == "testkit" { Self::NODE } else { arg });
        let command = self
            .command(&run)
            .args(["--ipam=auto", "--config"])
            .arg(self.path("config.yaml"))
            .arg("--cri-endpoint")
            .arg(socket)
            .arg("--cni-conf-dir")
            .arg(net_d)
            .arg("--cni-cache-dir")
            .arg(cache);
        self.agent = Some(Agent::start_ready(&self.node, &command).unwrap());
    }

    /// The agent's command, on the node.
    fn command(&self, arguments: &[&str]) -> AgentCommand {
        match &self.runtime {
            None => AgentCommand::new(AGENT, arguments.iter().copied()),
            Some(runtime) => runtime.agent_command(AGENT, arguments.iter().copied()),
        }
    }

    pub(super) fn kill_agent(&mut self) {
        self.agent.as_mut().unwrap().kill().unwrap();
    }

    /// Waits until people were notified in every way and nothing is left to send, and records what they see then.
    pub(super) fn wait_notified(&mut self) {
        self.wait_for_messages("the notifications", |messages| !messages.is_empty());
        let client = TestClient::of_agent(&self.node);
        until(DEADLINE, "everything to be sent", || {
            for sink in ["chat", "pager"] {
                let series = format!("ipconflict_outbox_pending{{sink=\"{sink}\"}}");
                let pending: Option<f64> = client.metric(&series)?;
                ensure!(pending == Some(0.0), "{sink}: {pending:?}");
            }
            Ok(())
        })
        .unwrap();
        let commands = self.printed.keys().copied();
        self.printed = commands.map(|c| (c, self.print(c))).collect();
    }

    /// What a command prints once the agent knows every pod, also after a restart.
    fn print(&self, command: &str) -> String {
        until(DEADLINE, "every pod to have its name", || {
            let command = self.command(&command.split(' ').collect::<Vec<_>>());
            let text = command.run_to_end(&self.node, DEADLINE)?.stdout;
            ensure!(!text.contains("another pod: the sandbox"), "{text}");
            Ok(normalised(&text, &self.replacements))
        })
        .unwrap()
    }

    /// Waits until the last message of every way is about the end.
    pub(super) fn wait_ended(&self) {
        self.wait_for_messages("the ends", |messages| {
            messages.last().is_some_and(|message| message.is_end)
        });
    }

    fn wait_for_messages(&self, what: &str, is_enough: impl Fn(&[Message]) -> bool) {
        until(DEADLINE * 2, format!("{what} of {}", self.cluster), || {
            for way in Way::ALL {
                let messages = self.messages(way);
                ensure!(is_enough(&messages), "{way:?}: {messages:#?}");
            }
            Ok(())
        })
        .unwrap();
    }

    /// What people received in this way so far.
    pub(super) fn messages(&self, way: Way) -> Vec<Message> {
        let (requests, path) = match way {
            Way::Alertmanager => (
                self.alerts.requests(),
                format!("{}/{}", way.path(), self.cluster),
            ),
            Way::Chat | Way::Pager => (self.receiver.requests(), way.path().to_owned()),
        };
        let requests = requests.iter().filter(|request| request.path == path);
        let messages = requests.map(|request| way.message(request));
        let messages = messages.map(|message| Message {
            text: normalised(&message.text, &self.replacements),
            ..message
        });
        messages.collect()
    }

    /// What a command printed when people were notified.
    pub(super) fn printed(&self, command: &str) -> &str {
        &self.printed[command]
    }
}
