//! HTTP requests from inside a namespace.

use std::{
    io::{BufRead as _, BufReader, Read},
    str::FromStr,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::netns::Netns;

/// A response, read completely.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    /// The status code.
    pub status: u16,
    /// Header names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl HttpResponse {
    /// The value of a header, named in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// The body is not valid JSON; the error contains it.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.body)
            .with_context(|| format!("{} {}: not valid JSON", self.status, self.body))
    }
}

/// A client of one server, as seen from a namespace. Every request opens a connection of its own.
#[derive(Debug)]
pub struct TestClient<'n> {
    netns: &'n Netns,
    base: String,
    headers: Vec<(String, String)>,
    agent: ureq::Agent,
}

impl<'n> TestClient<'n> {
    /// A client of the server at this origin, such as `http://127.0.0.1:9842`.
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

    /// A client of the agent in this namespace, at its default address.
    #[must_use]
    pub fn of_agent(netns: &'n Netns) -> Self {
        Self::new(netns, "http://127.0.0.1:9842")
    }

    /// Adds a header to every request.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends a GET request.
    ///
    /// # Errors
    /// The server does not respond. A response with an error status is no error.
    pub fn get(&self, path: &str) -> Result<HttpResponse> {
        self.send("GET", path, None)
    }

    /// The value of a series in `/metrics`, named with its labels as they are there; `None` if there is none.
    ///
    /// # Errors
    /// The server does not respond, or the value is of another type.
    pub fn metric<T>(&self, series: &str) -> Result<Option<T>>
    where
        T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
    {
        let metrics = self.get("/metrics")?.body;
        let mut values =
            (metrics.lines()).filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        Ok(values.next().map(str::parse).transpose()?)
    }

    /// Sends a request, with a JSON body if there is one.
    ///
    /// # Errors
    /// As [`TestClient::get`].
    pub fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<HttpResponse> {
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
            .with_context(|| format!("reading the response to {method} {path}"))?;
        Ok(HttpResponse {
            status,
            headers,
            body,
        })
    }

    /// Opens a stream of server-sent events.
    ///
    /// # Errors
    /// The response does not have status 200.
    pub fn events(&self, path: &str) -> Result<SseStream> {
        let response = self.start("GET", path, None)?;
        if response.status() != 200 {
            bail!("{path}: {}", response.status());
        }
        let reader: Box<dyn Read + Send> = Box::new(response.into_body().into_reader());
        Ok(SseStream(BufReader::new(reader)))
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
        // A socket stays in the namespace it was opened in, whichever thread reads from it later.
        let response = self.netns.run_in(|| {
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
        response.with_context(|| format!("{method} {}{path}", self.base))
    }
}

/// An open stream of server-sent events.
pub struct SseStream(BufReader<Box<dyn Read + Send>>);

impl std::fmt::Debug for SseStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SseStream")
    }
}

/// One server-sent event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// `id:`, or empty.
    pub id: String,
    /// `event:`, or empty.
    pub kind: String,
    /// `data:`.
    pub data: String,
}

impl SseStream {
    /// The next event, including keep-alives; `None` at the end of the stream. Blocks as long as the server keeps the stream
    /// open.
    ///
    /// # Errors
    /// The connection breaks.
    pub fn next_event(&mut self) -> Result<Option<SseEvent>> {
        let mut event = SseEvent::default();
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            let line = line.trim_end();
            if line.is_empty() {
                if event != SseEvent::default() {
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

    /// The next event without an `event:` field: one of the agent's, not a keep-alive.
    ///
    /// # Errors
    /// The stream ends.
    pub fn next_message(&mut self) -> Result<SseEvent> {
        loop {
            let event = self.next_event()?.context("the stream ended")?;
            if event.kind.is_empty() {
                return Ok(event);
            }
        }
    }
}
