//! What is explained without the CNI result cache.

use std::{thread, time::Duration};

use super::*;

const ADDRESS: &str = "10.244.2.10";

/// A file system's times advance with the timer of the kernel.
fn tick() {
    thread::sleep(Duration::from_millis(30));
}

/// Pods of before the wipe, and one that got the address of one of them.
#[test]
fn wipe_is_proven_if_the_configuration_is_older_than_the_pods() {
    let state = tempfile::tempdir().unwrap();
    let mut node = TestNode::new(
        &json!({"cniVersion": "0.3.1", "name": "kindnet", "plugins": [{"type": "ptp", "ipam": {"type": "host-local",
        "dataDir": state.path(), "ranges": [[{"subnet": "10.244.2.0/24"}]]}}]}),
    );
    node.has_results = false;
    tick();
    let before = Timestamp::now();
    for (name, address) in [("first", ADDRESS), ("other", "10.244.2.11")] {
        node.add(&TestPod::new(name, address, before));
    }
    tick();
    let directory = state.path().join("kindnet");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("lock"), "").unwrap();
    for (name, address) in [("second", ADDRESS), ("third", "10.244.2.12")] {
        let pod = TestPod::new(name, address, Timestamp::now());
        node.add(&pod);
        let reservation = format!("{}\r\neth0", pod.sandbox());
        fs::write(directory.join(address), reservation).unwrap();
    }
    let mut collector = node.collector();
    let conflict = node.conflict(ADDRESS);
    let diagnosis = explain(&mut collector, Finding::Conflict(&conflict));
    assert_cause(&diagnosis, Cause::IpamStateWiped, CauseConfidence::Proven);
    assert_eq!(diagnosis.affected.pods, 2, "{diagnosis:#?}");
    // Another network may have been configured before.
    node.write("net.d/10-net.conflist", &node.network.to_string());
    let mut collector = node.collector();
    assert_unknown(&explain(&mut collector, Finding::Conflict(&conflict)));
}
