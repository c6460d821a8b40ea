//! A small Kubernetes API server for tests, inside the process ([`ApiServer`]) or at a port ([`KubeApi`]): objects of any resource
//! that can be read, listed (in pages), watched and changed, and the failures of a real server on command.
//!
//! It follows the API's rules on resource versions: every change has its own version, a watch starts after the version that
//! it names, a list from version 0 has no pages, and a watch from a compacted version receives `410 Gone` inside the stream.

mod connection;
mod objects;
mod port_forward;
mod server;

use std::{
    collections::BTreeMap,
    fs,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{netns::Netns, wait::lock};
use port_forward::Connector;
pub use server::{ApiServer, Failure, ResponseBody};

/// The path of all pods, that of all Events and that of all nodes.
const PODS: &str = "/api/v1/pods";
const EVENTS: &str = "/apis/events.k8s.io/v1/events";
const NODES: &str = "/api/v1/nodes";
/// The paths of Calico's resources.
const IPAM_BLOCKS: &str = "/apis/crd.projectcalico.org/v1/ipamblocks";
const IP_POOLS: &str = "/apis/crd.projectcalico.org/v1/ippools";

/// A running server. Its threads end with the process.
#[derive(Debug)]
pub struct KubeApi {
    address: SocketAddr,
    network: Arc<Network>,
    directory: TempDir,
}

/// What the connections share.
#[derive(Debug, Default)]
struct Network {
    server: ApiServer,
    connections: AtomicUsize,
    /// How to reach pods, by namespace and name.
    port_forwards: Mutex<BTreeMap<String, Arc<Connector>>>,
}

impl KubeApi {
    /// Starts a server that listens on loopback inside a namespace.
    ///
    /// # Errors
    /// The namespace's loopback device is down.
    pub fn start(node: &Netns) -> Result<Self> {
        let api = Self::start_refusing(node)?;
        api.listen(node)?;
        Ok(api)
    }

    /// Creates a server whose port refuses connections until [`KubeApi::listen`].
    ///
    /// # Errors
    /// As [`KubeApi::start`].
    pub fn start_refusing(node: &Netns) -> Result<Self> {
        // The namespace is the test's own, so the port stays free until `listen`.
        let address = node.run_in(|| {
            let listener = TcpListener::bind("127.0.0.1:0").context("listening on loopback")?;
            Ok(listener.local_addr()?)
        })?;
        let network = Arc::<Network>::default();
        for resource in [PODS, EVENTS, NODES] {
            network.server.install(resource);
        }
        network.server.state.update(|state| {
            // Tests must not rely on versions that start at 1.
            state.objects.version = 1000;
            state.are_nodes_secret = true;
        });
        let directory = tempfile::Builder::new()
            .prefix("ipconflict-kube-")
            .tempdir()?;
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "test", "user": {"tokenFile": directory.path().join("token")}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]});
        fs::write(directory.path().join("config"), config.to_string())?;
        let api = Self {
            address,
            network,
            directory,
        };
        api.replace_token("token-1")?;
        Ok(api)
    }

    /// Denies this many requests about Events (403), as a server does that has not read its roles yet.
    pub fn deny_events(&self, requests: usize) {
        self.update(|state| state.denied_event_requests = requests);
    }

    /// Starts to listen.
    ///
    /// # Errors
    /// It listens already.
    pub fn listen(&self, node: &Netns) -> Result<()> {
        let address = self.address;
        let listener =
            node.run_in(|| TcpListener::bind(address).context("listening on loopback"))?;
        let network = Arc::clone(&self.network);
        // An error ends the server, and the test fails for lack of it.
        thread::spawn(move || connection::serve(listener, &network));
        Ok(())
    }

    /// Writes another token to the clients' token file, accepts only that one from now on and cuts all watches.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn replace_token(&self, token: &str) -> Result<()> {
        fs::write(self.directory.path().join("token"), token)?;
        self.update(|state| {
            state.token = Some(token.to_owned());
            state.cut_watches();
        });
        Ok(())
    }

    fn update(&self, change: impl FnOnce(&mut server::State)) {
        self.network.server.state.update(change);
    }

    /// Whether pod lists never end.
    pub fn set_endless_lists(&self, on: bool) {
        self.update(|state| state.has_endless_lists = on);
    }

    /// Bytes of endless lists sent so far.
    #[must_use]
    pub fn endless_bytes_sent(&self) -> u64 {
        self.network.server.state.lock().endless_bytes_sent
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.network.connections.load(Ordering::Relaxed)
    }

    /// The path of a kubeconfig for this server.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("config")
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Creates or replaces a pod.
    pub fn apply(&self, pod: Value) {
        self.network.server.store(PODS, pod);
    }

    /// Deletes a pod.
    pub fn delete(&self, namespace: &str, name: &str) {
        let server = &self.network.server;
        server.change(|objects| objects.delete(PODS, namespace, name));
    }

    /// Sets the names of all nodes. Until the first call nodes may not be listed.
    pub fn set_nodes(&self, names: &[&str]) {
        let server = &self.network.server;
        server.uninstall(NODES);
        server.install(NODES);
        let labels = json!({"kubernetes.io/os": "linux"});
        for name in names {
            server.apply_labelled(NODES, name, &json!({}), &labels);
        }
        self.update(|state| state.are_nodes_secret = false);
    }

    /// Lets ports of a pod be forwarded; its loopback is that of `netns`. Port-forwards of other pods are refused.
    ///
    /// # Errors
    /// The namespace does not exist.
    pub fn forward_ports(&self, namespace: &str, pod: &str, netns: &Netns) -> Result<()> {
        let connector = Arc::new(Connector(Box::new(netns.loopback_connector()?)));
        let mut port_forwards = lock(&self.network.port_forwards);
        port_forwards.insert(format!("{namespace}/{pod}"), connector);
        Ok(())
    }

    /// Creates a pool of Calico's addresses. Before the first one, the resource does not exist, as in a cluster without
    /// Calico.
    pub fn apply_ip_pool(&self, cidr: &str, block_size: u8) {
        let pool = json!({"cidr": cidr, "blockSize": block_size});
        let server = &self.network.server;
        server.apply(IP_POOLS, &block_name(cidr), &pool);
        server.install(IPAM_BLOCKS);
    }

    /// Creates or replaces a block of Calico's IPAM, given by its `spec`.
    pub fn apply_ipam_block(&self, spec: &Value) {
        let name = block_name(spec["cidr"].as_str().unwrap_or_default());
        self.network.server.apply(IPAM_BLOCKS, &name, spec);
    }

    /// Deletes a block of Calico's IPAM.
    pub fn delete_ipam_block(&self, cidr: &str) {
        self.network.server.delete(IPAM_BLOCKS, &block_name(cidr));
    }

    /// Makes a resource exist, without objects.
    pub fn install(&self, resource: &str) {
        self.network.server.install(resource);
    }

    /// Creates or replaces an object of a resource, which exists from then on.
    pub fn apply_object(&self, resource: &str, object: Value) {
        self.network.server.store(resource, object);
    }

    /// Deletes an object of a resource without namespaces.
    pub fn delete_object(&self, resource: &str, name: &str) {
        self.network.server.delete(resource, name);
    }

    /// Deletes an object of a namespace.
    pub fn delete_object_in(&self, resource: &str, namespace: &str, name: &str) {
        self.network.server.delete_in(resource, namespace, name);
    }

    /// Goes on from another resource version, as a datastore does that was restored from a backup.
    pub fn continue_from(&self, version: u64) {
        self.network.server.continue_from(version);
    }

    /// Sends a bookmark with the current version to every watch of pods.
    pub fn send_bookmark(&self) {
        let server = &self.network.server;
        server.change(|objects| objects.bookmark(PODS));
    }

    /// Compacts the history and cuts all watches, so that a resumed watch gets `410 Gone`.
    pub fn compact(&self) {
        self.update(server::State::compact);
    }

    /// Cuts all watches in the middle of a line.
    pub fn cut_watches(&self) {
        self.update(server::State::cut_watches);
    }

    /// Whether every request is answered with 401; also cuts all watches.
    pub fn set_unauthorized(&self, on: bool) {
        self.update(|state| {
            state.is_unauthorized = on;
            state.cut_watches();
        });
    }

    /// Whether requests are accepted and left without a response.
    pub fn set_hanging(&self, on: bool) {
        self.network.server.hanging.send_replace(on);
    }

    /// Sends watch events in small pieces from now on.
    pub fn set_slow_watches(&self) {
        self.update(|state| state.has_slow_watches = true);
    }

    /// All requests so far: method and target.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        targets(&self.network.server.state.lock())
    }

    /// Waits until `enough` accepts the requests so far.
    ///
    /// # Errors
    /// The deadline passes; the error contains the requests.
    pub fn wait_requests(
        &self,
        deadline: Duration,
        enough: impl Fn(&[String]) -> bool,
    ) -> Result<()> {
        self.network.server.state.wait(
            deadline,
            "requests to the API server",
            |state| enough(&targets(state)).then_some(()),
            |state| format!("requests so far: {:?}", targets(state)),
        )
    }

    /// Waits until `enough` accepts the states of events so far (one for each creation and each patch), and returns them.
    ///
    /// # Errors
    /// The deadline passes; the error contains events and requests.
    pub fn wait_events(
        &self,
        deadline: Duration,
        enough: impl Fn(&[Value]) -> bool,
    ) -> Result<Vec<Value>> {
        self.network.server.state.wait(
            deadline,
            "events posted to the API server",
            |state| Some(state.objects.states(EVENTS)).filter(|events| enough(events)),
            |state| {
                let events = state.objects.states(EVENTS);
                format!("events so far: {events:?}; requests: {:?}", targets(state))
            },
        )
    }
}

/// Method and target of each request.
fn targets(state: &server::State) -> Vec<String> {
    let requests = state.requests.iter();
    requests.map(|(_, request)| request.clone()).collect()
}

/// The name of the block or pool with this range.
fn block_name(cidr: &str) -> String {
    cidr.replace(['.', ':', '/'], "-")
}

/// A running pod as the API returns it.
#[must_use]
pub fn pod(node: &str, namespace: &str, name: &str, addresses: &[&str]) -> Value {
    let ips: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "uid": format!("uid-{name}"),
            "creationTimestamp": "2026-03-21T09:10:11Z", "labels": {"app": name}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running", "podIP": addresses.first(), "podIPs": ips}})
}
