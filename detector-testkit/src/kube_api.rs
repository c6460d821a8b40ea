//! A small Kubernetes API server for tests: pods that can be listed (in pages) and watched, events that can be posted, and
//! everything that goes wrong with a real one at a test's word.
//!
//! It keeps to what the API promises: each change has a resource version; a watch begins after the version it names;
//! one that is too old gets `410 Gone` inside the stream.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
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
                thread::spawn(move || drop(serve(stream, &shared)));
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

/// Serves the requests of one connection.
fn serve(mut stream: TcpStream, shared: &Shared) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut words = line.split_whitespace();
        let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let mut length = 0;
        let mut token = String::new();
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = header.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().context("content-length")?;
            }
            if let Some((name, value)) = header.split_once(':')
                && name.eq_ignore_ascii_case("authorization")
            {
                value
                    .trim()
                    .trim_start_matches("Bearer ")
                    .clone_into(&mut token);
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        shared.change(|state| state.requests.push(format!("{method} {target}")));
        let mut state = shared.lock();
        while state.hanging {
            state = shared.wait(state, Duration::from_secs(60));
        }
        let unauthorized = state.unauthorized || state.token != token;
        let endless = state.endless;
        drop(state);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = parameters(query);
        let watch = query
            .get("watch")
            .is_some_and(|value| value == "true" || value == "1");
        let answer = if unauthorized {
            Some((401, status(401, "Unauthorized")))
        } else if method == "GET" && path == "/api/v1/pods" && watch {
            None
        } else if method == "GET" && path == "/api/v1/pods" && endless {
            return without_end(stream, shared);
        } else if method == "GET" && path == "/api/v1/pods" {
            Some((200, list(&shared.lock(), &query)))
        } else if path.starts_with("/apis/events.k8s.io/v1/namespaces/") {
            let event: Value = serde_json::from_slice(&body).context("a posted event")?;
            shared.change(|state| state.events.push(event.clone()));
            Some((if method == "POST" { 201 } else { 200 }, event))
        } else {
            Some((404, status(404, "not served here")))
        };
        match answer {
            Some((code, body)) => {
                let body = body.to_string();
                write!(
                    stream,
                    "HTTP/1.1 {code} -\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                )?;
            }
            None => return watch_pods(stream, shared, &query),
        }
    }
}

/// A list that goes on until the client goes away, or a test has seen enough.
fn without_end(mut stream: TcpStream, shared: &Shared) -> Result<()> {
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )?;
    let start = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":["#;
    write!(stream, "{:x}\r\n{start}\r\n", start.len())?;
    let blank = vec![b' '; 1 << 20];
    while shared.lock().endless {
        write!(stream, "{:x}\r\n", blank.len())?;
        stream.write_all(&blank)?;
        stream.write_all(b"\r\n")?;
        shared.change(|state| state.endless_bytes += blank.len() as u64);
    }
    Ok(())
}

fn status(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": message, "code": code})
}

fn list(state: &State, query: &BTreeMap<String, String>) -> Value {
    let from: usize = query
        .get("continue")
        .and_then(|token| token.parse().ok())
        .unwrap_or(0);
    let limit: usize = query
        .get("limit")
        .and_then(|limit| limit.parse().ok())
        .unwrap_or(usize::MAX);
    let all: Vec<&Value> = state
        .pods
        .values()
        .filter(|pod| selected(pod, query))
        .collect();
    let items: Vec<_> = all.iter().skip(from).take(limit).collect();
    let next = from + items.len();
    let more = (next < all.len()).then(|| next.to_string());
    json!({"kind": "PodList", "apiVersion": "v1", "items": items,
        "metadata": {"resourceVersion": state.version.to_string(), "continue": more.unwrap_or_default()}})
}

fn selected(pod: &Value, query: &BTreeMap<String, String>) -> bool {
    let node = query
        .get("fieldSelector")
        .and_then(|selector| selector.strip_prefix("spec.nodeName="));
    node.is_none_or(|node| pod["spec"]["nodeName"] == node)
}

fn watch_pods(
    mut stream: TcpStream,
    shared: &Shared,
    query: &BTreeMap<String, String>,
) -> Result<()> {
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )?;
    let mut told: u64 = query
        .get("resourceVersion")
        .and_then(|version| version.parse().ok())
        .unwrap_or(0);
    let mut state = shared.lock();
    let own = state.streams;
    if told < state.compacted {
        drop(state);
        let gone = status(410, "too old resource version");
        chunk(
            &mut stream,
            &json!({"type": "ERROR", "object": gone}),
            false,
        )?;
        stream.write_all(b"0\r\n\r\n")?;
        return Ok(());
    }
    loop {
        if state.streams != own {
            // No last chunk, and half a line before it.
            stream.write_all(b"8\r\n{\"type\":\r\n")?;
            return Ok(());
        }
        let slow = state.slow;
        let next: Vec<_> = state
            .history
            .iter()
            .filter(|(version, kind, object)| {
                *version > told && (*kind == "BOOKMARK" || selected(object, query))
            })
            .cloned()
            .collect();
        told = told.max(state.version);
        drop(state);
        for (_, kind, object) in next {
            chunk(&mut stream, &json!({"type": kind, "object": object}), slow)?;
        }
        state = shared.lock();
        if state.version <= told && state.streams == own {
            state = shared.wait(state, Duration::from_secs(60));
        }
    }
}

/// One line; a slow one in pieces with rests between them.
fn chunk(stream: &mut TcpStream, value: &Value, slow: bool) -> Result<()> {
    let line = format!("{value}\n");
    let size = if slow { 40 } else { line.len() };
    for piece in line.as_bytes().chunks(size) {
        write!(stream, "{:x}\r\n", piece.len())?;
        stream.write_all(piece)?;
        stream.write_all(b"\r\n")?;
        stream.flush()?;
        if slow {
            thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}

fn parameters(query: &str) -> BTreeMap<String, String> {
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), decoded(value)))
        .collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let escaped = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (first, escaped) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = tail.get(2..).unwrap_or_default();
                continue;
            }
            (b'+', _) => bytes.push(b' '),
            (other, _) => bytes.push(*other),
        }
        rest = tail;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
