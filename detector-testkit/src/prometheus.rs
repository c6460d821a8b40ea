//! A real Prometheus that scrapes the targets of a test.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{DEADLINE, daemon::Daemon, http::TestClient, netns::Netns, wait::until};

const ADDRESS: &str = "127.0.0.1:9090";

/// A Prometheus that runs in a namespace.
#[derive(Debug)]
pub struct Prometheus<'n> {
    client: TestClient<'n>,
    _server: Daemon,
    _folder: tempfile::TempDir,
}

impl<'n> Prometheus<'n> {
    /// Starts it with one target, such as `127.0.0.1:9842`, scraped every second.
    ///
    /// # Errors
    /// It is not installed, or does not become ready.
    pub fn start(netns: &'n Netns, target: &str) -> Result<Self> {
        Self::start_with(
            netns,
            &format!(
                "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: agent\n  static_configs: [{{targets: ['{target}']}}]\n"
            ),
            &[],
        )
    }

    /// Starts it with this configuration and these files (name, text) in the same directory.
    ///
    /// # Errors
    /// As [`Prometheus::start`].
    pub fn start_with(
        netns: &'n Netns,
        configuration: &str,
        files: &[(&str, &str)],
    ) -> Result<Self> {
        Self::start_in(netns, tempfile::tempdir()?, configuration, files)
    }

    /// As [`Prometheus::start_with`], in a directory whose `data` it continues with.
    ///
    /// # Errors
    /// As [`Prometheus::start`].
    pub fn start_in(
        netns: &'n Netns,
        folder: tempfile::TempDir,
        configuration: &str,
        files: &[(&str, &str)],
    ) -> Result<Self> {
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
        let log = folder.path().join("log");
        let mut server = netns.run_in(|| Daemon::start(command, &log))?;
        server.wait_line(DEADLINE, "Server is ready to receive web requests")?;
        Ok(Self {
            client: TestClient::new(netns, format!("http://{ADDRESS}")),
            _server: server,
            _folder: folder,
        })
    }

    /// The result of a query: labels and value of each series.
    ///
    /// # Errors
    /// Prometheus rejects the query.
    pub fn query(&self, query: &str) -> Result<Vec<(Value, f64)>> {
        self.result("query", query, "")?
            .iter()
            .map(|one| {
                let value = one.pointer("/value/1").and_then(Value::as_str);
                let value = value.and_then(|v| v.parse().ok());
                let value = value.with_context(|| format!("no value in {one}"))?;
                Ok((one.get("metric").cloned().unwrap_or_default(), value))
            })
            .collect()
    }

    /// How many series a query has between two times, in seconds since 1970.
    ///
    /// # Errors
    /// As [`Prometheus::query`].
    pub fn query_range(&self, query: &str, (start, end): (u64, u64), step: u64) -> Result<usize> {
        let range = format!("&start={start}&end={end}&step={step}");
        Ok(self.result("query_range", query, &range)?.len())
    }

    fn result(&self, endpoint: &str, query: &str, parameters: &str) -> Result<Vec<Value>> {
        let encoded: String = form_urlencoded::byte_serialize(query.as_bytes()).collect();
        let response = self
            .client
            .get(&format!("/api/v1/{endpoint}?query={encoded}{parameters}"))?;
        let json = response.json()?;
        let series = json.pointer("/data/result").and_then(Value::as_array);
        let series = series.with_context(|| format!("{query}: {}", response.body))?;
        Ok(series.clone())
    }

    /// Waits until `enough` accepts the result of a query.
    ///
    /// # Errors
    /// The deadline passes; the error contains the last result.
    pub fn wait(
        &self,
        query: &str,
        enough: impl Fn(&[(Value, f64)]) -> bool,
    ) -> Result<Vec<(Value, f64)>> {
        let deadline = DEADLINE + Duration::from_secs(10);
        until(deadline, "the result of a query", || {
            let series = self.query(query)?;
            if !enough(&series) {
                bail!("{query}: {series:?}");
            }
            Ok(series)
        })
    }
}
