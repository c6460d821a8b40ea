//! Files and responses of IPAM plugins with any content; see [`crate::fuzzing`].

use std::net::{IpAddr, SocketAddr};

use detector_engine::{Allocation, Ipam, PoolId, Timestamp};
use kube::api::{DynamicObject, ObjectList};
use serde_json::Value;

use super::{
    MAX_ID,
    aws::{self, AwsReader},
    azure,
    calico::{self, NodeBlocks},
    cilium,
    cni_config::{self, CniConfig},
    host_local, kube_ovn, leases, spiderpool, whereabouts,
    whole_pool::{Allocations, MAX_ADDRESSES},
};

/// Reads a reservation of `host-local`.
pub fn host_local_reservation(bytes: &[u8]) {
    if let Some(owner) = host_local::parse_owner(bytes) {
        assert!(
            (1..=MAX_ID).contains(&owner.len())
                && owner.bytes().all(|byte| byte.is_ascii_graphic()),
            "invalid container id {owner:?}"
        );
    }
}

/// Reads ipamd's file.
pub fn aws_file(bytes: &[u8]) {
    apply_and_lose(aws::parse_file(bytes));
}

/// Reads a response body of ipamd's introspection port.
pub fn aws_answer(bytes: &[u8]) {
    apply_and_lose(aws::parse_introspection(bytes));
}

/// Applies the allocations, then a failed read, then an empty snapshot.
fn apply_and_lose(parsed: Result<Allocations, String>) {
    let Ok(allocated) = parsed else {
        return;
    };
    assert!(allocated.len() <= MAX_ADDRESSES, "{}", allocated.len());
    let network = ("aws-cni".to_owned(), "eni");
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut reader = AwsReader::new(PoolId(0), network, "ipam.json".into(), nowhere);
    for (time, read, expected) in [
        (1, Ok(allocated.clone()), allocated.len()),
        (2, Err("failed".to_owned()), allocated.len()),
        (3, Ok(Allocations::new()), 0),
    ] {
        let failed = read.is_err();
        let read = reader.apply("file".to_owned(), read, false, Timestamp(time));
        assert_eq!(read.pool.allocated.len(), expected, "at {time}");
        assert_eq!(
            read.pool.completeness == detector_engine::Completeness::Unknown,
            failed
        );
    }
}

fn add_all(blocks: &mut NodeBlocks, page: &ObjectList<DynamicObject>) {
    for block in &page.items {
        blocks.add(block.data.get("spec").unwrap_or(&Value::Null), "node");
    }
}

/// Reads a page of Calico's blocks in the JSON of the Kubernetes API; this node is `node`.
pub fn calico_blocks(bytes: &[u8]) {
    let Ok(page) = serde_json::from_slice::<ObjectList<DynamicObject>>(bytes) else {
        return;
    };
    let mut blocks = NodeBlocks::default();
    // Twice, because an address may be in several blocks.
    for _ in 0..2 {
        add_all(&mut blocks, &page);
    }
    assert!(blocks.allocated.len() <= calico::MAX_ADDRESSES);
    check_owners(&blocks.allocated);
}

/// Reads the state of a Cilium endpoint.
pub fn cilium_endpoint(bytes: &[u8]) {
    if let Ok(endpoint) = cilium::parse(bytes) {
        assert!(endpoint.addresses.len() <= 2);
    }
}

/// Reads the file of Azure's CNS.
pub fn azure_endpoints(bytes: &[u8]) {
    if let Ok(allocated) = azure::parse(bytes) {
        check_allocations(&allocated);
    }
}

/// Reads a page of Kube-OVN's `IP` objects in the JSON of the Kubernetes API; this node is `kube-ovn-worker`.
pub fn kube_ovn_objects(bytes: &[u8]) {
    let Ok(page) = serde_json::from_slice::<ObjectList<DynamicObject>>(bytes) else {
        return;
    };
    if let Ok(allocated) = kube_ovn::parse(&mut page.items.iter(), "kube-ovn-worker") {
        check_allocations(&allocated);
    }
}

