//! A real Chromium without a window, driven over WebDriver.
//!
//! It stands in a namespace of the test's: it reaches what the test serves there, and nothing else.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::{DEADLINE, http::Client, netns::Netns, server::Server};

/// An open browser with one page.
#[derive(Debug)]
pub struct Browser<'n> {
    client: Client<'n>,
    session: String,
    _driver: Server,
    _profile: tempfile::TempDir,
}

impl<'n> Browser<'n> {
    /// Starts it.
    ///
    /// # Errors
    /// Where Chromium or its driver is not installed, or does not start.
    pub fn start(netns: &'n Netns) -> Result<Self> {
        let mut command = Command::new("chromedriver");
        command.arg("--port=0");
        let mut driver = Server::start(netns, command)?;
        let line = driver.wait_line(DEADLINE, "started successfully on port")?;
        let port: String = line.chars().filter(char::is_ascii_digit).collect();
        let client = Client::new(netns, format!("http://127.0.0.1:{port}"));
        let profile = tempfile::tempdir()?;
        let options = json!({
            "binary": "/usr/bin/chromium",
            "args": [
                "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--disable-dev-shm-usage", "--hide-scrollbars",
                format!("--user-data-dir={}", profile.path().display()),
            ],
        });
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL" },
        }}});
        let answer = client.send("POST", "/session", Some(&capabilities))?;
        let session = answer.json()?;
        let session = session.pointer("/value/sessionId").and_then(Value::as_str);
        let session = session
            .with_context(|| format!("no session: {}", answer.body))?
            .to_owned();
        let browser = Self {
            client,
            session,
            _driver: driver,
            _profile: profile,
        };
        browser.command(
            "timeouts",
            &json!({ "script": DEADLINE.as_millis() as u64 }),
        )?;
        Ok(browser)
    }

    fn command(&self, path: &str, body: &Value) -> Result<Value> {
        let path = format!("/session/{}/{path}", self.session);
        let answer = self.client.send("POST", &path, Some(body))?;
        if answer.status != 200 {
            bail!("{path}: {}", answer.body);
        }
        Ok(answer.json()?.get("value").cloned().unwrap_or_default())
    }

    fn devtools(&self, command: &str, parameters: &Value) -> Result<Value> {
        self.command(
            "goog/cdp/execute",
            &json!({ "cmd": command, "params": parameters }),
        )
    }

    /// Opens a page.
    ///
    /// # Errors
    /// Where it cannot be loaded.
    pub fn open(&self, url: &str) -> Result<()> {
        self.command("url", &json!({ "url": url })).map(drop)
    }

    /// The value of an expression in the page.
    ///
    /// # Errors
    /// Where it throws.
    pub fn eval(&self, expression: &str) -> Result<Value> {
        let script = format!("return ({expression});");
        self.command("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression is true; it is looked at whenever the page changes.
    ///
    /// # Errors
    /// Where it does not become true within the deadline; the message holds the page's text.
    pub fn wait(&self, expression: &str) -> Result<()> {
        let script = format!(
            "const done = arguments[0];
             const look = () => {{ if ({expression}) {{ watch.disconnect(); done(true); }} }};
             const watch = new MutationObserver(look);
             watch.observe(document, {{ attributes: true, characterData: true, childList: true, subtree: true }});
             look();"
        );
        let waited = self.command("execute/async", &json!({ "script": script, "args": [] }));
        waited.map(drop).map_err(|error| {
            let text = self.eval("document.body.innerText").unwrap_or_default();
            error.context(format!("{expression} on a page that says\n{text}"))
        })
    }

    /// Types keys into whatever has the focus; special ones as WebDriver names them (`\u{e004}` is Tab).
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn press(&self, keys: &str) -> Result<()> {
        let strokes: Vec<Value> = keys
            .chars()
            .flat_map(|key| {
                ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() }))
            })
            .collect();
        let actions =
            json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": strokes }] });
        self.command("actions", &actions).map(drop)
    }

    /// Shows the page as on a screen of this size, in light or dark colours.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn look_like(&self, width: u32, height: u32, dark: bool) -> Result<()> {
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            &json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 }),
        )?;
        let scheme = if dark { "dark" } else { "light" };
        self.devtools(
            "Emulation.setEmulatedMedia",
            &json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] }),
        )
        .map(drop)
    }

    /// Writes a picture of the whole page (PNG).
    ///
    /// # Errors
    /// Where the picture cannot be taken or written.
    pub fn screenshot(&self, path: &Path) -> Result<()> {
        let shot = self.devtools(
            "Page.captureScreenshot",
            &json!({ "format": "png", "captureBeyondViewport": true }),
        )?;
        let data = shot.get("data").and_then(Value::as_str);
        let data = data.context("no picture in the answer")?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, BASE64_STANDARD.decode(data)?)
            .with_context(|| format!("writing {}", path.display()))
    }

    /// What the page complained about: errors, refused resources, violated policies.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn complaints(&self) -> Result<Vec<String>> {
        let log = self.command("se/log", &json!({ "type": "browser" }))?;
        let entries = log.as_array().cloned().unwrap_or_default();
        let wrong = entries.iter().filter(|entry| entry["level"] != "INFO");
        Ok(wrong.map(Value::to_string).collect())
    }
}

impl Drop for Browser<'_> {
    fn drop(&mut self) {
        // The driver, and with it the browser, is killed in any case; asked first, it leaves nothing in /tmp.
        let path = format!("/session/{}", self.session);
        let _ = self.client.send("DELETE", &path, None);
    }
}
