//! The server's side of a connection.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{ApiState, PODS, WatchEvent, key, port_forward};
use crate::wait::Monitor;

/// Serves the requests of one connection.
pub(super) fn serve(mut stream: TcpStream, state: &Monitor<ApiState>) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut parts = line.split_whitespace();
        let (method, target) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        let mut length = 0;
        let mut token = String::new();
        let mut websocket_key = String::new();
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
                && name.eq_ignore_ascii_case("sec-websocket-key")
            {
                value.trim().clone_into(&mut websocket_key);
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
        state.update(|state| state.requests.push(format!("{method} {target}")));
        let mut guard = state.lock();
        while guard.hanging {
            guard = state.wait_change(guard, Duration::from_secs(60));
        }
        let unauthorized = guard.unauthorized || guard.token != token;
        let endless = guard.endless_lists;
        drop(guard);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = parameters(query);
        let watch = query
            .get("watch")
            .is_some_and(|value| value == "true" || value == "1");
        let listed = resource(&state.lock(), method, path);
        let found = object(&state.lock(), method, path);
        let is_missing = found.is_none() && is_object_of_resource(&state.lock(), path);
        let response = if unauthorized {
            (401, status(401, "Unauthorized"))
        } else if let Some((pod, query)) = forwarded_pod(path).zip(query.get("ports")) {
            let connector = state.lock().port_forwards.get(&pod).cloned();
            match connector {
                Some(connector) => {
                    let port = query.parse().context("a port")?;
                    return port_forward::serve(stream, reader, &websocket_key, port, &connector);
                }
                None => (403, status(403, "Forbidden")),
            }
        } else if method == "GET" && path == "/api/v1/nodes" {
            nodes(&state.lock())
        } else if method == "GET" && namespace_of(path).is_some() {
            let mut query = query.clone();
            let namespace = namespace_of(path).unwrap_or_default();
            query.insert("namespace".to_owned(), namespace.to_owned());
            (200, list(&state.lock(), PODS, &query))
        } else if let Some(path) = listed {
            if watch {
                return send_changes(stream, state, path, &query);
            }
            if endless && path == PODS {
                return send_endless_list(stream, state);
            }
            (200, list(&state.lock(), path, &query))
        } else if let Some(object) = found {
            (200, object)
        } else if is_missing {
            (404, status(404, "NotFound"))
        } else if path.contains("/events") && path.starts_with("/apis/events.k8s.io/v1/namespaces/")
        {
            let event: Value = serde_json::from_slice(&body).context("an event")?;
            let name = path.rsplit('/').next().unwrap_or_default();
            state.update(|state| {
                if let Some(left) = state.denied_event_requests.checked_sub(1) {
                    state.denied_event_requests = left;
                    return (403, status(403, "Forbidden"));
                }
                store_event(state, method, name, event)
            })
        } else {
            (404, status(404, "not served here"))
        };
        let (code, body) = response;
        let body = body.to_string();
        write!(
            stream,
            "HTTP/1.1 {code} -\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
    }
}

/// Sends a list until the client closes the connection or the test switches it off.
fn send_endless_list(mut stream: TcpStream, state: &Monitor<ApiState>) -> Result<()> {
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )?;
    let start = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":["#;
    write!(stream, "{:x}\r\n{start}\r\n", start.len())?;
    let blank = vec![b' '; 1 << 20];
    while state.lock().endless_lists {
        write!(stream, "{:x}\r\n", blank.len())?;
        stream.write_all(&blank)?;
        stream.write_all(b"\r\n")?;
        state.update(|state| state.endless_bytes_sent += blank.len() as u64);
    }
    Ok(())
}

fn status(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": message, "code": code})
}

/// The resource that a request reads as a whole.
fn resource(state: &ApiState, method: &str, path: &str) -> Option<&'static str> {
    let (known, _) = state.resources.get_key_value(path)?;
    (method == "GET").then_some(*known)
}

/// The object of a cluster-wide resource that a request reads.
fn object(state: &ApiState, method: &str, path: &str) -> Option<Value> {
    let (resource, name) = path.rsplit_once('/')?;
    let objects = state.resources.get(resource)?;
    let object = objects.get(&format!("/{name}"))?;
    (method == "GET").then(|| object.clone())
}

fn is_object_of_resource(state: &ApiState, path: &str) -> bool {
    let resource = path.rsplit_once('/');
    resource.is_some_and(|(resource, _)| state.resources.contains_key(resource))
}

