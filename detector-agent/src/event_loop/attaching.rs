//! Has the worker attach to pod devices: at once, or when a new device has been set up ([`AttachSchedule`]).
//!
//! Devices found at the start are attached to at once, and so is everything that no network plugin is setting up: a device that
//! a snapshot found, one that is known already and has another peer, and a tap, whose program claims addresses in frames alone.
//! A device in a conflict does not wait either.
//!
//! [`AttachSchedule`]: super::attach_schedule::AttachSchedule

use super::Core;
use crate::{
    clock,
    engine::{ClaimantId, Conflict, PodDevice, Timestamp},
    observe::worker::WorkerJob,
};

impl Core {
    /// A pod device appeared, or its peer became known or changed.
    ///
    /// A new device is read as soon as its peer is known: from then on the kernel reports what changes in the peer's
    /// namespace, and the plugin has yet to assign an address (Calico and Amazon VPC: has assigned it before, which nothing
    /// reports). So the peer's hardware address, which no notification of an address contains, is known when a conflict is
    /// raised.
    pub(super) fn attach_or_wait(&mut self, device: PodDevice) {
        let is_started = self.outputs.readiness.is_ready();
        if is_started && !self.resync.is_merging && self.engine.is_being_set_up(device.ifindex) {
            self.attach_schedule.insert(device.clone(), clock::now());
            if device.peer.is_some() {
                let token = self.start_snapshot();
                self.send_job(WorkerJob::ReadDevice(device, token));
            }
        } else {
            self.attach_schedule.remove(device.ifindex);
            // A device found by a snapshot of the node has been read with it.
            let reads = !self.resync.is_merging;
            self.send_attach(device, reads);
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

    /// Attaches to the devices that have waited long enough.
    pub(super) fn attach_due(&mut self, now: Timestamp) {
        for waited in self.attach_schedule.take_due(now) {
            self.attach_waited(&waited);
        }
    }

    /// Attaches to the devices of a conflict that still wait: their frames show more about it.
    pub(super) fn attach_claimants(&mut self, conflict: &Conflict) {
        if self.attach_schedule.is_empty() {
            return;
        }
        for claimant in conflict.present() {
            if let ClaimantId::Device(ifindex, _) = claimant.id
                && let Some(waited) = self.attach_schedule.remove(ifindex)
            {
                self.attach_waited(&waited);
            }
        }
    }

    fn attach_waited(&mut self, waited: &PodDevice) {
        // After a loss another device may have the index.
        if let Some(device) = self.engine.device(waited.ifindex) {
            let is_same = (waited.generation, waited.peer) == (device.generation, device.peer);
            let was_read = is_same && waited.peer.is_some();
            self.send_attach(device, !was_read);
        }
    }

    fn send_attach(&mut self, device: PodDevice, reads: bool) {
        self.attaching += 1;
        let token = reads.then(|| self.start_snapshot());
        self.send_job(WorkerJob::Attach(device, token));
    }
}
