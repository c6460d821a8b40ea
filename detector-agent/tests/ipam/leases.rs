//! IPAMs whose records are found by what the CNI result cache has: whereabouts and Spiderpool, in a network of Multus.

use std::fs;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use detector_testkit::{Agent, DEADLINE, KubeApi, Node, Pod, PodSpec, event::ANOMALY_RAISED};
use serde_json::{Value, json};

use super::remote::{NODE, configure, facts, run, wait_for, wanted};

/// A node whose pods have addresses of a network of Multus, which is in no file but the results of plugins.
struct Lan {
    node: Node,
    api: KubeApi,
    directory: tempfile::TempDir,
    ipam: &'static str,
    _pods: Vec<Pod>,
}

impl Lan {
    /// shop/web-2 and shop/web-3 have leases of 10.9.0.2 and 10.9.0.3; another pod has an address without one.
    fn new(prefix: &str, ipam: &'static str) -> Self {
        let node = Node::new(prefix).unwrap();
        let api = KubeApi::start(node.netns()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("results")).unwrap();
        configure(
            directory.path(),
            &json!({"name": "main", "plugins": [{"type": "ptp", "ipam": {"type": "static"}}]}),
        );
        let pods = ["web-2", "web-3", "other-4"].map(|pod| {
            let last = pod.rsplit('-').next().unwrap();
            PodSpec::new(format!("veth{pod}")).address(format!("10.9.0.{last}/24"))
        });
        let lan = Self {
            _pods: node.add_pods(&pods).unwrap(),
            node,
            api,
            directory,
            ipam,
        };
        lan.write_lease("web-2", "10.9.0.2");
        lan.write_lease("web-3", "10.9.0.3");
        lan
    }

