//! Calico's `IPAMBlocks`, read through the Kubernetes API: what is assigned to this node, and what other nodes' blocks
//! lend to it.
//!
//! The API has no way to select blocks by node, so all are listed, page by page, and only this node's kept; that is why it
//! is done every now and then and not for each pod. (An etcd datastore is not read.) Rights: `list` on `ipamblocks` of
//! `crd.projectcalico.org`.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
    sync::Arc,
};

use ipnet::IpNet;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use serde_json::Value;

use super::{Read, kept::Kept};
use crate::{
    clock,
    engine::{Allocation, Completeness, Coverage, Ipam, Pool, PoolId, PoolSource, Timestamp},
    health::State,
    kube_client::KubeClient,
};

/// Blocks of one answer.
const PAGE: u32 = 500;
/// Blocks of the whole cluster that are looked through.
const MAX_BLOCKS: usize = 100_000;
/// Addresses of one block: Calico's largest is a /20.
const MAX_ORDINALS: usize = 4096;
/// Addresses that are kept.
pub(super) const MAX_ADDRESSES: usize = 65_536;
/// Where the blocks are.
const PLACE: &str = "ipamblocks.crd.projectcalico.org";
/// What Felix names its devices with, unless told otherwise.
const PREFIX: &str = "cali";

/// One node's view of the blocks.
#[derive(Debug)]
pub(super) struct Calico {
    id: PoolId,
    network: String,
    node: String,
    kube: Option<KubeClient>,
    kept: Kept<Allocation>,
    ranges: Vec<RangeInclusive<IpAddr>>,
}

/// What is kept of the blocks.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    pub(super) allocated: BTreeMap<IpAddr, Allocation>,
    ranges: Vec<RangeInclusive<IpAddr>>,
    own: usize,
}

impl Calico {
    pub(super) fn new(id: PoolId, network: String, node: String, kube: Option<KubeClient>) -> Self {
        Self {
            id,
            network,
            node,
            kube,
            // Blocks say themselves which addresses are theirs; none has to be remembered.
            kept: Kept::new(0),
            ranges: Vec::new(),
        }
    }

    /// Lists the blocks.
    pub(super) async fn read(&mut self) -> Read {
        let read_at = clock::now();
        let found = self.list().await;
        self.take(found, read_at)
    }

    async fn list(&self) -> Result<Blocks, String> {
        let Some(kube) = &self.kube else {
            return Err("the Kubernetes API is not in use (--kube)".to_owned());
        };
        let client = kube.connect().await.map_err(|error| error.to_string())?.0;
        let kind = GroupVersionKind::gvk("crd.projectcalico.org", "v1", "IPAMBlock");
        let resource = ApiResource::from_gvk_with_plural(&kind, "ipamblocks");
        let api: Api<DynamicObject> = Api::all_with(client, &resource);
        let mut blocks = Blocks::default();
        let mut seen = 0;
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let list = api.list(&page).await.map_err(|error| error.to_string())?;
            seen += list.items.len();
            blocks.add_all(&list.items, &self.node);
            match list.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) if seen < MAX_BLOCKS => page = page.continue_token(&next),
                Some(_) => return Err(format!("there are more than {MAX_BLOCKS} blocks")),
                None => return Ok(blocks),
            }
        }
    }

    fn take(&mut self, found: Result<Blocks, String>, read_at: Timestamp) -> Read {
        let (found, books, state, told) = match found {
            Ok(blocks) => {
                let told = format!(
                    "{} addresses in {} blocks of this node and those it borrows from, by {PLACE}",
                    blocks.allocated.len(),
                    blocks.own
                );
                self.ranges = blocks.ranges;
                (
                    Some(blocks.allocated),
                    Completeness::Complete,
                    State::Works,
                    told,
                )
            }
            Err(why) => {
                let told = format!("{PLACE} cannot be read: {why}; drift is not judged by it");
                (None, Completeness::Unknown, State::Failed, told)
            }
        };
        let touched = self.kept.replace(found, books, PLACE);
        let pool = Pool {
            id: self.id,
            source: Arc::new(PoolSource {
                ipam: Ipam::Calico,
                network: self.network.clone(),
                place: PLACE.to_owned(),
            }),
            coverage: Coverage {
                ranges: self.ranges.clone(),
                device_prefixes: vec![PREFIX.to_owned()],
                ..Coverage::default()
            },
            completeness: books,
            allocated: self.kept.held.clone(),
            can_detect_leaks: books == Completeness::Complete,
            read_at,
        };
        Read {
            pool: Arc::new(pool),
            touched,
            state,
            told,
        }
    }
}

