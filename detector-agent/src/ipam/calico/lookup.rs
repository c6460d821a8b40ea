//! The blocks that an address may be in, as they are now, for a diagnosis.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use ::kube::Client;
use ipnet::IpNet;

use super::{Block, blackhole_routes, block_name, blocks_api, created, ip_pools::IpPools, spec};

/// Most blocks that are read for one address: one of its pool, and those of earlier pools with another size.
const MAX_BLOCKS: usize = 4;
/// Shortest time between two lists of the pools.
const POOLS_AGE: Duration = Duration::from_secs(60);

/// Knows the IP pools, from which the names of blocks follow.
#[derive(Debug, Default)]
pub(crate) struct BlockLookup(Option<(Instant, IpPools)>);

impl BlockLookup {
    /// Whether the pools have to be listed.
    pub(crate) fn is_stale(&self) -> bool {
        let known = self.0.as_ref();
        known.is_none_or(|(at, _)| at.elapsed() >= POOLS_AGE)
    }

    /// Lists the pools.
    ///
    /// # Errors
    /// One sentence.
    pub(crate) async fn list_pools(&mut self, client: Client) -> Result<(), String> {
        self.0 = Some((Instant::now(), IpPools::list(client).await?));
        Ok(())
    }

    /// The ranges of the blocks that may have an address, whether or not they exist; none if it is in no IP pool.
    ///
    /// # Errors
    /// One sentence.
    pub(crate) fn ranges(&self, address: IpAddr) -> Result<Vec<IpNet>, String> {
        let Some((_, pools)) = &self.0 else {
            return Ok(Vec::new());
        };
        let mut ranges: Vec<_> = pools.block_of(address).into_iter().collect();
        for range in pools.blocks_of(&blackhole_routes()?) {
            if range.contains(&address) && !ranges.contains(&range) {
                ranges.push(range);
            }
        }
        ranges.truncate(MAX_BLOCKS);
        Ok(ranges)
    }

    /// One block, from etcd; `None` if it does not exist.
    ///
    /// # Errors
    /// One sentence.
    pub(crate) async fn read(client: Client, range: &IpNet) -> Result<Option<Block>, String> {
        let name = block_name(range);
        let block = blocks_api(client).get_opt(&name).await;
        let block = block.map_err(|error| format!("{}: {error}", super::PLACE))?;
        Ok(block.map(|block| Block {
            name,
            created: created(&block),
            spec: Arc::new(spec(block)),
        }))
    }
}
