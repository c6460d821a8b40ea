//! The incidents, each on real devices: how it begins, and how it ends.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
};

use detector_testkit::{Frame, FrameSender, MacAddress, Pod, PodSpec};
use serde_json::json;

use super::{Incident, site::Site};
use crate::host_local::HostLocal;

pub(super) const INCIDENTS: [Incident; 10] = [
    Incident {
        name: "duplicate",
        title: "A duplicate",
        story: "The directory with the node's reservations was removed while a pod was running, and a new pod got the address. The new pod is deleted, and the reservation written again.",
        names: "default/cart-1",
        run: duplicate,
        samples: &[
            ("IPAddressConflict.md", "check"),
            ("IPAddressConflict.md", "explain 10.244.2.10"),
        ],
    },
    Incident {
        name: "host",
        title: "An address of the node",
        story: "A pod has the address of its node. The pod is deleted.",
        names: "shop/batch-1",
        run: address_of_the_node,
        samples: &[],
    },
    Incident {
        name: "ipv6",
        title: "An IPv6 address that was added by hand",
        story: "In a pod on a bridge, somebody adds the IPv6 address of another pod. The address is removed again.",
        names: "shop/debug-1",
        run: ipv6_by_hand,
        samples: &[],
    },
    Incident {
        name: "sweep",
        title: "A sweep with ten victims",
        story: "A pod answers ARP for the addresses of ten others. The pod is deleted.",
        names: "shop/scanner-1",
        run: sweep,
        samples: &[],
    },
    Incident {
        name: "drift",
        title: "Drift",
        story: "The reservation of a running pod is removed. It is written again.",
        names: "default/web-1",
        run: drift,
        samples: &[],
    },
    Incident {
        name: "gateway",
        title: "A dead gateway",
        story: "The node does not answer for the gateway of a pod, because proxy ARP is off. The pod is deleted.",
        names: "shop/web-1",
        run: dead_gateway,
        samples: &[("PodGatewayUnresolved.md", "explain")],
    },
    Incident {
        name: "route",
        title: "A misdirected route",
        story: "The route of a pod's address leads to another pod. It is corrected.",
        names: "shop/web-1",
        run: misdirected_route,
        samples: &[("PodRouteAstray.md", "explain")],
    },
    Incident {
        name: "duplicates",
        title: "200 duplicates",
        story: "On a node with 100 dual-stack pods an old state of IPAM is restored, and 100 new pods get the same addresses. The reservations are corrected, and the new pods deleted.",
        names: "200",
        run: two_hundred_duplicates,
        samples: &[],
    },
    Incident {
        name: "drifts",
        title: "218 drifts",
        story: "All reservations of a node with 109 dual-stack pods are removed. They are restored.",
        names: "218",
        run: drifts_of_218,
        samples: &[("IPAMDrift.md", "explain")],
    },
    Incident {
        name: "restart",
        title: "The agent is restarted in the middle",
        story: "Two pods have one address, and the agent is killed and replaced while the conflict is open. The second pod is deleted.",
        names: "shop/cart-1",
        run: restart_in_a_duplicate,
        samples: &[],
    },
];

fn duplicate(site: &mut Site<'_>) {
    site.start_runtime(&json!([[{"subnet": "10.244.2.0/24", "rangeStart": "10.244.2.10"}]]));
    site.run_pods(&["web-1".to_owned()]);
    site.start_agent();
    let removed = site.remove_reservations();
    let second = site.run_pods(&["cart-1".to_owned()]).remove(0);
    site.wait_notified();
    site.remove_pod(&second);
    let reservation = fs::read(removed.join("10.244.2.10")).unwrap();
    fs::write(site.reservations().join("10.244.2.10"), reservation).unwrap();
    site.wait_ended();
}

fn restart_in_a_duplicate(site: &mut Site<'_>) {
    let spec = |device: &str| PodSpec::new(device).address("10.244.2.10/32");
    let first = site.add_pods(&[("web-1", spec("vethweb1").host_route())]);
    site.start_agent();
    let second = site.add_pods(&[("cart-1", spec("vethcart1"))]);
    site.wait_notified();
    site.kill_agent();
    site.start_agent();
    site.wait_notified();
    site.node.delete_pods(second).unwrap();
    site.wait_ended();
    drop(first);
}

