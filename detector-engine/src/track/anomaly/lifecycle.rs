//! The lifecycle of anomalies: raised once and resolved once, or continued from the previous run.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use crate::{
    counts::Counts,
    hash::HashMap,
    limits::expiry::ExpiryQueue,
    mirror::pools::Pools,
    model::{
        Anomaly, AnomalyCause, AnomalyEffect, AnomalyId, AnomalyKind, Claimant, Contested,
        DeviceKey, IdSequence, IfIndex, PoolId, PoolSource, ResolveReason, Settings, Timestamp,
        Vlan,
    },
    track::{
        Step,
        anomaly::{device_frames::DeviceFrames, macs::Macs, sweep::Sweeps},
    },
};

/// Identifies an open anomaly. A device is identified by index and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct AnomalyKey {
    pub(crate) kind: AnomalyKind,
    pub(crate) address: IpAddr,
    pub(crate) device: Option<DeviceKey>,
    pub(crate) vlan: Vlan,
}

impl AnomalyKey {
    /// The key of an anomaly that concerns the address alone.
    pub(crate) fn of(kind: AnomalyKind, address: IpAddr) -> Self {
        Self {
            kind,
            address,
            device: None,
            vlan: Vlan::default(),
        }
    }
}

/// The contents of a new anomaly.
#[derive(Debug)]
pub(crate) struct AnomalyDetails {
    pub(crate) cause: AnomalyCause,
    pub(crate) holders: Vec<Claimant>,
    pub(crate) source: Option<Arc<PoolSource>>,
    pub(crate) owner: Option<Arc<str>>,
    pub(crate) detail: String,
    pub(crate) contested: Option<Contested>,
}

impl AnomalyDetails {
    pub(crate) fn new(cause: AnomalyCause, holders: Vec<Claimant>, detail: String) -> Self {
        Self {
            cause,
            holders,
            source: None,
            owner: None,
            detail,
            contested: None,
        }
    }
}

/// Since when a state lasts, by address.
pub(super) type FirstSeen = HashMap<IpAddr, Timestamp>;

/// Open anomalies, and states that may become one.
#[derive(Debug)]
pub(crate) struct Anomalies {
    pub(super) settings: Arc<Settings>,
    pub(crate) pools: Pools,
    pub(super) open: BTreeMap<AnomalyKey, Anomaly>,
    /// Of `open` and `restored` together.
    pub(super) counts: Counts<AnomalyKind>,
    /// Anomalies of the previous run that were not found again yet.
    pub(super) restored: Vec<Anomaly>,
    pub(super) restored_until: Option<Timestamp>,
    /// Live addresses without an allocation.
    pub(super) unallocated_since: FirstSeen,
    /// Live addresses whose allocation is another pod's.
    pub(super) owned_by_another_since: FirstSeen,
    /// Allocated addresses that no pod has.
    pub(super) unused_since: FirstSeen,
    /// Live addresses whose host route leads to no claimant.
    pub(super) stray_since: FirstSeen,
    /// Addresses that failed duplicate address detection and are in no conflict.
    pub(super) unusable_since: FirstSeen,
    /// Live addresses whose host route led to a claimant.
    pub(super) routed: BTreeSet<IpAddr>,
    /// Anomalies that only frames show.
    pub(crate) frames: DeviceFrames,
    /// Who contests which conflicts.
    pub(crate) sweeps: Sweeps,
    /// Hardware addresses that are not where they belong.
    pub(crate) macs: Macs,
    /// Pools that were asked to be read and have not been yet, and for which addresses if they have parts.
    pub(super) pending_reads: BTreeSet<(PoolId, Option<IpAddr>)>,
    /// Open ones by the device that they name.
    by_device: Counts<IfIndex>,
    pub(super) expiry: ExpiryQueue,
    ids: IdSequence,
    pub(super) refused: u64,
}

impl Anomalies {
    pub(crate) fn new(settings: &Arc<Settings>) -> Self {
        Self {
            settings: Arc::clone(settings),
            pools: Pools::default(),
            open: BTreeMap::new(),
            counts: Counts::default(),
            restored: Vec::new(),
            restored_until: None,
            unallocated_since: HashMap::default(),
            owned_by_another_since: HashMap::default(),
            unused_since: HashMap::default(),
            stray_since: HashMap::default(),
            unusable_since: HashMap::default(),
            routed: BTreeSet::new(),
            frames: DeviceFrames::default(),
            sweeps: Sweeps::default(),
            macs: Macs::default(),
            pending_reads: BTreeSet::new(),
            by_device: Counts::default(),
            expiry: ExpiryQueue::default(),
            // Distinct from the conflict ids of the same seed.
            ids: IdSequence::new(!settings.id_seed),
            refused: 0,
        }
    }

    pub(crate) fn open(&self) -> impl Iterator<Item = &Anomaly> {
        self.open.values().chain(&self.restored)
    }

    /// How many anomalies of `kind` are open.
    pub(crate) fn count(&self, kind: AnomalyKind) -> usize {
        self.counts.of(&kind)
    }

    pub(crate) fn is_open(&self, key: &AnomalyKey) -> bool {
        self.open.contains_key(key)
    }

    pub(super) fn has_cause(&self, key: &AnomalyKey, cause: AnomalyCause) -> bool {
        self.open.get(key).is_some_and(|open| open.cause == cause)
    }

    /// Schedules a check of an address.
    pub(crate) fn schedule(&mut self, address: IpAddr, at: Timestamp) {
        self.expiry.schedule(address, at);
    }

