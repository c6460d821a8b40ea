//! Pods that fill their bounds hide no conflict, neither before nor after it begins.

use std::net::Ipv4Addr;

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Frame, FrameSender, Node, Pod, PodSpec, http::TestClient, until,
};

use crate::AGENT;

/// The bound on the claims of one device in each way is 1,024.
const MANY: u16 = 2_000;
const FILLERS: [&str; 4] = ["vethfilla", "vethfillb", "vethfillc", "vethfilld"];

/// The `n`th address of a filler; all of them are different.
fn nth(filler: usize, n: u16) -> Ipv4Addr {
    let [high, low] = n.to_be_bytes();
    let second = 20 + u8::try_from(filler).unwrap();
    Ipv4Addr::new(10, second, high, low)
}

fn assign_many(pod: &Pod, filler: usize) {
    let lines = (0..MANY).map(|n| format!("address add {}/32 dev eth0", nth(filler, n)));
    pod.netns().ip_batch(lines).unwrap();
}

fn node_with_fillers(prefix: &str) -> (Node, Vec<Pod>) {
    let node = Node::new(prefix).unwrap();
    let filler = |device| PodSpec::new(device).ipv6();
    let fillers = node.add_pods(&FILLERS.map(filler)).unwrap();
    (node, fillers)
}

fn start(node: &Node) -> Agent {
    Agent::start_ready(node, &AgentCommand::run(AGENT)).unwrap()
}

fn add_victim(node: &Node, device: &str, address: Ipv4Addr) -> Pod {
    let spec = PodSpec::new(device).address(format!("{address}/32"));
    node.add_pod(&spec).unwrap()
}

fn assert_raised(agent: &Agent, address: Ipv4Addr, devices: [&str; 2]) {
    let conflict = agent.wait_raised(&address.to_string()).unwrap();
    assert_eq!(conflict.devices(), devices);
    assert_eq!(conflict.confidence, "certain");
}

#[test]
fn addresses_of_four_pods_beyond_their_bounds_conflict_with_later_pods() {
    let (node, fillers) = node_with_fillers("boundlater");
    let agent = start(&node);
    for (filler, pod) in fillers.iter().enumerate() {
        assign_many(pod, filler);
    }
    let victims: Vec<_> = FILLERS
        .iter()
        .enumerate()
        .map(|(filler, device)| {
            let address = nth(filler, MANY - 1);
            let name = format!("vethvictim{filler}");
            let pod = add_victim(&node, &name, address);
            assert_raised(&agent, address, [device, &name]);
            pod
        })
        .collect();
    // Conflicts of others are not affected.
    let address = Ipv4Addr::new(10, 9, 9, 9);
    for pod in &victims[..2] {
        pod.add_address(&format!("{address}/32")).unwrap();
    }
    assert_raised(&agent, address, ["vethvictim0", "vethvictim1"]);
}

#[test]
fn pod_beyond_its_bound_conflicts_with_earlier_pods() {
    let (node, fillers) = node_with_fillers("boundearly");
    let address = Ipv4Addr::new(10, 9, 9, 9);
    let _victim = add_victim(&node, "vethvictim", address);
    let agent = start(&node);
    assign_many(&fillers[0], 0);
    fillers[0].add_address(&format!("{address}/32")).unwrap();
    assert_raised(&agent, address, [FILLERS[0], "vethvictim"]);
}

#[test]
fn pod_beyond_its_bound_of_ipv6_addresses_conflicts_with_earlier_pods() {
    let (node, fillers) = node_with_fillers("boundearly6");
    let address = "2001:db8::10";
    let victim = PodSpec::new("vethvictim").address(format!("{address}/128"));
    let _victim = node.add_pod(&victim).unwrap();
    let agent = start(&node);
    let lines = (0..MANY).map(|n| format!("address add 2001:db8:1::{n:x}/128 dev eth0 nodad"));
    fillers[0].netns().ip_batch(lines).unwrap();
    fillers[0].add_address(&format!("{address}/128")).unwrap();
    let conflict = agent.wait_raised(address).unwrap();
    assert_eq!(conflict.devices(), [FILLERS[0], "vethvictim"]);
    assert_eq!(conflict.confidence, "certain");
}

#[test]
fn addresses_beyond_the_bound_before_the_start_conflict() {
    let (node, fillers) = node_with_fillers("boundstart");
    assign_many(&fillers[0], 0);
    let _victim = add_victim(&node, "vethvictim", nth(0, MANY - 1));
    let agent = start(&node);
    assert_raised(&agent, nth(0, MANY - 1), [FILLERS[0], "vethvictim"]);
    let _later = add_victim(&node, "vethlater", nth(0, MANY - 2));
    assert_raised(&agent, nth(0, MANY - 2), [FILLERS[0], "vethlater"]);
}

/// More claims in frames than are kept: the newest one is a claim, and the log names the device.
#[test]
fn claims_in_frames_beyond_the_bound_conflict() {
    let (node, fillers) = node_with_fillers("boundframes");
    let address = Ipv4Addr::new(10, 9, 9, 9);
    let _victim = add_victim(&node, "vethvictim", address);
    let agent = start(&node);
    let client = TestClient::of_agent(&node);
    let sender = FrameSender::open(&fillers[0]).unwrap();
    let mac = fillers[0].mac();
    for first in (0..1_100).step_by(100) {
        // What exceeds the device's budget in the kernel is sent again.
        until(DEADLINE, "the agent to have seen the newest frames", || {
            let claims = client.get("/api/v1/claims")?.body;
            let batch = (first..first + 100).map(|n| nth(0, n));
            let missing = batch.filter(|address| !claims.contains(&format!("\"{address}\"")));
            let missing: Vec<_> = missing.collect();
            for address in &missing {
                sender.send(&Frame::announcement(mac, *address))?;
            }
            ensure!(missing.is_empty(), "{} are missing", missing.len());
            Ok(())
        })
        .unwrap();
    }
    sender.send(&Frame::announcement(mac, address)).unwrap();
    let conflict = agent.wait_raised(&address.to_string()).unwrap();
    assert_eq!(conflict.devices(), [FILLERS[0], "vethvictim"]);
    let log = agent.wait_log(DEADLINE, "bound reached").unwrap();
    assert!(log.contains(FILLERS[0]), "{log}");
}
