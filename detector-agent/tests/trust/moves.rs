//! Addresses that may move (VIPs), and those that may not.

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
    let node = Node::new(prefix).unwrap();
    let pods = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let mut command = AgentCommand::run(AGENT)
        .arg("--flap-moves")
        .arg("5")
        .arg("--flap-window")
        .arg(format!("{}s", WINDOW.as_secs()));
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
    /// Waits until the address is told as one that goes back and forth between the two pods.
    fn assert_flapping(&self) {
        let raised = self.agent.wait_event(DEADLINE, |event| event.raises(VIP));
        let conflict = raised.unwrap().event.conflict().unwrap();
        assert_eq!(conflict.kind, "flapping");
        assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    }
}

/// As keepalived: the new holder takes the address and announces it.
fn take(pod: &Pod) {
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
fn one_move_of_an_allowed_address_raises_nothing() {
    let site = site("move", true);
    take(&site.pods[0]);
    give_up(&site.pods[0]);
    take(&site.pods[1]);
    let said = site.barrier.pass(&site.node, &site.agent).unwrap();
    assert!(said.is_empty(), "{said:#?}");
    // Both at once is what a failover looks like for a moment.
    take(&site.pods[0]);
    let said = site.barrier.pass(&site.node, &site.agent).unwrap();
    assert!(said.is_empty(), "{said:#?}");
}

#[test]
fn five_moves_within_the_window_are_flapping_until_it_is_over() {
    let site = site("flapping", true);
    take(&site.pods[0]);
    let (mut holder, mut other) = (&site.pods[0], &site.pods[1]);
    for number in 1..=5 {
        let said = site.agent.events();
        let of_vip = said.iter().filter(|r| r.event.subject == VIP).count();
        assert_eq!(of_vip, 0, "before move {number}");
        give_up(holder);
        take(other);
        (holder, other) = (other, holder);
    }
    site.assert_flapping();
    site.agent
        .wait_event(WINDOW + DEADLINE, |event| event.resolves(VIP))
        .unwrap();
    let raised = site.agent.events();
    let raised = raised.iter().filter(|r| r.event.raises(VIP)).count();
    assert_eq!(raised, 1);
}

/// As a load balancer's speaker announces: nothing is assigned, all there is are gratuitous frames.
#[test]
fn five_moves_by_gratuitous_frames_alone_are_flapping() {
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
        // Once more, as speakers do: no move.
        announce(number);
    }
    let said = site.barrier.pass(&site.node, &site.agent).unwrap();
    assert!(said.is_empty(), "four moves: {said:#?}");
    announce(5);
    site.assert_flapping();
}

#[test]
fn an_address_that_is_not_allowed_is_a_duplicate_as_soon_as_two_have_it() {
    let site = site("strict", false);
    take(&site.pods[0]);
    give_up(&site.pods[0]);
    take(&site.pods[1]);
    let said = site.barrier.pass(&site.node, &site.agent).unwrap();
    assert!(said.is_empty(), "handed on in order: {said:#?}");
    take(&site.pods[0]);
    let raised = site
        .agent
        .wait_event(DEADLINE, |event| event.raises(VIP))
        .unwrap();
    assert_eq!(raised.event.conflict().unwrap().kind, "duplicate");
}

#[test]
fn an_address_next_to_the_allowed_ones_is_no_vip() {
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

/// IPv4 lets one address stand twice on a link, with two prefix lengths; a tool that corrects the length adds the right
/// one before it takes the wrong one away.
#[test]
fn a_changed_prefix_length_does_not_end_the_claim() {
    let site = site("prefix", false);
    for pod in &site.pods {
        pod.add_address(WITH_LENGTH).unwrap();
    }
    site.agent
        .wait_event(DEADLINE, |event| event.raises(VIP))
        .unwrap();
    site.pods[0].add_address("10.244.2.100/24").unwrap();
    give_up(&site.pods[0]);
    let said = site.barrier.pass(&site.node, &site.agent).unwrap();
    assert_eq!(said.len(), 1, "{said:#?}");
    site.pods[0].remove_address("10.244.2.100/24").unwrap();
    site.agent
        .wait_event(DEADLINE, |event| event.resolves(VIP))
        .unwrap();
}
