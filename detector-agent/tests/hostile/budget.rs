//! Floods of ARP beyond a device's budget in the kernel, with one claim in between that must not be missed.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    thread,
};

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Frame, FrameSender, MacAddress, NaFlags, Node, Pod,
    PodSpec, until,
};

use crate::{
    AGENT,
    metrics::{metric, wait_claims, wait_table},
};

/// Frames of one flood before, and after, the claim in between. The budget is used up after a fraction of them.
const HALF: u32 = 10_000;

/// An address of the pods that are flooded from nowhere else.
fn victim(n: usize) -> String {
    format!("10.244.1.{}", 10 + n)
}

/// The address of pod `n`, which `vethvictim{n}` is.
fn victim_pod(n: usize) -> PodSpec {
    PodSpec::new(format!("vethvictim{n}")).address(format!("{}/32", victim(n)))
}

fn hostile_pods(node: &Node, count: usize) -> Vec<Pod> {
    let specs: Vec<_> = (0..count)
        .map(|n| PodSpec::new(format!("vethhostile{n}")))
        .collect();
    node.add_pods(&specs).unwrap()
}

/// Claims addresses that differ in each frame and are different for each `base`, and once, in between, `address`.
fn flood(pod: &Pod, base: u8, address: Option<&str>) {
    let inside = address.map(|address| claim(pod, address.parse().unwrap()));
    flood_around(pod, base, inside);
}

/// The same around any frame.
pub(crate) fn flood_around(pod: &Pod, base: u8, inside: Option<Frame>) {
    let nth = |n: u32| Ipv4Addr::from(n).into();
    send_around(pod, base, nth, inside);
}

/// As [`flood`], with neighbour advertisements.
fn flood_ipv6(pod: &Pod, base: u8, address: Option<&str>) {
    let prefix = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0).to_bits();
    let nth = |n: u32| Ipv6Addr::from_bits(prefix | u128::from(n)).into();
    let inside = address.map(|address| claim(pod, address.parse().unwrap()));
    send_around(pod, base, nth, inside);
}

fn send_around(pod: &Pod, base: u8, nth: impl Fn(u32) -> IpAddr, inside: Option<Frame>) {
    let first = u32::from_be_bytes([base, 0, 0, 0]);
    let numbers = first..first + 2 * HALF;
    let mut frames: Vec<_> = numbers.map(|n| claim(pod, nth(n)).to_bytes()).collect();
    if let Some(inside) = inside {
        frames.insert(HALF as usize, inside.to_bytes());
    }
    FrameSender::open(pod).unwrap().send_all(&frames).unwrap();
}

fn claim(pod: &Pod, address: IpAddr) -> Frame {
    let mac = pod.mac();
    match address {
        IpAddr::V4(address) => Frame::announcement(mac, address),
        IpAddr::V6(address) => Frame::advertisement(mac, address, Some(mac), NaFlags::OVERRIDE),
    }
}

