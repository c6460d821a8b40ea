//! What is known of Calico's blocks.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use arc_swap::ArcSwap;
use detector_engine::Timestamp;
use ipnet::IpNet;
use serde_json::Value;

use super::block_name;

/// The blocks as last read.
#[derive(Clone, Debug, Default)]
pub(super) struct BlocksView {
    /// The blocks that were read, by range.
    pub(super) blocks: BTreeMap<IpNet, ViewedBlock>,
    /// Every block was read.
    pub(super) is_loaded: bool,
    /// What cannot be read, and why.
    pub(super) problem: Option<String>,
    /// Blocks of other nodes beyond the bound.
    pub(super) omitted: usize,
}

impl BlocksView {
    pub(super) fn failed(problem: String) -> Self {
        Self {
            problem: Some(problem),
            ..Self::default()
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct ViewedBlock {
    /// Null if the block does not exist.
    pub(super) spec: Arc<Value>,
    /// Its `creationTimestamp`.
    pub(super) created: Option<jiff::Timestamp>,
    /// When the last read began that did not come from a cache.
    pub(super) confirmed_at: Option<Timestamp>,
}

/// A block, for a diagnosis.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// Its name.
    pub(crate) name: String,
    /// Its `creationTimestamp`.
    pub(crate) created: Option<jiff::Timestamp>,
    pub(crate) spec: Arc<Value>,
}

/// The blocks that are followed, readable from any thread without waiting.
#[derive(Debug, Default)]
pub(crate) struct FollowedBlocks(ArcSwap<BTreeMap<IpNet, ViewedBlock>>);

impl FollowedBlocks {
    /// These blocks, by their `spec`.
    #[cfg(test)]
    pub(crate) fn of(specs: &[Value]) -> Self {
        let view = BlocksView {
            is_loaded: true,
            ..BlocksView::default()
        };
        let block = |spec: &Value| {
            let viewed = ViewedBlock {
                spec: Arc::new(spec.clone()),
                created: Some(jiff::Timestamp::UNIX_EPOCH),
                confirmed_at: None,
            };
            Some((super::range(spec)?, viewed))
        };
        let blocks = Self::default();
        blocks.set(&BlocksView {
            blocks: specs.iter().filter_map(block).collect(),
            ..view
        });
        blocks
    }

    pub(super) fn set(&self, view: &BlocksView) {
        let is_current = view.is_loaded && view.problem.is_none();
        let blocks = is_current.then(|| view.blocks.clone());
        self.0.store(Arc::new(blocks.unwrap_or_default()));
    }

    /// The blocks that may have an address, with their ranges; `None` for one that does not exist. Empty if none is followed.
    pub(crate) fn with(&self, address: IpAddr) -> Vec<(IpNet, Option<Block>)> {
        let blocks = self.0.load();
        let blocks = blocks.iter().filter(|(range, _)| range.contains(&address));
        let block = |(range, block): (&IpNet, &ViewedBlock)| {
            let found = (!block.spec.is_null()).then(|| Block {
                name: block_name(range),
                created: block.created,
                spec: Arc::clone(&block.spec),
            });
            (*range, found)
        };
        blocks.map(block).collect()
    }
}
