//! The alert rules on what a real agent exports, in a real Prometheus: each incident has its alert, an agent that dies in the
//! middle ends none of them, and what was over when it is back ends.

use std::{fs, net::Ipv4Addr};

use anyhow::ensure;
use detector_testkit::{
    Agent, DEADLINE, Frame, FrameSender, MacAddress, Node, Pod, PodSpec, announce,
    prometheus::Prometheus, until,
};
use serde_json::json;

use crate::{
    dashboards::queries::{agent_command, start_prometheus},
    host_local::HostLocal,
};

/// The alerts of the incidents, in order.
pub(crate) const ALERTS: [&str; 10] = [
    "IPAMDrift",
    "IPAMLeak",
    "IPAddressConflict",
    "PodAddressSweep",
    "PodAddressUnusable",
    "PodGatewayUnresolved",
    "PodMACDuplicate",
    "PodMACMoved",
    "PodRogueRouter",
    "PodRouteAstray",
];
const OF_INCIDENTS: &str = r#"alertstate="firing",alertname=~"Pod.*|IPAM.*|IPAddressConflict""#;
/// An allocation that no pod uses.
const LEAK: Ipv4Addr = Ipv4Addr::new(10, 244, 50, 20);
/// An address that fails duplicate address detection.
const TAKEN: &str = "address add fd00:9::10/64 dev eth0";

/// Pods for every incident.
fn add_pods(node: &Node) -> Vec<Pod> {
    node.add_bridge("cni0", &["10.244.9.1/24"]).unwrap();
    let routed = |device: &str, address: &str| PodSpec::new(device).address(address);
    let bridged = |device: &str, address: &str| routed(device, address).master("cni0");
    let mut specs = vec![
        routed("vetha", "10.244.2.10/32"),
        routed("vethb", "10.244.2.10/32"),
        routed("vethastray", "10.244.3.10/32").host_route(),
        routed("vethsweep", "10.244.3.11/32"),
        bridged("vethvictim", "10.244.9.10/24"),
        bridged("vethsteal", "10.244.9.11/24"),
        routed("vethrouter", "fd00::10/64"),
        routed("vethdrift", "10.244.50.10/32"),
        bridged("vethmac1", "10.244.9.21/24").mac(MacAddress([2, 0, 0, 0, 9, 9])),
        bridged("vethmac2", "10.244.9.22/24").mac(MacAddress([2, 0, 0, 0, 9, 9])),
        PodSpec::new("vethfirst").master("cni0").ipv6(),
        PodSpec::new("vethlate").master("cni0").ipv6(),
    ];
    for victim in 1..=8 {
        specs.push(routed(
            &format!("vethv{victim}"),
            &format!("10.244.4.{victim}/32"),
        ));
    }
    node.add_pods(&specs).unwrap()
}

fn pod<'p>(pods: &'p [Pod], device: &str) -> &'p Pod {
    pods.iter().find(|pod| pod.device() == device).unwrap()
}

/// The second of two pods stays without the address after the first one gave it up.
fn make_address_unusable(agent: &Agent, pods: &[Pod]) {
    let [first, late] = ["vethfirst", "vethlate"].map(|device| pod(pods, device).netns());
    first.ip(&format!("{TAKEN} nodad")).unwrap();
    late.ip(TAKEN).unwrap();
    agent.wait_raised("fd00:9::10").unwrap();
    until(DEADLINE, "detection to fail", || {
        let shown = late.ip("address show dev eth0")?;
        ensure!(shown.contains("dadfailed"), "{shown}");
        Ok(())
    })
    .unwrap();
    first.ip(&TAKEN.replace(" add ", " del ")).unwrap();
}

