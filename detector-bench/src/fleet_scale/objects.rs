//! The objects of simulated agents, with the fields that an agent writes and contents of usual lengths.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use detector_testkit::random::Random;
use serde_json::{Value, json};
use sha1::{Digest as _, Sha1};

/// The resources.
pub(super) const CLAIMS: &str = "/apis/ipconflict.io/v1alpha1/ipclaims";
pub(super) const CONFLICTS: &str = "/apis/ipconflict.io/v1alpha1/ipconflicts";
pub(super) const NODES: &str = "/api/v1/nodes";
pub(super) const PODS: &str = "/api/v1/namespaces/default/pods";

/// The range of the simulated pods; each node has a /24 of it.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 0);
/// Addresses of a node's range.
const RANGE: u32 = 256;

/// A node that exists only as an object.
#[derive(Clone, Debug)]
pub(super) struct SimulatedNode {
    number: u32,
    pub(super) name: String,
    boot_id: String,
    /// Of the object; empty before it was created.
    pub(super) uid: String,
    seed: u64,
}

impl SimulatedNode {
    pub(super) fn new(number: u32, seed: u64) -> Self {
        let seed = seed ^ (u64::from(number) << 32);
        Self {
            number,
            name: format!("ip-10-1-{}-{}.example.internal", number / 256, number % 256),
            boot_id: uuid(&mut Random(seed)),
            uid: String::new(),
            seed,
        }
    }

    /// The podCIDR.
    fn range(&self) -> String {
        format!("{}/24", self.address_at(0))
    }

    fn address_at(&self, offset: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(FIRST) + self.number * RANGE + offset)
    }

    /// The Node.
    pub(super) fn node(&self) -> Result<Vec<u8>> {
        node(&self.name, &self.range(), &self.boot_id)
    }

    /// The claim of the podCIDR.
    pub(super) fn range_claim(&self) -> (String, Value) {
        let range = self.range();
        let name = range.replace('/', "-");
        let spec = json!({"address": range, "node": self.name, "bootId": self.boot_id, "source": "podCIDR"});
        (name.clone(), self.claim(&name, spec))
    }

    /// The claim of a pod's address; pods are counted from 0.
    pub(super) fn pod_claim(&self, pod: u32) -> (String, Value) {
        let random = &mut Random(self.seed ^ u64::from(pod + 1));
        let address = self.address_at(pod + 2).to_string();
        let mut spec = self.claimant(random, pod);
        if let Some(fields) = spec.as_object_mut() {
            fields.insert("address".to_owned(), json!(address));
        }
        (address.clone(), self.claim(&address, spec))
    }

    /// A conflict within the node, as its agent publishes it; conflicts are counted from 0.
    pub(super) fn local_conflict(&self, number: u32, has_labels: bool) -> Value {
        let random = &mut Random(self.seed ^ (u64::from(number + 1) << 16));
        let address = self.address_at(number + 2).to_string();
        let claimants: Vec<_> = (0..2)
            .map(|side| self.claimant(random, number * 2 + side))
            .collect();
        let pods = claimants.iter().map(|c| {
            let pod = c.get("pod").and_then(Value::as_str).unwrap_or_default();
            format!("shop/{pod}")
        });
        let pods = pods.collect::<Vec<_>>().join(", ");
        let id = format!("{:016x}{:016x}", random.next_u64(), random.next_u64());
        let name = format!("{address}-{}", id.get(..8).unwrap_or_default());
        let node = format!("node.ipconflict.io/{}", self.name);
        let labels = match has_labels {
            true => json!({"ipconflict.io/scope": "node", node: ""}),
            false => json!({}),
        };
        json!({
            "apiVersion": "ipconflict.io/v1alpha1",
            "kind": "IPConflict",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "address": address, "conflictId": id, "kind": "duplicate", "scope": "node", "network": "node",
                "state": "Active", "confidence": "certain", "raisedAt": "2026-11-25T02:00:00.123456Z",
                "nodes": self.name, "pods": pods, "claimants": claimants,
            },
        })
    }

    fn claimant(&self, random: &mut Random, ifindex: u32) -> Value {
        let (hash, id) = (random.next_u64(), random.next_u64());
        let [_, _, _, b, c, d, e, f] = hash.to_be_bytes();
        json!({
            "node": self.name,
            "bootId": self.boot_id,
            "device": format!("cali{:011x}", hash >> 20),
            "ifindex": ifindex + 4,
            "mac": format!("02:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"),
            "namespace": "shop",
            "pod": format!("checkout-{:010x}-{:05x}", hash >> 24, id >> 44),
            "podUid": uuid(random),
            "containerId": format!("{id:016x}{hash:016x}{:016x}{:016x}", random.next_u64(), random.next_u64()),
            "evidence": "address",
        })
    }

    fn claim(&self, name: &str, spec: Value) -> Value {
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid});
        json!({
            "apiVersion": "ipconflict.io/v1alpha1",
            "kind": "IPClaim",
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": spec,
        })
    }
}

/// A Node that is ready.
pub(super) fn node(name: &str, range: &str, boot_id: &str) -> Result<Vec<u8>> {
    let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady",
        "message": "kubelet is posting ready status"});
    to_bytes(&json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {"podCIDR": range, "podCIDRs": [range]},
        "status": {"conditions": [ready], "nodeInfo": {
            "machineID": "", "systemUUID": "", "bootID": boot_id, "kernelVersion": "", "osImage": "",
            "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "linux",
            "architecture": "amd64"}},
    }))
}

/// A pod on a node, as it is created.
pub(super) fn pod(name: &str, node: &str) -> Result<Vec<u8>> {
    to_bytes(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node, "automountServiceAccountToken": false,
            "containers": [{"name": "pause", "image": "pause"}]},
    }))
}

/// The same pod with the status that kubelet writes once it has an address.
pub(super) fn running(created: &[u8], address: Ipv4Addr) -> Result<Vec<u8>> {
    let mut pod: Value = serde_json::from_slice(created).context("a pod as it was created")?;
    let status = json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]});
    let object = pod.as_object_mut().context("a pod is an object")?;
    object.insert("status".to_owned(), status);
    to_bytes(&pod)
}

/// The host device of a pod, as Calico names it.
pub(super) fn calico_device(pod: &str) -> String {
    let hash = Sha1::digest(format!("default.{pod}"));
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("cali{}", hex.get(..11).unwrap_or_default())
}

pub(super) fn to_bytes(value: &Value) -> Result<Vec<u8>> {
    serde_json::to_vec(value).context("an object as JSON")
}

fn uuid(random: &mut Random) -> String {
    let (high, low) = (random.next_u64(), random.next_u64());
    format!(
        "{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        low >> 52,
        low & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn every_claim_has_a_name_of_its_own() {
        let mut names = std::collections::BTreeSet::new();
        for number in 0..300 {
            let node = SimulatedNode::new(number, 1);
            names.insert(node.range_claim().0);
            names.extend((0..30).map(|pod| node.pod_claim(pod).0));
        }
        assert_eq!(names.len(), 300 * 31);
        assert!(names.contains("10.65.43.0-24") && names.contains("10.64.1.31"));
    }

    #[test]
    fn claim_has_the_usual_size() {
        let mut node = SimulatedNode::new(4999, 1);
        node.uid = uuid(&mut Random(7));
        let claim = to_bytes(&node.pod_claim(29).1).unwrap();
        assert!((550..700).contains(&claim.len()), "{}", claim.len());
    }

    #[test]
    fn device_is_named_as_calico_does() {
        // `printf default.web-0 | sha1sum`
        assert_eq!(calico_device("web-0"), "cali0d7763386da");
    }
}
