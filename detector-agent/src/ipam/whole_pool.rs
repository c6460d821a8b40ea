//! A pool whose allocations are read all at once, from a file or from the objects of this node.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use detector_engine::{
    Allocation, Completeness, Coverage, Ipam, Pool, PoolId, PoolPart, PoolSource, Timestamp,
};
use detector_event::{State, counted};

use super::{snapshot_history::SnapshotHistory, source::PoolRead};

/// Most addresses of a pool.
pub(super) const MAX_ADDRESSES: usize = 16_384;

/// The allocations by address.
pub(super) type Allocations = BTreeMap<IpAddr, Allocation>;

/// What a read found.
#[derive(Debug)]
pub(super) enum Found {
    /// All allocations.
    All(Allocations),
    /// Some are missing, for this reason.
    InPart(Allocations, String),
    /// The allocations cannot be read, for this reason.
    Failed(String),
    /// There is nothing to read on this node, or not for the agent: one sentence.
    Absent(String),
}

/// A pool and its last snapshot.
#[derive(Debug)]
pub(super) struct WholePool {
    pub(super) id: PoolId,
    pub(super) ipam: Ipam,
    pub(super) network: String,
    /// Name prefixes of devices whose addresses all come from it.
    pub(super) device_prefixes: Vec<String>,
    /// The agent tracks the devices of all pods, so an allocation that none of them has is a leak.
    pub(super) can_detect_leaks: bool,
    /// Whether allocations that vanish together were deleted, and not released.
    pub(super) can_detect_deletion: bool,
    /// See [`Pool::record_delay`].
    pub(super) record_delay: Duration,
    pub(super) history: SnapshotHistory<Allocation>,
}

impl WholePool {
    /// Applies what was found at `place`. `parts`: see [`Pool::parts`].
    pub(super) fn apply(
        &mut self,
        place: String,
        found: Found,
        read_at: Timestamp,
        parts: Option<Vec<PoolPart>>,
    ) -> PoolRead {
        let allocations = |allocated: &Allocations| {
            let count = counted(allocated.len(), "allocation", "allocations");
            format!("{count} in {place}")
        };
        let unknown = Completeness::Unknown;
        let (allocated, completeness, state, summary) = match found {
            Found::All(allocated) => {
                let is_deleted =
                    self.can_detect_deletion && self.history.detects_mass_loss(&allocated, read_at);
                let completeness = match is_deleted {
                    true => Completeness::Deleted,
                    false => Completeness::Complete,
                };
                let summary = allocations(&allocated);
                (Some(allocated), completeness, State::Works, summary)
            }
            Found::InPart(allocated, why) => {
                let summary = format!("{}; drift is not checked: {why}", allocations(&allocated));
                (Some(allocated), unknown, State::Failed, summary)
            }
            Found::Failed(why) => {
                let summary = format!("cannot read {place}: {why}; drift is not checked");
                (None, unknown, State::Failed, summary)
            }
            Found::Absent(summary) => {
                // It was there before.
                let state = match self.history.allocated.is_empty() {
                    true => State::Off,
                    false => State::Failed,
                };
                (None, unknown, state, summary)
            }
        };
        let changed = self.history.replace(allocated, completeness, &place);
        let pool = Pool {
            id: self.id,
            source: Arc::new(PoolSource {
                ipam: self.ipam,
                network: self.network.clone(),
                place,
            }),
            coverage: Coverage {
                ranges: Vec::new(),
                device_prefixes: self.device_prefixes.clone(),
                previously_allocated: self.history.previously_allocated.clone(),
            },
            completeness,
            allocated: self.history.allocated.clone(),
            can_detect_leaks: self.can_detect_leaks && completeness == Completeness::Complete,
            record_delay: self.record_delay,
            read_at,
            parts,
        };
        PoolRead {
            pool: Arc::new(pool),
            changed,
            state,
            summary,
        }
    }
}

/// Adds an owner of an address; another one than is known is its second owner.
pub(super) fn add(allocated: &mut Allocations, address: IpAddr, new: Allocation) {
    match allocated.get_mut(&address) {
        Some(known) if known.owner != new.owner => known.second_owner = new.owner,
        Some(_) => {}
        None => drop(allocated.insert(address, new)),
    }
}
