//! Anomalies of the previous run: continued once they are found again, resolved if they are over.
//!
//! Invariants: nothing is decided before the first full snapshot is merged; what is only not found yet, because pods, pools or frames
//! become known later, has [`RESTORED_TTL`] from then.

use std::{net::IpAddr, time::Duration};

use crate::{
    model::{Anomaly, AnomalyId, Claimant, ClaimantId, DeviceKey, ResolveReason, Timestamp},
    track::{
        Step,
        anomaly::{
            device_frames::quiet_after,
            lifecycle::{Anomalies, AnomalyKey, resolved},
        },
    },
};

/// How long a restored anomaly stays open after the first full snapshot if it is not found again.
const RESTORED_TTL: Duration = Duration::from_secs(20);

impl Anomalies {
    /// Restores the open anomalies of the previous run: each keeps its id and is not raised again.
    pub(crate) fn restore(&mut self, restored: Vec<Anomaly>) {
        for anomaly in &restored {
            self.counts.add(anomaly.kind);
        }
        self.restored.extend(restored);
    }

    /// Continues a router of the previous run, on the device that has this identity now: its next advertisement may come
    /// late.
    pub(crate) fn continue_router(&mut self, id: AnomalyId, device: DeviceKey, now: Timestamp) {
        if self.frames.router(device).is_some() {
            return;
        }
        let Some(anomaly) = self.take_restored_on(id, device) else {
            return;
        };
        let key = AnomalyKey::of_frames(anomaly.kind, anomaly.address, device, anomaly.vlan);
        if self.frames.record(key, now) {
            self.expiry
                .schedule(key.address, now + quiet_after(key.kind));
            self.insert_open(key, anomaly);
        } else {
            self.restored.push(anomaly);
        }
    }

    /// A restored anomaly, whose device has this identity now.
    pub(super) fn take_restored_on(&mut self, id: AnomalyId, device: DeviceKey) -> Option<Anomaly> {
        let mut restored = self.restored.iter();
        let position = restored.position(|restored| restored.id == id)?;
        let mut anomaly = self.restored.swap_remove(position);
        if let Some(holder) = &mut anomaly.holder {
            holder.id = ClaimantId::Device(device.0, device.1);
        }
        Some(anomaly)
    }

    /// The first full snapshot is merged: what the previous run left is resolved if it is not found again within [`RESTORED_TTL`].
    pub(crate) fn on_full_snapshot(&mut self, now: Timestamp) {
        if !self.restored.is_empty() && self.restored_until.is_none() {
            self.restored_until = Some(now + RESTORED_TTL);
        }
    }

    /// Resolves what the previous run left open about an address, and for which `ended` has a reason.
    pub(crate) fn end_restored(
        &mut self,
        address: IpAddr,
        ended: impl Fn(&Anomaly) -> Option<ResolveReason>,
        step: &mut Step<'_>,
    ) {
        let next = |restored: &[Anomaly]| {
            let all = restored.iter().enumerate();
            let mut of_address = all.filter(|(_, anomaly)| anomaly.address == address);
            of_address.find_map(|(index, anomaly)| Some((index, ended(anomaly)?)))
        };
        while let Some((index, reason)) = next(&self.restored) {
            let anomaly = self.restored.swap_remove(index);
            self.resolve_restored(anomaly, reason, step);
        }
    }

    /// Resolves what is open, or what the previous run left open: what is there contradicts it. That it was not found (again) is for
    /// [`Anomalies::resolve`].
    pub(super) fn end(&mut self, key: &AnomalyKey, reason: ResolveReason, step: &mut Step<'_>) {
        self.resolve(key, reason, step);
        if let Some(anomaly) = self.take_restored(key, None) {
            self.resolve_restored(anomaly, reason, step);
        }
    }

    /// Resolves restored anomalies that were not found again in time.
    pub(crate) fn expire_restored(&mut self, step: &mut Step<'_>) {
        if self.restored_until.is_none_or(|until| until > step.now) {
            return;
        }
        self.restored_until = None;
        for anomaly in std::mem::take(&mut self.restored) {
            self.resolve_restored(anomaly, ResolveReason::NotSeen, step);
        }
    }

    fn resolve_restored(&mut self, anomaly: Anomaly, reason: ResolveReason, step: &mut Step<'_>) {
        self.counts.subtract(anomaly.kind);
        resolved(anomaly, reason, step);
    }

    /// The anomaly of the previous run with this key, which has no device.
    pub(super) fn restored(&self, key: &AnomalyKey) -> Option<&Anomaly> {
        let mut restored = self.restored.iter();
        restored.find(|old| is_same_anomaly(old, key, None))
    }

    /// The anomaly of the previous run that `key` and `holder` continue.
    pub(super) fn take_restored(
        &mut self,
        key: &AnomalyKey,
        holder: Option<&Claimant>,
    ) -> Option<Anomaly> {
        let mut restored = self.restored.iter();
        let index = restored.position(|old| is_same_anomaly(old, key, holder))?;
        Some(self.restored.swap_remove(index))
    }
}

/// Whether an anomaly of the previous run is this one. Its device has another generation now.
fn is_same_anomaly(old: &Anomaly, key: &AnomalyKey, holder: Option<&Claimant>) -> bool {
    let device = |c: Option<&Claimant>| c.map(|c| (c.ifindex, c.device.clone()));
    (old.kind, old.address, old.vlan) == (key.kind, key.address, key.vlan)
        && (key.device.is_none() || device(old.holder.as_ref()) == device(holder))
}
