//! Has the worker attach to pod devices: at once, or when a new device has been set up ([`AttachSchedule`]).
//!
//! Devices found at the start are attached to at once, and so is everything that no network plugin is setting up: a device that
//! a snapshot found, one that is known already and has another peer, and a tap, whose program claims addresses in frames alone.
//! A device in a conflict does not wait either.
//!
//! [`AttachSchedule`]: super::attach_schedule::AttachSchedule

use super::{Core, attach_schedule::DueStep};
use crate::{
    clock,
    engine::{ClaimantId, Conflict, PodDevice, Timestamp},
    observe::worker::WorkerJob,
};

impl Core {
    /// A pod device appeared, or has another peer.
    pub(super) fn attach_or_wait(&mut self, device: PodDevice) {
        let is_started = self.outputs.readiness.is_ready();
        if is_started && !self.resync.is_merging && self.engine.is_being_set_up(device.ifindex) {
            self.attach_schedule.insert(device, clock::now());
        } else {
            self.attach_schedule.remove(device.ifindex);
            self.attach_and_read(device);
        }
    }

    /// The name or alias of a pod device changed.
    pub(super) fn attach_renamed(&mut self, device: PodDevice) {
        if self.attach_schedule.contains(device.ifindex) {
            self.attach_schedule.insert(device, clock::now());
        } else {
            // An attach under the old name may have failed, or may still be queued.
            self.send_attach(device, false);
        }
    }

    /// Attaches to the devices that have waited long enough, and reads those whose addresses were not reported.
    pub(super) fn attach_due(&mut self, now: Timestamp) {
        for step in self.attach_schedule.take_due(now) {
            // After a loss another device may have the index.
            let (DueStep::Read(waited) | DueStep::Attach(waited)) = &step;
            let Some(device) = self.engine.device(waited.ifindex) else {
                continue;
            };
            match step {
                DueStep::Attach(_) => self.attach_and_read(device),
                DueStep::Read(_) => {
                    let token = self.start_snapshot();
                    self.send_job(WorkerJob::ReadDevice(device, token));
                }
            }
        }
    }

    /// Attaches to the devices of a conflict that still wait: their frames and their namespaces show more about it.
    pub(super) fn attach_claimants(&mut self, conflict: &Conflict) {
        if self.attach_schedule.is_empty() {
            return;
        }
        for claimant in conflict.present() {
            let ClaimantId::Device(ifindex, _) = claimant.id else {
                continue;
            };
            if self.attach_schedule.remove(ifindex)
                && let Some(device) = self.engine.device(ifindex)
            {
                self.attach_and_read(device);
            }
        }
    }

    fn attach_and_read(&mut self, device: PodDevice) {
        // A device found by a snapshot of the node has been read with it.
        let reads = !self.resync.is_merging;
        self.send_attach(device, reads);
    }

    fn send_attach(&mut self, device: PodDevice, reads: bool) {
        self.attaching += 1;
        let token = reads.then(|| self.start_snapshot());
        self.send_job(WorkerJob::Attach(device, token));
    }
}
