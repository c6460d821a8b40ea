//! The server without a network: answers requests, and fails as it is told to.

use std::{
    collections::{BTreeMap, VecDeque},
    future::pending,
    io,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response,
    body::Frame,
    header::{AUTHORIZATION, HeaderValue, RETRY_AFTER},
};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};

use super::{
    NODES, PODS,
    objects::{Answer, Change, Objects, Selection, Target, failure, line},
};
use crate::wait::Monitor;

/// The body of a response.
pub type ResponseBody = UnsyncBoxBody<Bytes, io::Error>;

/// An API server inside the process. Its copies are the same server.
#[derive(Clone, Debug, Default)]
pub struct ApiServer {
    pub(super) state: Arc<Monitor<State>>,
    /// Whether requests are left without a response.
    pub(super) hanging: Arc<watch::Sender<bool>>,
}

/// How a request ends.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// The status code; without one the connection breaks.
    pub code: Option<u16>,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
    /// The request takes effect nevertheless.
    pub takes_effect: bool,
}

/// The objects that the server holds, and how it misbehaves.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) objects: Objects,
    pub(super) requests: Vec<(Instant, String)>,
    watches: Vec<Watch>,
    /// Watches from before this version are too old.
    compacted: u64,
    /// The only bearer token that is accepted, if requests need one.
    pub(super) token: Option<String>,
    pub(super) is_unauthorized: bool,
    /// Whether nodes may be read.
    pub(super) are_nodes_secret: bool,
    is_down: bool,
    /// The path to which requests fail.
    failing_path: Option<String>,
    /// The path to which requests are not answered.
    hanging_path: Option<String>,
    /// How the next requests that are no watches end.
    failures: VecDeque<Failure>,
    /// How many requests about Events are denied before one is accepted.
    pub(super) denied_event_requests: usize,
    pub(super) has_slow_watches: bool,
    pub(super) has_endless_lists: bool,
    pub(super) endless_bytes_sent: u64,
}

#[derive(Debug)]
struct Watch {
    selection: Selection,
    lines: mpsc::UnboundedSender<io::Result<Bytes>>,
}

impl ApiServer {
    /// The requests so far: when, and method and target.
    #[must_use]
    pub fn requests(&self) -> Vec<(Instant, String)> {
        self.state.lock().requests.clone()
    }

    /// Whether the server is away; if so, all watches are cut.
    pub fn set_down(&self, is_down: bool) {
        self.state.update(|state| {
            state.is_down = is_down;
            state.cut_watches();
        });
    }

    /// Creates or replaces an object.
    pub fn apply(&self, path: &str, name: &str, spec: &Value) {
        self.store(path, json!({"metadata": {"name": name}, "spec": spec}));
    }

    /// The same for an object with labels.
    pub fn apply_labelled(&self, path: &str, name: &str, spec: &Value, labels: &Value) {
        let object = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
        self.store(path, object);
    }

    /// Creates or replaces an object that has a status.
    pub fn apply_status(&self, path: &str, name: &str, status: &Value) {
        self.store(path, json!({"metadata": {"name": name}, "status": status}));
    }

    /// Creates or replaces an object with all of its metadata.
    pub fn apply_object(&self, path: &str, object: &Value) {
        self.store(path, object.clone());
    }

    /// Goes on from another resource version, as a datastore does that was restored from a backup.
    pub fn continue_from(&self, version: u64) {
        self.change(|objects| objects.version = version);
    }

    /// Makes a resource exist.
    pub fn install(&self, path: &str) {
        self.change(|objects| objects.install(path));
    }

    /// Makes a resource and its objects disappear.
    pub fn uninstall(&self, path: &str) {
        self.change(|objects| objects.uninstall(path));
    }

    /// Deletes an object of a resource without namespaces.
    pub fn delete(&self, path: &str, name: &str) {
        self.change(|objects| objects.delete(path, "", name));
    }

    /// Deletes an object of a namespace.
    pub fn delete_in(&self, path: &str, namespace: &str, name: &str) {
        self.change(|objects| objects.delete(path, namespace, name));
    }

    /// An object, if there is one.
    #[must_use]
    pub fn object(&self, path: &str, name: &str) -> Option<Value> {
        self.state.lock().objects.get(path, name)
    }

