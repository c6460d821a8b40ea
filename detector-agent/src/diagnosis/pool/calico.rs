//! Calico's blocks, each read by its name.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Instant,
};

use detector_engine::diagnosis::{Known, NetworkConfig, PoolState, Source, UnixTime};
use ipnet::IpNet;

use super::record::{Allocations, FoundPool, Owner, OwnerIs, Scope};
use crate::{
    diagnosis::{
        PoolHistory,
        files::{not_checked, unix_timestamp},
        requests::Requests,
    },
    ipam::calico::{self, Block, BlockLookup, FollowedBlocks},
};

/// Shortest id of a sandbox in a handle; names of pods that are as long and hexadecimal are not made.
const MIN_ID: usize = 32;

/// The blocks that are followed, and those that were read for the present findings.
#[derive(Debug)]
pub(super) struct Blocks {
    followed: Arc<FollowedBlocks>,
    history: Arc<PoolHistory>,
    lookup: BlockLookup,
    known: BTreeMap<IpNet, (Instant, Option<Block>)>,
}

impl Blocks {
    pub(super) fn new(followed: Arc<FollowedBlocks>, history: Arc<PoolHistory>) -> Self {
        Self {
            followed,
            history,
            lookup: BlockLookup::default(),
            known: BTreeMap::new(),
        }
    }

    /// What was read before `due` is read again.
    pub(super) fn refresh(&mut self, due: Instant) {
        self.known.retain(|_, (read_at, _)| *read_at >= due);
    }

    /// The block with the address; `None` if the address is in no IP pool.
    ///
    /// # Errors
    /// Why that cannot be known.
    pub(super) fn find(
        &mut self,
        network: &NetworkConfig,
        address: IpAddr,
        node: &str,
        requests: &mut Requests,
    ) -> Result<Option<FoundPool>, String> {
        let followed = self.followed.with(address);
        if let Some((first, _)) = followed.first() {
            let first = *first;
            let blocks: Vec<_> = followed.into_iter().filter_map(|(_, b)| b).collect();
            let found = pool(network, first, &blocks, address, node);
            return Ok(Some(self.with_releases(found, address, node)));
        }
        let lookup = &mut self.lookup;
        if lookup.is_stale() {
            requests.kube(async |client| lookup.list_pools(client).await)?;
        }
        let ranges = lookup.ranges(address)?;
        let Some(first) = ranges.first().copied() else {
            return Ok(None);
        };
        let mut blocks = Vec::new();
        for range in ranges {
            blocks.extend(self.read(range, requests)?);
        }
        let found = pool(network, first, &blocks, address, node);
        Ok(Some(self.with_releases(found, address, node)))
    }

    fn with_releases(&self, found: FoundPool, address: IpAddr, node: &str) -> FoundPool {
        let releases = self.history.releases(calico::PLACE, address);
        found.with_releases(releases, |handle| owner(Some(handle), None, node))
    }

    fn read(&mut self, range: IpNet, requests: &mut Requests) -> Result<Option<Block>, String> {
        if let Some((_, block)) = self.known.get(&range) {
            return Ok(block.clone());
        }
        let read_at = Instant::now();
        let block = requests.kube(async |client| BlockLookup::read(client, &range).await)?;
        self.known.insert(range, (read_at, block.clone()));
        Ok(block)
    }
}

