//! A long run of an agent on a node where pods come and go, some with an address that another one has, while things fail:
//! the runtime and the webhook hang or refuse, the ring buffer overflows, the agent is stopped, killed and started anew.
//!
//! In the end four things must hold: its memory and its descriptors do not grow with time, what it says is what an agent that
//! looks afresh says, and the webhook has got every event.

mod churn;
mod faults;
mod measure;
mod report;

use std::{
    fs,
    path::Path,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use churn::{Churn, Tally};
use detector_testkit::{
    agent::{Agent, AgentCommand, DEADLINE},
    http::TestClient,
    node::{Node, PodSpec},
    open_conflicts::{conflicts_from_api, conflicts_from_check},
    random::Random,
    receiver::{Behaviour, Receiver},
    until,
};
use faults::{DeafRuntime, burst};
use measure::Series;
pub use report::Report;

/// Threads that make pods: one waits for the kernel while the other goes on.
const LANES: u8 = 3;
/// A ring buffer that a burst of frames overflows.
const RING_BYTES: u32 = 16 * 1024;
/// Short, so that what bursts of frames leave behind comes and goes many times, and is level after the warm-up.
const CLAIM_TTL: &str = "20s";
/// How often memory and descriptors are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// Where the agent serves.
const ORIGIN: &str = "http://127.0.0.1:9842";

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// For how long pods come and go.
    pub duration: Duration,
    /// Pods made a second, and deleted.
    pub rate: f64,
    /// Pods alive at once.
    pub population: usize,
    /// Chooses addresses and faults.
    pub seed: u64,
}

/// Lets the agent of this path live through it.
///
/// # Errors
/// Where a namespace cannot be made, the agent ends by itself or breaks the event contract, or does not say what a fresh
/// look sees in the end.
pub fn run(agent: &Path, options: Options) -> Result<Report> {
    let node = Node::new("soak")?;
    let noisy = node.add_pod(&PodSpec::new("vethnoisy"))?;
    let tally = Tally::default();
    let place = tempfile::tempdir().context("a directory for the agent")?;
    let socket = place.path().join("cri.sock");
    let runtime = DeafRuntime::at(&socket)?;
    let receiver = node.run_in(Receiver::start)?;
    let config = place.path().join("config.yaml");
    let text = format!(
        "webhooks:\n- {{name: soak, url: '{}', timeout: 2s, retry: {{first: 100ms, longest: 2s}}}}\n",
        receiver.url()
    );
    fs::write(&config, text).context("the agent's configuration")?;
    let command = AgentCommand::run(agent)
        .arg("--config")
        .arg(&config)
        .arg("--ring-bytes")
        .arg(RING_BYTES.to_string())
        .arg("--claim-ttl")
        .arg(CLAIM_TTL)
        .arg("--state-dir")
        .arg(place.path().join("state"))
        .arg("--cri-endpoint")
        .arg(&socket);
    let site = Site {
        node: &node,
        command,
        runtime,
        receiver,
        noisy: &noisy,
        tally: &tally,
    };
    let begun = Instant::now();
    let per_lane = options.population / usize::from(LANES);
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES)
            .map(|lane| {
                let churn = Churn::new(&node, &tally, options.seed, lane, per_lane);
                scope.spawn(move || churn.run(options.rate / f64::from(LANES)))
            })
            .collect();
        let lived = site.live(options, begun);
        tally.enough.store(true, Ordering::Release);
        let took = begun.elapsed();
        let mut pods = Vec::new();
        for lane in lanes {
            let over = |panic| std::panic::resume_unwind(panic);
            pods.extend(lane.join().unwrap_or_else(over)?);
        }
        let life = lived?;
        let client = TestClient::new(&node, ORIGIN);
        // Everything is well again.
        site.receiver.set_behaviour(Behaviour::status(200));
        site.receiver.close_connections();
        let quiet = Instant::now();
        let open = agreed(agent, &node, &client)?;
        let agreed_after = quiet.elapsed();
        let trend = life.series.trend().context("too short for a trend")?;
        let metrics = until(DEADLINE, "an empty outbox", || {
            let metrics = client.get("/metrics")?.body;
            let waiting = total(&metrics, "ipconflict_outbox_pending");
            ensure!(waiting == 0, "{waiting} events wait for the webhook");
            Ok(metrics)
        })?;
        let report = Report {
            options,
            took,
            made: tally.made.load(Ordering::Relaxed),
            duplicates: tally.duplicates.load(Ordering::Relaxed),
            raised: life
                .agent
                .events()
                .iter()
                .filter(|received| received.event.kind == detector_testkit::event::RAISED)
                .count(),
            stops: life.stops,
            bursts: life.bursts,
            restarts: life.restarts,
            moods: life.moods,
            delivered: site
                .receiver
                .requests()
                .iter()
                .filter(|posted| posted.is_accepted())
                .count(),
            lost: total(&metrics, "ipconflict_observations_dropped_total"),
            resyncs: total(&metrics, "ipconflict_resyncs_total"),
            open,
            agreed_after,
            trend,
        };
        // With the pods go all conflicts.
        node.delete_pods(pods)?;
        until(DEADLINE, "all conflicts to be resolved", || {
            Ok(conflicts_from_api(&client)?.is_empty().then_some(()))
        })
        .context("conflicts stay open although no pod is there any more")?;
        let mut agent = life.agent;
        let (status, _) = agent.terminate(DEADLINE)?;
        ensure!(status.success(), "the agent ended with {status}");
        Ok(report)
    })
}

