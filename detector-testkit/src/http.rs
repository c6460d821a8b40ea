//! Requests over HTTP from inside a namespace.

use std::{
    io::{BufRead as _, BufReader, Read},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::netns::Netns;

/// What a server said.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The value of a header, its name in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// Where it is none; the message holds it.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.body)
            .with_context(|| format!("{} {}: no JSON", self.status, self.body))
    }
}

/// Talks to one server.
#[derive(Debug)]
pub struct Client<'n> {
    netns: &'n Netns,
    base: String,
    headers: Vec<(String, String)>,
    agent: ureq::Agent,
}

impl<'n> Client<'n> {
    /// To the server of this origin, `http://127.0.0.1:9842`, as seen from the namespace.
    #[must_use]
    pub fn new(netns: &'n Netns, origin: impl Into<String>) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(crate::DEADLINE))
            .timeout_recv_response(Some(crate::DEADLINE))
            .max_idle_connections(0)
            .proxy(None)
            .build();
        Self {
            netns,
            base: origin.into(),
            headers: Vec::new(),
            agent: config.into(),
        }
    }

    /// With one more header on every request.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Asks for a path.
    ///
    /// # Errors
    /// Where the server does not answer; any status is an answer.
    pub fn get(&self, path: &str) -> Result<Answer> {
        self.send("GET", path, None)
    }

    /// Sends a request; a body is sent as JSON.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer> {
        let response = self.start(method, path, body)?;
        let status = response.status().as_u16();
        let headers = response
            .headers()
            .iter()
            .map(|(name, value)| {
                let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                (name.as_str().to_owned(), value)
            })
            .collect();
        let mut body = String::new();
        response
            .into_body()
            .into_reader()
            .read_to_string(&mut body)
            .with_context(|| format!("reading the answer to {method} {path}"))?;
        Ok(Answer {
            status,
            headers,
            body,
        })
    }

    /// Opens a stream of server-sent events.
    ///
    /// # Errors
    /// Where the answer is none.
    pub fn events(&self, path: &str) -> Result<EventStream> {
        let response = self.start("GET", path, None)?;
        if response.status() != 200 {
            bail!("{path}: {}", response.status());
        }
        let reader: Box<dyn Read + Send> = Box::new(response.into_body().into_reader());
        Ok(EventStream(BufReader::new(reader)))
    }

    fn start(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<http::Response<ureq::Body>> {
        let mut request = http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        // The socket belongs to the namespace it was opened in, whoever reads from it later.
        let answer = self.netns.run_in(|| {
            Ok(match body {
                Some(body) => {
                    let request = request
                        .header("content-type", "application/json")
                        .body(body.to_string())?;
                    self.agent.run(request)?
                }
                None => self.agent.run(request.body(())?)?,
            })
        });
        answer.with_context(|| format!("{method} {}{path}", self.base))
    }
}

/// An open stream of server-sent events.
pub struct EventStream(BufReader<Box<dyn Read + Send>>);

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventStream")
    }
}

/// One server-sent event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSent {
    /// `id:`, or empty.
    pub id: String,
    /// `event:`, or empty.
    pub kind: String,
    /// `data:`.
    pub data: String,
}

impl EventStream {
    /// The next one; `None` at the stream's end. Waits as long as the server keeps the stream alive.
    ///
    /// # Errors
    /// Where the connection breaks.
    pub fn next_event(&mut self) -> Result<Option<ServerSent>> {
        let mut event = ServerSent::default();
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            let line = line.trim_end();
            if line.is_empty() {
                if event != ServerSent::default() {
                    return Ok(Some(event));
                }
                continue;
            }
            let (field, value) = line.split_once(": ").unwrap_or((line, ""));
            match field {
                "id" => value.clone_into(&mut event.id),
                "event" => value.clone_into(&mut event.kind),
                "data" => event.data.push_str(value),
                _ => {}
            }
        }
    }

    /// The next one that is an event of the agent's, not a sign of life.
    ///
    /// # Errors
    /// Where the stream ends.
    pub fn next_message(&mut self) -> Result<ServerSent> {
        loop {
            let event = self.next_event()?.context("the stream ended")?;
            if event.kind.is_empty() {
                return Ok(event);
            }
        }
    }
}

/// Tries until `done` gives something, for servers that cannot tell when something happened.
///
/// # Errors
/// Where the deadline passes; the message holds the last error.
pub fn until<T>(deadline: Duration, mut done: impl FnMut() -> Result<T>) -> Result<T> {
    let end = std::time::Instant::now() + deadline;
    loop {
        match done() {
            Ok(found) => return Ok(found),
            Err(error) if std::time::Instant::now() >= end => {
                return Err(error.context(format!("not within {deadline:?}")));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
