//! Which pod a device is matched to by the API.

use serde_json::{Value, json};

use super::*;

/// Two pods with the same IPv4 address and different IPv6 addresses.
fn dual_stack(node: &Node) -> Vec<Pod> {
    let specs = [("veth1", "fd00::1"), ("veth2", "fd00::2")].map(|(device, ipv6)| {
        PodSpec::new(device)
            .address(format!("{ADDRESS}/24"))
            .address(format!("{ipv6}/64"))
    });
    node.add_pods(&specs).unwrap()
}

#[test]
fn pod_applied_after_its_device_is_named_in_an_update() {
    let node = Node::new("kubelate").unwrap();
    let api = KubeApi::start(&node).unwrap();
    let agent = agent(&node, &api);
    let _pods = devices(&node, &[WEB, DNS]);
    let raised = agent
        .wait_event(DEADLINE, |event| event.raises(ADDRESS))
        .unwrap();
    let raised = raised.event.conflict().unwrap();
    assert!(!all_named(&raised), "{raised:?}");
    both_pods(&api);
    assert_eq!(wait(&agent, all_named).conflict_id, raised.conflict_id);
}

#[test]
fn pods_of_other_nodes_are_ignored() {
    let node = Node::new("kubeother").unwrap();
    let api = KubeApi::start(&node).unwrap();
    api.apply(pod("another", "default", "web-0", &[ADDRESS]));
    let agent = agent(&node, &api);
    let _pods = devices(&node, &[WEB, DNS]);
    api.apply(pod(NODE, "kube-system", "coredns-abc", &[ADDRESS]));
    let conflict = wait(&agent, |conflict| {
        conflict
            .claimant(DNS)
            .is_some_and(|claimant| claimant.pod.is_some())
    });
    assert_eq!(conflict.claimant(WEB).unwrap().pod, None);
}

#[test]
fn unique_address_names_the_pod_without_a_device_name() {
    let node = Node::new("kubeaddress").unwrap();
    let api = KubeApi::start(&node).unwrap();
    api.apply(pod(NODE, "default", "one", &[ADDRESS, "fd00::1"]));
    api.apply(pod(NODE, "default", "two", &[ADDRESS, "fd00::2"]));
    let agent = agent(&node, &api);
    let _pods = dual_stack(&node);
    let conflict = wait(&agent, all_named);
    for (device, name) in [("veth1", "one"), ("veth2", "two")] {
        let pod = conflict.claimant(device).unwrap().pod.clone().unwrap();
        assert_eq!((&pod["name"], &pod["via"]), (&name.into(), &"kube".into()));
    }
}

/// Both devices are there when the agent starts; the API alone knows which pod was created later.
#[test]
fn newest_claimant_is_known_by_the_creation_of_its_pod() {
    let node = Node::new("kubenewest").unwrap();
    let api = KubeApi::start(&node).unwrap();
    let _pods = devices(&node, &[WEB, DNS]);
    let mut later = pod(NODE, "kube-system", "coredns-abc", &[ADDRESS]);
    later["metadata"]["creationTimestamp"] = json!("2026-03-21T09:10:12Z");
    api.apply(later);
    api.apply(pod(NODE, "default", "web-0", &[ADDRESS]));
    let agent = agent(&node, &api);
    let conflict = wait(&agent, |conflict| {
        all_named(conflict) && conflict.claimants.iter().any(|c| c.newest)
    });
    for (device, newest_by) in [(WEB, None), (DNS, Some("pod"))] {
        let claimant = conflict.claimant(device).unwrap();
        let newest = (claimant.newest, claimant.newest_by.as_deref());
        assert_eq!(newest, (newest_by.is_some(), newest_by), "{conflict:?}");
    }
}

#[test]
fn check_sends_one_api_request() {
    let node = Node::new("kubecheck").unwrap();
    let api = KubeApi::start(&node).unwrap();
    both_pods(&api);
    let _pods = devices(&node, &[WEB, DNS]);
    let args = [
        "check",
        "--format=json",
        "--node-name=testkit",
        "--cri-endpoint=off",
        "--cni-cache-dir=off",
        "--kube=on",
    ];
    let outcome = AgentCommand::new(AGENT, args)
        .env("KUBECONFIG", api.kubeconfig())
        .run_to_end(&node, DEADLINE)
        .unwrap();
    assert_eq!(outcome.code().unwrap(), 1, "{outcome:?}");
    let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let conflict: Conflict = serde_json::from_value(document["conflicts"][0].clone()).unwrap();
    assert!(all_named(&conflict), "{conflict:?}");
    assert_eq!(api.requests().len(), 1, "{:?}", api.requests());
}

#[test]
fn reassigned_address_replaces_the_pod_of_its_device() {
    let node = Node::new("kubehanded").unwrap();
    let api = KubeApi::start(&node).unwrap();
    api.apply(pod(NODE, "default", "old", &[ADDRESS, "fd00::1"]));
    api.apply(pod(NODE, "default", "two", &[ADDRESS, "fd00::2"]));
    let agent = agent(&node, &api);
    let _pods = dual_stack(&node);
    wait(&agent, all_named);
    // The API reports late that the address belongs to another pod and the old pod has a new one.
    api.apply(pod(NODE, "default", "new", &[ADDRESS, "fd00::1"]));
    api.apply(pod(NODE, "default", "old", &["10.244.2.77", "fd00::77"]));
    let corrected = wait(&agent, |conflict| {
        let first = conflict.claimant("veth1").and_then(|c| c.pod.as_ref());
        first.is_some_and(|pod| pod["name"] == "new")
    });
    let second = corrected.claimant("veth2").unwrap().pod.clone().unwrap();
    assert_eq!(second["name"], "two");
}

#[test]
fn api_adds_labels_to_a_pod_named_by_a_better_source() {
    let node = Node::new("kubeboth").unwrap();
    let api = KubeApi::start(&node).unwrap();
    both_pods(&api);
    let cache = tempfile::tempdir().unwrap();
    let entry = json!({"kind": "cniCacheV1", "containerId": "cid-web-0", "config": "e30=", "ifName": "eth0",
        "networkName": "calico", "netns": "/gone",
        "cniArgs": [["K8S_POD_NAMESPACE", "default"], ["K8S_POD_NAME", "web-0"], ["K8S_POD_UID", "uid-web-0"]],
        "result": {"cniVersion": "0.3.1", "interfaces": [{"name": WEB}, {"name": "eth0", "sandbox": "/gone"}]}});
    std::fs::write(cache.path().join("calico-1-eth0"), entry.to_string()).unwrap();
    let _pods = devices(&node, &[WEB, DNS]);
    // `check` waits for all sources, whatever the order of their answers.
    let args = [
        "check",
        "--format=json",
        "--node-name=testkit",
        "--cri-endpoint=off",
        "--kube=on",
        "--pod-labels=app",
        "--cni-cache-dir",
    ];
    let outcome = AgentCommand::new(AGENT, args)
        .arg(cache.path())
        .env("KUBECONFIG", api.kubeconfig())
        .run_to_end(&node, DEADLINE)
        .unwrap();
    let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let conflict: Conflict = serde_json::from_value(document["conflicts"][0].clone()).unwrap();
    let pod = |device| conflict.claimant(device).unwrap().pod.clone().unwrap();
    let (web, dns) = (pod(WEB), pod(DNS));
    assert_eq!(
        (&web["via"], &dns["via"]),
        (&"cni-cache".into(), &"kube".into())
    );
    assert_eq!(web["container_id"], "cid-web-0");
    assert_eq!(web["labels"]["app"], "web-0");
}
