//! Addresses that may move between pods (VIPs), and addresses that may not.

use std::time::Duration;

use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Frame, FrameSender, Node, Pod, PodSpec, event::RAISED,
};

use crate::AGENT;

const VIP: &str = "10.244.2.100";
const WITH_LENGTH: &str = "10.244.2.100/32";
/// Long enough for five moves on a busy machine, short enough to wait for its end.
const WINDOW: Duration = Duration::from_secs(15);

struct Site {
    node: Node,
    pods: Vec<Pod>,
    barrier: Barrier,
    agent: Agent,
}

fn site(prefix: &str, allowed: bool) -> Site {
    site_with_window(prefix, allowed, WINDOW)
}

fn site_with_window(prefix: &str, allowed: bool, window: Duration) -> Site {
    let node = Node::new(prefix).unwrap();
    let pods = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let mut command = AgentCommand::run(AGENT)
        .arg("--flap-moves")
        .arg("5")
        .arg("--flap-window")
        .arg(format!("{}s", window.as_secs()));
    if allowed {
        command = command.arg("--allow").arg("10.244.2.96/28");
    }
    let agent = Agent::start_ready(&node, &command).unwrap();
    Site {
        node,
        pods,
        barrier,
        agent,
    }
}

impl Site {
    /// The VIP moves five times; the second pod has it at the end.
    fn flap(&self) {
        take_over(&self.pods[0]);
        let (mut holder, mut other) = (&self.pods[0], &self.pods[1]);
        for number in 1..=5 {
            let events = self.agent.events();
            let of_vip = events.iter().filter(|r| r.event.subject == VIP).count();
            assert_eq!(of_vip, 0, "before move {number}");
            give_up(holder);
            take_over(other);
            (holder, other) = (other, holder);
        }
        self.assert_flapping();
    }

    /// Waits until the VIP is raised as flapping between the two pods.
    fn assert_flapping(&self) {
        let raised = self.agent.wait_event(DEADLINE, |event| event.raises(VIP));
        let conflict = raised.unwrap().event.conflict().unwrap();
        assert_eq!(conflict.kind, "flapping");
        assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    }
}

/// As keepalived: the new holder assigns the address and announces it.
fn take_over(pod: &Pod) {
    pod.add_address(WITH_LENGTH).unwrap();
    FrameSender::open(pod)
        .unwrap()
        .send(&Frame::gratuitous_reply(pod.mac(), VIP.parse().unwrap()))
        .unwrap();
}

fn give_up(pod: &Pod) {
    pod.remove_address(WITH_LENGTH).unwrap();
}

#[test]
fn one_move_of_a_vip_raises_nothing() {
    let site = site("move", true);
    take_over(&site.pods[0]);
    give_up(&site.pods[0]);
    take_over(&site.pods[1]);
    let events = site.barrier.pass(&site.node, &site.agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
    // During a failover both have the address for a moment.
    take_over(&site.pods[0]);
    let events = site.barrier.pass(&site.node, &site.agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
}

#[test]
fn five_moves_are_flapping_until_the_window_ends() {
    let site = site("flapping", true);
    site.flap();
    let resolved = site
        .agent
        .wait_event(WINDOW + DEADLINE, |event| event.resolves(VIP))
        .unwrap();
    let conflict = resolved.event.conflict().unwrap();
    let left = |device| conflict.claimant(device).unwrap().left.clone();
    assert_eq!(left("vetha").as_deref(), Some("address_removed"));
    assert_eq!(left("vethb"), None, "it has the address");
    let raised = site.agent.events();
    let raised = raised.iter().filter(|r| r.event.raises(VIP)).count();
    assert_eq!(raised, 1);
}

#[test]
fn flapping_ends_with_the_removal_of_a_participant() {
    // Longer than the test.
    let mut site = site_with_window("flapgone", true, Duration::from_secs(600));
    site.flap();
    site.pods.pop().unwrap().delete().unwrap();
    let resolved = site
        .agent
        .wait_event(DEADLINE, |event| event.resolves(VIP))
        .unwrap();
    let conflict = resolved.event.conflict().unwrap();
    assert_eq!(conflict.kind, "flapping");
    let left = conflict.claimant("vethb").unwrap().left.clone();
    assert_eq!(left.as_deref(), Some("device_removed"));
    // The other one takes over from no other pod.
    take_over(&site.pods[0]);
    let events = site.barrier.pass(&site.node, &site.agent).unwrap();
    let last = events.iter().rfind(|r| r.event.subject == VIP).unwrap();
    assert!(last.event.resolves(VIP), "{events:#?}");
}

/// As with a load balancer's speaker: the address is not assigned, there are only gratuitous frames.
#[test]
fn five_moves_in_gratuitous_frames_alone_are_flapping() {
    let site = site("announced", true);
    let senders: Vec<_> = site
        .pods
        .iter()
        .map(|pod| FrameSender::open(pod).unwrap())
        .collect();
    let announce = |number: usize| {
        let pod = &site.pods[number % 2];
        let frame = Frame::gratuitous_reply(pod.mac(), VIP.parse().unwrap());
        senders[number % 2].send(&frame).unwrap();
    };
    for number in 0..5 {
        announce(number);
        // Repeated, as speakers do: this is no move.
        announce(number);
    }
    let events = site.barrier.pass(&site.node, &site.agent).unwrap();
    assert!(events.is_empty(), "four moves: {events:#?}");
    announce(5);
    site.assert_flapping();
}

#[test]
fn address_not_allowed_to_move_raises_as_duplicate_at_once() {
    let site = site("strict", false);
    take_over(&site.pods[0]);
    give_up(&site.pods[0]);
    take_over(&site.pods[1]);
    let events = site.barrier.pass(&site.node, &site.agent).unwrap();
    assert!(events.is_empty(), "orderly handover: {events:#?}");
    take_over(&site.pods[0]);
    let raised = site
        .agent
        .wait_event(DEADLINE, |event| event.raises(VIP))
        .unwrap();
    assert_eq!(raised.event.conflict().unwrap().kind, "duplicate");
}

#[test]
fn address_next_to_the_vip_range_is_no_vip() {
    let site = site("beside", true);
    for pod in &site.pods {
        pod.add_address("10.244.2.112/32").unwrap();
    }
    let raised = site
        .agent
        .wait_event(DEADLINE, |event| {
            event.kind == RAISED && event.subject == "10.244.2.112"
        })
        .unwrap();
    assert_eq!(raised.event.conflict().unwrap().kind, "duplicate");
}

/// A link may have an IPv4 address twice, with two prefix lengths; a tool that corrects the length adds
/// the right one before it removes the wrong one.
#[test]
fn changed_prefix_length_keeps_the_claim() {
    let site = site("prefix", false);
    for pod in &site.pods {
        pod.add_address(WITH_LENGTH).unwrap();
    }
    site.agent
        .wait_event(DEADLINE, |event| event.raises(VIP))
        .unwrap();
    site.pods[0].add_address("10.244.2.100/24").unwrap();
    give_up(&site.pods[0]);
    let events = site.barrier.pass(&site.node, &site.agent).unwrap();
    assert_eq!(events.len(), 1, "{events:#?}");
    site.pods[0].remove_address("10.244.2.100/24").unwrap();
    site.agent
        .wait_event(DEADLINE, |event| event.resolves(VIP))
        .unwrap();
}
