//! Linux answers ARP for every address of a namespace on each interface: an address on `lo` or a dummy of one pod that another
//! pod has is a conflict before either uses it.

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Event, Frame, FrameSender, NaFlags, Node, Pod, PodSpec,
    until,
};

use crate::{AGENT, metrics::metric};

const OWNER: &str = "10.244.1.10";
const SHARED: &str = "10.96.0.10";

/// Two pods behind a bridge; `vetha` has the address of the owner.
fn two_pods(prefix: &str) -> (Node, [Pod; 2]) {
    let node = Node::new(prefix).unwrap();
    node.add_bridge("cni0", &["10.244.1.1/24"]).unwrap();
    let pod = |device, last| {
        let spec = PodSpec::new(device).master("cni0").ipv6();
        let spec = spec.address(format!("10.244.1.{last}/24"));
        node.add_pod(&spec).unwrap()
    };
    let pods = [pod("vetha", 10), pod("vethb", 20)];
    (node, pods)
}

fn start(node: &Node) -> Agent {
    Agent::start_ready(node, &AgentCommand::run(AGENT)).unwrap()
}

fn wait_resolved(agent: &Agent) {
    let resolved = |event: &Event| event.resolves(OWNER);
    agent.wait_event(DEADLINE, resolved).unwrap();
}

fn assert_raised_and_resolved(agent: &Agent, pod: &Pod, interface: &str) {
    let conflict = agent.wait_raised(OWNER).unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    let claimant = conflict.claimant("vethb").unwrap();
    assert_eq!(claimant.evidence_kinds(), ["address"]);
    let detail = claimant.evidence[0].detail.as_deref();
    assert_eq!(detail, Some(format!("on {interface}").as_str()));
    pod.netns()
        .ip(&format!("address delete {OWNER}/32 dev {interface}"))
        .unwrap();
    wait_resolved(agent);
}

#[test]
fn address_added_to_lo_raises() {
    let (node, [_owner, pod]) = two_pods("internallo");
    let agent = start(&node);
    let line = format!("address add {OWNER}/32 dev lo");
    pod.netns().ip(&line).unwrap();
    assert_raised_and_resolved(&agent, &pod, "lo");
}

#[test]
fn address_added_to_a_macvlan_interface_raises() {
    let (node, [_owner, pod]) = two_pods("internalmac");
    let agent = start(&node);
    let lines = [
        "link add link eth0 name macvlan0 type macvlan mode bridge".to_owned(),
        format!("address add {OWNER}/32 dev macvlan0"),
    ];
    pod.netns().ip_batch(lines).unwrap();
    assert_raised_and_resolved(&agent, &pod, "macvlan0");
}

#[test]
fn address_on_lo_before_the_agent_starts_raises() {
    let (node, [_owner, pod]) = two_pods("internalfirst");
    let line = format!("address add {OWNER}/32 dev lo");
    pod.netns().ip(&line).unwrap();
    let agent = start(&node);
    assert_raised_and_resolved(&agent, &pod, "lo");
}

#[test]
fn removed_interface_resolves() {
    let (node, [_owner, pod]) = two_pods("internalgone");
    let agent = start(&node);
    let added = [
        "link add link eth0 name macvlan0 type macvlan mode bridge".to_owned(),
        format!("address add {OWNER}/32 dev macvlan0"),
    ];
    pod.netns().ip_batch(added).unwrap();
    agent.wait_raised(OWNER).unwrap();
    pod.netns().ip("link delete macvlan0").unwrap();
    wait_resolved(&agent);
}

/// Real servers of LVS, the addresses of services in nested nodes, IPv6, and a pod that answers for none of it.
#[test]
fn addresses_that_are_shared_on_purpose_raise_nothing() {
    let (node, pods) = two_pods("internalshared");
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = start(&node);
    node.ip(&format!("address add {SHARED}/32 dev lo")).unwrap();
    let [owner, other] = &pods;
    for pod in &pods {
        let line = format!("address add {SHARED}/32 dev lo");
        pod.netns().ip(&line).unwrap();
    }
    owner
        .netns()
        .ip("address add fd00::10/64 dev eth0 nodad")
        .unwrap();
    other.netns().ip("address add fd00::10/128 dev lo").unwrap();
    // LVS with direct return: the director has the address, the real servers do not answer for it.
    other
        .netns()
        .sysctl("net.ipv4.conf.lo.arp_ignore", "1")
        .unwrap();
    other
        .netns()
        .ip(&format!("address add {OWNER}/32 dev lo"))
        .unwrap();
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
}

/// Frames of an address on `lo` count for nothing against pods that have it there as well, and in full against this one: it has the
/// address on its device, or its stack is its own.
#[test]
fn address_of_another_pod_on_lo_hides_no_frames() {
    const OWNER6: &str = "fd00::10";
    for has_own_stack in [false, true] {
        let (node, [owner, pod]) = two_pods("internalhide");
        let claim = |pod: &Pod| {
            let (mac, address) = (pod.mac(), OWNER6.parse().unwrap());
            let frame = Frame::advertisement(mac, address, Some(mac), NaFlags::OVERRIDE);
            FrameSender::open(pod).unwrap().send(&frame).unwrap();
        };
        if !has_own_stack {
            let line = format!("address add {OWNER6}/64 dev eth0 nodad");
            owner.netns().ip(&line).unwrap();
        }
        let agent = start(&node);
        // Linux does not answer NDP for it, so it is no claim of its own. One that is raised shows that the namespace was read.
        let lines = [
            format!("address add {OWNER6}/128 dev lo"),
            "link add link eth0 name macvlan0 type macvlan mode bridge".to_owned(),
            format!("address add {OWNER}/32 dev macvlan0"),
        ];
        pod.netns().ip_batch(lines).unwrap();
        agent.wait_raised(OWNER).unwrap();
        if has_own_stack {
            claim(&owner);
        }
        claim(&pod);
        let conflict = agent.wait_raised(OWNER6).unwrap();
        assert_eq!(conflict.devices(), ["vetha", "vethb"]);
        let kinds = conflict.claimant("vethb").unwrap().evidence_kinds();
        assert!(kinds.contains(&"ndp"), "{kinds:?}");
    }
}

#[test]
fn address_behind_many_others_on_lo_raises() {
    let (node, [_owner, pod]) = two_pods("internalmany");
    let agent = start(&node);
    let others = (0..1_500u32).map(|n| std::net::Ipv4Addr::from(0x0a01_0000 + n));
    let lines = others.map(|address| format!("address add {address}/32 dev lo"));
    let last = format!("address add {OWNER}/32 dev lo");
    pod.netns().ip_batch(lines.chain([last])).unwrap();
    let conflict = agent.wait_raised(OWNER).unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
}

/// More than are read of one namespace.
#[test]
fn addresses_on_lo_beyond_all_bounds_are_counted_and_logged() {
    let (node, [_owner, pod]) = two_pods("internalbeyond");
    let many = (0..16_500u32).map(|n| std::net::Ipv4Addr::from(0x0a01_0000 + n));
    let lines = many.map(|address| format!("address add {address}/32 dev lo"));
    pod.netns().ip_batch(lines).unwrap();
    let agent = start(&node);
    let log = agent.wait_log(DEADLINE, "addresses on internal interfaces");
    assert!(log.unwrap().contains("vethb"));
    until(DEADLINE, "the addresses to be counted", || {
        let series = r#"ipconflict_observations_dropped_total{reason="claims_per_device"}"#;
        ensure!(metric(&node, series)? > 0, "none");
        Ok(())
    })
    .unwrap();
}
