//! Devices that contest many addresses of others (`address_sweep`).
//!
//! Such a device is one finding. Conflicts that exist only because of it name the finding, so that
//! a receiver of notifications gets the finding alone.
//!
//! Invariants: a conflict is part of a sweep only if all but one of the pods that claim the address
//! sweep, so that no sweep hides another claimant; a conflict that is `certain` or `flapping` is part
//! of none.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use crate::{
    limits::expiry::ExpiryQueue,
    model::{
        Anomaly, AnomalyCause, AnomalyEffect, AnomalyId, AnomalyKind, Claimant, Conflict,
        ConflictId, Contested, DeviceKey, IfIndex, ResolveReason, Timestamp,
    },
    track::{
        Step,
        anomaly::{
            contests::Contests,
            lifecycle::{Anomalies, AnomalyDetails, AnomalyKey},
        },
    },
};

/// A sweep ends when its device has contested fewer addresses than start one for this time.
const FEW_FOR: Duration = Duration::from_secs(60);
/// A sweep is found with the first few addresses, and what it contests by then is known this long afterwards.
const FIRST_UPDATE: Duration = Duration::from_secs(1);
/// Afterwards it is updated at most once in this time.
const UPDATE_EVERY: Duration = Duration::from_secs(10);
/// How many addresses the sentence about a sweep names.
const NAMED: usize = 4;

#[derive(Debug)]
struct OpenSweep {
    key: AnomalyKey,
    id: AnomalyId,
    /// Since when it has contested too few addresses to start one.
    few_since: Option<Timestamp>,
    /// When it may be updated next.
    update_from: Timestamp,
    /// The most addresses it contested.
    most: usize,
    /// What it contests changed, and its anomaly has not been updated.
    is_stale: bool,
    /// Its anomaly, or its pod, changed since its last event.
    is_unreported: bool,
}

/// Who contests which conflicts, and the open sweeps.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    pub(crate) contests: Contests,
    open: BTreeMap<DeviceKey, OpenSweep>,
    /// When each open sweep may end or be updated. What may change one schedules it for now.
    checks: ExpiryQueue<DeviceKey>,
}

/// The time of a check that is due at once.
const NOW: Timestamp = Timestamp(0);

impl Sweeps {
    /// Replaces what is known about the conflicts of one address.
    pub(crate) fn replace<'c>(
        &mut self,
        address: IpAddr,
        open: impl Iterator<Item = &'c Conflict>,
    ) {
        let (sweeps, checks) = (&mut self.open, &mut self.checks);
        self.contests.replace(address, open, |device| {
            if let Some(sweep) = sweeps.get_mut(&device) {
                sweep.is_stale = true;
                checks.schedule(device, NOW);
            }
        });
    }

    /// The sweep that a conflict is part of.
    pub(crate) fn sweep_of(&self, address: IpAddr, conflict: ConflictId) -> Option<AnomalyId> {
        if self.open.is_empty() {
            return None;
        }
        let contesters = self.contests.contesters(address, conflict).iter();
        let mut sweeps = contesters.map(|device| self.open.get(device));
        let first = sweeps.next()??;
        sweeps.all(|sweep| sweep.is_some()).then_some(first.id)
    }

    /// The pod behind a device became known or changed.
    pub(crate) fn pod_known(&mut self, device: DeviceKey) {
        if let Some(sweep) = self.open.get_mut(&device) {
            sweep.is_unreported = true;
            self.checks.schedule(device, sweep.update_from);
        }
    }

    /// A device changed, has been replaced or is gone.
    pub(crate) fn device_changed(&mut self, ifindex: IfIndex) {
        for (device, _) in self.open.range((ifindex, 0)..=(ifindex, u64::MAX)) {
            self.checks.schedule(*device, NOW);
        }
    }

    /// When a sweep may end or be updated next, unless something else happens.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.checks.next_due()
    }

    fn insert(&mut self, device: DeviceKey, sweep: OpenSweep) {
        self.open.insert(device, sweep);
        self.checks.schedule(device, NOW);
    }

    fn remove(&mut self, device: DeviceKey) -> Option<OpenSweep> {
        self.checks.cancel(device);
        self.open.remove(&device)
    }

    /// Schedules the next check of a sweep that has been checked.
    fn schedule(&mut self, device: DeviceKey) {
        let Some(sweep) = self.open.get(&device) else {
            return;
        };
        let end = sweep.few_since.map(|since| since + FEW_FOR);
        let update = sweep.is_unreported.then_some(sweep.update_from);
        let due = end.into_iter().chain(update);
        if let Some(due) = due.min() {
            self.checks.schedule(device, due);
        }
    }
}

