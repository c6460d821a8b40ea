//! Devices that contest many addresses of others and have none of them assigned (`address_sweep`).
//!
//! Such a device is one finding. Conflicts that exist only because of it name the finding, so that
//! a receiver of notifications gets the finding alone.
//!
//! Invariants: a conflict is part of a sweep only if all but one of the pods that claim the address
//! sweep, so that no sweep hides another claimant; a conflict that is `certain` or `flapping` is part
//! of none.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    time::Duration,
};

use super::{
    super::{
        conflict::{Claimant, ClaimantId, Confidence, Conflict, ConflictId, ConflictKind},
        lifecycle::DecisionTime,
        observation::{IfIndex, Timestamp},
        settings::Bounds,
    },
    lifecycle::{Anomalies, AnomalyDetails, AnomalyKey},
    model::{
        Anomaly, AnomalyCause, AnomalyEffect, AnomalyId, AnomalyKind, Contested, ResolveReason,
    },
};

/// A sweep ends when its device has contested fewer addresses than start one for this time.
pub(in crate::engine) const FEW_FOR: Duration = Duration::from_secs(60);
/// A sweep is updated at most once in this time.
pub(in crate::engine) const UPDATE_EVERY: Duration = Duration::from_secs(10);
/// The most contested addresses listed.
const LISTED: usize = 16;
/// Of these, how many the sentence about it names.
const NAMED: usize = 4;

/// A device, by index and generation.
pub(in crate::engine) type DeviceKey = (IfIndex, u64);

/// An open conflict and the devices that contest its address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Contest {
    raised_at: Timestamp,
    conflict: ConflictId,
    by: Vec<DeviceKey>,
}

#[derive(Debug)]
struct OpenSweep {
    key: AnomalyKey,
    id: AnomalyId,
    /// Since when it has contested too few addresses to start one.
    few_since: Option<Timestamp>,
    /// When its last event was.
    reported_at: Timestamp,
    /// The most addresses it contested.
    most: usize,
    /// What it contests changed, and its anomaly has not been updated.
    is_stale: bool,
    /// Its anomaly, or its pod, changed since its last event.
    is_unreported: bool,
}

/// Who contests which conflicts, and the open sweeps.
#[derive(Debug, Default)]
pub(in crate::engine) struct Sweeps {
    contests: HashMap<IpAddr, Vec<Contest>>,
    /// The conflicts that each device contests, the oldest first.
    by_device: HashMap<DeviceKey, BTreeMap<(Timestamp, ConflictId), IpAddr>>,
    open: BTreeMap<DeviceKey, OpenSweep>,
}

impl Sweeps {
    /// Replaces what is known about the conflicts of one address.
    pub(in crate::engine) fn replace<'c>(
        &mut self,
        address: IpAddr,
        open: impl Iterator<Item = &'c Conflict>,
    ) {
        let contests: Vec<_> = open
            .map(|conflict| Contest {
                raised_at: conflict.raised_at,
                conflict: conflict.id,
                by: contesters(conflict),
            })
            .filter(|contest| !contest.by.is_empty())
            .collect();
        let before = match self.contests.get(&address) {
            Some(before) if *before == contests => return,
            None if contests.is_empty() => return,
            _ => self.contests.remove(&address).unwrap_or_default(),
        };
        for (contest, device) in by_device(&before) {
            if let Some(contested) = self.by_device.get_mut(&device) {
                contested.remove(&(contest.raised_at, contest.conflict));
                if contested.is_empty() {
                    self.by_device.remove(&device);
                }
            }
        }
        for (contest, device) in by_device(&contests) {
            let contested = self.by_device.entry(device).or_default();
            contested.insert((contest.raised_at, contest.conflict), address);
        }
        for (_, device) in by_device(&before).chain(by_device(&contests)) {
            if let Some(sweep) = self.open.get_mut(&device) {
                sweep.is_stale = true;
            }
        }
        if !contests.is_empty() {
            self.contests.insert(address, contests);
        }
    }

    /// The devices that contest an address.
    pub(in crate::engine) fn contesters_of(&self, address: IpAddr) -> BTreeSet<DeviceKey> {
        let contests = self.contests.get(&address).into_iter().flatten();
        contests.flat_map(|contest| &contest.by).copied().collect()
    }

    /// The addresses that a device contests.
    pub(in crate::engine) fn contested_by(&self, device: DeviceKey) -> BTreeSet<IpAddr> {
        let contested = self.by_device.get(&device).into_iter();
        contested.flat_map(BTreeMap::values).copied().collect()
    }

    /// The sweep that a conflict is part of.
    pub(in crate::engine) fn sweep_of(
        &self,
        address: IpAddr,
        conflict: ConflictId,
    ) -> Option<AnomalyId> {
        let mut contests = self.contests.get(&address)?.iter();
        let contest = contests.find(|contest| contest.conflict == conflict)?;
        let mut sweeps = contest.by.iter().map(|device| self.open.get(device));
        let first = sweeps.next()??;
        sweeps.all(|sweep| sweep.is_some()).then_some(first.id)
    }

    /// Whether there is no sweep.
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The pod behind a device became known or changed.
    pub(in crate::engine) fn pod_known(&mut self, device: DeviceKey) {
        if let Some(sweep) = self.open.get_mut(&device) {
            sweep.is_unreported = true;
        }
    }

    /// When a sweep ends or is updated next, unless something else happens.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let due = |sweep: &OpenSweep| {
            let end = sweep.few_since.map(|since| since + FEW_FOR);
            let update = sweep.reported_at + UPDATE_EVERY;
            end.into_iter()
                .chain(sweep.is_unreported.then_some(update))
                .min()
        };
        self.open.values().filter_map(due).min()
    }

    fn count(&self, device: DeviceKey) -> usize {
        self.by_device.get(&device).map_or(0, BTreeMap::len)
    }

    fn contested(&self, device: DeviceKey) -> Contested {
        let contested = self.by_device.get(&device);
        let addresses = contested.into_iter().flat_map(BTreeMap::values);
        Contested {
            count: self.count(device),
            first: addresses.take(LISTED).copied().collect(),
        }
    }
}

