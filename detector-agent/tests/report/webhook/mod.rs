//! Webhooks over real sockets: signatures, retries, order, TLS, and faulty receivers.

mod delivery;
mod settings;
mod tls;

use std::{fs, path::Path, sync::Arc, time::Duration};

use detector_agent::{
    cli::Command,
    config,
    health::Health,
    metrics::{Delivery, Metrics},
    persist::store::Store,
    sinks::{
        EventSink,
        start::{Senders, SinksError},
    },
};
use detector_event::AnyEvent;
use detector_testkit::{DEADLINE, ReceivedRequest, until};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The sinks of a configuration, fed with events by the test.
struct RunningSinks {
    directory: TempDir,
    metrics: Arc<Metrics>,
    health: Health,
    runtime: Runtime,
    senders: Option<Senders>,
    sinks: Vec<Box<dyn EventSink>>,
}

impl RunningSinks {
    /// Starts the sinks of this configuration file; `DIR` in it stands for the directory that `prepare`
    /// fills.
    fn start(yaml: &str, prepare: impl FnOnce(&Path)) -> Result<Self, SinksError> {
        let directory = tempfile::tempdir().unwrap();
        prepare(directory.path());
        Self::in_directory(yaml, directory)
    }

    fn in_directory(yaml: &str, directory: TempDir) -> Result<Self, SinksError> {
        let path = directory.path();
        let file = path.join("config.yaml");
        fs::write(&file, yaml.replace("DIR", path.to_str().unwrap())).unwrap();
        let args = ["detector-agent", "run", "--config", file.to_str().unwrap()];
        let Command::Run(args) = config::parse(args.map(Into::into)).unwrap().command else {
            panic!("`run` was expected");
        };
        // Two threads, because the tests block one.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let metrics = Arc::new(Metrics::new());
        let store = Arc::new(Store::at(&path.join("state")));
        let health = Health::default();
        let (senders, sinks) = Senders::start(
            &args.sinks,
            Some(&store),
            &metrics,
            &health,
            runtime.handle(),
        )?;
        Ok(Self {
            directory,
            metrics,
            health,
            runtime,
            senders: Some(senders),
            sinks,
        })
    }

    fn report(&mut self, event: AnyEvent) {
        for sink in &mut self.sinks {
            sink.on_event(&event);
        }
    }

    /// Waits until the sender has counted the outcome, which follows the delivery.
    fn wait_count(&self, sink: &str, outcome: &'static str, least: u64) {
        until(DEADLINE, format_args!("{least} × {outcome}"), || {
            let count = self.count(sink, outcome);
            anyhow::ensure!(count >= least, "only {count}");
            Ok(())
        })
        .unwrap();
    }

    fn count(&self, sink: &str, outcome: &'static str) -> u64 {
        let labels = Delivery::new(sink, outcome);
        self.metrics.deliveries.get_or_create(&labels).get()
    }

    /// Waits until the metrics have this line: gauges are renewed after the counters.
    fn wait_line(&self, line: &str) {
        until(DEADLINE, line, || {
            let metrics = self.metrics.encode(None)?;
            anyhow::ensure!(metrics.lines().any(|l| l == line), "{metrics}");
            Ok(())
        })
        .unwrap();
    }

    /// Shuts down as the agent does on SIGTERM; returns the directory for the next start.
    fn stop(mut self) -> TempDir {
        let senders = self.senders.take().unwrap();
        self.runtime.block_on(senders.stop(Duration::from_secs(10)));
        self.directory
    }
}

fn event(id: &str, change: &str, conflict: &str) -> AnyEvent {
    serde_json::from_value(event_json(id, change, conflict)).unwrap()
}

fn event_json(id: &str, change: &str, conflict: &str) -> Value {
    const TIME: &str = "2026-11-21T01:02:03.123456Z";
    let is_resolved = change == "resolved";
    let conflict = conflict
        .bytes()
        .fold(0, |id, byte| (id << 8) | u128::from(byte));
    json!({
        "specversion": "1.0",
        "id": id,
        "source": "ip-conflict-detector/node-1",
        "type": format!("io.ipconflict.conflict.{change}"),
        "subject": "10.0.0.1",
        "time": TIME,
        "datacontenttype": "application/json",
        "data": {
            "conflict_id": format!("{conflict:032x}"),
            "node": "node-1",
            "cluster": null,
            "address": "10.0.0.1",
            "vlan": null,
            "kind": "duplicate",
            "confidence": "certain",
            "state": if is_resolved { "resolved" } else { "active" },
            "raised_at": TIME,
            "updated_at": TIME,
            "resolved_at": is_resolved.then_some(TIME),
            "latency_us": 40,
            "traffic_goes_to": null,
            "claimants": [],
        },
    })
}

fn accepted(posted: &[ReceivedRequest]) -> usize {
    posted.iter().filter(|p| p.is_accepted()).count()
}

fn ids(posted: &[ReceivedRequest]) -> Vec<&str> {
    posted.iter().map(|p| p.header("webhook-id")).collect()
}

/// One webhook named `hook` with quick retries.
fn hook(url: &str, more: &str) -> String {
    format!(
        "webhooks:\n- name: hook\n  url: {url}\n  timeout: 2s\n  retry: {{first: 20ms, longest: 100ms}}\n{more}"
    )
}
