//! What Calico's `IPAMBlocks` contain for one node: the allocations of its own blocks, and those that it borrows from
//! blocks of others.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
    sync::Arc,
};

use detector_engine::Allocation;
use ipnet::IpNet;
use serde_json::Value;

use crate::ipam::whole_pool::{self, Allocations};

/// Most addresses of one block: Calico's largest is a /20.
const MAX_ORDINALS: usize = 4096;
/// Most allocations that are kept.
pub(in crate::ipam) const MAX_ADDRESSES: usize = 65_536;

/// What the blocks contain for one node.
#[derive(Debug, Default)]
pub(in crate::ipam) struct NodeBlocks {
    pub(in crate::ipam) allocated: Allocations,
    /// The addresses of the node's own blocks.
    pub(super) ranges: Vec<RangeInclusive<IpAddr>>,
    pub(super) own_blocks: usize,
}

/// An allocation in a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockAllocation<'b> {
    pub(crate) address: IpAddr,
    pub(crate) handle: Option<&'b str>,
    /// `secondary.node`.
    pub(crate) node: Option<&'b str>,
    /// `secondary.timestamp`, when it was allocated.
    pub(crate) timestamp: Option<&'b str>,
    /// It was released, and the address is not used again yet.
    pub(crate) is_released: bool,
}

/// The range of a block.
pub(crate) fn range(spec: &Value) -> Option<IpNet> {
    spec.get("cidr")?.as_str()?.parse().ok()
}

/// The allocations in a block; invalid ones are skipped.
pub(crate) fn allocations(spec: &Value) -> impl Iterator<Item = BlockAllocation<'_>> {
    let list = |key| spec.get(key).and_then(Value::as_array);
    let attributes = list("attributes").map(Vec::as_slice).unwrap_or_default();
    let range = range(spec);
    let allocations = list("allocations").into_iter().flatten();
    let allocations = allocations.take(MAX_ORDINALS).enumerate();
    allocations.filter_map(move |(ordinal, index)| {
        let index = index.as_u64()?;
        let attribute = usize::try_from(index).ok().and_then(|i| attributes.get(i));
        let secondary = attribute.and_then(|a| a.get("secondary"));
        let of_secondary = |key| secondary?.get(key)?.as_str();
        Some(BlockAllocation {
            address: nth(&range?, ordinal)?,
            handle: attribute.and_then(|a| a.get("handle_id")?.as_str()),
            node: of_secondary("node"),
            timestamp: of_secondary("timestamp"),
            is_released: attribute
                .is_some_and(|a| a.get("releasedAt").is_some_and(|r| !r.is_null())),
        })
    })
}

impl NodeBlocks {
    /// Adds one block by its `spec`; invalid parts are skipped.
    pub(in crate::ipam) fn add(&mut self, spec: &Value, node: &str) {
        let Some(range) = range(spec) else {
            return;
        };
        let affinity = spec.get("affinity").and_then(Value::as_str);
        let own = affinity.and_then(|affinity| affinity.strip_prefix("host:")) == Some(node);
        if own {
            self.own_blocks += 1;
            self.ranges.push(range.network()..=range.broadcast());
        }
        for allocation in allocations(spec) {
            let of_node = allocation.node.map(|of| of == node);
            // Of another node's block only what this node borrows matters.
            if self.allocated.len() >= MAX_ADDRESSES || !(own || of_node == Some(true)) {
                continue;
            }
            let handle = allocation.handle;
            let new = Allocation {
                owner_is_shared: handle.is_some_and(is_shared),
                not_a_pod: of_node == Some(false)
                    || allocation.is_released
                    || handle.is_some_and(is_of_node),
                owner: handle.map(Arc::from),
                second_owner: None,
            };
            whole_pool::add(&mut self.allocated, allocation.address, new);
        }
    }
}

fn nth(cidr: &IpNet, ordinal: usize) -> Option<IpAddr> {
    let address: IpAddr = match cidr.network() {
        IpAddr::V4(first) => {
            Ipv4Addr::from(u32::from(first).checked_add(u32::try_from(ordinal).ok()?)?).into()
        }
        IpAddr::V6(first) => Ipv6Addr::from(u128::from(first).checked_add(ordinal as u128)?).into(),
    };
    cidr.contains(&address).then_some(address)
}