/// Most frames were beyond the budgets of these devices, and the log names each once.
fn assert_flood_is_reported(node: &Node, agent: &Agent, hostile: &[Pod], frames: u64) {
    until(DEADLINE, "the dropped frames to be counted", || {
        let series = r#"ipconflict_observations_dropped_total{reason="budget"}"#;
        let dropped = metric(node, series)?;
        ensure!(dropped > frames / 10 * 9, "{dropped} of {frames}");
        Ok(())
    })
    .unwrap();
    for pod in hostile {
        let named = format!("\"device\":\"{}\"", pod.device());
        until(DEADLINE, "the device to be named", || {
            let log = agent.log();
            let lines = log
                .lines()
                .filter(|line| line.contains("exceeded its budget"));
            let count = lines.filter(|line| line.contains(&named)).count();
            ensure!(count == 1, "{count} lines name {named} in\n{log}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn advertisement_inside_a_flood_raises() {
    let node = Node::new("flood6").unwrap();
    let address = "2001:db8::10";
    let victim = PodSpec::new("vethvictim0").address(format!("{address}/128"));
    let _victim = node.add_pod(&victim).unwrap();
    let hostile = hostile_pods(&node, 1);
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    flood_ipv6(&hostile[0], 100, Some(address));
    let conflict = agent.wait_raised(address).unwrap();
    assert_eq!(conflict.devices(), ["vethhostile0", "vethvictim0"]);
    assert_flood_is_reported(&node, &agent, &hostile, 2 * u64::from(HALF));
}

#[test]
fn claim_inside_a_flood_behind_a_bridge_raises() {
    let node = Node::new("floodbridge").unwrap();
    node.add_bridge("cni0", &["10.244.1.1/24"]).unwrap();
    let _victim = node.add_pod(&victim_pod(0).master("cni0")).unwrap();
    let hostile = PodSpec::new("vethhostile0").master("cni0");
    let hostile = [node.add_pod(&hostile).unwrap()];
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    flood(&hostile[0], 100, Some(&victim(0)));
    let conflict = agent.wait_raised(&victim(0)).unwrap();
    assert_eq!(conflict.devices(), ["vethhostile0", "vethvictim0"]);
    assert_flood_is_reported(&node, &agent, &hostile, 2 * u64::from(HALF));
}

#[test]
fn claim_inside_a_flood_raises() {
    let node = Node::new("flood").unwrap();
    let _victim = node.add_pod(&victim_pod(0)).unwrap();
    let hostile = hostile_pods(&node, 1);
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    flood(&hostile[0], 100, Some(&victim(0)));
    let conflict = agent.wait_raised(&victim(0)).unwrap();
    assert_eq!(conflict.devices(), ["vethhostile0", "vethvictim0"]);
    // A flood afterwards does not end it.
    flood(&hostile[0], 101, None);
    barrier.pass(&node, &agent).unwrap();
    let events = agent.events();
    assert!(events.iter().all(|e| !e.event.resolves(&victim(0))));
    assert_flood_is_reported(&node, &agent, &hostile, 4 * u64::from(HALF));
}

/// Advertisements for the IPv4-mapped form of the victim's address, and for the IPv6 address that begins with the same bytes, use
/// nothing up that its ARP claims need.
#[test]
fn mapped_addresses_hide_no_arp_claim() {
    let node = Node::new("mapped").unwrap();
    let _victim = node.add_pod(&victim_pod(0)).unwrap();
    let hostile = hostile_pods(&node, 1);
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let _last = wait_table(&node, 2);
    flood(&hostile[0], 100, None);
    let address: Ipv4Addr = victim(0).parse().unwrap();
    let mac = |n| MacAddress([2, 0, 0, 0, 2, n]);
    let [a, b, c, d] = address.octets();
    let same_bytes = Ipv6Addr::from([a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let of_both = |n| {
        let mac = mac(n);
        [address.to_ipv6_mapped(), same_bytes].map(|claimed| {
            Frame::advertisement(mac, claimed, Some(mac), NaFlags::OVERRIDE).to_bytes()
        })
    };
    let claim = Frame::announcement(hostile[0].mac(), address).to_bytes();
    let frames: Vec<_> = (0..200).flat_map(of_both).chain([claim]).collect();
    let sender = FrameSender::open(&hostile[0]).unwrap();
    sender.send_all(&frames).unwrap();
    let conflict = agent.wait_raised(&victim(0)).unwrap();
    assert_eq!(conflict.devices(), ["vethhostile0", "vethvictim0"]);
    let series = r#"ipconflict_frames_rejected_total{reason="address"}"#;
    until(DEADLINE, "the advertisements to be counted", || {
        let rejected = metric(&node, series)?;
        ensure!(rejected >= 200, "{rejected}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn four_flooding_pods_hide_no_claim() {
    let node = Node::new("floods").unwrap();
    let victims: Vec<_> = (0..4).map(victim_pod).collect();
    let _victims = node.add_pods(&victims).unwrap();
    let hostile = hostile_pods(&node, 4);
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    thread::scope(|scope| {
        for (base, (n, pod)) in (100..).zip(hostile.iter().enumerate()) {
            scope.spawn(move || flood(pod, base, Some(&victim(n))));
        }
    });
    for n in 0..4 {
        let conflict = agent.wait_raised(&victim(n)).unwrap();
        let devices = [format!("vethhostile{n}"), format!("vethvictim{n}")];
        assert_eq!(conflict.devices(), devices);
    }
    assert_flood_is_reported(&node, &agent, &hostile, 8 * u64::from(HALF));
}

#[test]
fn pod_that_starts_during_a_flood_is_protected() {
    let node = Node::new("floodstart").unwrap();
    let hostile = hostile_pods(&node, 1);
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    // It claims the address before that as well, which is no conflict yet.
    flood(&hostile[0], 100, Some(&victim(0)));
    let _victim = node.add_pod(&victim_pod(0)).unwrap();
    wait_claims(&node, &victim(0), 1);
    let _last = wait_table(&node, 2);
    flood(&hostile[0], 101, Some(&victim(0)));
    let conflict = agent.wait_raised(&victim(0)).unwrap();
    assert_eq!(conflict.devices(), ["vethhostile0", "vethvictim0"]);
}

#[test]
fn claim_evicted_before_the_victim_started_raises_at_once() {
    let node = Node::new("evicted").unwrap();
    let hostile = hostile_pods(&node, 1);
    let sender = FrameSender::open(&hostile[0]).unwrap();
    let claim = Frame::announcement(hostile[0].mac(), victim(0).parse().unwrap());
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    // Writing the whole table, as after the start, has all claims published again.
    let _first = wait_table(&node, 1);
    // Published, and dropped by the agent in favour of the claims that follow.
    sender.send(&claim).unwrap();
    let claims = |count| wait_claims(&node, &victim(0), count);
    claims(1);
    let mut base = 100..;
    until(DEADLINE, "the claim to be dropped", || {
        flood(&hostile[0], base.next().unwrap(), None);
        let series = r#"ipconflict_observations_dropped_total{reason="claims_per_device"}"#;
        ensure!(metric(&node, series)? > 0, "none dropped");
        Ok(())
    })
    .unwrap();
    claims(0);
    let _victim = node.add_pod(&victim_pod(0)).unwrap();
    claims(1);
    let _last = wait_table(&node, 3);
    sender.send(&claim).unwrap();
    let conflict = agent.wait_raised(&victim(0)).unwrap();
    assert_eq!(conflict.devices(), ["vethhostile0", "vethvictim0"]);
}
