//! Probes, and answers of the host on behalf of others (proxy ARP/NDP), are no claims by themselves.

use std::net::{Ipv4Addr, Ipv6Addr};

use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Frame, FrameSender, NaFlags, Node, Pod, PodSpec,
    ReceivedEvent, wait_reachable,
};

use crate::AGENT;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 10);

fn address6() -> Ipv6Addr {
    "fd00::10".parse().unwrap()
}

struct Site {
    node: Node,
    pods: Vec<Pod>,
    barrier: Barrier,
    agent: Agent,
}

impl Site {
    fn new(prefix: &str) -> Self {
        let node = Node::new(prefix).unwrap();
        let specs = ["vetha", "vethb", "vethc"].map(PodSpec::new);
        let pods = node.add_pods(&specs).unwrap();
        let barrier = Barrier::prepare(&node).unwrap();
        let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
        Self {
            node,
            pods,
            barrier,
            agent,
        }
    }

    fn send(&self, pod: usize, frame: &Frame) {
        FrameSender::open(&self.pods[pod])
            .unwrap()
            .send(frame)
            .unwrap();
    }

    fn probe(&self, pod: usize) {
        self.send(pod, &Frame::probe(self.pods[pod].mac(), ADDRESS));
    }

    fn announce(&self, pod: usize) {
        self.send(pod, &Frame::announcement(self.pods[pod].mac(), ADDRESS));
    }

    fn events(&self) -> Vec<ReceivedEvent> {
        self.barrier.pass(&self.node, &self.agent).unwrap()
    }
}

/// Any number of concurrent probes: each host may still find the address free or taken
/// (RFC 5227 §2.1.1).
#[test]
fn probes_alone_raise_nothing() {
    let site = Site::new("probes");
    for pod in 0..3 {
        site.probe(pod);
        site.send(pod, &Frame::dad(site.pods[pod].mac(), address6()));
    }
    let events = site.events();
    assert!(events.is_empty(), "{events:#?}");
}

#[test]
fn probe_against_an_announced_address_raises() {
    let site = Site::new("arp");
    site.announce(0);
    site.probe(1);
    let raised = site
        .agent
        .wait_event(DEADLINE, |event| event.raises("10.244.2.10"))
        .unwrap();
    let conflict = raised.event.conflict().unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    let prober = conflict.claimant("vethb").unwrap();
    assert_eq!(prober.evidence[0].detail.as_deref(), Some("probe"));
    assert_eq!(conflict.claimant("vetha").unwrap().evidence[0].detail, None);
}

#[test]
fn probe_against_an_assigned_address_raises() {
    let site = Site::new("assigned");
    site.pods[0].add_address("10.244.2.10/32").unwrap();
    // The address is observed on another path than the probe: it has to be known first.
    assert!(site.events().is_empty());
    site.probe(1);
    let raised = site
        .agent
        .wait_event(DEADLINE, |event| event.raises("10.244.2.10"))
        .unwrap();
    let conflict = raised.event.conflict().unwrap();
    assert_eq!(
        conflict.claimant("vetha").unwrap().evidence_kinds(),
        ["address"]
    );
    assert_eq!(
        conflict.claimant("vethb").unwrap().evidence_kinds(),
        ["arp"]
    );
}

/// A pod that probes its own address (after a restart of its DHCP client) does not conflict with
/// itself.
#[test]
fn probe_of_ones_own_address_raises_nothing() {
    let site = Site::new("own");
    site.announce(0);
    site.probe(0);
    let own = Frame::advertisement(site.pods[0].mac(), address6(), None, NaFlags::OVERRIDE);
    site.send(0, &own);
    site.send(0, &Frame::dad(site.pods[0].mac(), address6()));
    let events = site.events();
    assert!(events.is_empty(), "{events:#?}");
}

/// A probe is only compared with claims that exist when it is sent, not with a later claim of another
/// pod.
#[test]
fn earlier_probe_does_not_conflict_with_a_later_claim() {
    let site = Site::new("later");
    site.probe(0);
    assert!(site.events().is_empty());
    site.announce(1);
    let events = site.events();
    assert!(events.is_empty(), "{events:#?}");
}

/// As with Calico and others: no device has the pod's gateway address; the node answers for it, and for
/// every other pod, with its own MAC on the egress to the pod.
#[test]
fn proxy_answers_of_the_host_are_no_claims() {
    let node = Node::new("proxy").unwrap();
    node.sysctl("net.ipv4.ip_forward", "1").unwrap();
    node.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let spec = |device: &str, number: u8| {
        PodSpec::new(device)
            .address(format!("10.244.2.{number}/32"))
            .address(format!("fd00::{number}/128"))
            .host_route()
            .proxy_arp()
    };
    let specs = [spec("calia", 10), spec("calib", 11)];
    let pods = node.add_pods(&specs).unwrap();
    for pod in &pods {
        let device = pod.device();
        node.sysctl(&format!("net.ipv6.conf.{device}.proxy_ndp"), "1")
            .unwrap();
        node.ip(&format!("-6 neigh add proxy fd00::1 dev {device}"))
            .unwrap();
        pod.netns()
            .ip_batch([
                "route add 169.254.1.1 dev eth0 scope link",
                "route add default via 169.254.1.1 dev eth0",
                "route add fd00::1/128 dev eth0",
                "route add default via fd00::1 dev eth0",
            ])
            .unwrap();
        // The node also answers for the addresses of other pods that it has a route to.
        pod.netns()
            .ip_batch(["route add 10.244.2.0/24 dev eth0 scope link"])
            .unwrap();
    }
    for (from, to) in [
        (0, "10.244.2.11"),
        (1, "10.244.2.10"),
        (0, "fd00::11"),
        (1, "fd00::10"),
    ] {
        wait_reachable(pods[from].netns(), to.parse().unwrap(), DEADLINE).unwrap();
    }
    let answered = pods[0].netns().ip("neigh show 10.244.2.11").unwrap();
    let host_mac = node.ip("-br link show calia").unwrap();
    let host_mac = host_mac.split_whitespace().nth(2).unwrap();
    assert!(
        answered.contains(host_mac),
        "the node answered for the other pod: {answered} {host_mac}"
    );
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
}
