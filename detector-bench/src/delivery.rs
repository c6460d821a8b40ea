//! Delivery latency: from a raised conflict until its event line, and its webhook request on loopback, have been received. The
//! outbox writes the event to disk (fsync) before the request is sent.
//!
//! A conflict is raised at the `time` of its event, which is from the same machine's clock.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use detector_testkit::{Agent, AgentCommand, DEADLINE, Node, Receiver};

use super::pod_pairs::{CONFLICTS_PER_PAIR, PodPairs};

/// What to measure.
#[derive(Clone, Debug)]
pub struct DeliveryOptions {
    /// The number of conflicts, at most 600.
    pub conflicts: u32,
    /// Pause after each frame.
    pub pause: Duration,
    /// The state directory, on the disk to be measured; `None` for a temporary directory.
    pub state_dir: Option<PathBuf>,
}

impl Default for DeliveryOptions {
    fn default() -> Self {
        Self {
            conflicts: 500,
            pause: Duration::from_millis(2),
            state_dir: None,
        }
    }
}

/// All latencies of each conflict, in microseconds and in order.
#[derive(Clone, Debug, Default)]
pub struct DeliveryReport {
    /// From the event's time until its line was read.
    pub line_us: Vec<f64>,
    /// From the event's time until the webhook request was read.
    pub webhook_us: Vec<f64>,
    /// From just before the frame was sent until the webhook request was read.
    pub frame_to_webhook_us: Vec<f64>,
}

/// The wall clock time of an instant.
struct ClockReference {
    wall: jiff::Timestamp,
    instant: Instant,
}

impl ClockReference {
    fn now() -> Self {
        Self {
            wall: jiff::Timestamp::now(),
            instant: Instant::now(),
        }
    }

    /// Microseconds from `time` (RFC 3339) to `at`.
    fn elapsed_us(&self, time: &str, at: Instant) -> Result<f64> {
        let time: jiff::Timestamp = time.parse().context("parsing the event's time")?;
        let ahead = at.saturating_duration_since(self.instant).as_secs_f64();
        let behind = self.instant.saturating_duration_since(at).as_secs_f64();
        Ok((self.wall.duration_since(time).as_secs_f64() + ahead - behind) * 1e6)
    }
}

/// Measures the agent at this path on a new node.
///
/// # Errors
/// There are too many conflicts, a namespace cannot be created, or a conflict is not raised or not delivered.
pub fn run(agent: &Path, options: &DeliveryOptions) -> Result<DeliveryReport> {
    let node = Node::new("bench")?;
    let base = Ipv4Addr::new(10, 99, 0, 0);
    let pairs = options.conflicts.div_ceil(CONFLICTS_PER_PAIR);
    let pairs = PodPairs::new(&node, pairs, base, |pod| pod)?;
    let receiver = node.run_in(Receiver::start)?;
    let temporary = tempfile::tempdir().context("creating a directory for the configuration")?;
    let state_dir = options
        .state_dir
        .clone()
        .unwrap_or_else(|| temporary.path().join("state"));
    let config = temporary.path().join("config.yaml");
    let text = format!(
        "state-dir: {}\nwebhooks:\n- {{name: bench, url: '{}'}}\n",
        state_dir.display(),
        receiver.url()
    );
    fs::write(&config, text).context("writing the configuration")?;
    let command = AgentCommand::run(agent).arg("--config").arg(&config);
    let agent = Agent::start_ready(&node, &command)?;
    let mut report = DeliveryReport::default();
    for number in 0..options.conflicts {
        let clock = ClockReference::now();
        let conflict = pairs.cause_conflict(&agent, number, options.pause)?;
        let line = &conflict.received;
        let id = line.event.id.as_str();
        let request = receiver
            .wait_for(DEADLINE, |request| request.header("webhook-id") == id)
            .with_context(|| format!("the webhook's request about {}", conflict.address))?;
        report
            .line_us
            .push(clock.elapsed_us(&line.event.time, line.at)?);
        report
            .webhook_us
            .push(clock.elapsed_us(&line.event.time, request.at)?);
        report
            .frame_to_webhook_us
            .push(conflict.elapsed_us(request.at));
    }
    Ok(report)
}