    /// The result of the network, as libcni stores it: IPAM gave this pod an address.
    fn write_lease(&self, pod: &str, address: &str) {
        let config = json!({"cniVersion": "0.3.1", "name": "lan", "type": "bridge",
            "ipam": {"type": self.ipam, "range": "10.9.0.0/24"}});
        let id = format!("{pod:0<64}").replace('-', "0");
        let interfaces =
            json!([{"name": format!("veth{pod}")}, {"name": "net1", "sandbox": "/run/netns/1"}]);
        let result = json!({"kind": "cniCacheV1", "containerId": id, "ifName": "net1", "networkName": "lan",
            "config": STANDARD.encode(config.to_string()),
            "cniArgs": [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", pod]],
            "result": {"cniVersion": "0.3.1", "interfaces": interfaces,
                "ips": [{"address": format!("{address}/24"), "interface": 1, "version": "4"}]}});
        let path = format!("results/lan-{id}-net1");
        fs::write(self.directory.path().join(path), result.to_string()).unwrap();
    }

    fn start_agent(&self) -> Agent {
        let command = run(self.directory.path())
            .arg("--kube=on")
            .arg("--cni-cache-dir")
            .arg(self.directory.path().join("results"))
            .env("KUBECONFIG", self.api.kubeconfig());
        Agent::start_ready(&self.node, &command).unwrap()
    }

    /// That a garbage collector releases an address in use is drift, and another drift once another pod has it.
    fn assert_drift(&self, release: impl FnOnce(), give: impl FnOnce()) {
        let agent = self.start_agent();
        agent.wait_log(DEADLINE, "2 allocations in ").unwrap();
        // Something has to make the agent look: here another pod is created.
        release();
        self.write_lease("web-9", "10.9.0.2");
        let raised = wait_for(&agent, ANOMALY_RAISED, 1);
        assert_eq!(
            facts(&raised),
            wanted(&[("10.9.0.2", "ipam_drift", "not_allocated")])
        );
        assert_eq!(raised[0].ipam.as_deref(), Some(self.ipam));
        give();
        self.write_lease("web-9", "10.9.0.3");
        let raised = wait_for(&agent, ANOMALY_RAISED, 2);
        assert_eq!(
            facts(&raised[1..]),
            wanted(&[("10.9.0.3", "ipam_drift", "owned_by_another")])
        );
    }

    /// Every request for objects of this group is for one of these.
    fn assert_only_read(&self, group: &str, names: &[&str]) {
        for request in self.api.requests() {
            let path = request.split('?').next().unwrap_or_default();
            let is_named = names.iter().any(|name| path.ends_with(name));
            assert!(is_named || !request.contains(group), "{request}");
        }
    }
}

const RESERVATIONS: &str = "/apis/whereabouts.cni.cncf.io/v1alpha1/overlappingrangeipreservations";
const WHEREABOUTS_POOLS: &str = "/apis/whereabouts.cni.cncf.io/v1alpha1/ippools";

fn reservation(address: &str, pod: &str) -> Value {
    json!({"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "OverlappingRangeIPReservation",
        "metadata": {"name": address, "namespace": "kube-system"}, "spec": {"podref": pod, "ifname": "net1"}})
}

#[test]
fn released_whereabouts_address_is_drift_and_then_another_pods() {
    let lan = Lan::new("whereabouts", "whereabouts");
    lan.api.apply_object(
        WHEREABOUTS_POOLS,
        json!({"metadata": {"name": "10.9.0.0-24", "namespace": "kube-system"},
        "spec": {"range": "10.9.0.0/24", "allocations": {}}}),
    );
    let reserve = |address, pod| {
        lan.api
            .apply_object(RESERVATIONS, reservation(address, pod))
    };
    reserve("10.9.0.2", "shop/web-2");
    reserve("10.9.0.3", "shop/web-3");
    lan.assert_drift(
        || {
            lan.api
                .delete_object_in(RESERVATIONS, "kube-system", "10.9.0.2");
        },
        || reserve("10.9.0.3", "shop/web-9"),
    );
    let names = ["/10.9.0.2", "/10.9.0.3", "/10.9.0.0-24"];
    lan.assert_only_read("whereabouts", &names);
}

const ENDPOINTS: &str = "/apis/spiderpool.spidernet.io/v2beta1/spiderendpoints";
const SPIDER_POOLS: &str = "/apis/spiderpool.spidernet.io/v2beta1/spiderippools";

/// The pool, as Spiderpool's controller writes it: the owners are a JSON text.
fn spider_pool(owners: &[(&str, &str)]) -> Value {
    let owners = owners.iter().map(|(address, pod)| {
        let owner = json!({"interface": "net1", "pod": pod, "podUid": format!("uid-{pod}")});
        ((*address).to_owned(), owner)
    });
    let owners = Value::Object(owners.collect());
    json!({"apiVersion": "spiderpool.spidernet.io/v2beta1", "kind": "SpiderIPPool", "metadata": {"name": "lan-v4"},
        "spec": {"ipVersion": 4, "subnet": "10.9.0.0/24", "ips": ["10.9.0.2-10.9.0.200"]},
        "status": {"allocatedIPs": owners.to_string(), "allocatedIPCount": 2, "totalIPCount": 199}})
}

fn spider_endpoint(pod: &str, address: &str) -> Value {
    json!({"apiVersion": "spiderpool.spidernet.io/v2beta1", "kind": "SpiderEndpoint",
        "metadata": {"name": pod, "namespace": "shop"},
        "status": {"ownerControllerType": "Pod", "ownerControllerName": pod, "current": {"uid": format!("uid-{pod}"),
            "node": NODE, "ips": [{"interface": "net1", "ipv4": format!("{address}/24"), "ipv4Pool": "lan-v4", "vlan": 0}]}}})
}

#[test]
fn released_spiderpool_address_is_drift_and_then_another_pods() {
    let lan = Lan::new("spiderpool", "spiderpool");
    let endpoint = |pod, address| {
        let endpoint = spider_endpoint(pod, address);
        lan.api.apply_object(ENDPOINTS, endpoint);
    };
    let allocate = |owners: &[_]| lan.api.apply_object(SPIDER_POOLS, spider_pool(owners));
    endpoint("web-2", "10.9.0.2");
    endpoint("web-3", "10.9.0.3");
    allocate(&[("10.9.0.2", "shop/web-2"), ("10.9.0.3", "shop/web-3")]);
    lan.assert_drift(
        || {
            allocate(&[("10.9.0.3", "shop/web-3")]);
            endpoint("web-9", "10.9.0.2");
        },
        || {
            allocate(&[("10.9.0.3", "shop/web-9")]);
            endpoint("web-9", "10.9.0.3");
        },
    );
    let names = ["/web-2", "/web-3", "/web-9", "/lan-v4"];
    lan.assert_only_read("spiderpool", &names);
}
