//! The AWS VPC CNI: host ends without an address; the veth pair is created and addressed inside the pod before its host end
//! is moved to the node. The host route is replaced by the newer pod, in the main table, to which a rule leads; each further
//! network interface of the node has a table for what its pods send.

use detector_testkit::{DEADLINE, Netns, wait_reachable};

use crate::{
    kernel::AttachedPod,
    layout::{Layout, unless_present},
};

const A: &str = "eni0d7763386da";
const B: &str = "eni3d5d6ab04b5";
const C: &str = "eni769f2b6ef39";
const ADDRESS: &str = "10.0.12.34";

struct EniPod {
    netns: Netns,
    device: String,
    address: String,
}

impl AttachedPod for EniPod {
    fn netns(&self) -> &Netns {
        &self.netns
    }

    fn host_device(&self) -> &str {
        &self.device
    }
}

impl EniPod {
    /// A pod whose device is on the node, without routes on the node.
    fn new(layout: &Layout, device: &str, address: &str) -> Self {
        let netns = Netns::bare(device, address.contains(':')).unwrap();
        let (gateway, length) = if address.contains(':') {
            ("fe80::1", 128)
        } else {
            ("169.254.1.1", 32)
        };
        let create = [
            "link set lo up".to_owned(),
            format!("link add eth0 type veth peer name {device}"),
            format!("link set {device} up"),
            "link set eth0 up".to_owned(),
            format!("route replace {gateway}/{length} dev eth0 scope link"),
            format!("route add default via {gateway} dev eth0"),
            format!("address add {address}/{length} dev eth0"),
        ];
        netns.ip_batch(create).unwrap();
        let shown = netns.ip(&format!("-j link show dev {device}")).unwrap();
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let mac = shown[0]["address"].as_str().unwrap();
        let move_host_end = [
            format!("neigh add {gateway} lladdr {mac} dev eth0 nud permanent"),
            format!("link set {device} netns {}", layout.node.name()),
        ];
        netns.ip_batch(move_host_end).unwrap();
        layout.ip(&format!("link set {device} up"));
        Self {
            netns,
            device: device.to_owned(),
            address: address.to_owned(),
        }
    }

    /// [`EniPod::new`] with the host route and the rule that leads to it.
    fn routed(layout: &Layout, device: &str, address: &str) -> Self {
        let pod = Self::new(layout, device, address);
        pod.set_route(layout);
        pod
    }

    fn set_route(&self, layout: &Layout) {
        let Self {
            device, address, ..
        } = self;
        layout.ip(&format!("route replace {address} dev {device} scope link"));
        let family = family(address);
        let rule = format!("{family} rule add from all to {address} lookup main priority 512");
        unless_present(layout.node.ip(&rule));
    }

    /// DEL removes the rule and the route by the address alone, whichever pod they lead to, and then the device.
    fn delete(self, layout: &Layout) {
        let Self {
            device, address, ..
        } = self;
        let family = family(&address);
        for line in [
            format!("{family} rule delete from all to {address} lookup main priority 512"),
            format!("{family} route delete {address} scope link"),
        ] {
            if let Err(error) = layout.node.ip(&line) {
                let error = format!("{error:#}");
                assert!(
                    error.contains("No such process") || error.contains("No such file"),
                    "{error}"
                );
            }
        }
        layout.ip(&format!("link delete {device}"));
    }
}

/// The option of `ip` for the family of an address.
fn family(address: &str) -> &'static str {
    if address.contains(':') { "-6" } else { "-4" }
}

/// A second network interface of the node with its table, as ipamd sets it up.
fn add_second_interface(layout: &Layout) {
    let lines = [
        "link add eth1 type veth peer name far1",
        "address add 10.0.12.2/24 dev eth1 noprefixroute",
        "link set far1 up",
        "link set eth1 up",
        "route add 10.0.12.1 dev eth1 scope link table 2",
        "route add default via 10.0.12.1 dev eth1 table 2",
    ];
    layout.node.ip_batch(lines).unwrap();
}

#[test]
fn pods_without_a_duplicate_raise_nothing() {
    let layout = Layout::new("aws");
    add_second_interface(&layout);
    let a = EniPod::routed(&layout, A, "10.0.12.33");
    let b = EniPod::routed(&layout, B, ADDRESS);
    let c = EniPod::routed(&layout, C, "2001:db8::10");
    // b's address is one of the second interface: what it sends elsewhere than to pods leaves there.
    layout.ip(&format!("rule add from {ADDRESS} lookup 2 priority 1536"));
    wait_reachable(a.netns(), ADDRESS.parse().unwrap(), DEADLINE).unwrap();
    let sent = a.netns().ip("neigh show 169.254.1.1").unwrap();
    assert!(sent.contains("PERMANENT"), "{sent}");
    layout.expect_silence(&[&a, &b, &c]);
}

