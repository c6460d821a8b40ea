//! Calico's IP pools: the size of the block that an address is in.

use std::net::IpAddr;

use ::kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
};
use ipnet::IpNet;
use serde_json::Value;

use super::resource;

/// The resource's name.
const PLACE: &str = "ippools.crd.projectcalico.org";
/// Calico's largest block has 4,096 addresses.
const MAX_HOST_BITS: u8 = 12;
/// Most pools that are kept.
const MAX_POOLS: usize = 4096;

/// The pools of a cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct IpPools(Vec<IpPool>);

#[derive(Clone, Debug)]
struct IpPool {
    range: IpNet,
    /// The prefix length of its blocks.
    block: u8,
}

impl IpPools {
    /// Lists them, from the server's watch cache.
    pub(super) async fn list(client: Client) -> Result<Self, String> {
        let api: Api<DynamicObject> = Api::all_with(client, &resource("IPPool", "ippools"));
        let list = api.list(&ListParams::default().match_any()).await;
        let list = list.map_err(|error| format!("{PLACE}: {error}"))?;
        Ok(Self::new(
            list.items.iter().filter_map(|pool| pool.data.get("spec")),
        ))
    }

    /// By their `spec`; what is invalid is skipped.
    pub(super) fn new<'v>(specs: impl Iterator<Item = &'v Value>) -> Self {
        let pool = |spec: &Value| {
            let range: IpNet = spec.get("cidr")?.as_str()?.parse().ok()?;
            let default = if range.addr().is_ipv4() { 26 } else { 122 };
            let block = match spec.get("blockSize").and_then(Value::as_u64) {
                // An absent or zero size is the default.
                None | Some(0) => default,
                Some(length) => u8::try_from(length).ok()?,
            };
            is_block(&range, block).then_some(IpPool { range, block })
        };
        Self(specs.filter_map(pool).take(MAX_POOLS).collect())
    }

    /// The block that an address is in, whether or not it exists; `None` if the address is in no pool.
    pub(super) fn block_of(&self, address: IpAddr) -> Option<IpNet> {
        let pool = self.0.iter().find(|pool| pool.range.contains(&address))?;
        let block = IpNet::new(address, pool.block).ok()?;
        Some(block.trunc())
    }

    /// Those of these routes' destinations that may be blocks. A pool that was created again with another size leaves
    /// blocks of the old one.
    pub(super) fn blocks_of(&self, routes: &[IpNet]) -> Vec<IpNet> {
        let is_in_pool = |route: &&IpNet| {
            let mut pools = self.0.iter();
            pools.any(|pool| {
                pool.range.contains(*route) && is_block(&pool.range, route.prefix_len())
            })
        };
        routes.iter().filter(is_in_pool).map(IpNet::trunc).collect()
    }
}

/// Whether a block of this pool may have this prefix length.
fn is_block(range: &IpNet, length: u8) -> bool {
    let longest = range.max_prefix_len();
    (longest - MAX_HOST_BITS..=longest).contains(&length) && length >= range.prefix_len()
}
