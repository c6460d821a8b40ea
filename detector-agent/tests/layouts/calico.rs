//! Calico: host ends without an address, all with the same hardware address, that answer ARP for the pods' gateway; Felix
//! programs a host route for each pod, the CNI plugin another one before it.

use anyhow::ensure;
use detector_testkit::{
    DEADLINE, Frame, FrameSender, MacAddress, NaFlags, Pod, PodSpec, http::TestClient, until,
    wait_reachable,
};

use crate::{
    kernel::AttachedPod,
    layout::{Layout, add_gateway},
};

const A: &str = "cali0d7763386da";
const B: &str = "cali3d5d6ab04b5";
const C: &str = "cali769f2b6ef39";
const IPV4: &str = "10.244.1.10";
const IPV6: &str = "2001:db8::10";
/// What every host end has: the EUI-64 address of Calico's hardware address.
const IPV6_GATEWAY: &str = "fe80::ecee:eeff:feee:eeee";

/// A pod with these addresses, without a host route.
fn pod(layout: &Layout, device: &str, addresses: &[&str]) -> Pod {
    let spec = PodSpec::new(device)
        .host_mac(MacAddress([0xee; 6]))
        .proxy_arp()
        .rp_filter(1);
    let spec = addresses.iter().fold(spec, |spec, address| {
        let length = if address.contains(':') { 128 } else { 32 };
        spec.address(format!("{address}/{length}"))
    });
    // As Calico does on both ends: the gateway answers from the start.
    let dad = "net.ipv6.conf.default.accept_dad";
    layout.node.sysctl(dad, "0").unwrap();
    let pod = layout.node.add_pod(&spec).unwrap();
    add_gateway(&pod, "169.254.1.1");
    if addresses.iter().any(|address| address.contains(':')) {
        let proxy_ndp = format!("net.ipv6.conf.{device}.proxy_ndp");
        layout.node.sysctl(&proxy_ndp, "1").unwrap();
        let route = format!("route add default via {IPV6_GATEWAY} dev eth0");
        pod.netns().ip(&route).unwrap();
    }
    pod
}

/// Felix replaces the route of an address if it prefers another endpoint.
fn set_route(layout: &Layout, device: &str) {
    layout.ip(&format!("route replace {IPV4}/32 dev {device} scope link"));
}

#[test]
fn pods_without_a_duplicate_raise_nothing() {
    let layout = Layout::new("calico");
    layout.node.ip_batch(TUNNEL).unwrap();
    let pods: Vec<_> = [A, B, C]
        .iter()
        .zip(1..)
        .map(|(device, number)| {
            let addresses = [format!("10.244.1.{number}"), format!("2001:db8::{number}")];
            let pod = pod(&layout, device, &addresses.each_ref().map(String::as_str));
            let [ipv4, ipv6] = addresses;
            layout.ip(&format!("route add {ipv4}/32 dev {device} scope link"));
            layout.ip(&format!("route add {ipv6}/128 dev {device} metric 1024"));
            pod
        })
        .collect();
    for address in ["10.244.1.2", "2001:db8::2"] {
        // The gateway's hardware address is the node's answer by proxy.
        wait_reachable(pods[0].netns(), address.parse().unwrap(), DEADLINE).unwrap();
        wait_reachable(&layout.node, address.parse().unwrap(), DEADLINE).unwrap();
    }
    let entry = pods[0].netns().ip("neigh show 169.254.1.1").unwrap();
    assert!(entry.contains("lladdr ee:ee:ee:ee:ee:ee"), "{entry}");
    let pods: Vec<_> = pods.iter().map(|pod| pod as &dyn AttachedPod).collect();
    layout.expect_silence(&pods);
}

#[test]
fn route_follows_felix_in_either_order() {
    for order in [[A, B], [B, A]] {
        let layout = Layout::new("calico");
        let [first, second] = order.map(|device| pod(&layout, device, &[IPV4]));
        set_route(&layout, first.device());
        layout.expect(&[&first, &second], &[(IPV4, &order, Some(order[0]))]);
        set_route(&layout, second.device());
        layout.expect(&[&first, &second], &[(IPV4, &order, Some(order[1]))]);
        let third = pod(&layout, C, &[IPV4]);
        let all = [A, B, C];
        layout.expect(&[&first, &second, &third], &[(IPV4, &all, Some(order[1]))]);
        // The route goes with its device; the node would send to its uplink.
        second.delete().unwrap();
        let left = [order[0], C];
        layout.expect(&[&first, &third], &[(IPV4, &left, None)]);
        set_route(&layout, C);
        layout.expect(&[&first, &third], &[(IPV4, &left, Some(C))]);
        first.delete().unwrap();
        layout.expect_none(&[&third]);
        layout.events();
    }
}

