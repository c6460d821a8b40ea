//! A small Kubernetes API server for tests: pods that can be listed (in pages) and watched, events that can be posted, and
//! the failures of a real server on command.
//!
//! It follows the API's rules on resource versions: every change has its own version, a watch starts after the version that
//! it names, and a watch from a compacted version receives `410 Gone` inside the stream.

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
    pods: BTreeMap<String, Value>,
    /// Watch events: version, type, object.
    history: Vec<(u64, &'static str, Value)>,
    /// Watches from before this version are too old.
    compacted: u64,
    /// Watches that started with an earlier value are cut.
    watch_generation: u64,
    unauthorized: bool,
    hanging: bool,
    slow_watches: bool,
    requests: Vec<String>,
    events: Vec<Value>,
    /// Calico's IPAM blocks; `None` if the resource does not exist.
    ipam_blocks: Option<Vec<Value>>,
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
    pub fn apply(&self, mut pod: Value) {
        self.state.update(|state| {
            state.version += 1;
            let version = state.version;
            pod["metadata"]["resourceVersion"] = version.to_string().into();
            let known = state.pods.insert(key(&pod), pod.clone()).is_some();
            let kind = if known { "MODIFIED" } else { "ADDED" };
            state.history.push((version, kind, pod));
        });
    }

    /// Replaces Calico's IPAM blocks, given by their `spec`. Until the first call the resource does not exist, as in a cluster
    /// without Calico.
    pub fn set_ipam_blocks(&self, specs: &[Value]) {
        let block = |(number, spec): (usize, &Value)| {
            json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "spec": spec,
                "metadata": {"name": format!("block-{number}")}})
        };
        let blocks = specs.iter().enumerate().map(block).collect();
        self.state.update(|state| state.ipam_blocks = Some(blocks));
    }

    /// Deletes a pod.
    pub fn delete(&self, namespace: &str, name: &str) {
        self.state.update(|state| {
            state.version += 1;
            let version = state.version;
            if let Some(mut pod) = state.pods.remove(&format!("{namespace}/{name}")) {
                pod["metadata"]["resourceVersion"] = version.to_string().into();
                state.history.push((version, "DELETED", pod));
            }
        });
    }

    /// Sends a bookmark with the current version to every watch.
    pub fn send_bookmark(&self) {
        self.state.update(|state| {
            state.version += 1;
            let version = state.version;
            let object = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": version.to_string(),
                "creationTimestamp": null}, "spec": {"containers": null}, "status": {}});
            state.history.push((version, "BOOKMARK", object));
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

    /// Waits until `enough` accepts the events posted so far, and returns them.
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
