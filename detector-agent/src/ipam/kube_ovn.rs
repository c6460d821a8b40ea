//! Allocations of Kube-OVN: its cluster-scoped `IP` objects (`kubeovn.io/v1`), which the controller creates before it gives the
//! node a pod's address (`createOrUpdateIPCR` in `pkg/controller/ip.go`). Those of this node have a label.
//!
//! Required role: `list` and `watch` on `ips` of `kubeovn.io`.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use ::kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use detector_engine::{Allocation, Ipam};
use serde::Deserialize;

use super::{
    kube_objects::{ObjectsReader, Selection},
    snapshot_history::SnapshotHistory,
    source::Source,
    whole_pool::{self, Allocations, MAX_ADDRESSES, WholePool},
};

/// The label with the node's name (`NodeNameLabel` in `pkg/util/const.go`), which old versions do not set.
const NODE_LABEL: &str = "ovn.kubernetes.io/node-name";
/// The `podType` of an object whose `podName` is that of a virtual machine begins with this.
const VIRTUAL_MACHINE: &str = "VirtualMachine";

pub(super) const SOURCE: Source = Source {
    ipam: Ipam::KubeOvn,
    serves: |plugin, ipam| plugin == "kube-ovn" && matches!(ipam, "" | "kube-ovn"),
    is_found_by_leases: false,
    reader: |id, network, context| {
        let kind = GroupVersionKind::gvk("kubeovn.io", "v1", "IP");
        Box::new(ObjectsReader {
            pool: WholePool {
                id,
                ipam: Ipam::KubeOvn,
                network: network.name.clone(),
                // Its devices have no prefix, and its virtual networks may share ranges: only an address that was
                // allocated before is known to be its own.
                device_prefixes: Vec::new(),
                // An address may be reserved for a pod to come, or for one on a device that the agent does not track.
                can_detect_leaks: false,
                can_detect_deletion: false,
                record_delay: Duration::ZERO,
                history: SnapshotHistory::new(MAX_ADDRESSES),
            },
            kube: context.kube.cloned(),
            selection: Selection {
                resource: ApiResource::from_gvk_with_plural(&kind, "ips"),
                labels: format!("{NODE_LABEL}={}", context.node),
            },
            node: context.node.to_owned(),
            parse,
            watch: None,
        })
    },
};

/// The allocations in a node's objects.
pub(super) fn parse(
    objects: &mut dyn Iterator<Item = &DynamicObject>,
    node: &str,
) -> Result<Allocations, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    #[derive(Default)]
    struct Spec {
        pod_name: String,
        namespace: String,
        subnet: String,
        pod_type: String,
        ip_address: String,
        v4_ip_address: String,
        v6_ip_address: String,
    }
    let mut allocated = Allocations::new();
    let mut subnets: BTreeMap<IpAddr, Option<String>> = BTreeMap::new();
    let mut has_node = false;
    for object in objects {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        has_node |= name.strip_prefix("node-") == Some(node);
        let spec = object.data.get("spec").unwrap_or_default();
        let spec = Spec::deserialize(spec).map_err(|error| format!("{name}: {error}"))?;
        let is_pod = !spec.namespace.is_empty() && !spec.pod_type.starts_with(VIRTUAL_MACHINE);
        let owner = is_pod.then(|| format!("{}/{}", spec.namespace, spec.pod_name));
        let both = spec.ip_address.split(',');
        let texts = both.chain([spec.v4_ip_address.as_str(), spec.v6_ip_address.as_str()]);
        for text in texts.map(str::trim).filter(|text| !text.is_empty()) {
            let address = text
                .parse()
                .map_err(|_| format!("{name} has the address {text:?}"))?;
            let allocation = Allocation {
                owner: owner.as_deref().map(Into::into),
                not_a_pod: spec.namespace.is_empty(),
                ..Allocation::default()
            };
            let known = subnets.entry(address);
            let subnet = known.or_insert_with(|| Some(spec.subnet.clone()));
            if subnet.as_ref() == Some(&spec.subnet) {
                whole_pool::add(&mut allocated, address, allocation);
            } else {
                // Two virtual networks with the same range: which pod it means is not known.
                *subnet = None;
                allocated.insert(address, Allocation::default());
            }
            if allocated.len() > MAX_ADDRESSES {
                return Err(format!("the node has more than {MAX_ADDRESSES} addresses"));
            }
        }
    }
    match has_node {
        true => Ok(allocated),
        false => Err(format!(
            "no object `node-{node}` has the label {NODE_LABEL}, so those of pods may lack it too"
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use ::kube::api::ObjectList;

    use super::*;

    fn objects() -> Vec<DynamicObject> {
        let bytes = include_bytes!("../../../fuzz/corpus/ipam_kube_ovn/worker");
        let list: ObjectList<DynamicObject> = serde_json::from_slice(bytes).unwrap();
        list.items
    }

    fn of(allocated: &Allocations, address: &str) -> Allocation {
        let address: IpAddr = address.parse().unwrap();
        allocated.get(&address).cloned().unwrap()
    }

    #[test]
    fn pods_machines_and_the_node_itself_are_distinguished() {
        let found = parse(&mut objects().iter(), "kube-ovn-worker").unwrap();
        let owner = |address| of(&found, address).owner;
        assert_eq!(owner("10.16.0.3").as_deref(), Some("default/pod-static-01"));
        for address in ["10.16.0.9", "fd00:10:16::9"] {
            assert_eq!(owner(address).as_deref(), Some("kube-system/coredns-1"));
        }
        assert_eq!(owner("10.16.0.13"), None, "the name is a machine's");
        assert!(of(&found, "100.64.0.3").not_a_pod, "the node's own");
        assert_eq!(found.len(), 5);
    }

    #[test]
    fn address_of_two_objects_has_two_owners_within_a_subnet() {
        let mut objects = objects();
        let mut second = objects[2].clone();
        second.data["spec"]["podName"] = "another".into();
        objects.push(second.clone());
        let found = parse(&mut objects.iter(), "kube-ovn-worker").unwrap();
        assert!(of(&found, "10.16.0.3").second_owner.is_some());
        second.data["spec"]["subnet"] = "another".into();
        objects.insert(0, second);
        let found = parse(&mut objects.iter(), "kube-ovn-worker").unwrap();
        assert_eq!(of(&found, "10.16.0.3"), Allocation::default());
    }

    #[test]
    fn objects_that_may_be_incomplete_are_refused() {
        let without_node = objects().split_off(1);
        assert!(parse(&mut without_node.iter(), "kube-ovn-worker").is_err());
        assert!(parse(&mut objects().iter(), "another-node").is_err());
        let mut broken = objects();
        broken[2].data["spec"]["v4IpAddress"] = "10.16.0".into();
        broken[3].data["spec"] = 7.into();
        for object in [2, 3] {
            let mut of = broken.iter().take(1).chain(broken.iter().skip(object));
            assert!(parse(&mut of, "kube-ovn-worker").is_err());
        }
    }
}
