//! A node with an agent that notifies a chat and a pager, and what people received of it.

use std::{
    fs,
    net::{IpAddr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use detector_testkit::{
    Agent, AgentCommand, Cni, CniPod, DEADLINE, Netns, Node, Pod, PodSpec, Receiver,
    cni::cache_result_of, http::TestClient, proxy::Proxy, until,
};
use serde_json::json;
use tempfile::TempDir;

use super::messages::{Message, Way, normalised};
use crate::{AGENT, host_local::HostLocal};

/// What is entered on the node.
const COMMANDS: [&str; 2] = ["check", "explain"];
/// The data directory of `host-local` on a node.
const NETWORKS: &str = "/var/lib/cni/networks";

/// A node with an agent and receivers.
pub(super) struct Site<'m> {
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
    /// What the commands of [`COMMANDS`] printed when people were notified.
    printed: [String; COMMANDS.len()],
}

impl<'m> Site<'m> {
    /// The node's name.
    pub(super) const NODE: &'static str = "worker-7";

    pub(super) fn new(name: &str, monitoring: &Netns, alerts: &'m Receiver) -> Result<Self> {
        let node = Node::new(name)?;
        let listener = monitoring.run_in(|| Ok(TcpListener::bind("127.0.0.1:0")?))?;
        let folder = tempfile::tempdir()?;
        for directory in ["cache", "net.d"] {
            fs::create_dir(folder.path().join(directory))?;
        }
        let cluster = format!("cluster-{name}");
        Ok(Self {
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
            printed: Default::default(),
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

    /// A network whose allocations the agent reads.
    pub(super) fn add_network(&mut self, cni: &Cni) {
        cni.write_config(&self.path("net.d")).unwrap();
        self.name_data_dir(cni.data_dir());
    }

    /// As [`Site::add_network`], without a plugin.
    pub(super) fn add_host_local(&mut self, subnets: &[&str]) -> HostLocal {
        let network = HostLocal::new(&self.path("net.d"), subnets);
        self.name_data_dir(network.data_dir());
        network
    }

    fn name_data_dir(&mut self, directory: &Path) {
        let directory = directory.display().to_string();
        self.replacements.push((directory, NETWORKS.to_owned()));
    }

    /// A pod that the network plugin sets up; its device is called after it in what is recorded.
    pub(super) fn add_cni_pod(&mut self, cni: &Cni, name: &str) -> CniPod {
        let pod = cni.add_pod(&self.node, name).unwrap();
        cni.cache_result(&self.path("cache"), &pod).unwrap();
        // As long as the plugin's, which tables are aligned with.
        let device = format!("veth{:0>8}", name.replace('-', ""));
        self.replacements
            .push((pod.device().unwrap().to_owned(), device));
        pod
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
        let command = AgentCommand::run_on(AGENT, Self::NODE)
            .args(["--ipam=auto", "--cri-endpoint=off", "--config"])
            .arg(self.path("config.yaml"))
            .arg("--cni-conf-dir")
            .arg(self.path("net.d"))
            .arg("--cni-cache-dir")
            .arg(self.path("cache"));
        self.agent = Some(Agent::start_ready(&self.node, &command).unwrap());
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
        self.printed = COMMANDS.map(|command| self.print(command));
    }

    /// What a command prints once the agent knows every pod, also after a restart.
    fn print(&self, command: &str) -> String {
        until(DEADLINE, "every pod to have its name", || {
            let command = AgentCommand::new(AGENT, [command]);
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
        let position = COMMANDS.iter().position(|known| *known == command);
        &self.printed[position.unwrap()]
    }
}