/// The node's route for a virtual address on `lo` leads to one pod and then to the other. Once it is used, Linux asks for the
/// pod's gateway from it (`arp_solicit` in net/ipv4/arp.c).
#[test]
fn used_anycast_address_raises_nothing() {
    const VIP: &str = "10.96.0.10";
    const VIP6: &str = "2001:db8:96::10";
    let layout = Layout::new("anycast");
    let own = [
        (A, ["10.244.1.1", "2001:db8::1"]),
        (B, ["10.244.1.2", "2001:db8::2"]),
    ];
    let pods = own.map(|(device, addresses)| pod(&layout, device, &addresses));
    for pod in &pods {
        for vip in [VIP, VIP6] {
            pod.netns()
                .ip(&format!("address add {vip} dev lo"))
                .unwrap();
        }
    }
    let client = TestClient::of_agent(&layout.node);
    for pod in &pods {
        layout.node.wait_attached(pod.device()).unwrap();
    }
    for pod in pods.iter().chain(&pods) {
        layout.ip(&format!("route replace {VIP}/32 dev {}", pod.device()));
        pod.netns().ip("neigh flush dev eth0").unwrap();
        wait_reachable(&layout.node, VIP.parse().unwrap(), DEADLINE).unwrap();
        let vip6 = VIP6.parse().unwrap();
        let sent = Frame::advertisement(pod.mac(), vip6, Some(pod.mac()), NaFlags::OVERRIDE);
        FrameSender::open(pod).unwrap().send(&sent).unwrap();
        for (vip, kind) in [(VIP, "arp"), (VIP6, "ndp")] {
            let path = format!("/api/v1/claims?address={vip}");
            until(DEADLINE, format_args!("a frame of {vip}"), || {
                let claims = client.get(&path)?.json()?;
                let all = claims["claims"].as_array().into_iter().flatten();
                let mut own = all.filter(|claim| claim["device"] == pod.device());
                let own = own.next().and_then(|claim| claim["evidence"].as_array());
                ensure!(
                    own.into_iter().flatten().any(|e| e["kind"] == kind),
                    "{claims:#}"
                );
                Ok(())
            })
            .unwrap();
        }
    }
    let events = layout.events();
    assert!(events.is_empty(), "{events:#?}");
    // A pod that does not have it claims it.
    let other = pod(&layout, C, &["10.244.1.3"]);
    layout.node.wait_attached(C).unwrap();
    let sent = Frame::announcement(other.mac(), VIP.parse().unwrap());
    FrameSender::open(&other).unwrap().send(&sent).unwrap();
    let conflict = layout.agent.wait_raised(VIP).unwrap();
    assert_eq!(conflict.confidence, "observed");
    assert!(
        [A, B, C]
            .iter()
            .all(|device| conflict.claimant(device).is_some())
    );
}

/// The plugin finds no route of its own metric, so it adds a second one.
#[test]
fn routes_of_felix_and_of_the_plugin_coexist() {
    let felix = format!("route add {IPV4}/32 dev {A} scope link metric 1024");
    let plugin = format!("route add {IPV4}/32 dev {B} scope link");
    for order in [[&felix, &plugin], [&plugin, &felix]] {
        let layout = Layout::new("calico");
        let [a, b, c] = [A, B, C].map(|device| pod(&layout, device, &[IPV4]));
        let all = [A, B, C];
        layout.expect(&[&a, &b, &c], &[(IPV4, &all, None)]);
        for line in order {
            layout.ip(line);
        }
        layout.expect(&[&a, &b, &c], &[(IPV4, &all, Some(B))]);
        b.delete().unwrap();
        layout.expect(&[&a, &c], &[(IPV4, &[A, C], Some(A))]);
        layout.ip(&format!("route add {IPV4}/32 dev {C} scope link"));
        layout.expect(&[&a, &c], &[(IPV4, &[A, C], Some(C))]);
        layout.ip(&format!("route delete {IPV4}/32 dev {C}"));
        layout.expect(&[&a, &c], &[(IPV4, &[A, C], Some(A))]);
        a.delete().unwrap();
        layout.expect_none(&[&c]);
        layout.events();
    }
}

#[test]
fn ipv6_routes_of_equal_and_of_lower_metric() {
    for order in [[A, B], [B, A]] {
        let layout = Layout::new("calico6");
        let [first, second] = order.map(|device| pod(&layout, device, &[IPV4, IPV6]));
        // Both addresses are duplicates, and the two families may differ in the receiver.
        set_route(&layout, second.device());
        let expect = |receiver| {
            let wanted = [
                (IPV4, &order[..], Some(order[1])),
                (IPV6, &order[..], receiver),
            ];
            layout.expect(&[&first, &second], &wanted);
        };
        expect(None);
        layout.ip(&format!(
            "route add {IPV6}/128 dev {} metric 1024",
            order[0]
        ));
        expect(Some(order[0]));
        layout.ip(&format!(
            "route append {IPV6}/128 dev {} metric 1024",
            order[1]
        ));
        expect(Some(order[0]));
        layout.ip(&format!("route add {IPV6}/128 dev {} metric 512", order[1]));
        expect(Some(order[1]));
        layout.ip(&format!(
            "route delete {IPV6}/128 dev {} metric 512",
            order[1]
        ));
        expect(Some(order[0]));
        layout.ip(&format!(
            "route delete {IPV6}/128 dev {} metric 1024",
            order[0]
        ));
        expect(Some(order[1]));
        second.delete().unwrap();
        layout.expect_none(&[&first]);
        layout.events();
    }
}

const TUNNEL: [&str; 3] = [
    "link add vxlan.calico type vxlan id 4096 dstport 4789",
    "address add 10.244.1.0/32 dev vxlan.calico",
    "link set vxlan.calico up",
];

/// The tunnel's address is taken from the pods' range, and is released when the node's record is lost.
#[test]
fn pods_with_the_tunnel_address_conflict_with_the_node() {
    let layout = Layout::new("calico");
    layout.node.ip_batch(TUNNEL).unwrap();
    let address = "10.244.1.0";
    let tunnel = Some("vxlan.calico");
    let a = pod(&layout, A, &[address]);
    layout.expect(&[&a], &[(address, &[A, "vxlan.calico"], tunnel)]);
    layout.ip(&format!("route add {address}/32 dev {A} scope link"));
    let b = pod(&layout, B, &[address]);
    let all = [A, B, "vxlan.calico"];
    layout.expect(&[&a, &b], &[(address, &all, tunnel)]);
    layout.ip(&format!("address delete {address}/32 dev vxlan.calico"));
    layout.expect(&[&a, &b], &[(address, &[A, B], Some(A))]);
    a.delete().unwrap();
    layout.expect_none(&[&b]);
    layout.events();
}
