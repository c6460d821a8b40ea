//! A small Kubernetes API server for tests: pods that can be listed (in pages) and watched, events that can be posted, and
//! everything that goes wrong with a real one at a test's word.
//!
//! It keeps to what the API promises: each change has a resource version; a watch begins after the version it names;
//! one that is too old gets `410 Gone` inside the stream.

mod serve;

use std::{
    collections::BTreeMap,
    fs,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::netns::Netns;

/// A running server. Its threads end with the process; they serve nobody once the test's node is gone.
#[derive(Debug)]
pub struct KubeApi {
    address: SocketAddr,
    shared: Arc<Shared>,
    directory: TempDir,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    version: u64,
    token: String,
    connections: usize,
    /// Bytes of answers that do not end.
    endless_bytes: u64,
    endless: bool,
    pods: BTreeMap<String, Value>,
    /// What watches are told: version, type, object.
    history: Vec<(u64, &'static str, Value)>,
    /// Watches from before this version are too old.
    compacted: u64,
    /// Watches that were begun under an earlier number are cut off.
    streams: u64,
    unauthorized: bool,
    hanging: bool,
    slow: bool,
    requests: Vec<String>,
    events: Vec<Value>,
    /// Calico's IPAM blocks, where there are any.
    blocks: Option<Vec<Value>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>, span: Duration) -> MutexGuard<'s, State> {
        self.changed
            .wait_timeout(state, span)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }
}

impl KubeApi {
    /// Starts one that listens on loopback inside a namespace.
    ///
    /// # Errors
    /// Where the namespace has no loopback that is up.
    pub fn start(node: &Netns) -> Result<Self> {
        let api = Self::absent(node)?;
        api.appear(node)?;
        Ok(api)
    }