    /// Anomalies rejected at a bound.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Every address that has or may get an anomaly.
    pub(crate) fn addresses(&self) -> BTreeSet<IpAddr> {
        let open = self.open().map(|open| open.address);
        let pending = self
            .unused_since
            .keys()
            .chain(self.unallocated_since.keys())
            .chain(self.owned_by_another_since.keys())
            .copied();
        open.chain(pending).chain(self.pools.allocated()).collect()
    }

    /// When the next check is due.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        let due = [
            self.expiry.next_due(),
            self.restored_until,
            self.sweeps.next_due(),
            self.macs.next_due(),
        ];
        due.into_iter().flatten().min()
    }

    /// The next address that is due by `now`.
    pub(crate) fn pop_due(&mut self, now: Timestamp) -> Option<IpAddr> {
        self.expiry.pop_due(now)
    }

    /// Whether the state in `which` has lasted for `grace`. If not, a check is scheduled; at the
    /// bound it is rejected.
    pub(super) fn has_lasted(
        &mut self,
        which: fn(&mut Self) -> &mut FirstSeen,
        address: IpAddr,
        grace: Duration,
        now: Timestamp,
    ) -> bool {
        let bound = self.settings.bounds.kernel_entries;
        let since = which(self);
        if since.len() >= bound && !since.contains_key(&address) {
            self.refused += 1;
            return false;
        }
        let due = *since.entry(address).or_insert(now) + grace;
        if now < due {
            self.expiry.schedule(address, due);
        }
        now >= due
    }

    pub(crate) fn raise(&mut self, key: AnomalyKey, details: AnomalyDetails, step: &mut Step<'_>) {
        let mut holders = details.holders.into_iter();
        let holder = holders.next();
        let (known, is_restored) = match self.remove_open(&key) {
            Some(open) => (Some(open), false),
            None => (self.take_restored(&key, holder.as_ref()), true),
        };
        if let Some(known) = known {
            let is_other = (known.cause, &known.owner) != (details.cause, &details.owner);
            let mut continued = if is_other || is_restored {
                Anomaly {
                    cause: details.cause,
                    holder,
                    also_on: holders.map(|h| h.device).collect(),
                    source: details.source,
                    owner: details.owner,
                    contested: details.contested,
                    ..known
                }
            } else {
                known
            };
            // It may contain more, such as the name of the pod that owns the allocation.
            continued.detail = details.detail;
            if is_other {
                continued.decided_at = step.at;
                step.report_anomaly(AnomalyEffect::Updated(Box::new(continued.clone())));
            }
            self.insert_open(key, continued);
            return;
        }
        let of_device = holder.as_ref().map(|h| self.by_device.of(&h.ifindex));
        let is_at_share =
            of_device.is_some_and(|count| count >= self.settings.bounds.anomalies_per_device);
        if is_at_share || self.open.len() >= self.settings.bounds.open_conflicts {
            self.refused += 1;
            self.expiry
                .schedule(key.address, step.now + Duration::from_secs(60));
            return;
        }
        let anomaly = Anomaly {
            id: AnomalyId(self.ids.next()),
            kind: key.kind,
            cause: details.cause,
            address: key.address,
            vlan: key.vlan,
            holder,
            also_on: holders.map(|h| h.device).collect(),
            source: details.source,
            owner: details.owner,
            detail: details.detail,
            contested: details.contested,
            overlap: None,
            raised_at: step.now,
            decided_at: step.at,
            reported_latency_us: None,
            reported_diagnosis: 0,
            resolved_at: None,
            resolve_reason: None,
        };
        step.report_anomaly(AnomalyEffect::Raised(Box::new(anomaly.clone())));
        self.counts.add(key.kind);
        self.insert_open(key, anomaly);
    }

    /// Stores the latency of the last event about an open anomaly, and the hash of its diagnosis.
    pub(crate) fn set_reported(
        &mut self,
        (kind, address, id): (AnomalyKind, IpAddr, AnomalyId),
        latency_us: u64,
        diagnosis: u64,
    ) {
        let of_address = self.open.range_mut(AnomalyKey::of(kind, address)..);
        let mut of_address =
            of_address.take_while(|(key, _)| (key.kind, key.address) == (kind, address));
        if let Some((_, anomaly)) = of_address.find(|(_, anomaly)| anomaly.id == id) {
            anomaly.reported_latency_us = Some(latency_us);
            anomaly.reported_diagnosis = diagnosis;
        }
    }

    pub(super) fn insert_open(&mut self, key: AnomalyKey, anomaly: Anomaly) {
        if let Some(holder) = &anomaly.holder {
            self.by_device.add(holder.ifindex);
        }
        self.open.insert(key, anomaly);
    }

    pub(super) fn remove_open(&mut self, key: &AnomalyKey) -> Option<Anomaly> {
        let anomaly = self.open.remove(key)?;
        if let Some(holder) = &anomaly.holder {
            self.by_device.subtract(holder.ifindex);
        }
        Some(anomaly)
    }

    pub(crate) fn resolve(&mut self, key: &AnomalyKey, reason: ResolveReason, step: &mut Step<'_>) {
        if let Some(anomaly) = self.remove_open(key) {
            self.counts.subtract(anomaly.kind);
            resolved(anomaly, reason, step);
        }
    }
}

pub(super) fn resolved(mut anomaly: Anomaly, reason: ResolveReason, step: &mut Step<'_>) {
    anomaly.resolved_at = Some(step.now);
    anomaly.decided_at = step.at;
    anomaly.resolve_reason = Some(reason);
    step.report_anomaly(AnomalyEffect::Resolved(Box::new(anomaly)));
}
