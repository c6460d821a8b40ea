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

use super::{Shared, State};

/// Serves the requests of one connection.
pub(super) fn serve(mut stream: TcpStream, shared: &Shared) -> Result<()> {
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
        } else if method == "GET"
            && path == "/apis/crd.projectcalico.org/v1/ipamblocks"
            && let Some(blocks) = &shared.lock().blocks
        {
            let list = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlockList",
                "metadata": {"resourceVersion": "1"}, "items": blocks});
            Some((200, list))
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