/// Reads a file of the CNI result cache for a lease.
pub fn ipam_lease(bytes: &[u8]) {
    if let Some(lease) = leases::parse(bytes) {
        assert!(leases::is_name(&lease.namespace) && leases::is_name(&lease.pod));
    }
}

/// Reads a list of whereabouts' objects in the JSON of the Kubernetes API.
pub fn whereabouts_objects(bytes: &[u8]) {
    let Ok(page) = serde_json::from_slice::<ObjectList<DynamicObject>>(bytes) else {
        return;
    };
    for object in &page.items {
        for address in ["192.168.2.225", "fd00::2"] {
            let address = address.parse::<IpAddr>();
            let _ = address.map(|address| whereabouts::in_pool(object, address));
        }
    }
}

/// Reads a list of Spiderpool's objects in the JSON of the Kubernetes API.
pub fn spiderpool_objects(bytes: &[u8]) {
    let Ok(page) = serde_json::from_slice::<ObjectList<DynamicObject>>(bytes) else {
        return;
    };
    let address = IpAddr::from([172, 31, 199, 193]);
    for object in &page.items {
        let pool = spiderpool::pool_of(object, address);
        assert!(pool.is_none_or(|pool| leases::is_name(&pool)));
        let _ = spiderpool::in_pool(object, address);
    }
}

fn check_allocations(allocated: &Allocations) {
    assert!(allocated.len() <= MAX_ADDRESSES);
    check_owners(allocated);
}

fn check_owners(allocated: &Allocations) {
    let has_same_owner_twice = |allocation: &Allocation| {
        allocation.second_owner.is_some() && allocation.second_owner == allocation.owner
    };
    assert!(
        !allocated.values().any(has_same_owner_twice),
        "one owner counts as two"
    );
}

/// Reads a CNI configuration, and flanneld's subnet file.
pub fn cni_networks(bytes: &[u8]) {
    assert!(cni_config::leased_subnets(bytes).len() <= 2);
    let Ok(mut value) = serde_json::from_slice(bytes) else {
        return;
    };
    remove_file_references(&mut value);
    let mut config = CniConfig::default();
    config.add_file(&value, true);
    config.add_file(&value, false);
    assert!(config.networks.len() <= cni_config::MAX_NETWORKS);
    for (ipam, network) in config.supported() {
        assert!(
            network.ranges.len() <= cni_config::MAX_RANGES,
            "{network:?}"
        );
        assert!(
            network
                .ranges
                .iter()
                .all(|range| range.start() <= range.end()),
            "{network:?}"
        );
        if ipam != Ipam::HostLocal {
            continue;
        }
        let name = std::path::Path::new(&network.name);
        let mut parts = name.components();
        assert!(
            matches!(parts.next(), Some(std::path::Component::Normal(_))) && parts.next().is_none(),
            "the network's directory is outside its parent: {network:?}"
        );
    }
}

/// Removes the paths of other files, whose content is not part of the input.
fn remove_file_references(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("subnetFile");
            fields.values_mut().for_each(remove_file_references);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_file_references),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    macro_rules! input {
        ($name:literal) => {
            include_bytes!(concat!("../../../fuzz/corpus/", $name))
        };
    }

    #[test]
    fn corpus_inputs_are_parsed() {
        assert!(host_local::parse_owner(input!("ipam_host_local/two-lines")).is_some());
        assert_eq!(
            aws::parse_file(input!("ipam_aws_file/two")).unwrap().len(),
            2
        );
        let response = aws::parse_introspection(input!("ipam_aws_port/new-versions"));
        assert_eq!(response.unwrap().len(), 1);
        let page: ObjectList<DynamicObject> =
            serde_json::from_slice(input!("ipam_calico/borrowed-tunnel-shared")).unwrap();
        let mut blocks = NodeBlocks::default();
        add_all(&mut blocks, &page);
        assert_eq!(blocks.allocated.len(), 3);
        let mut config = CniConfig::default();
        let value = serde_json::from_slice(input!("ipam_networks/multus")).unwrap();
        config.add_file(&value, true);
        assert_eq!(config.networks.len(), 2);
        assert_eq!(
            cni_config::leased_subnets(input!("ipam_networks/flannel-lease")).len(),
            2
        );
    }
}
