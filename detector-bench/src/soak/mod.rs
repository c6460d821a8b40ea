//! A long run of an agent on a node where pods are created and deleted, some with another pod's address, under faults: container
//! runtime and webhook hang or fail, the ring buffer overflows, the agent is stopped, killed and restarted.
//!
//! It passes if memory and file descriptors do not grow with time, every raised conflict was true, self-checks found no difference
//! from the kernel, the agent's conflicts in the end equal those of `check`, and the webhook has received every event.
//!
//! With a throttle the only fault is that the agent gets a small fraction of a core, and lags behind the kernel all the time.

mod churn;
mod faults;
mod report;
mod resources;
mod throttle;

use std::{
    fs,
    path::Path,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use detector_testkit::{
    Agent, AgentCommand, Behaviour, DEADLINE, Node, Pod, PodSpec, Receiver, conflicts_from_api,
    conflicts_from_check, event::RAISED, http::TestClient, random::Random, until,
};
use nix::sys::signal::Signal;

use crate::metrics::{AGENT_ORIGIN, Metrics};
use churn::{Churn, ChurnState};
use faults::{UnresponsiveRuntime, send_burst};
pub use report::SoakReport;
use resources::ResourceSamples;
use throttle::CpuQuota;

/// Threads that create pods; one works while another waits for the kernel.
const CHURN_THREADS: u8 = 3;
/// Size of the ring buffer, small enough to overflow in a burst.
const RING_BYTES: u32 = 16 * 1024;
/// Short, so that the claims of bursts expire many times, and their number is stable after the warm-up.
const CLAIM_TTL: &str = "20s";
/// How long a throttled agent may take for what it has not processed when the churn ends.
const THROTTLED_DEADLINE: Duration = Duration::from_secs(600);
/// Interval between two samples of memory and descriptors.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// Parts of the duration after which the agent is killed and another one started.
const KILLS: [f64; 2] = [0.1, 0.2];
/// Part of the duration until which the last agent warms up: faults follow one another without a pause, many of them bursts.
/// Bursts are what takes most memory, and the allocator keeps some of what they free, each time a little more. With those of the
/// warm-up, and not only the rare ones later, that has reached its maximum before growth is measured.
const WARM_UP: f64 = 0.4;

/// How to run the soak.
#[derive(Clone, Copy, Debug)]
pub struct SoakOptions {
    /// How long pods are created and deleted.
    pub duration: Duration,
    /// Pods created, and deleted, per second.
    pub rate: f64,
    /// Live pods at once.
    pub population: usize,
    /// The seed for addresses and faults.
    pub seed: u64,
    /// Limits the agent to this percentage of one core, instead of other faults.
    pub throttle_percent: Option<u32>,
}

/// Runs the soak with the agent at this path.
///
/// # Errors
/// A namespace cannot be created, the agent exits unexpectedly or violates the event contract, or a condition in the end does not
/// hold.
pub fn run(agent: &Path, options: SoakOptions) -> Result<SoakReport> {
    let node = Node::new("soak")?;
    let noisy = node.add_pod(&PodSpec::new("vethnoisy"))?;
    let churn_state = ChurnState::default();
    let directory = tempfile::tempdir().context("creating a directory for the agent")?;
    let socket = directory.path().join("cri.sock");
    let runtime = UnresponsiveRuntime::start(&socket)?;
    let receiver = node.run_in(Receiver::start)?;
    let config = directory.path().join("config.yaml");
    let text = format!(
        "webhooks:\n- {{name: soak, url: '{}', timeout: 2s, retry: {{first: 100ms, longest: 2s}}}}\n",
        receiver.url()
    );
    fs::write(&config, text).context("writing the configuration")?;
    let command = AgentCommand::run(agent)
        .arg("--config")
        .arg(&config)
        .arg("--ring-bytes")
        .arg(RING_BYTES.to_string())
        .arg("--claim-ttl")
        .arg(CLAIM_TTL)
        .arg("--state-dir")
        .arg(directory.path().join("state"))
        .arg("--cri-endpoint")
        .arg(&socket);
    let environment = SoakEnvironment {
        node: &node,
        command,
        runtime,
        receiver,
        noisy: &noisy,
        churn_state: &churn_state,
    };
    let started = Instant::now();
    let per_thread = options.population / usize::from(CHURN_THREADS);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..CHURN_THREADS)
            .map(|thread| {
                let churn = Churn::new(&node, &churn_state, options.seed, thread, per_thread);
                scope.spawn(move || churn.run(options.rate / f64::from(CHURN_THREADS)))
            })
            .collect();
        let outcome = match options.throttle_percent {
            Some(percent) => environment.throttle(options, percent, started),
            None => environment.inject_faults(options, started),
        };
        churn_state.stop.store(true, Ordering::Release);
        let took = started.elapsed();
        let mut pods = Vec::new();
        for thread in threads {
            let resume = |panic| std::panic::resume_unwind(panic);
            pods.extend(thread.join().unwrap_or_else(resume)?);
        }
        let run = outcome?;
        let client = TestClient::new(&node, AGENT_ORIGIN);
        // All faults end.
        environment.receiver.set_behaviour(Behaviour::status(200));
        environment.receiver.close_connections();
        let faults_ended = Instant::now();
        let open_conflicts = wait_agreement(agent, &node, &client, options)?;
        let agreed_after = faults_ended.elapsed();
        let trend = run.samples.trend().context("too short for a trend")?;
        let metrics = until(DEADLINE, "an empty outbox", || {
            let metrics = Metrics::scrape(&node)?;
            let pending = metrics.sum("ipconflict_outbox_pending", "");
            ensure!(pending == 0.0, "{pending} events wait for the webhook");
            Ok(metrics)
        })?;
        for received in run.agent.events() {
            if received.event.kind == RAISED
                && let Some(conflict) = received.event.conflict()
            {
                churn_state.check_raised(&conflict)?;
            }
        }
        let corrections = metrics.sum("ipconflict_resyncs_total", "self_check");
        ensure!(
            corrections == 0.0,
            "self-checks corrected the agent {corrections} times; see its log:\n{}",
            run.agent.log()
        );
        let report = SoakReport {
            options,
            took,
            created: churn_state.created.load(Ordering::Relaxed),
            duplicates: churn_state.duplicates.load(Ordering::Relaxed),
            raised: run
                .agent
                .events()
                .iter()
                .filter(|received| received.event.kind == RAISED)
                .count(),
            stops: run.stops,
            bursts: run.bursts,
            restarts: run.restarts,
            endpoint_changes: run.endpoint_changes,
            accepted_requests: environment
                .receiver
                .requests()
                .iter()
                .filter(|request| request.is_accepted())
                .count(),
            lost_observations: metrics.sum("ipconflict_observations_dropped_total", "") as u64,
            resyncs: metrics.sum("ipconflict_resyncs_total", "") as u64,
            open_conflicts,
            agreed_after,
            trend,
        };
        node.delete_pods(pods)?;
        until(DEADLINE, "all conflicts to be resolved", || {
            let open = conflicts_from_api(&client)?;
            ensure!(open.is_empty(), "open without any pod: {open:#?}");
            Ok(())
        })?;
        let mut agent = run.agent;
        let (status, _) = agent.terminate(DEADLINE)?;
        ensure!(status.success(), "the agent exited with {status}");
        Ok(report)
    })
}