/// Whether the handle has old Calico's form `<namespace>.<pod>` and the pod's name is reused (a StatefulSet's,
/// `…-<number>`): releasing the earlier pod's handle then releases the later pod's address. Newer handles end with a
/// container's id.
fn is_shared(handle: &str) -> bool {
    let Some((_, rest)) = handle.split_once('.') else {
        return false;
    };
    let number = rest.rsplit_once('-').map(|(_, number)| number);
    number.is_some_and(|n| (1..=5).contains(&n.len()) && n.chars().all(|c| c.is_ascii_digit()))
}

/// Whether the handle is for an address of the node itself.
pub(crate) fn is_of_node(handle: &str) -> bool {
    [
        "ipip-tunnel-addr-",
        "vxlan-tunnel-addr-",
        "vxlan-v6-tunnel-addr-",
        "wireguard-tunnel-addr-",
    ]
    .iter()
    .any(|prefix| handle.starts_with(prefix))
        || handle == "windows-reserved-ipam-handle"
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use detector_testkit::scenario::CalicoStaleEndpoints;
    use serde_json::json;

    use super::*;

    fn stale_block() -> Value {
        CalicoStaleEndpoints::load().unwrap().block
    }

    fn blocks(specs: &[Value], node: &str) -> NodeBlocks {
        let mut blocks = NodeBlocks::default();
        for spec in specs {
            blocks.add(spec, node);
        }
        blocks
    }

    #[test]
    fn block_of_calico_stale_endpoints_is_read() {
        let found = blocks(&[stale_block()], "dev-slave-108");
        let addresses: Vec<_> = found.allocated.keys().map(ToString::to_string).collect();
        assert_eq!(
            addresses,
            ["192.168.106.67"],
            "ordinal 3 of 192.168.106.64/26"
        );
        assert_eq!(found.ranges.len(), 1);
        assert!(
            blocks(&[stale_block()], "another-node")
                .allocated
                .is_empty()
        );
    }

    #[test]
    fn borrowed_tunnel_and_shared_handles_are_recognised() {
        let id = "f".repeat(64);
        let spec = json!({"cidr": "10.1.0.0/26", "affinity": "host:other", "allocations": [0, 1, null, 2, 3],
            "attributes": [
                {"handle_id": format!("k8s-pod-network.{id}"), "secondary": {"node": "me", "pod": "a", "namespace": "b"}},
                {"handle_id": "default.web-0", "secondary": {"node": "me"}},
                {"handle_id": "vxlan-tunnel-addr-me", "secondary": {"node": "me"}},
                {"handle_id": "k8s-pod-network.1", "secondary": {"node": "other"}}]});
        let found = blocks(&[spec], "me").allocated;
        let at = |address: &str| found.get(&address.parse::<IpAddr>().unwrap());
        assert_eq!(found.len(), 3);
        assert!(!at("10.1.0.0").unwrap().owner_is_shared);
        assert!(at("10.1.0.1").unwrap().owner_is_shared);
        assert!(at("10.1.0.3").unwrap().not_a_pod);
    }

    #[test]
    fn address_under_two_handles_has_two_owners() {
        let block = |handle: &str| {
            json!({"cidr": "10.1.0.0/26", "affinity": "host:me", "allocations": [0],
                "attributes": [{"handle_id": handle, "secondary": null}]})
        };
        let found = blocks(&[block("n.a"), block("n.b")], "me").allocated;
        let twice = found.values().next().unwrap();
        assert_eq!(twice.owner.as_deref(), Some("n.a"));
        assert_eq!(twice.second_owner.as_deref(), Some("n.b"));
    }

    #[test]
    fn invalid_blocks_are_skipped() {
        for spec in [
            json!(null),
            json!({"cidr": 7}),
            json!({"cidr": "10.0.0.0/30", "affinity": "host:me", "allocations": [9e9, -1, "x", 2, 3, 4, 5], "attributes": 3}),
            json!({"cidr": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0/124", "affinity": "host:me", "allocations": vec![0; 5000]}),
        ] {
            assert!(blocks(&[spec], "me").allocated.len() <= 16);
        }
    }
}
