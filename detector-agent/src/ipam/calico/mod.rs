//! Allocations in Calico's `IPAMBlocks`, read through the Kubernetes API: those of this node's blocks, and those that this
//! node borrows from blocks of others.
//!
//! The blocks of the whole cluster are never listed: a block's name follows from its range. The node's own blocks are the
//! destinations of its `blackhole` routes, and the block of any other address follows from the IP pool ([`IpPools`]).
//! Each is watched by its name ([`BlockWatch`]). Calico's etcd datastore is not supported.
//! Required role: `get`, `list` and `watch` on `ipamblocks`, and `list` on `ippools`, of `crd.projectcalico.org`.

mod blocks;
mod followed_block;
mod ip_pools;
mod lookup;
#[cfg(test)]
mod tests;
mod view;
mod watch;

use std::{net::IpAddr, ops::RangeInclusive, sync::Arc, time::Duration};

use ::kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use futures_util::future::BoxFuture;
use ipnet::IpNet;
use serde_json::Value;
use tokio::sync::mpsc;

use detector_engine::{
    Allocation, Completeness, Coverage, Ipam, Pool, PoolId, PoolPart, PoolSource, Timestamp,
};
use detector_event::{State, counted};

#[cfg(feature = "fuzzing")]
pub(super) use self::blocks::MAX_ADDRESSES;
pub(super) use self::blocks::NodeBlocks;
pub(crate) use self::{
    blocks::{allocations, is_of_node, range},
    lookup::BlockLookup,
    view::{Block, FollowedBlocks},
};
use self::{
    ip_pools::IpPools,
    view::{BlocksView, ViewedBlock},
    watch::BlockWatch,
};
use super::{
    follower::Follower,
    snapshot_history::SnapshotHistory,
    source::{PoolRead, PoolReader, Source},
};
use crate::{
    kube_client::{KubeClient, NOT_USED},
    observe::netlink::NetlinkReader,
    process::clock,
};

/// The resource's name.
pub(crate) const PLACE: &str = "ipamblocks.crd.projectcalico.org";
/// Felix's default prefix of device names.
const DEVICE_PREFIX: &str = "cali";

/// Reads one node's allocations.
#[derive(Debug)]
pub(super) struct CalicoReader {
    id: PoolId,
    source: Arc<PoolSource>,
    node: String,
    kube: Option<KubeClient>,
    /// Gets the blocks for others.
    shared: Arc<FollowedBlocks>,
    watch: Option<Follower<BlocksView, IpAddr>>,
    history: SnapshotHistory<Allocation>,
    ranges: Vec<RangeInclusive<IpAddr>>,
    parts: Vec<PoolPart>,
}

pub(super) const SOURCE: Source = Source {
    ipam: Ipam::Calico,
    serves: |_, ipam| ipam == "calico-ipam",
    is_found_by_leases: false,
    reader: |id, network, context| {
        let (network, node) = (network.name.clone(), context.node.to_owned());
        let shared = Arc::clone(context.blocks);
        Box::new(CalicoReader::new(
            id,
            network,
            node,
            context.kube.cloned(),
            shared,
        ))
    },
};

impl PoolReader for CalicoReader {
    /// The watch ends when the reader is dropped.
    fn follow(&mut self, changed: mpsc::UnboundedSender<PoolId>) {
        let Some(kube) = &self.kube else {
            return;
        };
        let (kube, shared) = (kube.clone(), Arc::clone(&self.shared));
        self.watch = Some(Follower::start(self.id, changed, |publish, requests| {
            let publish = move |view| {
                shared.set(&view);
                publish(view);
            };
            BlockWatch::new(kube, blackhole_routes, publish).run(requests)
        }));
    }

    fn request(&self, address: IpAddr) -> bool {
        if let Some(watch) = &self.watch {
            watch.request(address);
        }
        true
    }

    /// What the watch has, or without one what a single read finds; `None` before the watch has anything.
    fn read(&mut self, _thorough: bool) -> BoxFuture<'_, Option<PoolRead>> {
        Box::pin(async move {
            let read_at = clock::now();
            let view = match (&self.watch, &self.kube) {
                (Some(watch), _) => watch.view(),
                (None, Some(kube)) => read_once(kube).await.unwrap_or_else(BlocksView::failed),
                (None, None) => BlocksView::failed(NOT_USED.to_owned()),
            };
            (view.is_loaded || view.problem.is_some()).then(|| self.apply(view, read_at))
        })
    }
}

