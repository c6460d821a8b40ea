//! What the addresses that kubelet has written explain.

use detector_testkit::{http::TestClient, until};
use serde_json::json;

use super::*;

#[test]
fn announcement_of_the_address_of_another_pod_ends_with_it() {
    let node = Node::new("kubeframes").unwrap();
    let api = KubeApi::start(&node).unwrap();
    api.apply(pod(NODE, "default", "web-0", &[ADDRESS]));
    api.apply(pod(NODE, "kube-system", "coredns-abc", &["10.244.2.11"]));
    let own = [(WEB, ADDRESS), (DNS, "10.244.2.11")];
    let specs = own.map(|(device, address)| PodSpec::new(device).address(format!("{address}/24")));
    let pods = node.add_pods(&specs).unwrap();
    let command = command(&api, "on").arg("--claim-ttl=5s");
    let agent = Agent::start_ready(&node, &command).unwrap();
    announce(&pods[1], ADDRESS.parse().unwrap()).unwrap();
    let explained = wait(&agent, |conflict| conflict.diagnosis.is_some());
    let diagnosis = explained.diagnosis.unwrap();
    assert_eq!(diagnosis["cause"], "frames_only", "{diagnosis:#}");
    assert_eq!(diagnosis["confidence"], "proven", "{diagnosis:#}");
    let repair = diagnosis["repair"].as_str().unwrap();
    let step = "stop what sends in kube-system/coredns-abc";
    assert!(repair.contains(step), "{repair}");
    // It sends no more.
    agent.wait_resolved(ADDRESS).unwrap();
    let client = TestClient::of_agent(&node);
    until(DEADLINE, "nothing to be reported", || {
        let open = client.get("/api/v1/conflicts")?.json()?;
        anyhow::ensure!(open["conflicts"] == json!([]), "{open:#}");
        Ok(())
    })
    .unwrap();
}