/// Creates an Event, or merges a patch into the one with this name.
fn store_event(state: &mut ApiState, method: &str, name: &str, body: Value) -> (u16, Value) {
    if method == "POST" {
        let key = key(&body);
        if state.stored_events.contains_key(&key) {
            return (409, status(409, "AlreadyExists"));
        }
        state.stored_events.insert(key, body.clone());
        state.events.push(body.clone());
        return (201, body);
    }
    let suffix = format!("/{name}");
    let stored = state.stored_events.iter_mut();
    let Some((_, event)) = stored.into_iter().find(|(key, _)| key.ends_with(&suffix)) else {
        return (404, status(404, "NotFound"));
    };
    for (field, value) in body.as_object().into_iter().flatten() {
        event[field] = value.clone();
    }
    let event = event.clone();
    state.events.push(event.clone());
    (200, event)
}

fn list(state: &ApiState, path: &str, query: &BTreeMap<String, String>) -> Value {
    let from: usize = query
        .get("continue")
        .and_then(|token| token.parse().ok())
        .unwrap_or(0);
    // The watch cache has no pages.
    let is_cached = query.get("resourceVersion").is_some_and(|v| v == "0");
    let limit: usize = query
        .get("limit")
        .filter(|_| !is_cached)
        .and_then(|limit| limit.parse().ok())
        .unwrap_or(usize::MAX);
    let all: Vec<&Value> = state
        .resources
        .get(path)
        .into_iter()
        .flat_map(BTreeMap::values)
        .filter(|object| is_selected(object, query))
        .collect();
    let items: Vec<_> = all.iter().skip(from).take(limit).collect();
    let next = from + items.len();
    let more = (next < all.len()).then(|| next.to_string());
    json!({"kind": "List", "apiVersion": "v1", "items": items,
        "metadata": {"resourceVersion": state.version.to_string(), "continue": more.unwrap_or_default()}})
}

fn is_selected(object: &Value, query: &BTreeMap<String, String>) -> bool {
    let field = query.get("fieldSelector").and_then(|s| s.split_once('='));
    let namespace = query.get("namespace");
    let label = query
        .get("labelSelector")
        .and_then(|label| label.split_once('='));
    let has_field = |(field, value): (&str, &str)| {
        object.pointer(&format!("/{}", field.replace('.', "/"))) == Some(&value.into())
    };
    field.is_none_or(has_field)
        && namespace.is_none_or(|namespace| object["metadata"]["namespace"] == *namespace)
        && label.is_none_or(|(name, value)| object["metadata"]["labels"][name] == value)
}

/// The namespace of `/api/v1/namespaces/…/pods`.
fn namespace_of(path: &str) -> Option<&str> {
    path.strip_prefix("/api/v1/namespaces/")?
        .strip_suffix("/pods")
}

/// Namespace and name of the pod in `/api/v1/namespaces/…/pods/…/portforward`.
fn forwarded_pod(path: &str) -> Option<String> {
    let pod = path
        .strip_prefix("/api/v1/namespaces/")?
        .strip_suffix("/portforward")?;
    Some(pod.replacen("/pods/", "/", 1))
}

fn nodes(state: &ApiState) -> (u16, Value) {
    let Some(names) = &state.nodes else {
        return (403, status(403, "nodes is forbidden"));
    };
    let node =
        |name: &String| json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}});
    let items: Vec<_> = names.iter().map(node).collect();
    (
        200,
        json!({"kind": "NodeList", "apiVersion": "v1", "items": items, "metadata": {"resourceVersion": "1"}}),
    )
}

fn send_changes(
    mut stream: TcpStream,
    state: &Monitor<ApiState>,
    path: &str,
    query: &BTreeMap<String, String>,
) -> Result<()> {
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )?;
    let mut sent_version: u64 = query
        .get("resourceVersion")
        .and_then(|version| version.parse().ok())
        .unwrap_or(0);
    let mut guard = state.lock();
    let generation = guard.watch_generation;
    if sent_version < guard.compacted {
        drop(guard);
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
        if guard.watch_generation != generation {
            // Half a line, and no terminating chunk.
            stream.write_all(b"8\r\n{\"type\":\r\n")?;
            return Ok(());
        }
        let slow = guard.slow_watches;
        let next: Vec<_> = guard
            .history
            .iter()
            .filter(|event| {
                let is_selected = event.kind == "BOOKMARK" || is_selected(&event.object, query);
                event.path == path && event.version > sent_version && is_selected
            })
            .cloned()
            .collect();
        sent_version = sent_version.max(guard.version);
        drop(guard);
        for WatchEvent { kind, object, .. } in next {
            chunk(&mut stream, &json!({"type": kind, "object": object}), slow)?;
        }
        guard = state.lock();
        if guard.version <= sent_version && guard.watch_generation == generation {
            guard = state.wait_change(guard, Duration::from_secs(60));
        }
    }
}

/// Sends one line; if `slow`, in pieces with pauses between them.
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
        .map(|(name, value)| (name.to_owned(), percent_decode(value)))
        .collect()
}

fn percent_decode(text: &str) -> String {
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
