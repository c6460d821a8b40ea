//! Which claims of this node are registered. Pure.
//!
//! Registered is what a pod was given: an address on its device that is one of its primary addresses, as the runtime, the CNI result
//! cache or the API knows them. What a pod assigned to itself beyond those is only looked up, because otherwise it could take addresses
//! of others in the registry. What was only heard in frames is neither.
//!
//! Level-triggered: [`ClaimSelector::update`] compares what is to be registered of an address with what was sent last.
//!
//! Invariants:
//! - nothing is registered by guess: without a pod, or without its primary addresses, nothing is;
//! - a claim keeps its beginning for as long as some of its evidence was there all the time;
//! - what is stored is bounded by the primary addresses of the node's pods and [`MAX_LOOKUPS`] addresses for each device.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use detector_engine::{CertainClaim, ClaimantId, IfIndex, PoolId, Timestamp};
use detector_event::Pod;
use detector_fleet::{LocalClaim, Mode, Subject, objects::Party};
use ipnet::IpNet;

use super::ClaimUpdate;

/// A device by index and generation.
type DeviceId = (IfIndex, u64);

/// Most addresses of one device that are looked up.
pub const MAX_LOOKUPS: usize = 64;
/// How long an address counts against [`MAX_LOOKUPS`] after it is gone, so that a pod that changes its addresses causes few requests.
const LOOKUP_PAUSE: Duration = Duration::from_secs(60);

/// A claim of this node with what is known of its pod.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The claim.
    pub claim: CertainClaim,
    /// The pod behind the device.
    pub pod: Option<Arc<Pod>>,
    /// Nothing more is to be expected about the pod. Matters only before the selection is complete.
    pub is_settled: bool,
}

/// Decides what is registered.
#[derive(Debug, Default)]
pub struct ClaimSelector {
    /// What is not registered: shared addresses and excluded ranges.
    excluded: Vec<IpNet>,
    addresses: HashMap<IpAddr, AddressState>,
    devices: HashMap<DeviceId, DeviceState>,
    /// Devices whose other addresses have to be looked at again.
    rechecks: BTreeSet<DeviceId>,
    ranges_by_pool: BTreeMap<PoolId, BTreeSet<IpNet>>,
    /// The ranges that were sent, with their beginning.
    ranges: BTreeMap<IpNet, Timestamp>,
    start: InitialSelection,
}

/// What is missing until all claims that the node had at the start are fed.
#[derive(Debug, Default)]
struct InitialSelection {
    is_complete: bool,
    /// Addresses about whose pods more is to be expected.
    undecided: BTreeSet<IpAddr>,
    /// Pools that were found and not read; `None` before the first search.
    awaited_pools: Option<BTreeSet<PoolId>>,
}

#[derive(Debug, Default, PartialEq)]
struct AddressState {
    /// The devices that have it as a primary address of their pod.
    primary_on: Vec<DeviceId>,
    sent: Option<SentClaim>,
}

#[derive(Clone, Debug, PartialEq)]
struct SentClaim {
    device: DeviceId,
    /// When each certain evidence was first seen.
    evidence: Vec<Timestamp>,
    claim: LocalClaim,
}

#[derive(Debug, Default)]
struct DeviceState {
    /// How many primary addresses of its pod it has.
    primaries: usize,
    lookups: Vec<LookedUpAddress>,
    /// An address found no room in `lookups`.
    has_refused: bool,
}

/// An address that is looked up, or was a short time ago.
#[derive(Debug)]
struct LookedUpAddress {
    address: IpAddr,
    ended: Option<Timestamp>,
}

impl ClaimSelector {
    /// A selector that never registers what is in `excluded`.
    #[must_use]
    pub fn new(excluded: Vec<IpNet>) -> Self {
        Self {
            excluded,
            ..Self::default()
        }
    }

    /// The claims of an address as they are now. Returns the change to send.
    pub fn update(
        &mut self,
        now: Timestamp,
        address: IpAddr,
        mut candidates: Vec<Candidate>,
    ) -> Option<ClaimUpdate> {
        if self.excluded.iter().any(|net| net.contains(&address)) {
            candidates.clear();
        }
        self.note_undecided(address, &candidates);
        let previous = self.addresses.remove(&address).unwrap_or_default();
        let primary_on = self.note_primaries(address, previous.primary_on, &candidates);
        let sent = self.choose(now, address, previous.sent.as_ref(), &candidates);
        self.end_lookup(now, address, previous.sent.as_ref(), sent.as_ref());
        let claim = |sent: &Option<SentClaim>| sent.as_ref().map(|sent| sent.claim.clone());
        let (before, after) = (claim(&previous.sent), claim(&sent));
        let state = AddressState { primary_on, sent };
        if state != AddressState::default() {
            self.addresses.insert(address, state);
        }
        (before != after).then_some(ClaimUpdate {
            subject: Subject::Address(address),
            claim: after,
        })
    }

