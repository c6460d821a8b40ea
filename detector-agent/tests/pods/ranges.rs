//! An address in the ranges of two networks, or of the node and a network, with a real containerd.

use std::{fs, thread, time::Duration};

use detector_testkit::{Agent, Containerd, DEADLINE, Node, wait_reachable};

use super::diagnosis::{SUBNET, agent, explained, run, wait_nothing_open};

/// Writes the configuration of the only network of the runtime.
fn configure(containerd: &mut Containerd, configuration: &str) {
    containerd.stop_daemon().unwrap();
    let path = containerd.directory().join("net.d/10-testkit.conflist");
    fs::write(path, configuration).unwrap();
    containerd.start_daemon().unwrap();
}

#[test]
fn second_network_with_the_range_is_removed_with_its_pods() {
    let node = Node::new("twonetworks").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    run(&mut containerd, &["web-1"]);
    let path = containerd.directory().join("net.d/10-testkit.conflist");
    let text = fs::read_to_string(path).unwrap();
    let second = text.replace("\"testkit\"", "\"second\"");
    configure(&mut containerd, &second);
    let later = run(&mut containerd, &["web-2"]).remove(0);
    let agent = Agent::start_ready(&node, &agent(&containerd)).unwrap();
    let diagnosis = explained(&agent, 1).remove(0).diagnosis.unwrap();
    assert_eq!(diagnosis["cause"], "two_allocators", "{diagnosis:#}");
    assert_eq!(diagnosis["confidence"], "proven", "{diagnosis:#}");
    let repair = diagnosis["repair"].as_str().unwrap();
    let steps = [
        "remove the configuration that is left over",
        "Then recreate the pods of the network that was removed",
    ];
    assert!(steps.iter().all(|s| repair.contains(s)), "{repair}");
    configure(&mut containerd, &text);
    containerd.remove_pod(&later).unwrap();
    run(&mut containerd, &["web-2-again"]);
    wait_nothing_open(&node);
    for address in ["10.244.2.2", "10.244.2.3"] {
        wait_reachable(&node, address.parse().unwrap(), DEADLINE).unwrap();
    }
}

#[test]
fn address_of_the_node_is_excluded_from_the_range_of_the_pods() {
    let node = Node::new("noderange").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    node.add_bridge("tunnel", &["10.244.2.2/32"]).unwrap();
    let pod = run(&mut containerd, &["web-1"]).remove(0);
    let command = agent(&containerd).arg("--ipam-leak-after=1s");
    let agent = Agent::start_ready(&node, &command).unwrap();
    let diagnosis = explained(&agent, 1).remove(0).diagnosis.unwrap();
    assert_eq!(diagnosis["cause"], "node_address_in_range", "{diagnosis:#}");
    let repair = diagnosis["repair"].as_str().unwrap();
    let steps = [
        "Delete default/web-1",
        "Then reserve 10.244.2.2 in IPAM, or exclude it from the range",
    ];
    assert!(steps.iter().all(|s| repair.contains(s)), "{repair}");
    containerd.remove_pod(&pod).unwrap();
    let network = containerd.ipam_dir().join("testkit");
    fs::write(network.join("10.244.2.2"), "the node's tunnel\r\n").unwrap();
    fs::write(network.join("last_reserved_ip.0"), "10.244.2.1").unwrap();
    run(&mut containerd, &["web-1-again"]);
    wait_reachable(&node, "10.244.2.3".parse().unwrap(), DEADLINE).unwrap();
    wait_nothing_open(&node);
    // A leak would be reported after a second.
    thread::sleep(Duration::from_secs(2));
    wait_nothing_open(&node);
}