impl Anomalies {
    /// Raises the sweep of a device that contests enough addresses. `true` if one was opened.
    pub(crate) fn start_sweep(
        &mut self,
        device: DeviceKey,
        holder: impl FnOnce() -> Option<Claimant>,
        step: &mut Step<'_>,
    ) -> bool {
        let count = self.sweeps.contests.count(device);
        if count < self.settings.anomalies.sweep_from || self.sweeps.open.contains_key(&device) {
            return false;
        }
        let contested = self.sweeps.contests.contested(device);
        let (Some(holder), Some(first)) = (holder(), contested.first.first()) else {
            return false;
        };
        let key = AnomalyKey {
            device: Some(device),
            ..AnomalyKey::of(AnomalyKind::AddressSweep, *first)
        };
        let detail = detail(&holder.device, &contested);
        let details = AnomalyDetails {
            contested: Some(contested),
            ..AnomalyDetails::new(AnomalyCause::ContestsMany, vec![holder], detail)
        };
        self.raise(key, details, step);
        let Some(anomaly) = self.open.get(&key) else {
            return false;
        };
        let sweep = OpenSweep::new(key, anomaly.id, step.now + FIRST_UPDATE, count);
        self.sweeps.insert(device, sweep);
        true
    }

    /// Continues a sweep of the previous run, of the device that has this identity now.
    pub(crate) fn continue_sweep(&mut self, id: AnomalyId, device: DeviceKey, now: Timestamp) {
        if self.sweeps.open.contains_key(&device) {
            return;
        }
        let Some(anomaly) = self.take_restored_on(id, device) else {
            return;
        };
        let key = AnomalyKey {
            device: Some(device),
            ..AnomalyKey::of(AnomalyKind::AddressSweep, anomaly.address)
        };
        let most = anomaly.contested.as_ref().map_or(0, |c| c.count);
        let sweep = OpenSweep::new(key, anomaly.id, now + UPDATE_EVERY, most);
        self.sweeps.insert(device, sweep);
        self.insert_open(key, anomaly);
    }

    /// Ends and updates the sweeps whose check is due; `device_name` is `None` for a device that is gone. Returns the
    /// addresses that the ended ones contest.
    pub(crate) fn settle_sweeps<'n>(
        &mut self,
        device_name: impl Fn(DeviceKey) -> Option<&'n str>,
        step: &mut Step<'_>,
    ) -> BTreeSet<IpAddr> {
        let mut released = BTreeSet::new();
        while let Some(device) = self.sweeps.checks.pop_due(step.now) {
            let name = device_name(device);
            let reason = match name {
                None => Some(ResolveReason::DeviceGone),
                Some(_) if self.has_few(device, step.now) => Some(ResolveReason::ContestsFew),
                Some(_) => None,
            };
            match (reason, name) {
                (Some(reason), _) => {
                    self.end_sweep(device, reason, step);
                    released.extend(self.sweeps.contests.addresses(device));
                }
                (None, Some(name)) => self.update_sweep(device, name, step),
                (None, None) => {}
            }
            self.sweeps.schedule(device);
        }
        released
    }

    /// Whether a sweep's device has contested too few addresses for long enough.
    fn has_few(&mut self, device: DeviceKey, now: Timestamp) -> bool {
        let has_few = self.sweeps.contests.count(device) < self.settings.anomalies.sweep_from;
        let Some(sweep) = self.sweeps.open.get_mut(&device) else {
            return false;
        };
        if !has_few {
            sweep.few_since = None;
            return false;
        }
        now.since(*sweep.few_since.get_or_insert(now)) >= FEW_FOR
    }

    fn end_sweep(&mut self, device: DeviceKey, reason: ResolveReason, step: &mut Step<'_>) {
        let Some(sweep) = self.sweeps.remove(device) else {
            return;
        };
        let anomaly = self.open.get_mut(&sweep.key);
        if let Some(contested) = anomaly.and_then(|anomaly| anomaly.contested.as_mut()) {
            contested.count = sweep.most;
        }
        self.resolve(&sweep.key, reason, step);
    }

    fn update_sweep(&mut self, device: DeviceKey, name: &str, step: &mut Step<'_>) {
        let Some(sweep) = self.sweeps.open.get(&device) else {
            return;
        };
        let Some(anomaly) = self.open.get_mut(&sweep.key) else {
            return;
        };
        let is_stale = sweep.is_stale || has_other_name(anomaly, name);
        let contested = is_stale.then(|| self.sweeps.contests.contested(device));
        let Some(sweep) = self.sweeps.open.get_mut(&device) else {
            return;
        };
        if let Some(contested) = contested {
            sweep.is_stale = false;
            sweep.most = sweep.most.max(contested.count);
            // One that contests nothing is about to end, as what it was.
            sweep.is_unreported |= contested.count > 0 && describe(anomaly, name, contested);
        }
        if sweep.is_unreported && step.now >= sweep.update_from {
            sweep.is_unreported = false;
            sweep.update_from = step.now + UPDATE_EVERY;
            anomaly.decided_at = step.now;
            step.report_anomaly(AnomalyEffect::Updated(Box::new(anomaly.clone())));
        }
    }
}

impl OpenSweep {
    fn new(key: AnomalyKey, id: AnomalyId, update_from: Timestamp, most: usize) -> Self {
        Self {
            key,
            id,
            few_since: None,
            update_from,
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
        "the pod on {device} claims {} addresses of others: {addresses}",
        contested.count
    )
}