    fn note_undecided(&mut self, address: IpAddr, candidates: &[Candidate]) {
        if self.start.is_complete {
            return;
        }
        let is_undecided = |c: &Candidate| !c.is_settled && c.primary_addresses().is_empty();
        if candidates.iter().any(is_undecided) {
            self.start.undecided.insert(address);
        } else {
            self.start.undecided.remove(&address);
        }
    }

    /// Counts the devices that have the address as a primary one. Those that have their first, or no more any, need another look at
    /// their other addresses.
    fn note_primaries(
        &mut self,
        address: IpAddr,
        before: Vec<DeviceId>,
        candidates: &[Candidate],
    ) -> Vec<DeviceId> {
        let primary = candidates.iter().filter(|c| c.is_primary(address));
        let now: Vec<_> = primary.filter_map(Candidate::device).collect();
        for device in now.iter().filter(|device| !before.contains(device)) {
            let state = self.devices.entry(*device).or_default();
            state.primaries += 1;
            if state.primaries == 1 {
                self.rechecks.insert(*device);
            }
        }
        for device in before.iter().filter(|device| !now.contains(device)) {
            let Some(state) = self.devices.get_mut(device) else {
                continue;
            };
            state.primaries = state.primaries.saturating_sub(1);
            if state.primaries == 0 {
                self.rechecks.insert(*device);
            }
        }
        now
    }

    /// Which claim represents the node: a registered one before one that is looked up; of those the one that did before, else the one
    /// that receives the traffic, else the oldest.
    fn choose(
        &mut self,
        now: Timestamp,
        address: IpAddr,
        previous: Option<&SentClaim>,
        candidates: &[Candidate],
    ) -> Option<SentClaim> {
        let is_previous = |c: &Candidate| previous.is_some_and(|p| Some(p.device) == c.device());
        let rank = |c: &&Candidate| {
            let traffic = c.claim.receives_traffic;
            (!is_previous(c), !traffic, c.claim.claimant.since)
        };
        let primary = candidates.iter().filter(|c| c.is_primary(address));
        if let Some(chosen) = primary.min_by_key(rank) {
            return chosen.sent(previous, Mode::Register);
        }
        let mut others: Vec<_> = candidates.iter().filter(|c| self.may_look_up(c)).collect();
        others.sort_by_key(rank);
        let chosen = others.into_iter().find(|c| {
            c.device()
                .is_some_and(|device| self.begin_lookup(now, device, address))
        })?;
        chosen.sent(previous, Mode::Lookup)
    }

    /// Whether an address that a pod has beyond its primary ones is looked up: only on the device that has a primary one. A secondary
    /// network may have the same range on every node.
    fn may_look_up(&self, candidate: &Candidate) -> bool {
        let device = candidate.device().and_then(|id| self.devices.get(&id));
        candidate.claim.is_on_device
            && !candidate.primary_addresses().is_empty()
            && device.is_some_and(|device| device.primaries > 0)
    }

    /// Whether there is room to look up the address.
    fn begin_lookup(&mut self, now: Timestamp, device: DeviceId, address: IpAddr) -> bool {
        let state = self.devices.entry(device).or_default();
        if state
            .lookups
            .iter()
            .any(|l| l.address == address && l.ended.is_none())
        {
            return true;
        }
        state.drop_ended(now);
        let has_room =
            state.lookups.len() < MAX_LOOKUPS && state.lookups.iter().all(|l| l.address != address);
        if has_room {
            state.lookups.push(LookedUpAddress {
                address,
                ended: None,
            });
        } else {
            state.has_refused = true;
        }
        has_room
    }

    fn end_lookup(
        &mut self,
        now: Timestamp,
        address: IpAddr,
        before: Option<&SentClaim>,
        after: Option<&SentClaim>,
    ) {
        let looked_up_on = |sent: Option<&SentClaim>| {
            let sent = sent.filter(|sent| sent.claim.mode == Mode::Lookup);
            sent.map(|sent| sent.device)
        };
        let (before, after) = (looked_up_on(before), looked_up_on(after));
        if before == after {
            return;
        }
        let state = before.and_then(|device| self.devices.get_mut(&device));
        for lookup in state.into_iter().flat_map(|s| &mut s.lookups) {
            if lookup.address == address {
                lookup.ended = Some(now);
            }
        }
    }

    /// Once a second: the devices whose addresses have to be looked at again, because they can be looked up now, or no more.
    pub fn take_rechecks(&mut self, now: Timestamp) -> Vec<DeviceId> {
        for (device, state) in &mut self.devices {
            state.drop_ended(now);
            if state.has_refused && state.lookups.len() < MAX_LOOKUPS {
                state.has_refused = false;
                self.rechecks.insert(*device);
            }
        }
        self.devices
            .retain(|_, state| state.primaries > 0 || !state.lookups.is_empty());
        std::mem::take(&mut self.rechecks).into_iter().collect()
    }

    /// How many devices have addresses that found no room among their [`MAX_LOOKUPS`].
    pub fn overflowing_devices(&self) -> usize {
        let refused = self.devices.values().filter(|state| state.has_refused);
        refused.count()
    }