impl CalicoReader {
    fn new(
        id: PoolId,
        network: String,
        node: String,
        kube: Option<KubeClient>,
        shared: Arc<FollowedBlocks>,
    ) -> Self {
        Self {
            id,
            source: Arc::new(PoolSource {
                ipam: Ipam::Calico,
                network,
                place: PLACE.to_owned(),
            }),
            node,
            kube,
            shared,
            watch: None,
            // The blocks' ranges show which addresses are Calico's, so released ones need not be remembered.
            history: SnapshotHistory::new(0),
            ranges: Vec::new(),
            parts: Vec::new(),
        }
    }

    fn apply(&mut self, view: BlocksView, read_at: Timestamp) -> PoolRead {
        let (allocated, completeness, state, summary) = match view.problem {
            None => {
                let mut blocks = NodeBlocks::default();
                for block in view.blocks.values() {
                    blocks.add(&block.spec, &self.node);
                }
                let mut summary = format!(
                    "{} in {PLACE}; this node has {}",
                    counted(blocks.allocated.len(), "allocation", "allocations"),
                    counted(blocks.own_blocks, "block", "blocks")
                );
                if view.omitted > 0 {
                    let omitted = counted(view.omitted, "block", "blocks");
                    summary += &format!("; {omitted} of other nodes beyond the limit not read");
                }
                self.ranges = blocks.ranges;
                (
                    Some(blocks.allocated),
                    Completeness::Complete,
                    State::Works,
                    summary,
                )
            }
            Some(problem) => (
                None,
                Completeness::Unknown,
                State::Failed,
                format!("cannot read {problem}; drift is not checked"),
            ),
        };
        let mut changed = self.history.replace(allocated, completeness, PLACE);
        let parts = view.blocks.iter().map(|(range, block)| PoolPart {
            range: range.network()..=range.broadcast(),
            confirmed_at: block.confirmed_at,
        });
        let parts: Vec<_> = parts.collect();
        let ranges = |parts: &[PoolPart]| -> Vec<_> {
            parts.iter().map(|part| part.range.clone()).collect()
        };
        if ranges(&parts) != ranges(&self.parts) {
            // An address that was not judged may be now.
            changed = detector_engine::ChangedAddresses::All;
        }
        self.parts = parts;
        let pool = Pool {
            id: self.id,
            source: Arc::clone(&self.source),
            coverage: Coverage {
                ranges: self.ranges.clone(),
                device_prefixes: vec![DEVICE_PREFIX.to_owned()],
                ..Coverage::default()
            },
            completeness,
            allocated: self.history.allocated.clone(),
            can_detect_leaks: completeness == Completeness::Complete,
            record_delay: Duration::ZERO,
            read_at,
            parts: Some(self.parts.clone()),
        };
        PoolRead {
            pool: Arc::new(pool),
            changed,
            state,
            summary,
        }
    }
}

/// Reads the node's own blocks, each by its name.
async fn read_once(kube: &KubeClient) -> Result<BlocksView, String> {
    let client = kube.connect().await.map_err(|error| error.to_string())?.0;
    let pools = IpPools::list(client.clone()).await?;
    let mut view = BlocksView {
        is_loaded: true,
        ..BlocksView::default()
    };
    for range in pools.blocks_of(&blackhole_routes()?) {
        let confirmed_at = Some(clock::now());
        let block = BlockLookup::read(client.clone(), &range).await?;
        let viewed = ViewedBlock {
            created: block.as_ref().and_then(|block| block.created),
            spec: block.map(|block| block.spec).unwrap_or_default(),
            confirmed_at,
        };
        view.blocks.insert(range, viewed);
    }
    Ok(view)
}

/// The destinations of the node's `blackhole` routes. Felix, or BIRD, creates one for each block of the node.
fn blackhole_routes() -> Result<Vec<IpNet>, String> {
    let mut reader = NetlinkReader::open().map_err(|error| error.to_string())?;
    let routes = reader
        .blackhole_routes()
        .map_err(|error| error.to_string())?;
    let blocks = routes.into_iter();
    Ok(blocks
        .filter_map(|(address, length)| IpNet::new(address, length).ok())
        .collect())
}

fn blocks_api(client: Client) -> Api<DynamicObject> {
    Api::all_with(client, &resource("IPAMBlock", "ipamblocks"))
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk("crd.projectcalico.org", "v1", kind);
    ApiResource::from_gvk_with_plural(&kind, plural)
}

/// The name of a block, as `names.CIDRToName` of libcalico-go makes it: `192-168-91-0-26`.
fn block_name(range: &IpNet) -> String {
    range.trunc().to_string().replace(['.', ':', '/'], "-")
}

fn created(block: &DynamicObject) -> Option<jiff::Timestamp> {
    let created = block.metadata.creation_timestamp.as_ref();
    created.map(|time| time.0)
}

fn spec(mut block: DynamicObject) -> Value {
    block
        .data
        .get_mut("spec")
        .map(Value::take)
        .unwrap_or_default()
}
