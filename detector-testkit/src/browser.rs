//! A headless Chromium, controlled over WebDriver.
//!
//! It runs in a namespace of its own, where a port of the loopback leads to the server. A browser aborts its requests when a
//! device or an address of its machine changes, which those of a node do all the time.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::{DEADLINE, daemon::Daemon, http::TestClient, netns::Netns, proxy::Proxy};

/// An open browser with one page.
#[derive(Debug)]
pub struct Browser {
    /// Where the driver listens.
    origin: String,
    session: String,
    _driver: Daemon,
    _proxy: Proxy,
    _profile: tempfile::TempDir,
    netns: Netns,
}

impl Browser {
    /// Starts the browser and its driver. What listens on `port` of the loopback in `server` is reached by the browser at the
    /// same address.
    ///
    /// # Errors
    /// Chromium or its driver is not installed, or does not start.
    pub fn start(server: &Netns, port: u16) -> Result<Self> {
        let netns = Netns::new("browser")?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = netns.run_in(|| Ok(TcpListener::bind(address)?))?;
        let proxy = Proxy::start(listener, server, address)?;
        let mut command = Command::new("chromedriver");
        command.arg("--port=0");
        let profile = tempfile::tempdir()?;
        let log = profile.path().join("driver.log");
        let mut driver = netns.run_in(|| Daemon::start(command, &log))?;
        let line = driver.wait_line(DEADLINE, "started successfully on port")?;
        let port: String = line.chars().filter(char::is_ascii_digit).collect();
        let origin = format!("http://127.0.0.1:{port}");
        let client = TestClient::new(&netns, &origin);
        let options = json!({
            "binary": "/usr/bin/chromium",
            "args": [
                "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--disable-dev-shm-usage", "--hide-scrollbars",
                format!("--user-data-dir={}", profile.path().join("user").display()),
            ],
        });
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL" },
        }}});
        let response = client.send("POST", "/session", Some(&capabilities))?;
        let session = response.json()?;
        let session = session.pointer("/value/sessionId").and_then(Value::as_str);
        let session = session
            .with_context(|| format!("no session: {}", response.body))?
            .to_owned();
        let browser = Self {
            origin,
            session,
            _driver: driver,
            _proxy: proxy,
            _profile: profile,
            netns,
        };
        browser.command(
            "timeouts",
            &json!({ "script": DEADLINE.as_millis() as u64 }),
        )?;
        Ok(browser)
    }

    fn client(&self) -> TestClient<'_> {
        TestClient::new(&self.netns, &self.origin)
    }

    fn command(&self, path: &str, body: &Value) -> Result<Value> {
        let path = format!("/session/{}/{path}", self.session);
        let response = self.client().send("POST", &path, Some(body))?;
        if response.status != 200 {
            bail!("{path}: {}", response.body);
        }
        Ok(response.json()?.get("value").cloned().unwrap_or_default())
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
    /// The page cannot be loaded.
    pub fn open(&self, url: &str) -> Result<()> {
        self.command("url", &json!({ "url": url })).map(drop)
    }

    /// Evaluates a JavaScript expression in the page.
    ///
    /// # Errors
    /// The expression throws.
    pub fn eval(&self, expression: &str) -> Result<Value> {
        let script = format!("return ({expression});");
        self.command("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until a JavaScript expression is true; it is evaluated again whenever the document changes.
    ///
    /// # Errors
    /// The deadline passes; the error contains the page's text.
    pub fn wait(&self, expression: &str) -> Result<()> {
        let script = format!(
            "const done = arguments[0];
             const check = () => {{ if ({expression}) {{ observer.disconnect(); done(true); }} }};
             const observer = new MutationObserver(check);
             observer.observe(document, {{ attributes: true, characterData: true, childList: true, subtree: true }});
             check();"
        );
        let waited = self.command("execute/async", &json!({ "script": script, "args": [] }));
        waited.map(drop).map_err(|error| {
            let text = self.eval("document.body.innerText").unwrap_or_default();
            error.context(format!(
                "waiting for {expression}; text of the page:\n{text}"
            ))
        })
    }

    /// Types keys into the focused element; special keys have WebDriver code points (`\u{e004}` is Tab).
    ///
    /// # Errors
    /// The driver rejects the command.
    pub fn press_keys(&self, keys: &str) -> Result<()> {
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

    /// Emulates a screen of this size in CSS pixels, in light or dark mode.
    ///
    /// # Errors
    /// The driver rejects the command.
    pub fn emulate_screen(&self, width: u32, height: u32, dark: bool) -> Result<()> {
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

    /// Writes a screenshot of the whole page as PNG.
    ///
    /// # Errors
    /// The screenshot cannot be taken or written.
    pub fn screenshot(&self, path: &Path) -> Result<()> {
        let shot = self.devtools(
            "Page.captureScreenshot",
            &json!({ "format": "png", "captureBeyondViewport": true }),
        )?;
        let data = shot.get("data").and_then(Value::as_str);
        let data = data.context("the response contains no image")?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, BASE64_STANDARD.decode(data)?)
            .with_context(|| format!("writing {}", path.display()))
    }

    /// Entries of the console log above level INFO: errors, blocked resources, violated policies.
    ///
    /// # Errors
    /// The driver rejects the command.
    pub fn console_errors(&self) -> Result<Vec<String>> {
        let log = self.command("se/log", &json!({ "type": "browser" }))?;
        let entries = log.as_array().cloned().unwrap_or_default();
        let errors = entries.iter().filter(|entry| entry["level"] != "INFO");
        Ok(errors.map(Value::to_string).collect())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver is killed afterwards in any case; ending the session first removes its files in /tmp.
        let path = format!("/session/{}", self.session);
        let _ = self.client().send("DELETE", &path, None);
    }
}