fn by_device(contests: &[Contest]) -> impl Iterator<Item = (&Contest, DeviceKey)> {
    let contests = contests.iter();
    contests.flat_map(|contest| contest.by.iter().map(move |device| (contest, *device)))
}

/// The devices that contest the address of a conflict: those without certain evidence, except the
/// owner if that has none either. The owner is the claimant with certain evidence, else the oldest.
fn contesters(conflict: &Conflict) -> Vec<DeviceKey> {
    let is_eligible = conflict.kind != ConflictKind::Flapping
        && conflict.confidence == Confidence::Observed
        // One that is not listed may be anybody.
        && conflict.claimants_omitted == 0;
    if !is_eligible {
        return Vec::new();
    }
    let certain = conflict.present().find(|c| c.is_certain());
    let owner = certain.or_else(|| conflict.present().min_by_key(|c| c.since));
    let owner = owner.map(|c| c.id);
    conflict
        .present()
        .filter(|c| !c.is_certain() && Some(c.id) != owner)
        .filter_map(|c| match c.id {
            ClaimantId::Device(ifindex, generation) => Some((ifindex, generation)),
            // These claim nothing without certain evidence.
            ClaimantId::Host | ClaimantId::BehindBridge(..) | ClaimantId::Registered(_) => None,
        })
        .collect()
}

impl Anomalies {
    /// Raises the sweep of a device that contests enough addresses. `true` if one was opened.
    pub(in crate::engine) fn start_sweep(
        &mut self,
        device: DeviceKey,
        holder: impl FnOnce() -> Option<Claimant>,
        at: DecisionTime,
        bounds: &Bounds,
        effects: &mut Vec<AnomalyEffect>,
    ) -> bool {
        let count = self.sweeps.count(device);
        if count < self.rules.sweep_from || self.sweeps.open.contains_key(&device) {
            return false;
        }
        let contested = self.sweeps.contested(device);
        let (Some(holder), Some(first)) = (holder(), contested.first.first()) else {
            return false;
        };
        let key = AnomalyKey {
            device: Some(device),
            ..AnomalyKey::of(AnomalyKind::AddressSweep, *first)
        };
        let details = AnomalyDetails {
            cause: AnomalyCause::ContestsMany,
            detail: detail(&holder.device, &contested),
            holders: vec![holder],
            source: None,
            owner: None,
            contested: Some(contested),
        };
        self.raise(key, details, at, bounds, effects);
        let Some(anomaly) = self.open.get(&key) else {
            return false;
        };
        let sweep = OpenSweep::new(key, anomaly.id, at.now, count);
        self.sweeps.open.insert(device, sweep);
        true
    }

    /// Continues a sweep of the previous run, of the device that has this identity now.
    pub(in crate::engine) fn continue_sweep(
        &mut self,
        id: AnomalyId,
        device: DeviceKey,
        now: Timestamp,
    ) {
        let position = self.restored.iter().position(|restored| restored.id == id);
        let Some(position) = position.filter(|_| !self.sweeps.open.contains_key(&device)) else {
            return;
        };
        let mut anomaly = self.restored.swap_remove(position);
        if let Some(holder) = &mut anomaly.holder {
            holder.id = ClaimantId::Device(device.0, device.1);
        }
        let key = AnomalyKey {
            device: Some(device),
            ..AnomalyKey::of(AnomalyKind::AddressSweep, anomaly.address)
        };
        let most = anomaly.contested.as_ref().map_or(0, |c| c.count);
        let sweep = OpenSweep::new(key, anomaly.id, now, most);
        self.sweeps.open.insert(device, sweep);
        self.insert_open(key, anomaly);
    }

