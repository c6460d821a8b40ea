//! An API server inside the process, for tests of what many agents ask of one in simulated time.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    future::pending,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ::kube::{Client, client::Body};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Frame,
    header::{HeaderValue, RETRY_AFTER},
};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

type ResponseBody = UnsyncBoxBody<Bytes, io::Error>;

/// The server. Its copies are the same server.
#[derive(Clone, Default)]
pub(crate) struct SimulatedApi(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    version: u64,
    is_down: bool,
    requests: Vec<(Instant, String)>,
    /// By path.
    objects: BTreeMap<String, BTreeMap<String, Value>>,
    watches: Vec<Watch>,
    /// The path to which requests fail.
    failing_path: Option<String>,
    /// The path to which requests are not answered.
    hanging_path: Option<String>,
    /// How the next requests that are no watches end.
    failures: VecDeque<Failure>,
}

/// How a request ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    /// The status code; without one the connection breaks.
    pub(crate) code: Option<u16>,
    /// `Retry-After`, in seconds.
    pub(crate) retry_after: Option<u64>,
    /// The request takes effect nevertheless.
    pub(crate) takes_effect: bool,
}

struct Watch {
    path: String,
    selected: Selection,
    lines: mpsc::UnboundedSender<io::Result<Bytes>>,
}

/// What a list or a watch selects.
#[derive(Default)]
struct Selection {
    name: Option<String>,
    /// A label that has to be there, or must not.
    label: Option<(String, bool)>,
}

impl Selection {
    fn of(parameter: impl Fn(&str) -> Option<String>) -> Self {
        let name = parameter("fieldSelector");
        let name = name.and_then(|s| s.strip_prefix("metadata.name=").map(str::to_owned));
        let label = parameter("labelSelector").map(|label| match label.strip_prefix('!') {
            Some(absent) => (absent.to_owned(), false),
            None => (label, true),
        });
        Self { name, label }
    }

    fn has(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        let has_name = self
            .name
            .as_ref()
            .is_none_or(|name| metadata["name"] == **name);
        let label = self.label.as_ref();
        has_name
            && label.is_none_or(|(key, is_there)| metadata["labels"][key].is_null() != *is_there)
    }
}

impl fmt::Debug for SimulatedApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimulatedApi")
    }
}

