//! Pods that claim as many addresses of one another as they can: the agent stays within the memory that its manifest allows,
//! and reports what others do meanwhile.

use std::{fs, net::Ipv4Addr, thread};

use anyhow::bail;
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Frame, FrameSender, Node, Pod, PodSpec, until,
};

use crate::{AGENT, metrics::claiming_devices};

const MANIFEST: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../deploy/manifests/base/daemonset.yaml"
);

/// The memory limit of the agent's container, in KiB.
fn memory_limit() -> u64 {
    let manifest = fs::read_to_string(MANIFEST).unwrap();
    let limits = manifest.split_once("limits:").unwrap().1;
    let memory = limits.split_once("memory: ").unwrap().1;
    let mebibytes = memory.split_once("Mi").unwrap().0;
    mebibytes.parse::<u64>().unwrap() << 10
}

/// The most memory that the agent has had resident, in KiB.
fn most_resident(agent: &Agent) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let line = status.split_once("VmHWM:").unwrap().1;
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn address(n: u16) -> Ipv4Addr {
    let [high, low] = n.to_be_bytes();
    Ipv4Addr::new(10, 20, high, low)
}

/// What each pod does; `first` is another address for each.
type Claim = fn(pod: &Pod, addresses: u16, first: u16);

fn assign_all(pod: &Pod, addresses: u16, _: u16) {
    let lines = (0..addresses).map(|n| format!("address replace {}/32 dev eth0", address(n)));
    pod.netns().ip_batch(lines).unwrap();
}

/// Pods that begin with different addresses use up their budgets for addresses that no other device claims, for different ones.
fn announce_all(pod: &Pod, addresses: u16, first: u16) {
    let frames: Vec<_> = (first..addresses)
        .chain(0..first)
        .map(|n| Frame::announcement(pod.mac(), address(n)).to_bytes())
        .collect();
    FrameSender::open(pod).unwrap().send_all(&frames).unwrap();
}

/// Many pods claim the same addresses at once, and two others one that no other pod has.
fn assert_memory_suffices(prefix: &str, pods: u16, addresses: u16, claim_all: Claim) {
    let node = Node::new(prefix).unwrap();
    let names: Vec<_> = (0..pods).map(|n| format!("vethbad{n}")).collect();
    let specs: Vec<_> = names.iter().map(PodSpec::new).collect();
    let attackers = node.add_pods(&specs).unwrap();
    let victims = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    let state = tempfile::tempdir().unwrap();
    let config = state.path().join("config.yaml");
    // Events wait for a receiver that is down.
    fs::write(
        &config,
        "webhooks:\n- {name: hook, url: 'http://127.0.0.1:9'}\n- {name: chat, format: slack, url: 'http://127.0.0.1:9'}\n",
    )
    .unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--config")
        .arg(&config)
        .arg("--state-dir")
        .arg(state.path().join("state"));
    let agent = Agent::start_ready(&node, &command).unwrap();
    let claim = || {
        thread::scope(|scope| {
            for (index, pod) in (0..pods).zip(&attackers) {
                let first = index * (addresses / pods);
                scope.spawn(move || claim_all(pod, addresses, first));
            }
        });
    };
    claim();
    for pod in &victims {
        pod.add_address("10.9.9.9/32").unwrap();
    }
    let conflict = agent.wait_raised("10.9.9.9").unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    until(DEADLINE, "every pod to be a claimant", || {
        for n in [0, addresses - 1] {
            let found = claiming_devices(&node, &address(n).to_string())?.len();
            if found != usize::from(pods) {
                claim();
                bail!("{found} of {pods} claim {}", address(n));
            }
        }
        Ok(())
    })
    .unwrap();
    // Each address is in conflict, and its claimants beyond those listed are counted.
    for n in [0, addresses - 1] {
        agent.wait_raised(&address(n).to_string()).unwrap();
    }
    let (used, limit) = (most_resident(&agent), memory_limit());
    println!("{prefix}: {used} of {limit} KiB");
    assert!(used < limit, "{used} of {limit} KiB");
}

/// As many addresses as the agent keeps of one device.
#[test]
fn pods_that_all_claim_the_same_addresses_exhaust_no_memory() {
    assert_memory_suffices("exhaust", 16, 1_024, assign_all);
}

/// Fewer addresses: an unoptimised agent needs about a millisecond for each claim of one that so many have.
#[test]
fn many_pods_that_flood_the_same_claims_exhaust_no_memory() {
    assert_memory_suffices("exhaustraw", 48, 256, announce_all);
}
