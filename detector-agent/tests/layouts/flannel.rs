//! Flannel and the plugin `bridge`: pods behind ports of `cni0`, which has the gateway's address. The node has one neighbour
//! entry for an address, whose hardware address changes with the pod that announced it last, and a forwarding entry for each pod.

use std::net::Ipv4Addr;

use detector_testkit::{Cni, CniPod, DEADLINE, Frame, FrameSender, MacAddress, wait_reachable};

use crate::{kernel, layout::Layout};

const SUBNET: &str = "10.42.0.0/24";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 42, 0, 2);
const TEXT: &str = "10.42.0.2";

struct Flannel {
    layout: Layout,
    cni: Cni,
}

impl Flannel {
    fn new() -> Self {
        let layout = Layout::new("flannel");
        let cni = Cni::bridge("cbr0", "cni0", SUBNET).unwrap();
        Self { layout, cni }
    }

    /// A pod with [`ADDRESS`], even if another pod has it: the state of `host-local` was lost.
    fn pod(&self, name: &str) -> CniPod {
        self.cni.wipe().unwrap();
        let pod = self.cni.add_pod(&self.layout.node, name).unwrap();
        assert_eq!(pod.address().unwrap(), ADDRESS);
        // The bridge forwards to the port that a hardware address was last seen at, so the pod's kernel must not send by
        // itself: neither router solicitations nor, after it answered, a probe of the gateway.
        for (key, value) in [
            ("net.ipv6.conf.all.disable_ipv6", "1"),
            ("net.ipv4.neigh.eth0.delay_first_probe_time", "3600"),
        ] {
            pod.netns().sysctl(key, value).unwrap();
        }
        let node = &self.layout.node;
        node.wait_attached(pod.device().unwrap()).unwrap();
        pod
    }

    /// The node talks to the pod that has the address, and so resolves it.
    fn resolve(&self) {
        wait_reachable(&self.layout.node, ADDRESS.into(), DEADLINE).unwrap();
    }

    /// The node's entry and the forwarding entries, by iproute2.
    fn port_in_use(&self) -> Option<String> {
        let node = &self.layout.node;
        let mac = kernel::lladdr(node, "cni0", ADDRESS.into()).unwrap()?;
        kernel::port(node, "cni0", &mac).unwrap()
    }

    fn remove(&self, pod: CniPod) {
        self.cni.remove_pod(&self.layout.node, pod).unwrap();
    }
}

fn mac(pod: &CniPod) -> MacAddress {
    let shown = pod.netns().ip("-j link show dev eth0").unwrap();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    shown[0]["address"].as_str().unwrap().parse().unwrap()
}

/// A pod announces the address, as its kernel does when the link comes up.
fn announce(pod: &CniPod) {
    let sender = FrameSender::open_on(pod.netns(), "eth0").unwrap();
    sender
        .send(&Frame::announcement(mac(pod), ADDRESS))
        .unwrap();
}

fn device(pod: &CniPod) -> String {
    pod.device().unwrap().to_owned()
}

#[test]
fn pods_without_a_duplicate_raise_nothing() {
    let flannel = Flannel::new();
    let (layout, cni) = (&flannel.layout, &flannel.cni);
    let [a, b, c] = ["a", "b", "c"].map(|name| cni.add_pod(&layout.node, name).unwrap());
    for pod in [&b, &c] {
        let address = pod.address().unwrap();
        wait_reachable(a.netns(), address, DEADLINE).unwrap();
        wait_reachable(&layout.node, address, DEADLINE).unwrap();
    }
    layout.expect_silence(&[&a, &b, &c]);
}

#[test]
fn neighbour_entry_flaps_between_two_ports() {
    let flannel = Flannel::new();
    let layout = &flannel.layout;
    let first = flannel.pod("a");
    flannel.resolve();
    layout.expect_none(&[&first]);
    let second = flannel.pod("b");
    let [a, b] = [&first, &second].map(device);
    // Each is known behind its own port.
    announce(&first);
    announce(&second);
    for pod in [&first, &second] {
        let port = kernel::port(&layout.node, "cni0", &mac(pod).to_string()).unwrap();
        assert_eq!(port, Some(device(pod)));
    }
    let both = [a.as_str(), b.as_str()];
    for _ in 0..3 {
        for (pod, port) in [(&first, &a), (&second, &b)] {
            announce(pod);
            layout.expect(&[&first, &second], &[(TEXT, &both, Some(port))]);
            assert_eq!(flannel.port_in_use().as_ref(), Some(port));
        }
    }
    flannel.remove(first);
    layout.expect_none(&[&second]);
    layout.events();
}

#[test]
fn node_resolves_again_after_the_pod_it_used_is_deleted() {
    let flannel = Flannel::new();
    let layout = &flannel.layout;
    let [first, second, third] = ["a", "b", "c"].map(|name| flannel.pod(name));
    let [a, b, c] = [&first, &second, &third].map(device);
    let all = [a.as_str(), b.as_str(), c.as_str()];
    // The address is not resolved yet, unless a pod's own announcement has.
    let port = flannel.port_in_use();
    layout.expect(&[&first, &second, &third], &[(TEXT, &all, port.as_deref())]);
    flannel.resolve();
    announce(&first);
    layout.expect(&[&first, &second, &third], &[(TEXT, &all, Some(&a))]);
    // The entry outlives the pod, and the bridge has no port for its hardware address any more.
    flannel.remove(first);
    let left = [b.as_str(), c.as_str()];
    layout.expect(&[&second, &third], &[(TEXT, &left, None)]);
    announce(&third);
    layout.expect(&[&second, &third], &[(TEXT, &left, Some(&c))]);
    layout.ip(&format!("neigh flush dev cni0 to {TEXT}"));
    layout.expect(&[&second, &third], &[(TEXT, &left, None)]);
    // Both answer the node's request; the kernel keeps one of the answers.
    flannel.resolve();
    let port = flannel.port_in_use();
    assert!(port.is_some());
    layout.expect(&[&second, &third], &[(TEXT, &left, port.as_deref())]);
    flannel.remove(third);
    layout.expect_none(&[&second]);
    layout.events();
}

#[test]
fn forwarding_entry_follows_a_hardware_address_to_another_port() {
    let flannel = Flannel::new();
    let layout = &flannel.layout;
    let [first, second] = ["a", "b"].map(|name| flannel.pod(name));
    let [a, b] = [&first, &second].map(device);
    let both = [a.as_str(), b.as_str()];
    flannel.resolve();
    announce(&first);
    layout.expect(&[&first, &second], &[(TEXT, &both, Some(&a))]);
    // A container that was copied with its hardware address: the bridge forwards to the port that sent last.
    let copy = FrameSender::open_on(second.netns(), "eth0").unwrap();
    copy.send(&Frame::announcement(mac(&first), ADDRESS))
        .unwrap();
    layout.expect(&[&first, &second], &[(TEXT, &both, Some(&b))]);
    announce(&first);
    layout.expect(&[&first, &second], &[(TEXT, &both, Some(&a))]);
    flannel.remove(second);
    layout.expect_none(&[&first]);
    layout.events();
}