impl SimulatedApi {
    /// A new connection on which a response has at most so many bytes.
    pub(crate) fn bounded_client(&self, max_body: usize) -> Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move {
                let (parts, body) = request.into_parts();
                let is_hanging = this.state().hanging_path.as_deref() == Some(parts.uri.path());
                if is_hanging {
                    pending::<()>().await;
                }
                let body = body.collect_bytes().await.map_err(io::Error::other)?;
                let response = this.respond(&Request::from_parts(parts, body))?;
                io::Result::Ok(response.map(|body| Limited::new(body, max_body)))
            }
        });
        Client::new(service, "default")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The requests so far: when, and method and target.
    pub(crate) fn requests(&self) -> Vec<(Instant, String)> {
        self.state().requests.clone()
    }

    /// Whether the server is away; if so, all watches are cut.
    pub(crate) fn set_down(&self, is_down: bool) {
        let mut state = self.state();
        state.is_down = is_down;
        for watch in state.watches.drain(..) {
            let reset = io::Error::from(io::ErrorKind::ConnectionReset);
            // The watch may have ended.
            let _ = watch.lines.send(Err(reset));
        }
    }

    /// Creates or replaces an object.
    pub(crate) fn apply(&self, path: &str, name: &str, spec: &Value) {
        let object = json!({"metadata": {"name": name}, "spec": spec});
        self.state().store(path, object);
    }

    /// The same for an object with labels.
    pub(crate) fn apply_labelled(&self, path: &str, name: &str, spec: &Value, labels: &Value) {
        let object = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
        self.state().store(path, object);
    }

    /// Creates or replaces an object that has a status.
    pub(crate) fn apply_status(&self, path: &str, name: &str, status: &Value) {
        let object = json!({"metadata": {"name": name}, "status": status});
        self.state().store(path, object);
    }

    /// Makes a resource exist.
    pub(crate) fn install(&self, path: &str) {
        self.state().objects.entry(path.to_owned()).or_default();
    }

    /// Makes a resource and its objects disappear.
    pub(crate) fn uninstall(&self, path: &str) {
        self.state().objects.remove(path);
    }

    /// Deletes an object.
    pub(crate) fn delete(&self, path: &str, name: &str) {
        let mut state = self.state();
        state.version += 1;
        let objects = state.objects.get_mut(path);
        if let Some(gone) = objects.and_then(|objects| objects.remove(name)) {
            state.show(path, Some(&gone), None);
        }
    }

    /// An object, if there is one.
    pub(crate) fn object(&self, path: &str, name: &str) -> Option<Value> {
        self.state().objects.get(path)?.get(name).cloned()
    }

    /// Lets all requests to a path fail from now on, except watches.
    pub(crate) fn fail_all(&self, path: &str) {
        self.state().failing_path = Some(path.to_owned());
    }

    /// Lets no request to a path be answered from now on.
    pub(crate) fn hang_all(&self, path: &str) {
        self.state().hanging_path = Some(path.to_owned());
    }

    /// All objects of a resource.
    pub(crate) fn objects(&self, path: &str) -> Vec<Value> {
        let state = self.state();
        let objects = state.objects.get(path).into_iter().flatten();
        objects.map(|(_, object)| object.clone()).collect()
    }

    /// Lets the next request that is no watch fail; after it the one of the next call, and so on.
    pub(crate) fn fail_next(&self, failure: Failure) {
        self.state().failures.push_back(failure);
    }

    fn respond(&self, request: &Request<Bytes>) -> io::Result<Response<ResponseBody>> {
        let mut state = self.state();
        let target = request
            .uri()
            .path_and_query()
            .map_or("", |target| target.as_str());
        state
            .requests
            .push((Instant::now(), format!("{} {target}", request.method())));
        if state.is_down {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let query = request.uri().query().unwrap_or_default();
        let parameter = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let value = pairs.find(|(key, _)| *key == name).map(|(_, value)| value);
            // What selectors have.
            let decoded = |value: &str| {
                let value = value.replace("%3D", "=").replace("%2F", "/");
                value.replace("%21", "!")
            };
            value.map(decoded)
        };
        let selected = Selection::of(parameter);
        let path = request.uri().path();
        if parameter("watch").is_some() {
            let seconds = parameter("timeoutSeconds").and_then(|s| s.parse().ok());
            let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(300));
            let (lines, changes) = mpsc::unbounded_channel();
            state.watches.retain(|watch| !watch.lines.is_closed());
            state.watches.push(Watch {
                path: path.to_owned(),
                selected,
                lines,
            });
            return Ok(Response::new(watch_body(changes, until)));
        }
        if state.failing_path.as_deref() == Some(path) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let failure = state.failures.pop_front();
        if failure.is_none_or(|failure| failure.takes_effect)
            && let Some((code, body)) = state.write(request)
            && failure.is_none()
        {
            return Ok(json_response(code, &body));
        }
        if let Some(failure) = failure {
            let code = failure.code.ok_or(io::ErrorKind::ConnectionReset)?;
            let mut response = json_response(code, &status(code, "Failed", None));
            if let Some(seconds) = failure.retry_after {
                let headers = response.headers_mut();
                headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            return Ok(response);
        }
        let version = state.version.to_string();
        let body = if let Some(objects) = state.objects.get(path) {
            let limit = parameter("limit").and_then(|limit| limit.parse().ok());
            let after = parameter("continue");
            let items = objects.iter().filter(|(name, object)| {
                selected.has(object) && after.as_ref().is_none_or(|after| *name > after)
            });
            let mut items: Vec<_> = items.collect();
            let all = items.len();
            items.truncate(limit.unwrap_or(usize::MAX));
            let next = items.last().filter(|_| items.len() < all);
            let next = next.map(|(name, _)| name.as_str()).unwrap_or_default();
            let values: Vec<_> = items.iter().map(|(_, object)| object).collect();
            json!({"kind": "List", "apiVersion": "v1", "items": values,
                "metadata": {"resourceVersion": version, "continue": next}})
        } else {
            let object = path
                .rsplit_once('/')
                .and_then(|(resource, name)| state.objects.get(resource)?.get(name));
            match object {
                Some(object) => object.clone(),
                None => {
                    let resource = path.rsplit_once('/');
                    let name = resource
                        .filter(|(resource, _)| state.objects.contains_key(*resource))
                        .map(|(_, name)| name);
                    return Ok(json_response(404, &status(404, "NotFound", name)));
                }
            }
        };
        Ok(Response::new(full(&body)))
    }
}

