//! A node with a running agent.

use std::net::Ipv4Addr;

use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Frame, FrameSender, Node, Pod, PodSpec,
};

use crate::AGENT;

/// The address that pods have or announce.
pub(crate) const ADDRESS: &str = "10.9.8.5";

pub(crate) struct Site {
    pub(crate) node: Node,
    pub(crate) agent: Agent,
    barrier: Barrier,
}

impl Site {
    /// A node on which `lines` were run by `ip`.
    pub(crate) fn new(prefix: &str, lines: &[&str]) -> Self {
        let node = Node::new(prefix).unwrap();
        node.ip_batch(lines).unwrap();
        let barrier = Barrier::prepare(&node).unwrap();
        let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
        Self {
            node,
            agent,
            barrier,
        }
    }

    /// A pod with the address whose device has this master.
    pub(crate) fn pod(&self, device: &str, master: &str) -> Pod {
        self.add(
            PodSpec::new(device).address(format!("{ADDRESS}/24")),
            master,
        )
    }

    /// A pod without an address whose device has this master.
    pub(crate) fn quiet_pod(&self, device: &str, master: &str) -> Pod {
        self.add(PodSpec::new(device), master)
    }

    /// A pod whose frames the agent observes.
    fn add(&self, spec: PodSpec, master: &str) -> Pod {
        let pod = self.node.add_pod(&spec.master(master)).unwrap();
        self.node.wait_attached(pod.device()).unwrap();
        pod
    }

    /// Runs `bridge` on the node.
    pub(crate) fn bridge(&self, line: &str) {
        let words: Vec<_> = ["bridge"].into_iter().chain(line.split(' ')).collect();
        self.node.exec(&words).unwrap();
    }

    /// Waits for the conflict, and requires its network, VLAN and devices.
    pub(crate) fn expect(&self, network: &str, vlan: Option<u16>, devices: &[&str]) {
        let conflict = self.agent.wait_raised(ADDRESS).unwrap();
        assert_eq!(conflict.network, network);
        let id = vlan.map(serde_json::Value::from);
        assert_eq!(conflict.vlan.filter(|vlan| !vlan.is_null()), id);
        let mut claimants: Vec<_> = conflict.claimants.iter().collect();
        claimants.sort_by(|a, b| a.device.cmp(&b.device));
        let claimants: Vec<_> = claimants.iter().map(|c| c.device.as_str()).collect();
        assert_eq!(claimants, devices);
    }

    /// Waits until this device receives the traffic of the address.
    pub(crate) fn expect_receiver(&self, device: &str) {
        self.agent
            .wait_event(DEADLINE, |event| {
                let conflict = event.conflict();
                conflict.is_some_and(|c| c.traffic_goes_to.as_deref() == Some(device))
            })
            .unwrap();
    }

    pub(crate) fn expect_resolved(&self) {
        self.agent.wait_resolved(ADDRESS).unwrap();
    }

    /// Nothing was reported so far.
    pub(crate) fn assert_silent(&self) {
        let events = self.barrier.pass(&self.node, &self.agent).unwrap();
        assert!(events.is_empty(), "{events:#?}");
    }
}

/// The pod announces the address, with a VLAN tag if there is one.
pub(crate) fn announce(pod: &Pod, tag: Option<u16>) {
    let address: Ipv4Addr = ADDRESS.parse().unwrap();
    let frame = Frame::announcement(pod.mac(), address);
    let frame = tag.into_iter().fold(frame, |frame, tag| frame.vlan(tag));
    FrameSender::open(pod).unwrap().send(&frame).unwrap();
}
