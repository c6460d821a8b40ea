//! A real Prometheus that scrapes what a test tells it to.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{
    DEADLINE,
    http::{Client, until},
    netns::Netns,
    server::Server,
};

const ADDRESS: &str = "127.0.0.1:9090";

/// Running in a namespace, with one target scraped every second.
#[derive(Debug)]
pub struct Prometheus<'n> {
    client: Client<'n>,
    _server: Server,
    _folder: tempfile::TempDir,
}

impl<'n> Prometheus<'n> {
    /// Starts it; `target` as `127.0.0.1:9842`.
    ///
    /// # Errors
    /// Where it is not installed, or does not get ready.
    pub fn start(netns: &'n Netns, target: &str) -> Result<Self> {
        Self::start_with(
            netns,
            &format!(
                "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: agent\n  static_configs: [{{targets: ['{target}']}}]\n"
            ),
            &[],
        )
    }

    /// Starts it with this configuration; the files lie beside it.
    ///
    /// # Errors
    /// As [`Prometheus::start`].
    pub fn start_with(
        netns: &'n Netns,
        configuration: &str,
        files: &[(&str, &str)],
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("prometheus.yml");
        fs::write(&config, configuration)?;
        for (name, text) in files {
            fs::write(folder.path().join(name), text)?;
        }
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={ADDRESS}"));
        let mut server = Server::start(netns, command)?;
        server.wait_line(DEADLINE, "Server is ready to receive web requests")?;
        Ok(Self {
            client: Client::new(netns, format!("http://{ADDRESS}")),
            _server: server,
            _folder: folder,
        })
    }

    /// The series of a query: labels, and the value.
    ///
    /// # Errors
    /// Where Prometheus refuses it.
    pub fn query(&self, query: &str) -> Result<Vec<(Value, f64)>> {
        let encoded: String = form_urlencoded::byte_serialize(query.as_bytes()).collect();
        let answer = self.client.get(&format!("/api/v1/query?query={encoded}"))?;
        let json = answer.json()?;
        let series = json
            .pointer("/data/result")
            .and_then(Value::as_array)
            .with_context(|| format!("{query}: {}", answer.body))?;
        series
            .iter()
            .map(|one| {
                let value = one.pointer("/value/1").and_then(Value::as_str);
                let value = value.and_then(|v| v.parse().ok());
                let value = value.with_context(|| format!("no value in {one}"))?;
                Ok((one.get("metric").cloned().unwrap_or_default(), value))
            })
            .collect()
    }

    /// Waits until a query gives series that `enough` accepts.
    ///
    /// # Errors
    /// Where it does not within the deadline; the message holds the last answer.
    pub fn wait(
        &self,
        query: &str,
        enough: impl Fn(&[(Value, f64)]) -> bool,
    ) -> Result<Vec<(Value, f64)>> {
        until(DEADLINE + Duration::from_secs(10), || {
            let series = self.query(query)?;
            if !enough(&series) {
                bail!("{query}: {series:?}");
            }
            Ok(series)
        })
    }
}