fn address_of_the_node(site: &mut Site<'_>) {
    site.node.add_bridge("eth0", &["192.0.2.7/24"]).unwrap();
    site.start_agent();
    let spec = PodSpec::new("vethbatch1").address("192.0.2.7/32");
    let pods = site.add_pods(&[("batch-1", spec)]);
    site.wait_notified();
    site.node.delete_pods(pods).unwrap();
}

fn ipv6_by_hand(site: &mut Site<'_>) {
    site.node
        .add_bridge("cni0", &["fd00:10:244:2::1/64"])
        .unwrap();
    let spec = |device: &str, last: u8| {
        let address = format!("fd00:10:244:2::{last}/64");
        let spec = PodSpec::new(device).address(address).master("cni0");
        spec.mac(MacAddress([2, 0, 0, 0, 0, last]))
    };
    let pods = site.add_pods(&[
        ("web-1", spec("vethweb1", 10)),
        ("debug-1", spec("vethdebug1", 11)),
    ]);
    site.start_agent();
    let by_hand = |verb| {
        let address = "fd00:10:244:2::10/64";
        let line = format!("address {verb} {address} dev eth0");
        pods[1].netns().ip(&line).unwrap();
    };
    by_hand("add");
    site.wait_notified();
    by_hand("delete");
}

fn sweep(site: &mut Site<'_>) {
    let web = |n: u8| format!("web-{n}");
    let names: Vec<_> = (1..=10).map(web).collect();
    let victims = (1..=10).zip(&names).map(|(n, name)| {
        let spec = PodSpec::new(format!("vethweb{n}"));
        (
            &**name,
            spec.address(format!("10.244.4.{n}/32")).host_route(),
        )
    });
    let scanner = PodSpec::new("vethscanner1").address("10.244.4.99/32");
    let specs: Vec<_> = victims.chain([("scanner-1", scanner)]).collect();
    let mut pods = site.add_pods(&specs);
    site.node.wait_running(&pods).unwrap();
    site.start_agent();
    let scanner = pods.pop().unwrap();
    let claim = |n| Frame::gratuitous_reply(scanner.mac(), [10, 244, 4, n].into()).to_bytes();
    let frames: Vec<_> = (1..=10).map(claim).collect();
    let sender = FrameSender::open(&scanner).unwrap();
    sender.send_all(&frames).unwrap();
    site.wait_notified();
    scanner.delete().unwrap();
    drop(pods);
}

fn drift(site: &mut Site<'_>) {
    site.start_runtime(&json!([[{"subnet": "10.244.2.0/24", "rangeStart": "10.244.2.10"}]]));
    site.run_pods(&["web-1".to_owned()]);
    site.start_agent();
    let file = site.reservations().join("10.244.2.10");
    let reservation = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    site.wait_notified();
    fs::write(&file, reservation).unwrap();
    site.wait_ended();
}

fn dead_gateway(site: &mut Site<'_>) {
    site.node.add_bridge("eth0", &["192.0.2.7/24"]).unwrap();
    site.node.ip("route add default via 192.0.2.1").unwrap();
    site.node.sysctl("net.ipv4.ip_forward", "1").unwrap();
    let spec = PodSpec::new("vethweb1")
        .address("10.244.2.10/32")
        .host_route();
    let pods = site.add_pods(&[("web-1", spec)]);
    for route in ["169.254.1.1 scope link", "default via 169.254.1.1"] {
        let line = format!("route add {route} dev eth0");
        pods[0].netns().ip(&line).unwrap();
    }
    site.start_agent();
    pods[0]
        .netns()
        .run_in(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            // The kernel requests the gateway three times.
            let _ = socket.send_to(b"x", "203.0.113.7:9");
            Ok(())
        })
        .unwrap();
    site.wait_notified();
    site.node.delete_pods(pods).unwrap();
}

