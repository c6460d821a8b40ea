//! What is known of Calico's blocks.

use std::{collections::BTreeMap, sync::Arc};

use detector_engine::Timestamp;
use ipnet::IpNet;
use serde_json::Value;

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
    /// When the last read began that did not come from a cache.
    pub(super) confirmed_at: Option<Timestamp>,
}