    /// The ranges of a pool of `source` as they are now; none if the pool is gone. Returns the changes to send.
    pub fn update_ranges(
        &mut self,
        now: Timestamp,
        pool: PoolId,
        source: &str,
        ranges: impl IntoIterator<Item = IpNet>,
    ) -> Vec<ClaimUpdate> {
        if let Some(awaited) = &mut self.start.awaited_pools {
            awaited.remove(&pool);
        }
        let is_excluded = |range: &IpNet| self.excluded.iter().any(|net| net.contains(range));
        let ranges = ranges.into_iter().map(|range| range.trunc());
        let ranges: BTreeSet<_> = ranges.filter(|range| !is_excluded(range)).collect();
        if ranges.is_empty() {
            self.ranges_by_pool.remove(&pool);
        } else {
            self.ranges_by_pool.insert(pool, ranges);
        }
        let wanted: BTreeSet<_> = self.ranges_by_pool.values().flatten().copied().collect();
        let mut updates = Vec::new();
        for range in &wanted {
            if !self.ranges.contains_key(range) {
                self.ranges.insert(*range, now);
                updates.push(ClaimUpdate {
                    subject: Subject::range(*range),
                    claim: Some(LocalClaim {
                        party: Party {
                            source: source.to_owned(),
                            ..Party::default()
                        },
                        began: now,
                        terminating: false,
                        rightful: None,
                        mode: Mode::Register,
                    }),
                });
            }
        }
        let gone = self
            .ranges
            .extract_if(.., |range, _| !wanted.contains(range));
        updates.extend(gone.map(|(range, _)| ClaimUpdate {
            subject: Subject::range(range),
            claim: None,
        }));
        updates
    }

    /// The pools that were found and are not read yet.
    pub fn await_pools(&mut self, pools: BTreeSet<PoolId>) {
        if self.start.awaited_pools.is_none() {
            self.start.awaited_pools = Some(pools);
        }
    }

    /// Whether the claims that the node had at the start are all fed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.start.is_complete
    }

    /// The addresses that keep the selection from being complete.
    #[must_use]
    pub fn undecided(&self) -> Vec<IpAddr> {
        self.start.undecided.iter().copied().collect()
    }

    /// To be called when the node's first snapshot is merged and fed: `true` once, when nothing more is to be expected about what it
    /// showed. Until then a claim of an earlier run that is not fed may still be alive, its pod not looked up yet.
    pub fn complete_if_decided(&mut self) -> bool {
        let start = &mut self.start;
        let has_pools = start.awaited_pools.as_ref().is_some_and(BTreeSet::is_empty);
        if start.is_complete || !start.undecided.is_empty() || !has_pools {
            return false;
        }
        start.is_complete = true;
        true
    }
}

impl DeviceState {
    fn drop_ended(&mut self, now: Timestamp) {
        let is_over = |l: &LookedUpAddress| l.ended.is_some_and(|at| now.since(at) >= LOOKUP_PAUSE);
        self.lookups.retain(|lookup| !is_over(lookup));
    }
}

impl Candidate {
    fn device(&self) -> Option<DeviceId> {
        match self.claim.claimant.id {
            ClaimantId::Device(ifindex, generation) => Some((ifindex, generation)),
            ClaimantId::Host | ClaimantId::BehindBridge(..) | ClaimantId::Registered(_) => None,
        }
    }

    fn primary_addresses(&self) -> &[IpAddr] {
        let pod = self.pod.as_deref();
        pod.map_or(&[], |pod| &pod.primary_addresses)
    }

    fn is_primary(&self, address: IpAddr) -> bool {
        self.device().is_some() && self.primary_addresses().contains(&address)
    }

    /// The claim, as the continuation of the previous one if some evidence was there all the time. A pod may change its hardware address
    /// as often as it likes, so the first one stays.
    fn sent(&self, previous: Option<&SentClaim>, mode: Mode) -> Option<SentClaim> {
        let (device, pod) = (self.device()?, self.pod.as_deref()?);
        let claimant = &self.claim.claimant;
        let certain = || claimant.certain_evidence();
        let evidence: Vec<_> = certain().map(|e| e.seen.first).collect();
        let continued = previous.filter(|previous| {
            previous.device == device && previous.evidence.iter().any(|at| evidence.contains(at))
        });
        let began = match continued {
            Some(previous) => previous.claim.began,
            None => *evidence.iter().min()?,
        };
        let mac = continued.and_then(|previous| previous.claim.party.mac);
        let strongest = certain().min_by_key(|e| e.kind);
        let party = Party {
            device: claimant.device.clone(),
            ifindex: claimant.ifindex,
            mac: mac.or_else(|| certain().find_map(|e| e.mac)),
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            pod_uid: pod.uid.clone().unwrap_or_default(),
            container_id: pod.container_id.clone().unwrap_or_default(),
            evidence: strongest.map(|e| e.kind),
            ..Party::default()
        };
        let claim = LocalClaim {
            party,
            began,
            terminating: pod.terminating,
            rightful: claimant.rightful,
            mode,
        };
        Some(SentClaim {
            device,
            evidence,
            claim,
        })
    }
}

#[cfg(test)]
mod tests;