/// What keeps the incidents going that are not just there.
fn send_frames(pods: &[Pod]) {
    let pod = |device: &'static str| pod(pods, device);
    let send = |device, frames: &[Vec<u8>]| {
        let sender = FrameSender::open(pod(device)).unwrap();
        sender.send_all(frames).unwrap();
    };
    let sweep = pod("vethsweep").mac();
    let claim = |last| Frame::gratuitous_reply(sweep, [10, 244, 4, last].into()).to_bytes();
    send("vethsweep", &(1..=8).map(claim).collect::<Vec<_>>());
    let astray = pod("vethastray");
    let request = Frame::request(
        astray.mac(),
        astray.ipv4().unwrap(),
        [169, 254, 1, 1].into(),
    );
    send("vethastray", &vec![request.to_bytes(); 4]);
    let router = [0xfe80, 0, 0, 0, 0, 0, 0, 9].into();
    let prefix = [0xfd00, 0, 0, 0, 0, 0, 0, 0].into();
    let advertisement = Frame::router_advertisement(pod("vethrouter").mac(), router, prefix);
    send("vethrouter", &[advertisement.to_bytes()]);
    for device in ["vethmac1", "vethmac2"] {
        announce(pod(device), pod(device).ipv4().unwrap()).unwrap();
    }
    let stolen = Frame::probe(pod("vethvictim").mac(), [192, 0, 2, 77].into());
    send("vethsteal", &vec![stolen.to_bytes(); 4]);
}

fn firing(prometheus: &Prometheus<'_>) -> anyhow::Result<Vec<String>> {
    let series = prometheus.query(&format!("count by (alertname) (ALERTS{{{OF_INCIDENTS}}})"))?;
    let names = series.iter().filter_map(|(l, _)| l["alertname"].as_str());
    let mut names: Vec<_> = names.map(str::to_owned).collect();
    names.sort_unstable();
    Ok(names)
}

/// Waits until the agent has not answered, or has, for ten seconds, five times as long as alerts stay active.
fn wait_for_target(prometheus: &Prometheus<'_>, up: u8) {
    let query = format!("count_over_time((up == {up})[10s:1s]) >= 10");
    prometheus
        .wait(&query, |series| !series.is_empty())
        .unwrap();
}

#[test]
fn agent_that_dies_in_incidents_ends_no_alert() {
    let node = Node::new("incidents").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let settings = json!({"state-dir": path("state"), "ipam-leak-after": "1s"});
    fs::write(path("config.yaml"), settings.to_string()).unwrap();
    fs::create_dir(path("net.d")).unwrap();
    let network = HostLocal::new(&path("net.d"), &["10.244.50.0/24"]);
    network.reserve(LEAK.into(), "gone");
    let command = agent_command(&path("config.yaml"))
        .args(["--ipam=auto", "--cni-conf-dir"])
        .arg(path("net.d"));
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    let prometheus = start_prometheus(&node);
    let pods = add_pods(&node);
    agent.wait_raised("10.244.2.10").unwrap();
    node.ip("route replace unreachable 10.244.3.10").unwrap();
    make_address_unusable(&agent, &pods);
    until(DEADLINE * 2, "the alerts", || {
        send_frames(&pods);
        let firing = firing(&prometheus)?;
        ensure!(firing == ALERTS, "{firing:?}");
        Ok(())
    })
    .unwrap();

    agent.kill().unwrap();
    wait_for_target(&prometheus, 0);
    assert_eq!(firing(&prometheus).unwrap(), ALERTS);

    let mut agent = Agent::start_ready(&node, &command).unwrap();
    wait_for_target(&prometheus, 1);
    assert_eq!(firing(&prometheus).unwrap(), ALERTS);

    agent.kill().unwrap();
    wait_for_target(&prometheus, 0);
    node.delete_pods(pods).unwrap();
    network.release(LEAK.into());
    let _agent = Agent::start_ready(&node, &command).unwrap();
    until(DEADLINE * 2, "the end of the alerts", || {
        let firing = firing(&prometheus)?;
        ensure!(firing.is_empty(), "{firing:?}");
        Ok(())
    })
    .unwrap();
}
