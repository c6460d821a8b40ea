//! Azure CNI in transparent mode: host ends without an IPv4 address, all with the same hardware address and link-local IPv6
//! gateway, and with proxy ARP. The plugin adds a host route for each address and ignores that there is one already.

use detector_testkit::{DEADLINE, MacAddress, Pod, PodSpec, wait_reachable};

use crate::{
    kernel::AttachedPod,
    layout::{Layout, add_gateway, unless_present},
};

const A: &str = "azv0d7763386da";
const B: &str = "azv3d5d6ab04b5";
const C: &str = "azv769f2b6ef39";
const IPV4: &str = "10.240.0.10";
const IPV6: &str = "2001:db8::10";
const HOST_MAC: MacAddress = MacAddress([0xaa; 6]);

/// A pod with these addresses, without host routes.
fn pod(layout: &Layout, device: &str, ipv4: &str, ipv6: &str) -> Pod {
    let spec = PodSpec::new(device)
        .host_mac(HOST_MAC)
        .proxy_arp()
        .address(format!("{ipv4}/16"))
        .address(format!("{ipv6}/128"));
    let pod = layout.node.add_pod(&spec).unwrap();
    layout.ip(&format!(
        "address add fe80::1234:5678:9abc/64 dev {device} nodad"
    ));
    // The subnet is reached through the gateway too.
    pod.netns()
        .ip("route delete 10.240.0.0/16 dev eth0")
        .unwrap();
    add_gateway(&pod, "169.254.1.1");
    let lines = [
        format!("neigh replace 169.254.1.1 lladdr {HOST_MAC} dev eth0 nud permanent"),
        "route add default via fe80::1234:5678:9abc dev eth0".to_owned(),
        format!("neigh replace fe80::1234:5678:9abc lladdr {HOST_MAC} dev eth0 nud permanent"),
    ];
    pod.netns().ip_batch(lines).unwrap();
    pod
}

fn add_routes(layout: &Layout, device: &str, ipv4: &str, ipv6: &str) {
    for line in [
        format!("route add {ipv4}/32 dev {device} scope global"),
        format!("route add {ipv6}/128 dev {device}"),
    ] {
        unless_present(layout.node.ip(&line));
    }
}

#[test]
fn pods_without_a_duplicate_raise_nothing() {
    let layout = Layout::new("azure");
    let [a, b] = [(A, 1), (B, 2)].map(|(device, number)| {
        let (ipv4, ipv6) = (format!("10.240.0.{number}"), format!("2001:db8::{number}"));
        let pod = pod(&layout, device, &ipv4, &ipv6);
        add_routes(&layout, device, &ipv4, &ipv6);
        pod
    });
    for address in ["10.240.0.2", "2001:db8::2"] {
        wait_reachable(a.netns(), address.parse().unwrap(), DEADLINE).unwrap();
        wait_reachable(&layout.node, address.parse().unwrap(), DEADLINE).unwrap();
    }
    layout.expect_silence(&[&a, &b]);
}

#[test]
fn first_pod_keeps_the_traffic_in_either_order() {
    for order in [[A, B], [B, A]] {
        let layout = Layout::new("azure");
        // The devices are created in one order, and their routes programmed in both.
        let [a, b] = [A, B].map(|device| pod(&layout, device, IPV4, IPV6));
        let expect = |pods: &[&dyn AttachedPod], holders: &[&str], receiver: Option<&str>| {
            let wanted = [IPV4, IPV6].map(|address| (address, holders, receiver));
            layout.expect(pods, &wanted);
        };
        expect(&[&a, &b], &[A, B], None);
        for device in order {
            add_routes(&layout, device, IPV4, IPV6);
            expect(&[&a, &b], &[A, B], Some(order[0]));
        }
        let third = pod(&layout, C, IPV4, IPV6);
        add_routes(&layout, C, IPV4, IPV6);
        expect(&[&a, &b, &third], &[A, B, C], Some(order[0]));
        // Deletion removes the routes by device, then the device.
        let [first, second] = if order[0] == A { [a, b] } else { [b, a] };
        layout.ip(&format!("route delete {IPV4}/32 dev {}", first.device()));
        expect_one_family(&layout, [&first, &second, &third], order[0]);
        first.delete().unwrap();
        expect(&[&second, &third], &[order[1], C], None);
        // The plugin is called again for the last pod, as after a restart of the node.
        add_routes(&layout, C, IPV4, IPV6);
        expect(&[&second, &third], &[order[1], C], Some(C));
        second.delete().unwrap();
        layout.expect_none(&[&third]);
        layout.events();
    }
}

/// Between the removal of the IPv4 route and that of the device, the families differ.
fn expect_one_family(layout: &Layout, pods: [&Pod; 3], first: &str) {
    let [a, b, c] = pods;
    let wanted = [
        (IPV4, &[A, B, C][..], None),
        (IPV6, &[A, B, C][..], Some(first)),
    ];
    layout.expect(&[a, b, c], &wanted);
}
