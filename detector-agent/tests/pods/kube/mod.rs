//! Pod lookup through the Kubernetes API alone: list and watch with server faults, and the events posted
//! on pods.

mod cause;
mod events;
mod names;
mod server;

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, KubeApi, Node, Pod, PodSpec, announce, event::Conflict,
    kube_api::pod,
};

const NODE: &str = "testkit";
const ADDRESS: &str = "10.244.2.10";
/// Calico's names for the devices of `default/web-0` and `kube-system/coredns-abc`.
const WEB: &str = "cali0d7763386da";
const DNS: &str = "cali3d5d6ab04b5";

use crate::AGENT;

fn agent(node: &Node, api: &KubeApi) -> Agent {
    agent_with(node, api, "on")
}

fn agent_with(node: &Node, api: &KubeApi, kube: &str) -> Agent {
    Agent::start_ready(node, &command(api, kube)).unwrap()
}

fn command(api: &KubeApi, kube: &str) -> AgentCommand {
    AgentCommand::run(AGENT)
        .arg("--cri-endpoint=off")
        .arg("--cni-cache-dir=off")
        .arg(format!("--kube={kube}"))
        .arg("--pod-labels=app")
        .env("KUBECONFIG", api.kubeconfig())
}

fn both_pods(api: &KubeApi) {
    api.apply(pod(NODE, "default", "web-0", &[ADDRESS]));
    api.apply(pod(NODE, "kube-system", "coredns-abc", &[ADDRESS]));
}

fn devices(node: &Node, names: &[&str]) -> Vec<Pod> {
    let specs: Vec<_> = names
        .iter()
        .map(|name| PodSpec::new(*name).address(format!("{ADDRESS}/24")))
        .collect();
    node.add_pods(&specs).unwrap()
}

fn wait(agent: &Agent, wanted: impl Fn(&Conflict) -> bool) -> Conflict {
    let received = agent.wait_event(DEADLINE, |event| {
        event.conflict().is_some_and(|conflict| wanted(&conflict))
    });
    received.unwrap().event.conflict().unwrap()
}

fn all_named(conflict: &Conflict) -> bool {
    conflict
        .claimants
        .iter()
        .all(|claimant| claimant.pod.is_some())
}