/// Waits until the agent and `check` report the same conflicts; returns their number.
fn wait_agreement(
    agent: &Path,
    node: &Node,
    client: &TestClient<'_>,
    options: SoakOptions,
) -> Result<usize> {
    let deadline = match options.throttle_percent {
        Some(_) => THROTTLED_DEADLINE,
        None => DEADLINE,
    };
    until(deadline, "agent and `check` to agree", || {
        let reported = conflicts_from_api(client)?;
        let checked = conflicts_from_check(agent, node, DEADLINE)?;
        ensure!(
            reported == checked,
            "`check` reports {checked:#?}, the agent {reported:#?}"
        );
        Ok(reported.len())
    })
}

/// The node, the endpoints and the command of the agent.
struct SoakEnvironment<'a> {
    node: &'a Node,
    command: AgentCommand,
    runtime: UnresponsiveRuntime,
    receiver: Receiver,
    noisy: &'a Pod,
    churn_state: &'a ChurnState,
}

/// The current agent, its samples, and the number of faults so far.
struct SoakRun {
    agent: Agent,
    samples: ResourceSamples,
    stops: u32,
    bursts: u32,
    restarts: u32,
    /// Times that the webhook or the runtime failed or recovered.
    endpoint_changes: u32,
    /// Ends with the run.
    quota: Option<CpuQuota>,
}

