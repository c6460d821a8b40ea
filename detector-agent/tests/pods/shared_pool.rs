//! Two nodes whose pods have addresses of one pool of whereabouts, with a real containerd and the real `ptp` on each, and one API server.

use anyhow::ensure;
use detector_testkit::{
    Agent, Containerd, DEADLINE, KubeApi, Node, containerd::Sandbox, http::TestClient, until,
};
use serde_json::{Value, json};

use super::{
    diagnosis::{agent_on, explained, wait_nothing_open},
    remote_ipam::{PREFIX, add_ipam, run, wait_version},
};
use crate::AGENT;

const CLAIMS: &str = "/apis/ipconflict.io/v1alpha1/ipclaims";
const CONFLICTS: &str = "/apis/ipconflict.io/v1alpha1/ipconflicts";
const RESERVATIONS: &str = "/apis/whereabouts.cni.cncf.io/v1alpha1/overlappingrangeipreservations";
const RESERVATIONS_IN: &str = "kube-system";

/// A node with its agent.
struct Member {
    node: Node,
    containerd: Containerd,
    agent: Option<Agent>,
}

impl Member {
    fn new(name: &str) -> Self {
        let node = Node::new(name).unwrap();
        let plugins = json!([{"type": "ptp", "ipam": {"type": "whereabouts", "range": format!("{PREFIX}.0/24")}}]);
        let containerd = Containerd::start(&node, plugins).unwrap();
        add_ipam(&containerd, "whereabouts");
        Self {
            node,
            containerd,
            agent: None,
        }
    }

    fn start_agent(&mut self, name: &str, api: &KubeApi) {
        let cri = self.containerd.socket();
        let command = agent_on(name, &self.containerd, cri.to_str().unwrap())
            .args(["--kube=on", "--fleet=kubernetes"])
            .env("KUBECONFIG", api.kubeconfig());
        self.agent = Some(Agent::start_ready(&self.node, &command).unwrap());
    }

    /// Creates a pod with an address that is reserved for it.
    fn run(&mut self, api: &KubeApi, name: &str, last: usize) -> Sandbox {
        run(&mut self.containerd, name, last, |_| {
            api.apply_object(RESERVATIONS, reservation(last, name));
        })
    }

    /// The diagnosis of the one finding of a list, once it has a cause.
    fn diagnosis(&self, list: &str) -> Value {
        let client = TestClient::of_agent(&self.node);
        until(DEADLINE, "a cause", || {
            let open = client.get(&format!("/api/v1/{list}"))?.json()?;
            let diagnosis = open[list][0]["diagnosis"].clone();
            let is_known = diagnosis.is_object() && diagnosis["cause"] != "unknown";
            ensure!(is_known, "{open:#}");
            Ok(diagnosis)
        })
        .unwrap()
    }
}

fn reservation(last: usize, pod: &str) -> Value {
    json!({"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "OverlappingRangeIPReservation",
        "metadata": {"name": format!("{PREFIX}.{last}"), "namespace": RESERVATIONS_IN},
        "spec": {"podref": format!("default/{pod}"), "ifname": "eth0"}})
}

fn release(api: &KubeApi, last: usize) {
    api.delete_object_in(RESERVATIONS, RESERVATIONS_IN, &format!("{PREFIX}.{last}"));
}

/// A garbage collector releases the address of a pod that runs, and a pod on the other node gets it. Only the agent beside the first
/// pod knows that the network plugin had given it the address: it reads the record again, because there is a conflict. The one beside
/// the second pod reports the conflict, and has the cause from the first.
#[test]
fn lease_that_a_pod_of_another_node_got_is_named_as_released() {
    let [mut first, mut second] = ["shareda", "sharedb"].map(Member::new);
    let api = KubeApi::start(first.node.netns()).unwrap();
    api.listen(second.node.netns()).unwrap();
    api.set_nodes(&["node-1", "node-2"]);
    api.install(CLAIMS);
    api.install(CONFLICTS);
    first.start_agent("node-1", &api);
    second.start_agent("node-2", &api);
    wait_version(&api, 2);
    let web = first.run(&api, "web-1", 5);
    let is_claim = |request: &String| request.starts_with("POST") && request.contains("ipclaims");
    api.wait_requests(DEADLINE, |all| all.iter().any(is_claim))
        .unwrap();
    release(&api, 5);
    let cart = second.run(&api, "cart-1", 5);
    for list in ["anomalies", "conflicts"] {
        let diagnosis = first.diagnosis(list);
        assert_eq!(diagnosis["cause"], "released_in_use", "{diagnosis:#}");
        assert_eq!(diagnosis["confidence"], "proven", "{diagnosis:#}");
        let owner = "10.244.9.5 is allocated to default/cart-1";
        assert!(
            diagnosis["evidence"].to_string().contains(owner),
            "{diagnosis:#}"
        );
    }
    let of_first = first.diagnosis("conflicts");
    let conflict = explained(second.agent.as_ref().unwrap(), 1).remove(0);
    let diagnosis = conflict.diagnosis.unwrap();
    assert_eq!(diagnosis["cause"], "released_in_use", "{diagnosis:#}");
    assert_eq!(diagnosis["confidence"], "proven", "{diagnosis:#}");
    assert_eq!(diagnosis["since"], of_first["since"], "{diagnosis:#}");
    let on_first = |text: &str| format!("On node node-1: {}", of_first[text].as_str().unwrap());
    for text in ["summary", "repair"] {
        assert_eq!(diagnosis[text], on_first(text), "{diagnosis:#}");
    }
    let not_checked = diagnosis["not_checked"].to_string();
    assert!(
        not_checked.contains("it is on another node"),
        "{not_checked}"
    );
    let explain = second
        .containerd
        .agent_command(AGENT, ["explain", "10.244.9.5"]);
    let text = explain.run_to_end(&second.node, DEADLINE).unwrap().stdout;
    assert!(text.contains("released_in_use  proven"), "{text}");
    assert!(text.contains(&on_first("summary")), "{text}");
    assert!(
        text.contains("(kubernetes:ipconflict 10.244.9.5)"),
        "{text}"
    );
    second.containerd.remove_pod(&cart).unwrap();
    release(&api, 5);
    first.containerd.remove_pod(&web).unwrap();
    first.run(&api, "web-1-again", 6);
    for member in [&first, &second] {
        wait_nothing_open(&member.node);
    }
}