/// What the blocks say. More than one may have the address: those of an earlier pool with another size.
fn pool(
    network: &NetworkConfig,
    range: IpNet,
    blocks: &[Block],
    address: IpAddr,
    node: &str,
) -> FoundPool {
    let mut allocated: Allocations = HashMap::new();
    let mut secondary_node = None;
    for allocation in blocks
        .iter()
        .flat_map(|block| calico::allocations(&block.spec))
    {
        if allocation.is_released {
            continue;
        }
        if allocation.address == address {
            secondary_node = secondary_node.or(allocation.node);
        }
        let owners = allocated.entry(allocation.address).or_default();
        let at = allocation.timestamp.and_then(allocated_at);
        let owner = owner(allocation.handle, at, node);
        if owners.iter().all(|known| known.name != owner.name) {
            owners.push(owner);
        }
    }
    let has_address = |block: &&Block| {
        calico::allocations(&block.spec).any(|a| a.address == address && !a.is_released)
    };
    let block = blocks.iter().find(has_address).or(blocks.first());
    let name = block.map_or_else(|| range.to_string(), |block| block.name.clone());
    let source = Source::KubernetesObject(format!("ipamblock {name}"));
    let range = block
        .and_then(|block| calico::range(&block.spec))
        .unwrap_or(range);
    let created = block.and_then(|block| block.created);
    let created = created.and_then(unix_timestamp);
    FoundPool {
        network: NetworkConfig {
            ranges: vec![range.network()..=range.broadcast()],
            ..network.clone()
        },
        place: range.to_string(),
        address_source: source.clone(),
        allocations: Ok(Arc::new(allocated)),
        scope: Scope::Ranges,
        releases: Known::Absent(source.clone()),
        state: PoolState::Calico {
            block_created: match (block, created) {
                (None, _) => Known::Absent(source.clone()),
                (_, Some(at)) => Known::Value(at, source.clone()),
                _ => not_checked(format!("the birth of block {range}"), "it has none"),
            },
            secondary_node: match secondary_node {
                Some(node) => Known::Value(node.to_owned(), source.clone()),
                None => Known::Absent(source.clone()),
            },
        },
        source,
    }
}

fn owner(handle: Option<&str>, at: Option<UnixTime>, node: &str) -> Owner {
    let Some(handle) = handle else {
        return Owner {
            name: "an allocation without a handle".to_owned(),
            is: OwnerIs::Unnamed,
            at,
        };
    };
    // `<network>.<id of the sandbox>`
    let id = handle.rsplit_once('.').map(|(_, id)| id);
    let id = id.filter(|id| id.len() >= MIN_ID && id.bytes().all(|b| b.is_ascii_hexdigit()));
    let is = match (id, handle.split_once('.')) {
        _ if calico::is_of_node(handle) => match handle.ends_with(&format!("-{node}")) {
            true => OwnerIs::Node,
            false => OwnerIs::Other,
        },
        (Some(id), _) => OwnerIs::Sandbox(id.to_owned()),
        // That of early versions; a namespace has no dot.
        (None, Some((namespace, pod))) => OwnerIs::PodNamed(format!("{namespace}/{pod}")),
        (None, None) => OwnerIs::Other,
    };
    Owner {
        name: handle.to_owned(),
        is,
        at,
    }
}

/// Go's `Time.String()` in UTC: `2026-11-25 04:04:10.123456789 +0000 UTC`.
fn allocated_at(timestamp: &str) -> Option<UnixTime> {
    let mut words = timestamp.split_whitespace();
    let (date, time) = (words.next()?, words.next()?);
    words.next().filter(|offset| *offset == "+0000")?;
    let at: jiff::Timestamp = format!("{date}T{time}Z").parse().ok()?;
    unix_timestamp(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(handle: &str) -> OwnerIs {
        owner(Some(handle), None, "worker-7").is
    }

    #[test]
    fn handles_name_sandboxes_pods_or_the_node() {
        let id = "5fcc2183".repeat(8);
        let sandbox = is(&format!("k8s-pod-network.{id}"));
        assert!(matches!(sandbox, OwnerIs::Sandbox(found) if found == id));
        let old = is("kube-system.prometheus-3355405412-iyww3");
        assert!(
            matches!(&old, OwnerIs::PodNamed(pod) if pod == "kube-system/prometheus-3355405412-iyww3")
        );
        assert!(matches!(is("vxlan-tunnel-addr-worker-7"), OwnerIs::Node));
        assert!(matches!(is("vxlan-tunnel-addr-worker-8"), OwnerIs::Other));
    }

    #[test]
    fn time_of_an_allocation_is_read_as_go_prints_it() {
        let at = allocated_at("2023-11-14 22:13:20.5 +0000 UTC");
        assert_eq!(at, Some(UnixTime(1_700_000_000_500_000_000)));
        let monotonic = allocated_at("2023-11-14 22:13:20.5 +0000 UTC m=+0.125");
        assert_eq!(monotonic, at);
        assert_eq!(allocated_at("2023-11-14 22:13:20.5 +0200 EET"), None);
        assert_eq!(allocated_at("yesterday"), None);
    }
}