#[test]
fn newer_pod_takes_the_traffic_and_the_route_with_it() {
    for order in [[A, B], [B, A]] {
        let layout = Layout::new("aws");
        let first = EniPod::routed(&layout, order[0], ADDRESS);
        layout.expect_none(&[&first]);
        let second = EniPod::new(&layout, order[1], ADDRESS);
        let both = &[(ADDRESS, &order[..], Some(order[0]))];
        layout.expect(&[&first, &second], both);
        second.set_route(&layout);
        let both = &[(ADDRESS, &order[..], Some(order[1]))];
        layout.expect(&[&first, &second], both);
        let third = EniPod::routed(&layout, C, ADDRESS);
        let all = [A, B, C];
        layout.expect(&[&first, &second, &third], &[(ADDRESS, &all, Some(C))]);
        third.delete(&layout);
        layout.expect(&[&first, &second], &[(ADDRESS, &order, None)]);
        // The older pod's container is restarted.
        first.set_route(&layout);
        let both = &[(ADDRESS, &order[..], Some(order[0]))];
        layout.expect(&[&first, &second], both);
        first.delete(&layout);
        layout.expect_none(&[&second]);
        layout.expect_astray(&[ADDRESS]);
        second.set_route(&layout);
        layout.expect_astray(&[]);
        layout.events();
    }
}

/// The route leads to the newer pod, and the older one's DEL removes it.
#[test]
fn deletion_of_the_older_pod_takes_the_route_of_the_newer_one() {
    let layout = Layout::new("aws");
    let [a, b, c] = [A, B, C].map(|device| EniPod::routed(&layout, device, ADDRESS));
    layout.expect(&[&a, &b, &c], &[(ADDRESS, &[A, B, C], Some(C))]);
    a.delete(&layout);
    layout.expect(&[&b, &c], &[(ADDRESS, &[B, C], None)]);
    c.set_route(&layout);
    layout.expect(&[&b, &c], &[(ADDRESS, &[B, C], Some(C))]);
    b.delete(&layout);
    layout.expect_none(&[&c]);
    layout.events();
}

/// The rule that leads to the main table comes before those of the tables of secondary interfaces.
#[test]
fn rules_decide_between_the_tables() {
    let layout = Layout::new("aws");
    add_second_interface(&layout);
    let a = EniPod::routed(&layout, A, ADDRESS);
    let b = EniPod::new(&layout, B, ADDRESS);
    layout.ip(&format!("rule add from {ADDRESS} lookup 2 priority 1536"));
    let expect = |receiver| layout.expect(&[&a, &b], &[(ADDRESS, &[A, B], receiver)]);
    expect(Some(A));
    // No rule leads to a packet of the node, so the route does not count.
    layout.ip(&format!("route add {ADDRESS} dev {B} scope link table 2"));
    expect(Some(A));
    let rule = format!("from all to {ADDRESS} lookup 2 priority 1024");
    layout.ip(&format!("rule add {rule}"));
    expect(Some(A));
    layout.ip(&format!(
        "rule delete from all to {ADDRESS} lookup main priority 512"
    ));
    expect(Some(B));
    layout.ip(&format!("rule delete {rule}"));
    expect(Some(A));
    layout.ip(&format!("route delete {ADDRESS} dev {A}"));
    expect(None);
}

/// With security groups for pods in strict mode, only packets from the pod's own VLAN and from the pod use its table.
#[test]
fn table_of_a_branch_interface_is_not_the_path_of_the_nodes_packets() {
    const BRANCH: &str = "vlan0d7763386da";
    let layout = Layout::new("aws");
    let branch = EniPod::new(&layout, BRANCH, ADDRESS);
    layout.ip(&format!(
        "route replace {ADDRESS} dev {BRANCH} scope link table 101"
    ));
    layout.ip(&format!("rule add iif {BRANCH} lookup 101 priority 10"));
    let b = EniPod::new(&layout, B, ADDRESS);
    layout.expect(&[&branch, &b], &[(ADDRESS, &[BRANCH, B], None)]);
    b.set_route(&layout);
    layout.expect(&[&branch, &b], &[(ADDRESS, &[BRANCH, B], Some(B))]);
    b.delete(&layout);
    layout.expect_none(&[&branch]);
    layout.events();
}

#[test]
fn ipv6_pods_in_either_order() {
    const IPV6: &str = "2001:db8::10";
    let layout = Layout::new("aws6");
    let a = EniPod::routed(&layout, A, IPV6);
    let b = EniPod::routed(&layout, B, IPV6);
    layout.expect(&[&a, &b], &[(IPV6, &[A, B], Some(B))]);
    a.set_route(&layout);
    layout.expect(&[&a, &b], &[(IPV6, &[A, B], Some(A))]);
    a.delete(&layout);
    layout.expect_none(&[&b]);
    layout.events();
}
