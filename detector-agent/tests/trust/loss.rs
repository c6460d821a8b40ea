//! Loss: an agent that loses kernel notifications notices it, resyncs, and ends in the state that a
//! fresh snapshot shows.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Frame, FrameSender, Node, Pod, PodSpec,
    conflicts_from_check, conflicts_from_events,
};
use nix::sys::signal::Signal;

use crate::AGENT;

/// Logged when the agent notices a loss.
const RESYNC_LOG: &str = "resync started";

/// The agent's open conflicts equal those of a fresh snapshot, now and after it has handled all
/// pending notifications.
fn assert_as_fresh(node: &Node, agent: &Agent, barrier: &Barrier) {
    let fresh = conflicts_from_check(AGENT.as_ref(), node, DEADLINE).unwrap();
    let same = agent.wait_until(DEADLINE, |events| {
        conflicts_from_events(events).is_ok_and(|open| open == fresh)
    });
    if let Err(error) = same {
        let open = conflicts_from_events(&agent.events());
        panic!("a fresh snapshot shows {fresh:#?}, the agent {open:#?}: {error:#}");
    }
    let events = barrier.pass(node, agent).unwrap();
    assert_eq!(conflicts_from_events(&events).unwrap(), fresh);
}

pub(super) fn pause(agent: &Agent) {
    agent.signal(Signal::SIGSTOP).unwrap();
    // Signal delivery is asynchronous: wait until every thread has stopped.
    let until = Instant::now() + DEADLINE;
    let tasks = format!("/proc/{}/task", agent.pid());
    let stopped = || {
        std::fs::read_dir(&tasks).unwrap().flatten().all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
            state.is_some_and(|state| state.starts_with('T'))
        })
    };
    while !stopped() {
        assert!(Instant::now() < until, "the agent does not stop");
        std::thread::yield_now();
    }
}

pub(super) fn resume(agent: &Agent) {
    agent.signal(Signal::SIGCONT).unwrap();
}

/// SplitMix64 with a fixed seed, so that a run is reproducible.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Creates and deletes pods that add and remove addresses of a small range.
struct Churn {
    random: Random,
    pods: BTreeMap<u64, Pod>,
    next: u64,
}

impl Churn {
    fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Self {
            random: Random(seed),
            pods: BTreeMap::new(),
            next: 0,
        }
    }

    /// Adds a batch of pods, each with two of thirty addresses, every third with a permanent neighbour
    /// entry on the node.
    fn create(&mut self, node: &Node, count: u64) {
        let specs: Vec<_> = (0..count)
            .map(|number| {
                let mut spec = PodSpec::new(format!("vethc{}", self.next + number));
                for range in [3, 4] {
                    spec = spec.address(format!("10.244.{range}.{}/32", self.random.below(30)));
                }
                spec
            })
            .collect();
        for pod in node.add_pods(&specs).unwrap() {
            if self.random.below(3) == 0 {
                let address = format!("10.244.5.{}", self.random.below(10));
                node.set_neighbour(
                    address.parse().unwrap(),
                    pod.device(),
                    pod.mac(),
                    "permanent",
                )
                .unwrap();
            }
            self.pods.insert(self.next, pod);
            self.next += 1;
        }
    }

    fn delete(&mut self, node: &Node, count: usize) {
        let mut going = Vec::new();
        while going.len() < count && !self.pods.is_empty() {
            let bound = u64::try_from(self.pods.len()).unwrap();
            let nth = usize::try_from(self.random.below(bound)).unwrap();
            let key = *self.pods.keys().nth(nth).unwrap();
            going.extend(self.pods.remove(&key));
        }
        node.delete_pods(going).unwrap();
    }

    /// Every third pod adds one address, every fourth removes its first one.
    fn shuffle(&mut self) {
        for (number, pod) in &self.pods {
            if number % 3 == 0 {
                let address = format!("10.244.6.{}/32", self.random.below(10));
                // It may already have the address.
                let _ = pod.add_address(&address);
            }
            if number % 4 == 0 {
                let first = pod.addresses()[0];
                let _ = pod.remove_address(&format!("{first}/32"));
            }
        }
    }
}

