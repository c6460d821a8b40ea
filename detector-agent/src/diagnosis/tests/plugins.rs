//! What the starts of network plugins add.

use crate::pods::{PluginContainer, PluginPod};

use super::*;

const ADDRESS: &str = "10.0.10.136";

fn plugin(started: Timestamp) -> PluginPod {
    PluginPod {
        name: "kube-system/aws-node-x2x4z".to_owned(),
        daemon_set: "aws-node".to_owned(),
        containers: vec![PluginContainer {
            name: "aws-node".to_owned(),
            started: Some(started),
            restarts: 3,
            ended: Some((
                started - SignedDuration::from_secs(9),
                "OOMKilled, exit code 137".to_owned(),
            )),
        }],
    }
}

fn node() -> TestNode {
    let mut node = TestNode::new(&json!({"name": "aws-cni", "plugins": [{"type": "aws-cni"}]}));
    let pods = [
        TestPod::new("first", ADDRESS, minute(5)),
        TestPod::new("second", ADDRESS, minute(50)),
    ];
    for pod in &pods {
        node.add(pod);
    }
    let owner = json!({"containerID": pods[1].sandbox(), "ipv4": ADDRESS,
        "allocationTimestamp": u64::try_from(pods[1].created.as_nanosecond()).unwrap()});
    let file = json!({"version": "vpc-cni-ipam/1", "allocations": [owner]});
    node.write("ipam.json", &file.to_string());
    node
}

/// Without its log, ipamd was started when its container was.
#[test]
fn start_of_the_container_is_that_of_the_daemon() {
    let mut node = node();
    node.watched.plugins.set([plugin(minute(30))].into_iter());
    let mut collector = node.collector();
    let conflict = node.conflict(ADDRESS);
    let diagnosis = explain(&mut collector, Finding::Conflict(&conflict));
    assert_cause(&diagnosis, Cause::IpamDaemonForgot, CauseConfidence::Proven);
    let started = diagnosis
        .evidence
        .iter()
        .find(|e| e.fact == "ipamd was started");
    let source = started.unwrap().source.to_string();
    assert_eq!(source, "kubernetes:pod kube-system/aws-node-x2x4z");
}

#[test]
fn start_shortly_before_the_address_was_given_away_is_named() {
    let mut node = node();
    let mut other = plugin(minute(45));
    other.daemon_set = "kube-multus-ds".to_owned();
    let other = PluginPod {
        name: "kube-system/kube-multus-ds-x".to_owned(),
        ..other
    };
    node.watched
        .plugins
        .set([plugin(minute(-30)), other].into_iter());
    let mut collector = node.collector();
    let conflict = node.conflict(ADDRESS);
    let diagnosis = explain(&mut collector, Finding::Conflict(&conflict));
    assert_cause(&diagnosis, Cause::ReleasedInUse, CauseConfidence::Proven);
    assert!(has_fact(
        &diagnosis,
        "kube-multus-ds-x was started (restart 3)"
    ));
    assert!(has_fact(
        &diagnosis,
        "kube-multus-ds-x ended: OOMKilled, exit code 137"
    ));
    assert!(
        !has_fact(&diagnosis, "aws-node-x2x4z ended"),
        "{diagnosis:#?}"
    );
}
