//! Real CNI plugins, run as by a container runtime.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use detector_testkit::{Cni, Node};

#[test]
fn ptp_allocates_a_wiped_address_again() {
    let node = Node::new("ptp").unwrap();
    let cni = Cni::ptp("kindnet", "10.244.2.0/24").unwrap();
    let first = cni.add_pod(&node, "a1").unwrap();
    let second = cni.add_pod(&node, "a2").unwrap();
    assert_eq!(first.address().unwrap().to_string(), "10.244.2.2");
    assert_eq!(second.address().unwrap().to_string(), "10.244.2.3");
    assert!(cni.data_dir().join("kindnet/10.244.2.2").exists());
    cni.wipe().unwrap();
    let again = cni.add_pod(&node, "b1").unwrap();
    assert_eq!(again.address().unwrap().to_string(), "10.244.2.2");
    assert_ne!(first.device().unwrap(), again.device().unwrap());
    for pod in [&first, &second, &again] {
        node.ifindex(pod.device().unwrap()).unwrap();
        assert!(
            pod.netns()
                .ip("address show eth0")
                .unwrap()
                .contains(&pod.address().unwrap().to_string())
        );
    }
    let device = first.device().unwrap().to_owned();
    cni.remove_pod(&node, first).unwrap();
    assert!(node.ifindex(&device).is_err());
}

#[test]
fn bridge_creates_a_bridge_port() {
    let node = Node::new("bridge").unwrap();
    let cni = Cni::bridge("cbr0", "cni0", "10.42.0.0/24").unwrap();
    let pod = cni.add_pod(&node, "a1").unwrap();
    assert_eq!(pod.address().unwrap().to_string(), "10.42.0.2");
    let link = node
        .ip(&format!("link show {}", pod.device().unwrap()))
        .unwrap();
    assert!(link.contains("master cni0"), "{link}");
}