    /// One that does not listen yet.
    ///
    /// # Errors
    /// Where the namespace has no loopback that is up.
    pub fn absent(node: &Netns) -> Result<Self> {
        // In the test's own namespace nobody else takes the port meanwhile.
        let address = node.run_in(|| {
            let listener = TcpListener::bind("127.0.0.1:0").context("listening on loopback")?;
            Ok(listener.local_addr()?)
        })?;
        let shared = Arc::<Shared>::default();
        // Versions of a real server do not begin at 1 either.
        shared.lock().version = 1000;
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
            shared,
            directory,
        };
        api.replace_token("token-1")?;
        Ok(api)
    }

    /// Begins to listen.
    ///
    /// # Errors
    /// Where it does so already.
    pub fn appear(&self, node: &Netns) -> Result<()> {
        let address = self.address;
        let listener =
            node.run_in(|| TcpListener::bind(address).context("listening on loopback"))?;
        let served = Arc::clone(&self.shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                served.change(|state| state.connections += 1);
                let shared = Arc::clone(&served);
                // A client that goes away is no matter.
                thread::spawn(move || drop(serve::serve(stream, &shared)));
            }
        });
        Ok(())
    }

    /// Writes another token for clients and takes only that one from now on.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn replace_token(&self, token: &str) -> Result<()> {
        fs::write(self.directory.path().join("token"), token)?;
        self.shared.change(|state| {
            token.clone_into(&mut state.token);
            state.streams += 1;
        });
        Ok(())
    }

    /// Answers lists without end from now on, or no longer.
    pub fn endless(&self, is: bool) {
        self.shared.change(|state| state.endless = is);
    }

    /// Bytes of answers without end that clients took.
    #[must_use]
    pub fn endless_bytes(&self) -> u64 {
        self.shared.lock().endless_bytes
    }

    /// Connections so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.lock().connections
    }

    /// A kubeconfig that leads here.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("config")
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds or changes a pod.
    pub fn apply(&self, mut pod: Value) {
        self.shared.change(|state| {
            state.version += 1;
            let version = state.version;
            pod["metadata"]["resourceVersion"] = version.to_string().into();
            let known = state.pods.insert(key(&pod), pod.clone()).is_some();
            let kind = if known { "MODIFIED" } else { "ADDED" };
            state.history.push((version, kind, pod));
        });
    }

    /// Has these Calico IPAM blocks from now on, given by their `spec`. Until the first call the resource is unknown, as in a
    /// cluster without Calico.
    pub fn hold_blocks(&self, specs: &[Value]) {
        let block = |(number, spec): (usize, &Value)| {
            json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "spec": spec,
                "metadata": {"name": format!("block-{number}")}})
        };
        let blocks = specs.iter().enumerate().map(block).collect();
        self.shared.change(|state| state.blocks = Some(blocks));
    }

    /// Deletes a pod.
    pub fn delete(&self, namespace: &str, name: &str) {
        self.shared.change(|state| {
            state.version += 1;
            let version = state.version;
            if let Some(mut pod) = state.pods.remove(&format!("{namespace}/{name}")) {
                pod["metadata"]["resourceVersion"] = version.to_string().into();
                state.history.push((version, "DELETED", pod));
            }
        });
    }

    /// Tells every watch the present version.
    pub fn bookmark(&self) {
        self.shared.change(|state| {
            state.version += 1;
            let version = state.version;
            let object = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": version.to_string(),
                "creationTimestamp": null}, "spec": {"containers": null}, "status": {}});
            state.history.push((version, "BOOKMARK", object));
        });
    }

    /// Forgets all history and cuts the watches off: those that resume learn that their version is too old.
    pub fn compact(&self) {
        self.shared.change(|state| {
            state.version += 1;
            state.compacted = state.version;
            state.streams += 1;
        });
    }

    /// Cuts the watches off in the middle of a line.
    pub fn break_streams(&self) {
        self.shared.change(|state| state.streams += 1);
    }

    /// Answers 401 from now on, or no longer.
    pub fn unauthorized(&self, is: bool) {
        self.shared.change(|state| {
            state.unauthorized = is;
            state.streams += 1;
        });
    }

    /// Takes requests and does not answer from now on, or answers again.
    pub fn hang(&self, is: bool) {
        self.shared.change(|state| state.hanging = is);
    }

    /// Writes watches in small pieces from now on.
    pub fn slow(&self) {
        self.shared.change(|state| state.slow = true);
    }

    /// Every request so far: method and target.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.shared.lock().requests.clone()
    }

    /// Waits until the requests so far are enough.
    ///
    /// # Errors
    /// Where they are not before the deadline; the message holds them.
    pub fn wait_requests(
        &self,
        deadline: Duration,
        enough: impl Fn(&[String]) -> bool,
    ) -> Result<()> {
        self.wait(deadline, |state| {
            enough(&state.requests)
                .then_some(())
                .ok_or_else(|| format!("{:?}", state.requests))
        })
    }

    /// Waits until the events posted so far are enough, and gives them.
    ///
    /// # Errors
    /// Where they are not before the deadline; the message holds them.
    pub fn wait_events(
        &self,
        deadline: Duration,
        enough: impl Fn(&[Value]) -> bool,
    ) -> Result<Vec<Value>> {
        self.wait(deadline, |state| {
            if enough(&state.events) {
                Ok(state.events.clone())
            } else {
                Err(format!("{:?} after {:?}", state.events, state.requests))
            }
        })
    }

    fn wait<T>(
        &self,
        deadline: Duration,
        look: impl Fn(&State) -> std::result::Result<T, String>,
    ) -> Result<T> {
        let until = Instant::now() + deadline;
        let mut state = self.shared.lock();
        loop {
            let seen = match look(&state) {
                Ok(found) => return Ok(found),
                Err(seen) => seen,
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("the API server waited {deadline:?} in vain; it saw {seen}");
            }
            state = self.shared.wait(state, left);
        }
    }
}

/// A running pod as the API describes it.
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