impl State {
    /// Stores an object with the next version, and shows it to the watches.
    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        let name = text(&object["metadata"]["name"]);
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let objects = self.objects.entry(path.to_owned()).or_default();
        let before = objects.get(&name).cloned();
        object["metadata"]["uid"] = match &before {
            Some(before) => before["metadata"]["uid"].clone(),
            None => format!("uid-{}", self.version).into(),
        };
        objects.insert(name, object.clone());
        self.show(path, before.as_ref(), Some(&object));
        object
    }

    /// Shows a change to the watches: an object that a watch selects no longer is deleted for it.
    fn show(&self, path: &str, before: Option<&Value>, after: Option<&Value>) {
        for watch in self.watches.iter().filter(|watch| watch.path == path) {
            let before = before.filter(|object| watch.selected.has(object));
            let after = after.filter(|object| watch.selected.has(object));
            let (kind, object) = match (before, after) {
                (None, None) => continue,
                (None, Some(after)) => ("ADDED", after.clone()),
                (Some(_), Some(after)) => ("MODIFIED", after.clone()),
                (Some(before), None) => {
                    let mut gone = before.clone();
                    gone["metadata"]["resourceVersion"] = self.version.to_string().into();
                    ("DELETED", gone)
                }
            };
            let line = format!("{}\n", json!({"type": kind, "object": object}));
            // The watch may have ended.
            let _ = watch.lines.send(Ok(line.into()));
        }
    }

    /// Executes a request that changes an object, and returns status code and body; `None` for others.
    fn write(&mut self, request: &Request<Bytes>) -> Option<(u16, Value)> {
        let target = request.uri().path();
        let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        let missing = |name| Some((404, status(404, "NotFound", name)));
        if request.method() == Method::POST {
            let Some(objects) = self.objects.get(target) else {
                return missing(None);
            };
            let name = text(&body["metadata"]["name"]);
            if objects.contains_key(&name) {
                return Some((409, status(409, "AlreadyExists", Some(&name))));
            }
            return Some((201, self.store(target, body)));
        }
        let wanted = match *request.method() {
            Method::PUT | Method::PATCH => &body["metadata"],
            Method::DELETE => &body["preconditions"],
            _ => return None,
        };
        let (path, name) = target.rsplit_once('/')?;
        let Some(objects) = self.objects.get(path) else {
            return missing(None);
        };
        let Some(known) = objects.get(name) else {
            return missing(Some(name));
        };
        let differs = |key| !wanted[key].is_null() && wanted[key] != known["metadata"][key];
        if differs("uid") || differs("resourceVersion") {
            return Some((409, status(409, "Conflict", Some(name))));
        }
        if request.method() == Method::PUT {
            return Some((200, self.store(path, body)));
        }
        if request.method() == Method::PATCH {
            let mut patched = known.clone();
            merge(&mut patched, &body);
            return Some((200, self.store(path, patched)));
        }
        self.version += 1;
        let gone = self.objects.get_mut(path)?.remove(name)?;
        self.show(path, Some(&gone), None);
        Some((200, json!({"kind": "Status", "status": "Success"})))
    }
}

/// A JSON merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    match (target.as_object_mut(), patch.as_object()) {
        (Some(target), Some(patch)) => {
            for (key, value) in patch {
                merge(target.entry(key.as_str()).or_insert(Value::Null), value);
            }
            target.retain(|_, value| !value.is_null());
        }
        _ => *target = patch.clone(),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A refusal; `name` is that of the object that it is about.
fn status(code: u16, reason: &str, name: Option<&str>) -> Value {
    let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code});
    if let Some(name) = name {
        status["details"] = json!({"name": name});
    }
    status
}

fn json_response(code: u16, body: &Value) -> Response<ResponseBody> {
    let mut response = Response::new(full(body));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or_default();
    response
}

fn full(body: &Value) -> ResponseBody {
    let body = Full::new(Bytes::from(body.to_string()));
    body.map_err(|never| match never {}).boxed_unsync()
}

/// The lines until the server ends the watch.
fn watch_body(lines: mpsc::UnboundedReceiver<io::Result<Bytes>>, until: Instant) -> ResponseBody {
    let lines = stream::unfold(lines, move |mut lines| async move {
        tokio::select! {
            line = lines.recv() => Some((line?, lines)),
            () = sleep_until(until) => None,
        }
    });
    StreamBody::new(lines.map(|line| line.map(Frame::data))).boxed_unsync()
}
