//! A real Alertmanager.

use std::{fs, process::Command};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{DEADLINE, daemon::Daemon, netns::Netns, wait::until};

/// An Alertmanager that runs in the namespace.
#[derive(Debug)]
pub struct Alertmanager<'n> {
    netns: &'n Netns,
    _server: Daemon,
    _folder: tempfile::TempDir,
}

impl<'n> Alertmanager<'n> {
    /// Where it listens.
    pub const ADDRESS: &'static str = "127.0.0.1:9093";

    /// Starts it with this configuration and waits until it responds.
    ///
    /// # Errors
    /// It is not installed, or does not respond.
    pub fn start(netns: &'n Netns, configuration: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("alertmanager.yml");
        fs::write(&config, configuration)?;
        let mut command = Command::new("prometheus-alertmanager");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.path={}",
                folder.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={}", Self::ADDRESS))
            .arg("--cluster.listen-address=");
        let log = folder.path().join("log");
        let started = Self {
            netns,
            _server: netns.run_in(|| Daemon::start(command, &log))?,
            _folder: folder,
        };
        until(DEADLINE, "the Alertmanager to respond", || {
            started.amtool(&["cluster", "show"])
        })?;
        Ok(started)
    }

    /// The output of `amtool`.
    ///
    /// # Errors
    /// It fails.
    pub fn amtool(&self, args: &[&str]) -> Result<String> {
        let url = format!("--alertmanager.url=http://{}", Self::ADDRESS);
        let mut argv = vec!["amtool", &url];
        argv.extend(args);
        self.netns.exec(&argv)
    }

    /// The alerts that `amtool alert query` lists with these flags and matchers.
    ///
    /// # Errors
    /// As [`Alertmanager::amtool`].
    pub fn alerts(&self, flags: &[&str]) -> Result<Vec<Value>> {
        let text = self.amtool(&[&["--output=json", "alert", "query"], flags].concat())?;
        let alerts: Option<Vec<Value>> =
            serde_json::from_str(&text).with_context(|| text.clone())?;
        Ok(alerts.unwrap_or_default())
    }
}