#[test]
fn full_ring_buffer_triggers_a_resync() {
    let node = Node::new("ring").unwrap();
    let specs = ["vetha", "vethb", "vethnoisy"].map(PodSpec::new);
    let pods = node.add_pods(&specs).unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let command = AgentCommand::run(AGENT).arg("--ring-bytes").arg("4096");
    let agent = Agent::start_ready(&node, &command).unwrap();
    let permanent = |address: &str, pod: &Pod| {
        node.set_neighbour(
            address.parse().unwrap(),
            pod.device(),
            pod.mac(),
            "permanent",
        )
        .unwrap();
    };
    for pod in &pods[..2] {
        permanent("10.244.2.10", pod);
    }
    agent
        .wait_event(DEADLINE, |event| event.raises("10.244.2.10"))
        .unwrap();

    // The reader is paused so that the ring fills up even on a fast machine.
    pause(&agent);
    let noisy = FrameSender::open(&pods[2]).unwrap();
    let frames: Vec<_> = (0..200u8)
        .map(|number| Frame::announcement(pods[2].mac(), [10, 244, 9, number].into()).to_bytes())
        .collect();
    noisy.send_all(&frames).unwrap();
    // Lost in the full ring: one conflict begins, the other ends.
    for pod in &pods[..2] {
        permanent("10.244.2.11", pod);
    }
    node.ip("neigh delete 10.244.2.10 dev vethb").unwrap();
    resume(&agent);

    agent.wait_log(DEADLINE, RESYNC_LOG).unwrap();
    agent
        .wait_event(DEADLINE, |event| event.raises("10.244.2.11"))
        .unwrap();
    agent
        .wait_event(DEADLINE, |event| event.resolves("10.244.2.10"))
        .unwrap();
    assert_as_fresh(&node, &agent, &barrier);
}

#[test]
fn netlink_overrun_under_churn_triggers_a_resync() {
    let node = Node::new("overrun").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    // The kernel's minimum; a single link message takes more than half of it.
    let command = AgentCommand::run(AGENT).arg("--netlink-bytes").arg("2304");
    let agent = Agent::start_ready(&node, &command).unwrap();
    let mut churn = Churn::new(1);
    for _ in 0..4 {
        churn.create(&node, 15);
        churn.shuffle();
        churn.delete(&node, 8);
    }
    agent.wait_log(DEADLINE, RESYNC_LOG).unwrap();
    assert_as_fresh(&node, &agent, &barrier);
    // Once more, from the state after a resync.
    churn.create(&node, 15);
    churn.delete(&node, 20);
    assert_as_fresh(&node, &agent, &barrier);
}

/// An agent that is paused under churn loses every notification that arrives while its buffers are
/// full. The length of the pause does not matter once they are full, so a bounded churn that fills them
/// stands for a pause of any length (such as 30 s); what the kernel expires meanwhile would be notified
/// into a full buffer as well.
#[test]
fn agent_paused_under_churn_recovers_the_current_state() {
    for seed in [7, 8, 9] {
        let node = Node::new("stopped").unwrap();
        let noisy = node.add_pod(&PodSpec::new("vethnoisy")).unwrap();
        let barrier = Barrier::prepare(&node).unwrap();
        let command = AgentCommand::run(AGENT)
            .arg("--ring-bytes")
            .arg("4096")
            .arg("--netlink-bytes")
            .arg("16384");
        let agent = Agent::start_ready(&node, &command).unwrap();
        let mut churn = Churn::new(seed);
        churn.create(&node, 20);
        churn.shuffle();
        assert_as_fresh(&node, &agent, &barrier);

        pause(&agent);
        // Part of this reaches the agent, the rest is lost: known pods go, new ones come with other
        // names and indices.
        let frames: Vec<_> = (0..200u8)
            .map(|number| Frame::announcement(noisy.mac(), [10, 244, 9, number].into()).to_bytes())
            .collect();
        FrameSender::open(&noisy)
            .unwrap()
            .send_all(&frames)
            .unwrap();
        for _ in 0..2 {
            churn.delete(&node, 12);
            churn.create(&node, 15);
            churn.shuffle();
        }
        let count_before = agent.event_count();
        resume(&agent);
        agent.wait_log(DEADLINE, RESYNC_LOG).unwrap();
        assert_as_fresh(&node, &agent, &barrier);
        assert!(
            agent.event_count() > count_before,
            "no event after the resync"
        );
    }
}

/// The node is read while the programs are loaded, so everything that happens until the agent is ready is newer than that
/// snapshot, and only notifications report it.
#[test]
fn changes_while_the_agent_starts_are_not_missed() {
    for seed in [11, 12, 13] {
        let node = Node::new("starting").unwrap();
        let barrier = Barrier::prepare(&node).unwrap();
        let mut churn = Churn::new(seed);
        churn.create(&node, 20);
        let agent = Agent::start(&node, &AgentCommand::run(AGENT)).unwrap();
        // Bounded, in case it never is.
        for _ in 0..200 {
            churn.shuffle();
            churn.delete(&node, 2);
            churn.create(&node, 2);
            if agent.wait_ready(Duration::ZERO).is_ok() {
                break;
            }
        }
        agent.wait_ready(DEADLINE).unwrap();
        assert_as_fresh(&node, &agent, &barrier);
    }
}
