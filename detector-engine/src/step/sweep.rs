//! Finds devices that contest many addresses, and marks the conflicts that are part of such a sweep
//! (`docs/detection-rules.md`, section 14.5).

use std::{net::IpAddr, sync::Arc};

use crate::{
    model::{AnomalyKind, Conflict, DeviceKey, Effect, Timestamp},
    step::{Engine, anomalies::device_as_holder},
    track::Step,
};

impl Engine {
    /// The conflicts of `address` were decided; their effects are those from `first` on.
    pub(super) fn update_sweeps(&mut self, address: IpAddr, first: usize, step: &mut Step<'_>) {
        let open = self.tracked.lifecycle.open_of(address).map(|(_, c)| c);
        self.tracked.anomalies.sweeps.replace(address, open);
        if self.mirror.is_complete {
            let contests = &self.tracked.anomalies.sweeps.contests;
            let enough = self.settings.anomalies.sweep_from;
            for device in contests.contesters_of(address, enough) {
                self.start_sweep(device, address, first, step);
            }
        }
        self.mark_swept(address, first, step);
    }

    fn start_sweep(
        &mut self,
        device: DeviceKey,
        address: IpAddr,
        first: usize,
        step: &mut Step<'_>,
    ) {
        let links = &self.mirror.links;
        let holder = || links.device(device).map(device_as_holder);
        let last = step.effects.len();
        let has_started = self.tracked.anomalies.start_sweep(device, holder, step);
        if !has_started {
            return;
        }
        // The finding comes before the conflicts that name it.
        let raised = step.effects.len() - last;
        step.effects[first..].rotate_right(raised);
        for other in self.tracked.anomalies.sweeps.contests.addresses(device) {
            if other != address {
                self.mark_swept(other, step.effects.len(), step);
            }
        }
    }

    /// Brings the open conflicts of an address in line with the open sweeps. One that is in an effect
    /// from `first` on is changed there, for others an update follows.
    fn mark_swept(&mut self, address: IpAddr, first: usize, step: &mut Step<'_>) {
        let sweeps = &self.tracked.anomalies.sweeps;
        let open = self.tracked.lifecycle.open_of(address);
        let changed: Vec<_> = open
            .map(|(_, c)| (c.id, c.sweep, sweeps.sweep_of(address, c.id)))
            .filter(|(_, before, now)| before != now)
            .collect();
        for (id, _, sweep) in changed {
            let is_it = |conflict: &&mut Arc<Conflict>| conflict.id == id;
            let reported = step.effects[first..]
                .iter_mut()
                .filter_map(|effect| match effect {
                    Effect::Raised(conflict) | Effect::Updated(conflict) => Some(conflict),
                    _ => None,
                });
            let reported = reported.rev().find(is_it);
            let is_reported = reported.is_some();
            if let Some(conflict) = reported {
                Arc::make_mut(conflict).sweep = sweep;
            }
            self.tracked
                .lifecycle
                .set_sweep(address, id, sweep, is_reported, step);
        }
    }

    /// Ends and updates sweeps whose check is due, once every conflict is decided.
    pub(super) fn settle_sweeps(&mut self, step: &mut Step<'_>) {
        let links = &self.mirror.links;
        let name = |device| Some(links.device(device)?.link.name.as_str());
        let released = self.tracked.anomalies.settle_sweeps(name, step);
        for address in released {
            self.mark_swept(address, step.effects.len(), step);
        }
    }

    /// Continues the sweeps of the previous run whose device still exists.
    pub(super) fn continue_sweeps(&mut self, now: Timestamp) {
        for (id, device) in self.surviving(AnomalyKind::AddressSweep) {
            self.tracked.anomalies.continue_sweep(id, device, now);
        }
    }
}
