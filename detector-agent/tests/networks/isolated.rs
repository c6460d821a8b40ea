//! Bridges that the node does not route are networks of their own.

use detector_testkit::{Agent, AgentCommand, Barrier, Node, Pod, PodSpec, ReceivedEvent, announce};

use crate::AGENT;

const ADDRESS: &str = "10.9.8.5";

struct Site {
    node: Node,
    barrier: Barrier,
    agent: Agent,
}

impl Site {
    /// A node with isolated bridges and a running agent.
    fn new(prefix: &str, bridges: &[&str]) -> Self {
        let node = Node::new(prefix).unwrap();
        for bridge in bridges {
            node.add_bridge(bridge, &[]).unwrap();
        }
        let barrier = Barrier::prepare(&node).unwrap();
        let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
        Self {
            node,
            barrier,
            agent,
        }
    }

    /// A pod on a bridge that has the address and announces it.
    fn pod(&self, device: &str, bridge: &str) -> Pod {
        let spec = PodSpec::new(device).address(format!("{ADDRESS}/24"));
        let pod = self.node.add_pod(&spec.master(bridge)).unwrap();
        self.node.wait_attached(device).unwrap();
        announce(&pod, ADDRESS.parse().unwrap()).unwrap();
        pod
    }

    fn events(&self) -> Vec<ReceivedEvent> {
        self.barrier.pass(&self.node, &self.agent).unwrap()
    }

    /// Nothing was reported so far.
    fn assert_silent(&self) {
        let events = self.events();
        assert!(events.is_empty(), "{events:#?}");
    }
}

#[test]
fn one_address_on_two_isolated_bridges_raises_nothing() {
    let site = Site::new("isol", &["br1", "br2"]);
    let _pods = [site.pod("vetha", "br1"), site.pod("vethb", "br2")];
    site.assert_silent();
}

#[test]
fn one_address_twice_on_an_isolated_bridge_is_raised_there() {
    let site = Site::new("isoltwice", &["br1", "br2"]);
    let _pods = [
        site.pod("vetha", "br1"),
        site.pod("vethb", "br2"),
        site.pod("vethc", "br2"),
    ];
    let conflict = site.agent.wait_raised(ADDRESS).unwrap();
    assert_eq!(conflict.network, "bridge:br2");
    assert_eq!(conflict.devices(), ["vethb", "vethc"]);
    assert_eq!(conflict.traffic_goes_to, None);
}

#[test]
fn bridges_join_the_nodes_network_with_their_addresses_and_leave_it_again() {
    let site = Site::new("isoljoin", &["br1", "br2"]);
    let _pods = [site.pod("vetha", "br1"), site.pod("vethb", "br2")];
    site.node.ip("address add 10.9.8.1/24 dev br1").unwrap();
    site.assert_silent();
    site.node.ip("address add 10.9.8.2/24 dev br2").unwrap();
    let conflict = site.agent.wait_raised(ADDRESS).unwrap();
    assert_eq!(conflict.network, "node");
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    site.node.ip("address del 10.9.8.2/24 dev br2").unwrap();
    site.agent.wait_resolved(ADDRESS).unwrap();
}

/// As Multus attaches pods: `eth0` in the cluster's network, `net1` on an isolated bridge with addresses of its own.
#[test]
fn pods_with_a_second_interface_conflict_only_within_one_network() {
    let site = Site::new("multus", &["br1"]);
    site.node.add_bridge("cni0", &["10.9.8.1/24"]).unwrap();
    let pod = |name: &str, address: &str, second: &str| {
        let spec = PodSpec::new(format!("veth{name}")).address(format!("{address}/24"));
        let pod = site.node.add_pod(&spec.master("cni0")).unwrap();
        let netns = pod.netns().name();
        site.node
            .ip_batch([
                format!("link add net{name} type veth peer name net1 netns {netns}"),
                format!("link set net{name} master br1 up"),
            ])
            .unwrap();
        pod.netns()
            .ip_batch([
                format!("address add {second}/24 dev net1"),
                "link set net1 up".to_owned(),
            ])
            .unwrap();
        pod
    };
    // On net1, each has the address that another pod has on eth0.
    let _pods = [
        pod("a", "10.9.8.5", "10.9.8.6"),
        pod("b", "10.9.8.6", "10.9.8.7"),
        pod("c", "10.9.8.7", "10.9.8.5"),
    ];
    site.assert_silent();
    let _other = pod("d", "10.9.8.8", "10.9.8.5");
    let conflict = site.agent.wait_raised("10.9.8.5").unwrap();
    assert_eq!(conflict.network, "bridge:br1");
    assert_eq!(conflict.devices(), ["netc", "netd"]);
}

/// Docker gives each of its bridges an address; a plugin's bridge beside them is in the same routing domain.
#[test]
fn bridges_of_docker_share_the_nodes_network_with_that_of_a_plugin() {
    let site = Site::new("docker", &[]);
    for (bridge, gateway) in [
        ("docker0", "172.17.0.1/16"),
        ("br-c0ffee", "172.18.0.1/16"),
        ("cni0", "10.9.8.1/24"),
    ] {
        site.node.add_bridge(bridge, &[gateway]).unwrap();
    }
    let pod = |device: &str, bridge: &str, address: &str| {
        let spec = PodSpec::new(device).address(address);
        site.node.add_pod(&spec.master(bridge)).unwrap()
    };
    let _pods = [
        pod("vetha", "docker0", "172.17.0.2/16"),
        pod("vethb", "br-c0ffee", "172.18.0.2/16"),
        pod("vethc", "cni0", "10.9.8.5/24"),
    ];
    site.assert_silent();
    let _other = pod("vethd", "br-c0ffee", "10.9.8.5/24");
    let conflict = site.agent.wait_raised(ADDRESS).unwrap();
    assert_eq!(conflict.network, "node");
    assert_eq!(conflict.devices(), ["vethc", "vethd"]);
}
