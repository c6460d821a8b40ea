//! A small Kubernetes API server for tests: pods and Calico's resources that can be read, listed (in pages) and watched,
//! events that can be created and patched, and the failures of a real server on command.
//!
//! It follows the API's rules on resource versions: every change has its own version, a watch starts after the version that
//! it names, a list from version 0 has no pages, and a watch from a compacted version receives `410 Gone` inside the stream.

mod port_forward;
mod serve;

use std::{
    collections::BTreeMap,
    fs,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{netns::Netns, wait::Monitor};
use port_forward::Connector;

/// The path of all pods.
const PODS: &str = "/api/v1/pods";
/// The paths of Calico's resources.
const IPAM_BLOCKS: &str = "/apis/crd.projectcalico.org/v1/ipamblocks";
const IP_POOLS: &str = "/apis/crd.projectcalico.org/v1/ippools";

/// A running server. Its threads end with the process.
#[derive(Debug)]
pub struct KubeApi {
    address: SocketAddr,
    state: Arc<Monitor<ApiState>>,
    directory: TempDir,
}

/// The objects that the server holds, and how it misbehaves.
#[derive(Debug, Default)]
struct ApiState {
    /// The resource version of the last change.
    version: u64,
    /// The only bearer token that is accepted.
    token: String,
    connections: usize,
    endless_bytes_sent: u64,
    endless_lists: bool,
    /// The objects of each resource that exists, by path and then by namespace and name.
    resources: BTreeMap<&'static str, BTreeMap<String, Value>>,
    history: Vec<WatchEvent>,
    /// `None` if nodes may not be listed.
    nodes: Option<Vec<String>>,
    /// How to reach pods, by namespace and name.
    port_forwards: BTreeMap<String, Arc<Connector>>,
    /// Watches from before this version are too old.
    compacted: u64,
    /// Watches that started with an earlier value are cut.
    watch_generation: u64,
    unauthorized: bool,
    hanging: bool,
    slow_watches: bool,
    requests: Vec<String>,
    /// Every state of every Event, in order.
    events: Vec<Value>,
    /// How many requests about Events are denied before one is accepted.
    denied_event_requests: usize,
    /// The last state of each Event, by namespace and name.
    stored_events: BTreeMap<String, Value>,
}

/// A change as a watch shows it.
#[derive(Clone, Debug)]
struct WatchEvent {
    version: u64,
    path: &'static str,
    kind: &'static str,
    object: Value,
}

impl ApiState {
    /// Creates or replaces an object of a resource, which exists from then on.
    fn apply(&mut self, path: &'static str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let objects = self.resources.entry(path).or_default();
        let is_known = objects.insert(key(&object), object.clone()).is_some();
        let kind = if is_known { "MODIFIED" } else { "ADDED" };
        self.record(path, kind, object);
    }

    /// Deletes an object; none is no error.
    fn delete(&mut self, path: &'static str, key: &str) {
        self.version += 1;
        let objects = self.resources.entry(path).or_default();
        if let Some(mut object) = objects.remove(key) {
            object["metadata"]["resourceVersion"] = self.version.to_string().into();
            self.record(path, "DELETED", object);
        }
    }

    fn record(&mut self, path: &'static str, kind: &'static str, object: Value) {
        let version = self.version;
        self.history.push(WatchEvent {
            version,
            path,
            kind,
            object,
        });
    }
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
        let state = ApiState {
            // Tests must not rely on versions that start at 1.
            version: 1000,
            resources: [(PODS, BTreeMap::new())].into(),
            ..ApiState::default()
        };
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
            state: Arc::new(Monitor::new(state)),
            directory,
        };
        api.replace_token("token-1")?;
        Ok(api)
    }

    /// Denies this many requests about Events (403), as a server does that has not read its roles yet.
    pub fn deny_events(&self, requests: usize) {
        let state = &self.state;
        state.update(|state| state.denied_event_requests = requests);
    }

    /// Starts to listen.
    ///
    /// # Errors
    /// It listens already.
    pub fn listen(&self, node: &Netns) -> Result<()> {
        let address = self.address;
        let listener =
            node.run_in(|| TcpListener::bind(address).context("listening on loopback"))?;
        let state = Arc::clone(&self.state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                state.update(|state| state.connections += 1);
                let state = Arc::clone(&state);
                // Errors are closed connections.
                thread::spawn(move || drop(serve::serve(stream, &state)));
            }
        });
        Ok(())
    }

    /// Writes another token to the clients' token file, accepts only that one from now on and cuts all watches.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn replace_token(&self, token: &str) -> Result<()> {
        fs::write(self.directory.path().join("token"), token)?;
        self.state.update(|state| {
            token.clone_into(&mut state.token);
            state.watch_generation += 1;
        });
        Ok(())
    }

    /// Whether pod lists never end.
    pub fn set_endless_lists(&self, on: bool) {
        self.state.update(|state| state.endless_lists = on);
    }

    /// Bytes of endless lists sent so far.
    #[must_use]
    pub fn endless_bytes_sent(&self) -> u64 {
        self.state.lock().endless_bytes_sent
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.state.lock().connections
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
        self.state.update(|state| state.apply(PODS, pod));
    }

    /// Deletes a pod.
    pub fn delete(&self, namespace: &str, name: &str) {
        let key = format!("{namespace}/{name}");
        self.state.update(|state| state.delete(PODS, &key));
    }

    /// Sets the names of all nodes. Until the first call nodes may not be listed.
    pub fn set_nodes(&self, names: &[&str]) {
        let names = names.iter().copied().map(str::to_owned).collect();
        self.state.update(|state| state.nodes = Some(names));
    }

    /// Lets ports of a pod be forwarded; its loopback is that of `netns`. Port-forwards of other pods are refused.
    ///
    /// # Errors
    /// The namespace does not exist.
    pub fn forward_ports(&self, namespace: &str, pod: &str, netns: &Netns) -> Result<()> {
        let connector = Arc::new(Connector(Box::new(netns.loopback_connector()?)));
        self.state.update(|state| {
            let key = format!("{namespace}/{pod}");
            state.port_forwards.insert(key, connector);
        });
        Ok(())
    }

    /// Creates a pool of Calico's addresses. Before the first one, the resource does not exist, as in a cluster without
    /// Calico.
    pub fn apply_ip_pool(&self, cidr: &str, block_size: u8) {
        let pool = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool",
            "metadata": {"name": block_name(cidr)}, "spec": {"cidr": cidr, "blockSize": block_size}});
        self.state.update(|state| {
            state.apply(IP_POOLS, pool);
            state.resources.entry(IPAM_BLOCKS).or_default();
        });
    }

    /// Creates or replaces a block of Calico's IPAM, given by its `spec`.
    pub fn apply_ipam_block(&self, spec: &Value) {
        let name = block_name(spec["cidr"].as_str().unwrap_or_default());
        let block = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock",
            "metadata": {"name": name}, "spec": spec});
        self.state.update(|state| state.apply(IPAM_BLOCKS, block));
    }

    /// Deletes a block of Calico's IPAM.
    pub fn delete_ipam_block(&self, cidr: &str) {
        let key = format!("/{}", block_name(cidr));
        self.state.update(|state| state.delete(IPAM_BLOCKS, &key));
    }

    /// Sends a bookmark with the current version to every watch of pods.
    pub fn send_bookmark(&self) {
        self.state.update(|state| {
            state.version += 1;
            let version = state.version.to_string();
            let object = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": version,
                "creationTimestamp": null}, "spec": {"containers": null}, "status": {}});
            state.record(PODS, "BOOKMARK", object);
        });
    }

    /// Compacts the history and cuts all watches, so that a resumed watch gets `410 Gone`.
    pub fn compact(&self) {
        self.state.update(|state| {
            state.version += 1;
            state.compacted = state.version;
            state.watch_generation += 1;
        });
    }

    /// Cuts all watches in the middle of a line.
    pub fn cut_watches(&self) {
        self.state.update(|state| state.watch_generation += 1);
    }

    /// Whether every request is answered with 401; also cuts all watches.
    pub fn set_unauthorized(&self, on: bool) {
        self.state.update(|state| {
            state.unauthorized = on;
            state.watch_generation += 1;
        });
    }

    /// Whether requests are accepted and left without a response.
    pub fn set_hanging(&self, on: bool) {
        self.state.update(|state| state.hanging = on);
    }

    /// Sends watch events in small pieces from now on.
    pub fn set_slow_watches(&self) {
        self.state.update(|state| state.slow_watches = true);
    }

    /// All requests so far: method and target.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.state.lock().requests.clone()
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
        self.state.wait(
            deadline,
            "requests to the API server",
            |state| enough(&state.requests).then_some(()),
            |state| format!("requests so far: {:?}", state.requests),
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
        self.state.wait(
            deadline,
            "events posted to the API server",
            |state| enough(&state.events).then(|| state.events.clone()),
            |state| {
                format!(
                    "events so far: {:?}; requests so far: {:?}",
                    state.events, state.requests
                )
            },
        )
    }
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

fn key(pod: &Value) -> String {
    let part = |name: &str| {
        pod["metadata"][name]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    format!("{}/{}", part("namespace"), part("name"))
}