/// Waits until the agent says what a fresh look sees; gives how many conflicts that are.
fn agreed(agent: &Path, node: &Node, client: &TestClient<'_>) -> Result<usize> {
    until(DEADLINE, "agent and `check` to agree", || {
        let (told, fresh) = (
            conflicts_from_api(client)?,
            conflicts_from_check(agent, node, DEADLINE)?,
        );
        ensure!(
            told == fresh,
            "a fresh look sees {fresh:#?}, the agent says {told:#?}"
        );
        Ok(told.len())
    })
}

/// The sum of a counter's series.
fn total(metrics: &str, name: &str) -> u64 {
    metrics
        .lines()
        .filter(|line| line.starts_with(name))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum::<f64>() as u64
}

/// What the agent lives in.
struct Site<'a> {
    node: &'a Node,
    command: AgentCommand,
    runtime: DeafRuntime,
    receiver: Receiver,
    noisy: &'a detector_testkit::node::Pod,
    tally: &'a Tally,
}

/// The last agent, and what was done to it and the ones before.
struct Life {
    agent: Agent,
    series: Series,
    stops: u32,
    bursts: u32,
    restarts: u32,
    moods: u32,
}

impl Site<'_> {
    /// Lets faults happen until the time is over. In the first fifth the agent is killed twice; then one agent lives to the
    /// end, so that what it holds can be told over time.
    fn live(&self, options: Options, begun: Instant) -> Result<Life> {
        let mut random = Random(options.seed);
        let start = || Agent::start_ready(self.node, &self.command);
        let agent = start()?;
        let mut life = Life {
            series: Series::of(agent.pid()),
            agent,
            stops: 0,
            bursts: 0,
            restarts: 0,
            moods: 0,
        };
        let mut deaths = [0.1, 0.2]
            .map(|part| options.duration.mul_f64(part))
            .into_iter()
            .peekable();
        let mut next_fault = Duration::ZERO;
        while begun.elapsed() < options.duration {
            let now = begun.elapsed();
            if deaths.next_if(|death| *death <= now).is_some() {
                life.agent.kill()?;
                life.agent = start()?;
                life.series = Series::of(life.agent.pid());
                life.restarts += 1;
            }
            if now >= next_fault {
                self.fault(&mut life, &mut random)?;
                next_fault = begun.elapsed() + Duration::from_secs(2 + random.below(6));
            }
            life.series.look()?;
            thread::sleep(LOOK);
        }
        self.tally.enough.store(true, Ordering::Release);
        Ok(life)
    }

    fn fault(&self, life: &mut Life, random: &mut Random) -> Result<()> {
        match random.below(4) {
            0 => {
                life.stops += 1;
                life.agent.signal(Signal::SIGSTOP)?;
                thread::sleep(Duration::from_millis(200 + random.below(3000)));
                life.agent.signal(Signal::SIGCONT)?;
            }
            1 => {
                // Stopped, it cannot empty the ring buffer, however fast it is.
                life.bursts += 1;
                life.agent.signal(Signal::SIGSTOP)?;
                let sent = burst(self.noisy, random);
                life.agent.signal(Signal::SIGCONT)?;
                sent?;
            }
            2 => {
                life.moods += 1;
                self.runtime.hang(random.below(2) == 0);
            }
            _ => {
                life.moods += 1;
                self.receiver.set_behaviour(match random.below(4) {
                    0 => Behaviour::Hang,
                    1 => Behaviour::ResetUnread,
                    2 => Behaviour::status(503),
                    _ => Behaviour::status(200),
                });
            }
        }
        Ok(())
    }
}