impl SoakRun {
    fn new(agent: Agent) -> Self {
        Self {
            samples: ResourceSamples::new(agent.pid()),
            agent,
            stops: 0,
            bursts: 0,
            restarts: 0,
            endpoint_changes: 0,
            quota: None,
        }
    }
}

impl SoakEnvironment<'_> {
    /// Injects faults until the duration has passed. In the first fifth the agent is killed twice; then one agent runs to the end,
    /// so that its resources can be followed over time after its warm-up.
    fn inject_faults(&self, options: SoakOptions, started: Instant) -> Result<SoakRun> {
        let mut random = Random(options.seed);
        let start = || Agent::start_ready(self.node, &self.command);
        let agent = start()?;
        let mut run = SoakRun::new(agent);
        let mut kills = KILLS
            .map(|part| options.duration.mul_f64(part))
            .into_iter()
            .peekable();
        let mut next_fault = Duration::ZERO;
        let warm_up = options.duration.mul_f64(WARM_UP);
        while started.elapsed() < options.duration {
            let now = started.elapsed();
            if kills.next_if(|at| *at <= now).is_some() {
                run.agent.kill()?;
                run.agent = start()?;
                run.samples = ResourceSamples::new(run.agent.pid());
                run.restarts += 1;
            }
            if kills.peek().is_none() && now < warm_up {
                self.burst(&mut run, &mut random)?;
                self.inject_fault(&mut run, &mut random)?;
            } else if now >= next_fault {
                self.inject_fault(&mut run, &mut random)?;
                next_fault = started.elapsed() + Duration::from_secs(2 + random.below(6));
            }
            if now >= warm_up {
                run.samples.sample()?;
            }
            thread::sleep(SAMPLE_INTERVAL);
        }
        self.churn_state.stop.store(true, Ordering::Release);
        Ok(run)
    }

    /// Lets the agent lag behind until the duration has passed.
    fn throttle(&self, options: SoakOptions, percent: u32, started: Instant) -> Result<SoakRun> {
        let agent = Agent::start_ready(self.node, &self.command)?;
        let quota = CpuQuota::apply(agent.pid(), percent)?;
        let mut run = SoakRun::new(agent);
        run.quota = Some(quota);
        while started.elapsed() < options.duration {
            run.samples.sample()?;
            thread::sleep(SAMPLE_INTERVAL);
        }
        self.churn_state.stop.store(true, Ordering::Release);
        Ok(run)
    }

    fn inject_fault(&self, run: &mut SoakRun, random: &mut Random) -> Result<()> {
        match random.below(4) {
            0 => {
                run.stops += 1;
                run.agent.signal(Signal::SIGSTOP)?;
                thread::sleep(Duration::from_millis(200 + random.below(3000)));
                run.agent.signal(Signal::SIGCONT)?;
            }
            1 => self.burst(run, random)?,
            2 => {
                run.endpoint_changes += 1;
                self.runtime.set_hanging(random.below(2) == 0);
            }
            _ => {
                run.endpoint_changes += 1;
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

    /// Overflows the ring buffer: while stopped, the agent cannot drain it.
    fn burst(&self, run: &mut SoakRun, random: &mut Random) -> Result<()> {
        run.bursts += 1;
        run.agent.signal(Signal::SIGSTOP)?;
        let sent = send_burst(self.noisy, random);
        run.agent.signal(Signal::SIGCONT)?;
        sent
    }
}
