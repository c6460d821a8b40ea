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

use super::ApiState;
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
        let response = if unauthorized {
            Some((401, status(401, "Unauthorized")))
        } else if method == "GET" && path == "/api/v1/pods" && watch {
            None
        } else if method == "GET" && path == "/api/v1/pods" && endless {
            return send_endless_list(stream, state);
        } else if method == "GET" && path == "/api/v1/pods" {
            Some((200, list(&state.lock(), &query)))
        } else if method == "GET"
            && path == "/apis/crd.projectcalico.org/v1/ipamblocks"
            && let Some(blocks) = &state.lock().ipam_blocks
        {
            let list = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlockList",
                "metadata": {"resourceVersion": "1"}, "items": blocks});
            Some((200, list))
        } else if path.starts_with("/apis/events.k8s.io/v1/namespaces/") {
            let event: Value = serde_json::from_slice(&body).context("a posted event")?;
            state.update(|state| state.events.push(event.clone()));
            Some((if method == "POST" { 201 } else { 200 }, event))
        } else {
            Some((404, status(404, "not served here")))
        };
        match response {
            Some((code, body)) => {
                let body = body.to_string();
                write!(
                    stream,
                    "HTTP/1.1 {code} -\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                )?;
            }
            None => return watch_pods(stream, state, &query),
        }
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

fn list(state: &ApiState, query: &BTreeMap<String, String>) -> Value {
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
        .filter(|pod| is_selected(pod, query))
        .collect();
    let items: Vec<_> = all.iter().skip(from).take(limit).collect();
    let next = from + items.len();
    let more = (next < all.len()).then(|| next.to_string());
    json!({"kind": "PodList", "apiVersion": "v1", "items": items,
        "metadata": {"resourceVersion": state.version.to_string(), "continue": more.unwrap_or_default()}})
}

fn is_selected(pod: &Value, query: &BTreeMap<String, String>) -> bool {
    let node = query
        .get("fieldSelector")
        .and_then(|selector| selector.strip_prefix("spec.nodeName="));
    node.is_none_or(|node| pod["spec"]["nodeName"] == node)
}

fn watch_pods(
    mut stream: TcpStream,
    state: &Monitor<ApiState>,
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
            .filter(|(version, kind, object)| {
                *version > sent_version && (*kind == "BOOKMARK" || is_selected(object, query))
            })
            .cloned()
            .collect();
        sent_version = sent_version.max(guard.version);
        drop(guard);
        for (_, kind, object) in next {
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
