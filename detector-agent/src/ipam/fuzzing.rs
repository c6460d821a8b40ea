//! Files and answers of IPAM plugins, of any content; see [`crate::fuzzing`].

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use kube::api::{DynamicObject, ObjectList};
use serde_json::Value;

use super::{
    aws::{self, Aws},
    calico::{self, Blocks},
    config::{self, Config},
    host_local,
};
use crate::engine::{self, Allocation, PoolId, Timestamp};

/// Reads a reservation of `host-local`.
pub fn host_local_reservation(bytes: &[u8]) {
    if let Some(owner) = host_local::owner_in(bytes) {
        assert!(
            (1..=host_local::MAX_ID).contains(&owner.len())
                && owner.bytes().all(|byte| byte.is_ascii_graphic()),
            "no container has the id {owner:?}"
        );
    }
}

/// Reads ipamd's file.
pub fn aws_file(bytes: &[u8]) {
    follow(aws::of_file(bytes));
}

/// Reads what ipamd's introspection port sent, HTTP included.
pub fn aws_answer(bytes: &[u8]) {
    follow(aws::body(bytes.to_vec()).and_then(|body| aws::of_port(&body)));
}

/// Takes the books, loses sight of them, and sees all of them freed.
fn follow(found: Result<BTreeMap<IpAddr, Allocation>, String>) {
    let Ok(found) = found else {
        return;
    };
    assert!(found.len() <= aws::MAX_ADDRESSES, "{}", found.len());
    let network = ("aws-cni".to_owned(), "eni".to_owned());
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut books = Aws::new(PoolId(0), network, "ipam.json".into(), nowhere);
    for (time, told, held) in [
        (1, Ok(found.clone()), found.len()),
        (2, Err("away".to_owned()), found.len()),
        (3, Ok(BTreeMap::new()), 0),
    ] {
        let failed = told.is_err();
        let read = books.take("file".to_owned(), told, false, Timestamp(time));
        assert_eq!(read.pool.allocated.len(), held, "at {time}");
        assert_eq!(
            read.pool.completeness == engine::Completeness::Unknown,
            failed
        );
    }
}

/// Reads a page of Calico's blocks, as the Kubernetes API gives it; this node is `node`.
pub fn calico_blocks(bytes: &[u8]) {
    let Ok(page) = serde_json::from_slice::<ObjectList<DynamicObject>>(bytes) else {
        return;
    };
    let mut blocks = Blocks::default();
    // The same blocks again: what is lent may stand in several.
    for _ in 0..2 {
        blocks.add_all(&page.items, "node");
    }
    assert!(blocks.allocated.len() <= calico::MAX_ADDRESSES);
    let shared = |allocation: &Allocation| {
        allocation.second_owner.is_some() && allocation.second_owner == allocation.owner
    };
    assert!(
        !blocks.allocated.values().any(shared),
        "one owner counts as two"
    );
}

/// Reads a CNI configuration, and flanneld's file that one may name.
pub fn cni_networks(bytes: &[u8]) {
    assert!(config::leased_subnets(bytes).len() <= 2);
    let Ok(mut value) = serde_json::from_slice(bytes) else {
        return;
    };
    without_files(&mut value);
    let mut config = Config::default();
    config.file(&value, true);
    config.file(&value, false);
    assert!(config.count() <= config::MAX_NETWORKS);
    for network in &config.host_local {
        assert!(network.ranges.len() <= config::MAX_RANGES, "{network:?}");
        assert!(
            network
                .ranges
                .iter()
                .all(|range| range.start() <= range.end()),
            "{network:?}"
        );
        let name = std::path::Path::new(&network.name);
        let mut parts = name.components();
        assert!(
            matches!(parts.next(), Some(std::path::Component::Normal(_))) && parts.next().is_none(),
            "a network's directory would be elsewhere: {network:?}"
        );
    }
}

/// Leaves out the files that a configuration names: what stands there is not the input.
fn without_files(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("subnetFile");
            fields.values_mut().for_each(without_files);
        }
        Value::Array(items) => items.iter_mut().for_each(without_files),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use super::*;

    macro_rules! input {
        ($name:literal) => {
            include_bytes!(concat!("../../../fuzz/corpus/", $name))
        };
    }

    #[test]
    fn the_first_inputs_are_understood() {
        assert!(host_local::owner_in(input!("ipam_host_local/two-lines")).is_some());
        assert_eq!(aws::of_file(input!("ipam_aws_file/two")).unwrap().len(), 2);
        let answer = aws::body(input!("ipam_aws_port/new-versions").to_vec()).unwrap();
        assert_eq!(aws::of_port(&answer).unwrap().len(), 1);
        let page: ObjectList<DynamicObject> =
            serde_json::from_slice(input!("ipam_calico/borrowed-tunnel-shared")).unwrap();
        let mut blocks = Blocks::default();
        blocks.add_all(&page.items, "node");
        assert_eq!(blocks.allocated.len(), 3);
        let mut config = Config::default();
        let value = serde_json::from_slice(input!("ipam_networks/multus")).unwrap();
        config.file(&value, true);
        assert_eq!(config.count(), 2);
        assert_eq!(
            config::leased_subnets(input!("ipam_networks/flannel-lease")).len(),
            2
        );
    }
}