    /// Ends and updates sweeps; `device_name` is `None` for a device that is gone. Returns the
    /// addresses that the ended ones contest.
    pub(in crate::engine) fn settle_sweeps<'n>(
        &mut self,
        device_name: impl Fn(DeviceKey) -> Option<&'n str>,
        at: DecisionTime,
        effects: &mut Vec<AnomalyEffect>,
    ) -> BTreeSet<IpAddr> {
        let mut released = BTreeSet::new();
        let devices: Vec<_> = self.sweeps.open.keys().copied().collect();
        for device in devices {
            let name = device_name(device);
            let reason = match name {
                None => Some(ResolveReason::DeviceGone),
                Some(_) if self.has_few(device, at.now) => Some(ResolveReason::ContestsFew),
                Some(_) => None,
            };
            match (reason, name) {
                (Some(reason), _) => {
                    self.end_sweep(device, reason, at, effects);
                    released.extend(self.sweeps.contested_by(device));
                }
                (None, Some(name)) => self.update_sweep(device, name, at.now, effects),
                (None, None) => {}
            }
        }
        released
    }

    /// Whether a sweep's device has contested too few addresses for long enough.
    fn has_few(&mut self, device: DeviceKey, now: Timestamp) -> bool {
        let has_few = self.sweeps.count(device) < self.rules.sweep_from;
        let Some(sweep) = self.sweeps.open.get_mut(&device) else {
            return false;
        };
        if !has_few {
            sweep.few_since = None;
            return false;
        }
        now.since(*sweep.few_since.get_or_insert(now)) >= FEW_FOR
    }

    fn end_sweep(
        &mut self,
        device: DeviceKey,
        reason: ResolveReason,
        at: DecisionTime,
        effects: &mut Vec<AnomalyEffect>,
    ) {
        let Some(sweep) = self.sweeps.open.remove(&device) else {
            return;
        };
        let anomaly = self.open.get_mut(&sweep.key);
        if let Some(contested) = anomaly.and_then(|anomaly| anomaly.contested.as_mut()) {
            contested.count = sweep.most;
        }
        self.resolve(&sweep.key, reason, at, effects);
    }

    fn update_sweep(
        &mut self,
        device: DeviceKey,
        name: &str,
        now: Timestamp,
        effects: &mut Vec<AnomalyEffect>,
    ) {
        let Some(sweep) = self.sweeps.open.get(&device) else {
            return;
        };
        let Some(anomaly) = self.open.get_mut(&sweep.key) else {
            return;
        };
        let is_stale = sweep.is_stale || has_other_name(anomaly, name);
        let contested = is_stale.then(|| self.sweeps.contested(device));
        let Some(sweep) = self.sweeps.open.get_mut(&device) else {
            return;
        };
        if let Some(contested) = contested {
            sweep.is_stale = false;
            sweep.most = sweep.most.max(contested.count);
            // One that contests nothing is about to end, as what it was.
            sweep.is_unreported |= contested.count > 0 && describe(anomaly, name, contested);
        }
        if sweep.is_unreported && now.since(sweep.reported_at) >= UPDATE_EVERY {
            sweep.is_unreported = false;
            sweep.reported_at = now;
            anomaly.decided_at = now;
            effects.push(AnomalyEffect::Updated(Box::new(anomaly.clone())));
        }
    }
}

impl OpenSweep {
    fn new(key: AnomalyKey, id: AnomalyId, now: Timestamp, most: usize) -> Self {
        Self {
            key,
            id,
            few_since: None,
            reported_at: now,
            most,
            is_stale: true,
            is_unreported: false,
        }
    }
}

fn has_other_name(anomaly: &Anomaly, name: &str) -> bool {
    let mut holder = anomaly.holder.iter();
    holder.any(|holder| holder.device != name)
}

/// Updates the anomaly of a sweep; `true` if that changes it.
fn describe(anomaly: &mut Anomaly, name: &str, contested: Contested) -> bool {
    let is_other = has_other_name(anomaly, name) || anomaly.contested.as_ref() != Some(&contested);
    if is_other {
        if let Some(holder) = &mut anomaly.holder {
            name.clone_into(&mut holder.device);
        }
        anomaly.detail = detail(name, &contested);
        anomaly.contested = Some(contested);
    }
    is_other
}

/// One sentence about a sweep.
fn detail(device: &str, contested: &Contested) -> String {
    let named = contested.first.iter().take(NAMED);
    let mut addresses: Vec<_> = named.map(ToString::to_string).collect();
    let more = contested.count.saturating_sub(addresses.len());
    if more > 0 {
        addresses.push(format!("{more} more"));
    }
    let addresses = match addresses.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => addresses.concat(),
    };
    format!(
        "the pod on {device} claims {} addresses of others and has none of them assigned: {addresses}",
        contested.count
    )
}