    /// All objects of a resource, or of a namespace.
    #[must_use]
    pub fn objects(&self, path: &str) -> Vec<Value> {
        self.state.lock().objects.all(path)
    }

    /// Lets all requests to a path fail from now on, except watches.
    pub fn fail_all(&self, path: &str) {
        let path = path.to_owned();
        self.state.update(|state| state.failing_path = Some(path));
    }

    /// Lets no request to a path be answered from now on.
    pub fn hang_all(&self, path: &str) {
        let path = path.to_owned();
        self.state.update(|state| state.hanging_path = Some(path));
    }

    /// Lets the next request that is no watch fail; after it the one of the next call, and so on.
    pub fn fail_next(&self, failure: Failure) {
        self.state.update(|state| state.failures.push_back(failure));
    }

    pub(super) fn store(&self, path: &str, object: Value) {
        self.change(|objects| objects.apply(path, object));
    }

    /// Changes objects, and shows that to the watches.
    pub(super) fn change(&self, change: impl FnOnce(&mut Objects)) {
        self.state.update(|state| state.change(change));
    }

    pub(super) fn record<B>(&self, request: &Request<B>) {
        let target = request.uri().path_and_query().map_or("", |t| t.as_str());
        let line = format!("{} {target}", request.method());
        self.state
            .update(|state| state.requests.push((Instant::now(), line)));
    }

    /// Answers a request.
    ///
    /// # Errors
    /// The connection breaks.
    pub async fn respond(&self, request: Request<Bytes>) -> io::Result<Response<ResponseBody>> {
        self.record(&request);
        // The sender is never dropped.
        let _ = self.hanging.subscribe().wait_for(|hanging| !hanging).await;
        let is_hanging =
            |state: &State| state.hanging_path.as_deref() == Some(request.uri().path());
        if is_hanging(&self.state.lock()) {
            pending::<()>().await;
        }
        let lists_pods = *request.method() == Method::GET && request.uri().path() == PODS;
        if lists_pods && self.state.lock().has_endless_lists && !is_watch(&query(&request)) {
            return Ok(Response::new(self.endless_list()));
        }
        self.state.update(|state| state.respond(&request))
    }

    /// A list that continues until the client closes the connection or the test switches it off.
    fn endless_list(&self) -> ResponseBody {
        let start = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":["#;
        let blank = Bytes::from(vec![b' '; 1 << 20]);
        let server = self.clone();
        let blanks = stream::unfold((server, blank), |(server, blank)| async move {
            let goes_on = server.state.update(|state| {
                state.endless_bytes_sent += blank.len() as u64;
                state.has_endless_lists
            });
            goes_on.then(|| (blank.clone(), (server, blank)))
        });
        let start = stream::iter([Bytes::from_static(start.as_bytes())]);
        streamed(start.chain(blanks).map(Ok))
    }
}

impl State {
    fn change<T>(&mut self, change: impl FnOnce(&mut Objects) -> T) -> T {
        let known = self.objects.history.len();
        let value = change(&mut self.objects);
        for change in self.objects.history.iter().skip(known) {
            for watch in &self.watches {
                watch.send(change);
            }
        }
        value
    }

