//! How long after a conflict is raised people and machines have it: its event line, and the request of a webhook on
//! loopback, whose event is on the disk (fsync) before it is sent.
//!
//! Raised is when the event was made, as its `time` says; both clocks are this machine's.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::pairs::Pairs;
use detector_testkit::{
    agent::{Agent, AgentCommand, DEADLINE},
    node::Node,
    receiver::Receiver,
};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many conflicts, one after another.
    pub conflicts: u32,
    /// Pairs of pods that take turns.
    pub pairs: u32,
    /// Rest between two frames.
    pub rest: Duration,
    /// Where the agent keeps its state: the disk that is measured. `None` for the directory of temporary files.
    pub state: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            conflicts: 500,
            pairs: 50,
            rest: Duration::from_millis(2),
            state: None,
        }
    }
}

/// All measurements, in microseconds, in the order they were made.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// From the event made to its line in the reader's hands.
    pub line_us: Vec<f64>,
    /// From the event made to the request read by the receiver.
    pub webhook_us: Vec<f64>,
    /// From just before the frame was sent to the request read by the receiver.
    pub outside_us: Vec<f64>,
}

/// The wall clock at an instant.
struct Wall {
    wall: jiff::Timestamp,
    instant: Instant,
}

impl Wall {
    fn now() -> Self {
        Self {
            wall: jiff::Timestamp::now(),
            instant: Instant::now(),
        }
    }

    /// Microseconds from `time` (RFC 3339) to `at`.
    fn since(&self, time: &str, at: Instant) -> Result<f64> {
        let time: jiff::Timestamp = time.parse().context("the event's time")?;
        let ahead = at.saturating_duration_since(self.instant).as_secs_f64();
        let behind = self.instant.saturating_duration_since(at).as_secs_f64();
        Ok((self.wall.duration_since(time).as_secs_f64() + ahead - behind) * 1e6)
    }
}

/// Measures the agent of this path on a node of its own.
///
/// # Errors
/// Where a namespace cannot be made, or the agent or the webhook misses a conflict.
pub fn run(agent: &Path, options: &Options) -> Result<Report> {
    ensure!(
        options.conflicts <= 4096,
        "at most 4096 conflicts: the agent keeps no more open"
    );
    let node = Node::new("bench")?;
    let base = Ipv4Addr::new(10, 99, 0, 0);
    let pairs = Pairs::new(&node, options.pairs, base, |pod| pod)?;
    let receiver = node.run_in(Receiver::start)?;
    let temporary = tempfile::tempdir().context("a directory for the configuration")?;
    let state = options
        .state
        .clone()
        .unwrap_or_else(|| temporary.path().join("state"));
    let config = temporary.path().join("config.yaml");
    let text = format!(
        "state-dir: {}\nwebhooks:\n- {{name: bench, url: '{}'}}\n",
        state.display(),
        receiver.url()
    );
    fs::write(&config, text).context("writing the configuration")?;
    let command = AgentCommand::run(agent).arg("--config").arg(&config);
    let agent = Agent::start_ready(&node, &command)?;
    let mut report = Report::default();
    for number in 0..options.conflicts {
        let wall = Wall::now();
        let made = pairs.conflict(&agent, number, options.rest)?;
        let line = &made.received;
        let id = line.event.id.as_str();
        let request = receiver
            .wait_for(DEADLINE, |request| request.header("webhook-id") == id)
            .with_context(|| format!("the webhook's request about {}", made.address))?;
        report.line_us.push(wall.since(&line.event.time, line.at)?);
        report
            .webhook_us
            .push(wall.since(&line.event.time, request.at)?);
        report.outside_us.push(made.until(request.at));
    }
    Ok(report)
}