impl Blocks {
    /// Takes what one answer lists.
    pub(super) fn add_all(&mut self, listed: &[DynamicObject], node: &str) {
        for block in listed {
            self.add(block.data.get("spec").unwrap_or(&Value::Null), node);
        }
    }

    /// Takes one block's `spec`; what cannot be understood is passed over.
    fn add(&mut self, spec: &Value, node: &str) {
        let text = |value: &Value, key: &str| value.get(key)?.as_str().map(str::to_owned);
        let Some(cidr) = text(spec, "cidr").and_then(|c| c.parse::<IpNet>().ok()) else {
            return;
        };
        let own = text(spec, "affinity").as_deref() == Some(&format!("host:{node}"));
        if own {
            self.own += 1;
            self.ranges.push(cidr.network()..=cidr.broadcast());
        }
        let list = |key| spec.get(key).and_then(Value::as_array);
        let attributes = list("attributes").map(Vec::as_slice).unwrap_or_default();
        let allocations = list("allocations").into_iter().flatten();
        for (ordinal, index) in allocations.take(MAX_ORDINALS).enumerate() {
            let Some(index) = index.as_u64() else {
                continue;
            };
            let Some(address) = nth(&cidr, ordinal) else {
                continue;
            };
            let attribute = usize::try_from(index).ok().and_then(|i| attributes.get(i));
            let of_node = attribute
                .and_then(|a| text(a.get("secondary")?, "node"))
                .map(|of| of == node);
            // What another node's block holds is of interest only where it is lent to this one.
            if self.allocated.len() >= MAX_ADDRESSES || !(own || of_node == Some(true)) {
                continue;
            }
            let handle = attribute.and_then(|a| text(a, "handle_id"));
            let released =
                attribute.is_some_and(|a| a.get("releasedAt").is_some_and(|r| !r.is_null()));
            let new = Allocation {
                owner_is_shared: handle.as_deref().is_some_and(is_shared),
                not_a_pod: of_node == Some(false)
                    || released
                    || handle.as_deref().is_some_and(is_tunnel),
                owner: handle.map(Arc::from),
                second_owner: None,
            };
            match self.allocated.get_mut(&address) {
                Some(known) if known.owner != new.owner => known.second_owner = new.owner,
                Some(_) => {}
                None => {
                    self.allocated.insert(address, new);
                }
            }
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

/// A handle of old Calico, `<namespace>.<pod>`, of a pod that keeps its name (a StatefulSet's, `…-<number>`): when the record
/// of the earlier pod is deleted, the address of the later one is freed. New handles end with a container's id.
fn is_shared(handle: &str) -> bool {
    let Some((_, rest)) = handle.split_once('.') else {
        return false;
    };
    let number = rest.rsplit_once('-').map(|(_, number)| number);
    number.is_some_and(|n| (1..=5).contains(&n.len()) && n.chars().all(|c| c.is_ascii_digit()))
}

/// Addresses of the node itself.
fn is_tunnel(handle: &str) -> bool {
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
    #![allow(clippy::unwrap_used, clippy::panic)] // a test that cannot set itself up fails

    use serde_json::json;

    use super::*;

    /// The incident's block, with its allocations as a list.
    fn stale() -> Value {
        let facts: Value = serde_json::from_str(include_str!(
            "../../../detector-testkit/fixtures/scenarios/calico-stale-endpoints.json"
        ))
        .unwrap();
        let mut block = facts["block"].clone();
        let mut allocations = vec![Value::Null; 64];
        for (ordinal, index) in block["allocations_by_ordinal"].as_object().unwrap() {
            allocations[ordinal.parse::<usize>().unwrap()] = index.clone();
        }
        block["allocations"] = allocations.into();
        block
    }

    fn blocks(specs: &[Value], node: &str) -> Blocks {
        let mut blocks = Blocks::default();
        for spec in specs {
            blocks.add(spec, node);
        }
        blocks
    }

    #[test]
    fn calico_stale_endpoints_is_read_as_it_stands() {
        let found = blocks(&[stale()], "dev-slave-108");
        let held: Vec<_> = found.allocated.keys().map(ToString::to_string).collect();
        assert_eq!(held, ["192.168.106.67"], "ordinal 3 of 192.168.106.64/26");
        assert_eq!(found.ranges.len(), 1);
        assert!(blocks(&[stale()], "another-node").allocated.is_empty());
    }

    #[test]
    fn borrowed_addresses_tunnels_and_shared_handles_are_told_apart() {
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
    fn one_address_under_two_handles_is_seen() {
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
    fn whatever_a_block_holds_is_survived() {
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