    /// Cuts all watches in the middle of a line.
    pub(super) fn cut_watches(&mut self) {
        for watch in self.watches.drain(..) {
            let reset = io::Error::from(io::ErrorKind::ConnectionReset);
            // The watch may have ended.
            let _ = watch.lines.send(Ok(Bytes::from_static(br#"{"type":"#)));
            let _ = watch.lines.send(Err(reset));
        }
    }

    /// Lets no watch resume from what was before, and cuts all of them.
    pub(super) fn compact(&mut self) {
        self.objects.version += 1;
        self.compacted = self.objects.version;
        self.cut_watches();
    }

    /// Whether a request has the token.
    fn is_authorized(&self, request: &Request<Bytes>) -> bool {
        let token = request.headers().get(AUTHORIZATION);
        let token = token.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        !self.is_unauthorized && (self.token.is_none() || self.token.as_deref() == token)
    }

    fn respond(&mut self, request: &Request<Bytes>) -> io::Result<Response<ResponseBody>> {
        if self.is_down {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        if !self.is_authorized(request) {
            return Ok(json_response(failure(401, "Unauthorized", None)));
        }
        let path = request.uri().path();
        let query = query(request);
        let Some(target) = Target::parse(path) else {
            return Ok(json_response(failure(404, "NotFound", None)));
        };
        if is_watch(&query) {
            let selection = Selection::of(&target, &query);
            return Ok(Response::new(self.watch(selection, &query)));
        }
        if self.failing_path.as_deref() == Some(path) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let is_read = *request.method() == Method::GET;
        let failing = self.failures.pop_front();
        if let Some(failing) = failing.filter(|failing| !failing.takes_effect) {
            return refuse(failing);
        }
        if path.starts_with(NODES) && self.are_nodes_secret {
            return Ok(json_response(failure(403, "nodes is forbidden", None)));
        }
        if !is_read
            && path.contains("/events")
            && let Some(left) = self.denied_event_requests.checked_sub(1)
        {
            self.denied_event_requests = left;
            return Ok(json_response(failure(403, "Forbidden", None)));
        }
        let body = serde_json::from_slice(request.body()).unwrap_or_default();
        let method = request.method();
        let answer = self.change(|objects| objects.answer(method, &target, &query, body));
        failing.map_or_else(|| Ok(json_response(answer)), refuse)
    }

    /// Starts a watch after the version that it names.
    fn watch(&mut self, selection: Selection, query: &BTreeMap<String, String>) -> ResponseBody {
        let number = |name| query.get(name).and_then(|value| value.parse().ok());
        let from = number("resourceVersion").unwrap_or(0);
        let (lines, changes) = mpsc::unbounded_channel();
        if from < self.compacted {
            let (_, gone) = failure(410, "too old resource version", None);
            let _ = lines.send(Ok(line("ERROR", &gone).into()));
        } else {
            let watch = Watch { selection, lines };
            let history = self.objects.history.iter();
            for change in history.filter(|change| change.version > from) {
                watch.send(change);
            }
            self.watches.retain(|watch| !watch.lines.is_closed());
            self.watches.push(watch);
        }
        let seconds = number("timeoutSeconds").unwrap_or(300);
        let until = Instant::now() + Duration::from_secs(seconds);
        let lines = stream::unfold(changes, move |mut changes| async move {
            tokio::select! {
                line = changes.recv() => Some((line?, changes)),
                () = sleep_until(until) => None,
            }
        });
        if self.has_slow_watches {
            streamed(lines.flat_map(in_pieces))
        } else {
            streamed(lines)
        }
    }
}

impl Watch {
    fn send(&self, change: &Change) {
        if let Some(line) = self.selection.line(change) {
            // The watch may have ended.
            let _ = self.lines.send(Ok(line.into()));
        }
    }
}

/// A line in small pieces with pauses before them.
fn in_pieces(line: io::Result<Bytes>) -> impl Stream<Item = io::Result<Bytes>> {
    let pieces: Vec<_> = match line {
        Ok(line) => line
            .chunks(40)
            .map(|c| Ok(Bytes::copy_from_slice(c)))
            .collect(),
        Err(error) => vec![Err(error)],
    };
    stream::iter(pieces).then(|piece| async {
        sleep(Duration::from_millis(5)).await;
        piece
    })
}

fn query(request: &Request<Bytes>) -> BTreeMap<String, String> {
    let query = request.uri().query().unwrap_or_default();
    form_urlencoded::parse(query.as_bytes())
        .into_owned()
        .collect()
}

fn is_watch(query: &BTreeMap<String, String>) -> bool {
    let watch = query.get("watch");
    watch.is_some_and(|value| value == "true" || value == "1")
}

fn refuse(failing: Failure) -> io::Result<Response<ResponseBody>> {
    let code = failing.code.ok_or(io::ErrorKind::ConnectionReset)?;
    let mut response = json_response(failure(code, "Failed", None));
    if let Some(seconds) = failing.retry_after {
        let headers = response.headers_mut();
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    Ok(response)
}

pub(super) fn json_response((code, body): Answer) -> Response<ResponseBody> {
    let body = Full::new(Bytes::from(body.to_string()));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = code;
    response
}

fn streamed(chunks: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> ResponseBody {
    StreamBody::new(chunks.map(|chunk| chunk.map(Frame::data))).boxed_unsync()
}