fn misdirected_route(site: &mut Site<'_>) {
    let spec = |device: &str, address: &str| PodSpec::new(device).address(address).host_route();
    let _pods = site.add_pods(&[
        ("web-1", spec("vethweb1", "10.244.2.10/32")),
        ("cart-1", spec("vethcart1", "10.244.2.11/32")),
    ]);
    site.start_agent();
    let route = |device| {
        let line = format!("route replace 10.244.2.10/32 dev {device} scope link");
        site.node.ip(&line).unwrap();
    };
    route("vethcart1");
    site.wait_notified();
    let line = "route replace 10.244.2.10/32 dev vethweb1 scope link";
    site.node.ip(line).unwrap();
    site.wait_ended();
}

/// The addresses of the pod with this number.
fn dual_stack(n: usize) -> [IpAddr; 2] {
    let last = u8::try_from(n + 1).unwrap();
    let v6 = Ipv6Addr::new(0xfd00, 0x10, 0x244, 2, 0, 0, 0, last.into());
    [Ipv4Addr::new(10, 244, 2, last).into(), v6.into()]
}

/// Pods `name-1` and so on, each with an IPv4 and an IPv6 address, for one after another of which a plugin would do what is done
/// here for all of them: reserve the addresses, store the result, assign the addresses, and set the routes.
struct Batch {
    name: &'static str,
    pods: Vec<Pod>,
}

impl Batch {
    /// Pods without addresses.
    fn new(site: &Site<'_>, name: &'static str, count: usize) -> Self {
        let spec = |n| PodSpec::new(format!("veth{name}{n}")).ipv6();
        let specs: Vec<_> = (1..=count).map(spec).collect();
        let pods = site.node.add_pods(&specs).unwrap();
        Self { name, pods }
    }

    fn named(&self) -> impl Iterator<Item = (String, &Pod, [IpAddr; 2])> {
        let pods = (1..).zip(&self.pods);
        pods.map(|(n, pod)| (format!("{}-{n}", self.name), pod, dual_stack(n)))
    }

    fn reserve(&self, allocations: &HostLocal) {
        for (name, _, addresses) in self.named() {
            for address in addresses {
                allocations.reserve(address, &name);
            }
        }
    }

    /// Stores the results of all, so that each pod is known as soon as it has its addresses.
    fn give(&self, site: &Site<'_>) {
        for (name, pod, addresses) in self.named() {
            site.give(&name, pod, &addresses);
        }
    }

    fn assign(&self) {
        for (_, pod, addresses) in self.named() {
            let lines = addresses.map(|address| format!("address add {address} dev eth0 nodad"));
            pod.netns().ip_batch(lines).unwrap();
        }
    }

    fn set_routes(&self, site: &Site<'_>) {
        let lines = self.named().flat_map(|(_, pod, addresses)| {
            addresses.map(|address| format!("route replace {address} dev {}", pod.device()))
        });
        site.node.ip_batch(lines.collect::<Vec<_>>()).unwrap();
    }
}

const SUBNETS: [&str; 2] = ["10.244.2.0/24", "fd00:10:244:2::/64"];

fn two_hundred_duplicates(site: &mut Site<'_>) {
    let allocations = site.add_host_local(&SUBNETS);
    let [first, second] = ["web", "cart"].map(|name| {
        let pods = Batch::new(site, name, 100);
        pods.give(site);
        pods
    });
    // The agent sees which pods come first.
    site.start_agent();
    first.reserve(&allocations);
    first.assign();
    first.set_routes(site);
    second.reserve(&allocations);
    second.assign();
    site.wait_notified();
    first.reserve(&allocations);
    drop(second);
    site.wait_ended();
}

fn drifts_of_218(site: &mut Site<'_>) {
    site.start_runtime(&json!(SUBNETS.map(|subnet| [json!({"subnet": subnet})])));
    let names: Vec<_> = (1..=109).map(|n| format!("web-{n}")).collect();
    site.run_pods(&names);
    site.start_agent();
    let removed = site.remove_reservations();
    site.wait_notified();
    fs::rename(removed, site.reservations()).unwrap();
    site.wait_ended();
}
