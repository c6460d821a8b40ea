//! Conflicts in VLANs.

use super::*;

const ADDRESS: &str = "10.240.0.84";
const OTHER: &str = "10.240.0.85";

/// A pod that was given the address, and one that got another one and claims it as well.
fn node() -> TestNode {
    let mut node = TestNode::new(
        &json!({"cniVersion": "0.3.1", "name": "access", "plugins": [{"type": "bridge",
        "vlan": 10, "ipam": {"type": "host-local", "dataDir": "/nonexistent", "ranges": [[{"subnet": "10.240.0.0/24"}]]}}]}),
    );
    node.add(&TestPod::new("first", ADDRESS, minute(-5)));
    let mut second = TestPod::new("second", OTHER, minute(-4));
    node.add(&second);
    second.address = ADDRESS;
    node.pods[1] = second;
    node
}

fn conflict(node: &TestNode, evidence: [&str; 2]) -> ConflictData {
    let mut conflict = serde_json::to_value(node.conflict(ADDRESS)).unwrap();
    conflict["vlan"] = 10.into();
    conflict["network"] = "bridge:br0".into();
    for (claimant, kind) in evidence.into_iter().enumerate() {
        conflict["claimants"][claimant]["evidence"][0]["kind"] = kind.into();
    }
    serde_json::from_value(conflict).unwrap()
}

#[test]
fn address_on_an_access_port_is_compared_with_the_records() {
    let mut node = node();
    let mut collector = node.collector();
    let conflict = conflict(&node, ["address", "address"]);
    let diagnosis = explain(&mut collector, Finding::Conflict(&conflict));
    assert_cause(&diagnosis, Cause::NotFromIpam, CauseConfidence::Proven);
    assert!(diagnosis.summary.contains("shop/second"), "{diagnosis:#?}");
}

/// It may be on a VLAN interface inside the pod, where the records say nothing about it.
#[test]
fn address_that_is_only_announced_is_not() {
    let mut node = node();
    let mut collector = node.collector();
    let conflict = conflict(&node, ["address", "arp"]);
    let diagnosis = explain(&mut collector, Finding::Conflict(&conflict));
    assert_unknown(&diagnosis);
    assert!(!diagnosis.ruled_out.contains(&Cause::FramesOnly));
    let is_named = |n: &detector_engine::diagnosis::NotChecked| n.because.contains("VLAN");
    assert!(diagnosis.not_checked.iter().any(is_named), "{diagnosis:#?}");
    // What is left of a deleted pod is, whatever it announces.
    let left = node.pods.pop().unwrap();
    let mut collector = node.collector();
    node.pods.push(left);
    let diagnosis = explain(&mut collector, Finding::Conflict(&conflict));
    assert_cause(&diagnosis, Cause::SandboxGone, CauseConfidence::Proven);
}

/// Which device of the node would answer, if any, is not known.
#[test]
fn silent_gateway_in_a_vlan_has_no_known_cause() {
    let mut node = node();
    let mut anomaly = serde_json::to_value(node.drift(ADDRESS)).unwrap();
    for (field, value) in [
        ("kind", "gateway_unresolved".into()),
        ("cause", "repeated_requests".into()),
        ("address", "10.240.0.1".into()),
        ("vlan", Value::from(10)),
    ] {
        anomaly[field] = value;
    }
    let anomaly: AnomalyData = serde_json::from_value(anomaly).unwrap();
    let diagnosis = explain(&mut node.collector(), Finding::Anomaly(&anomaly));
    assert_unknown(&diagnosis);
    assert_eq!(diagnosis.ruled_out, []);
    let not_checked = diagnosis.not_checked.iter();
    let in_vlan = not_checked.filter(|n| n.because.contains("in the VLAN"));
    assert_eq!(in_vlan.count(), 4, "{diagnosis:#?}");
}
