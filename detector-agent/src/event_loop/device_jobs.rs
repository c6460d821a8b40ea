//! Jobs of the kernel worker that concern one device.
//!
//! Invariant: the worker has at most one attach or read of a device, and one detach before it. What is to be done meanwhile is
//! merged into one of each. So its queue is bounded by the number of devices, however long the worker waits for a lock of the
//! kernel: without that lock no device can appear either.
//!
//! The other jobs are bounded where they are sent: one read of the node, one write of the table of claimed addresses, one read
//! of the budgets and one batch of route lookups are in flight at a time, and a few self-checks.

use std::collections::{HashMap, hash_map::Entry};

use detector_engine::{IfIndex, PodDevice, SnapshotToken};

use super::Core;
use crate::observe::worker::WorkerJob;

/// A job before it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DeviceJob {
    /// Attach to a device, and then read it if the flag is set.
    Attach(PodDevice, bool),
    /// Read a device.
    Read(PodDevice),
    /// Detach from a device that is gone or not a pod device any more.
    Detach {
        /// The device.
        ifindex: IfIndex,
        /// Frames may have come in on it.
        was_up: bool,
    },
}

/// What follows the job that the worker has.
#[derive(Debug, Default)]
struct Next {
    /// A detach comes first; whether frames may have come in.
    detach: Option<bool>,
    /// An attach or a read.
    job: Option<DeviceJob>,
}

/// Where a job goes.
#[derive(Debug, PartialEq, Eq)]
enum Dispatch {
    Send(DeviceJob),
    /// It is merged with what follows the job that the worker has.
    Merged,
    /// As `Merged`, and a device that came and went meanwhile is never attached to; frames may have come in on it.
    Unobserved,
}

/// The devices whose attach or read the worker has.
#[derive(Debug, Default)]
pub(super) struct DeviceJobs {
    with_worker: HashMap<IfIndex, Next>,
    reads: HashMap<SnapshotToken, IfIndex>,
    /// How many attaches are not done.
    attaching: usize,
}

impl DeviceJobs {
    /// How many attaches the worker has not completed.
    pub(super) fn attaching(&self) -> usize {
        self.attaching
    }

    fn start(&mut self, job: DeviceJob) -> Dispatch {
        let next = match self.with_worker.entry(job.ifindex()) {
            Entry::Vacant(entry) => {
                if !matches!(job, DeviceJob::Detach { .. }) {
                    entry.insert(Next::default());
                }
                self.attaching += usize::from(job.is_attach());
                return Dispatch::Send(job);
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        let before = next.job.take();
        let was_attach = before.as_ref().is_some_and(DeviceJob::is_attach);
        let mut start = Dispatch::Merged;
        match job {
            DeviceJob::Detach { was_up, .. } => {
                // The one before is for the device that the worker has.
                if next.detach.is_some() && was_attach && was_up {
                    start = Dispatch::Unobserved;
                }
                next.detach.get_or_insert(was_up);
            }
            DeviceJob::Attach(device, reads) => {
                let reads = reads || before.is_some_and(|before| before.reads());
                next.job = Some(DeviceJob::Attach(device, reads));
            }
            DeviceJob::Read(device) => {
                next.job = Some(match before {
                    Some(DeviceJob::Attach(..)) => DeviceJob::Attach(device, true),
                    _ => DeviceJob::Read(device),
                });
            }
        }
        let is_attach = next.job.as_ref().is_some_and(DeviceJob::is_attach);
        self.attaching += usize::from(is_attach);
        self.attaching -= usize::from(was_attach);
        start
    }

    /// The worker has done its attach or read of a device: what it gets next.
    fn done(&mut self, ifindex: IfIndex) -> [Option<DeviceJob>; 2] {
        let Some(next) = self.with_worker.remove(&ifindex) else {
            return [None, None];
        };
        if next.job.is_some() {
            self.with_worker.insert(ifindex, Next::default());
        }
        let detach = next.detach;
        let detach = detach.map(|was_up| DeviceJob::Detach { ifindex, was_up });
        [detach, next.job]
    }
}

impl DeviceJob {
    fn ifindex(&self) -> IfIndex {
        match self {
            Self::Attach(device, _) | Self::Read(device) => device.ifindex,
            Self::Detach { ifindex, .. } => *ifindex,
        }
    }

    fn is_attach(&self) -> bool {
        matches!(self, Self::Attach(..))
    }

    fn reads(&self) -> bool {
        matches!(self, Self::Attach(_, true) | Self::Read(_))
    }
}

impl Core {
    /// Sends the job, now or once the worker has done the one of this device that it has.
    pub(super) fn start_device_job(&mut self, job: DeviceJob) {
        match self.device_jobs.start(job) {
            Dispatch::Send(job) => self.send_device_job(job),
            Dispatch::Merged => {}
            // Without programs nothing would have been observed anyway.
            Dispatch::Unobserved if self.kernel_counters.is_none() => {}
            Dispatch::Unobserved => self.count_dropped("not_attached", 1),
        }
    }

    fn send_device_job(&mut self, job: DeviceJob) {
        let job = match job {
            DeviceJob::Attach(device, reads) => {
                let token = reads.then(|| self.start_snapshot());
                WorkerJob::Attach(device, token)
            }
            DeviceJob::Read(device) => {
                let token = self.start_snapshot();
                self.device_jobs.reads.insert(token, device.ifindex);
                WorkerJob::ReadDevices(vec![(device, token)])
            }
            DeviceJob::Detach { ifindex, was_up } => WorkerJob::Detach { ifindex, was_up },
        };
        self.send_job(job);
    }

    /// An attach is done.
    pub(super) fn finish_attach(&mut self, ifindex: IfIndex) {
        let attaching = &mut self.device_jobs.attaching;
        *attaching = attaching.saturating_sub(1);
        self.send_next_device_jobs(ifindex);
    }

    /// A snapshot is complete, or failed: it may be the read of a device.
    pub(super) fn finish_read(&mut self, token: SnapshotToken) {
        if let Some(ifindex) = self.device_jobs.reads.remove(&token) {
            self.send_next_device_jobs(ifindex);
        }
    }

    fn send_next_device_jobs(&mut self, ifindex: IfIndex) {
        for job in self.device_jobs.done(ifindex).into_iter().flatten() {
            self.send_device_job(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(generation: u64) -> PodDevice {
        PodDevice {
            ifindex: 7,
            generation,
            name: "vetha".to_owned(),
            alias: None,
            peer: None,
        }
    }

    fn detach(was_up: bool) -> DeviceJob {
        DeviceJob::Detach { ifindex: 7, was_up }
    }

    #[test]
    fn worker_has_one_job_of_a_device_and_the_rest_is_merged() {
        let mut jobs = DeviceJobs::default();
        let first = DeviceJob::Attach(device(1), false);
        assert_eq!(jobs.start(first.clone()), Dispatch::Send(first));
        for _ in 0..1_000 {
            let job = DeviceJob::Read(device(1));
            assert_eq!(jobs.start(job), Dispatch::Merged);
            let job = DeviceJob::Attach(device(1), false);
            assert_eq!(jobs.start(job), Dispatch::Merged);
        }
        assert_eq!(jobs.attaching(), 2);
        // The read is not lost.
        let next = DeviceJob::Attach(device(1), true);
        assert_eq!(jobs.done(7), [None, Some(next)]);
        assert_eq!(jobs.done(7), [None, None]);
        assert!(jobs.with_worker.is_empty());
        let read = DeviceJob::Read(device(1));
        assert_eq!(jobs.start(read.clone()), Dispatch::Send(read.clone()));
        assert_eq!(jobs.start(read.clone()), Dispatch::Merged);
        assert_eq!(jobs.done(7), [None, Some(read)]);
    }

    #[test]
    fn device_that_is_replaced_is_detached_from_first() {
        let mut jobs = DeviceJobs::default();
        let attach = |generation| DeviceJob::Attach(device(generation), true);
        assert_eq!(jobs.start(attach(1)), Dispatch::Send(attach(1)));
        assert_eq!(jobs.start(DeviceJob::Read(device(1))), Dispatch::Merged);
        assert_eq!(jobs.start(detach(true)), Dispatch::Merged);
        assert_eq!(jobs.start(attach(2)), Dispatch::Merged);
        assert_eq!(jobs.attaching(), 2);
        assert_eq!(jobs.done(7), [Some(detach(true)), Some(attach(2))]);
        assert_eq!(jobs.start(detach(false)), Dispatch::Merged);
        assert_eq!(jobs.done(7), [Some(detach(false)), None]);
        // The worker does a detach in the order of its queue.
        assert_eq!(jobs.start(detach(true)), Dispatch::Send(detach(true)));
        assert!(jobs.with_worker.is_empty());
    }

    #[test]
    fn device_that_comes_and_goes_while_the_worker_waits_is_counted() {
        let mut jobs = DeviceJobs::default();
        let attach = |generation| DeviceJob::Attach(device(generation), true);
        jobs.start(attach(1));
        assert_eq!(jobs.start(detach(false)), Dispatch::Merged);
        for (generation, was_up) in [(2, true), (3, false)] {
            assert_eq!(jobs.start(attach(generation)), Dispatch::Merged);
            let expected = match was_up {
                true => Dispatch::Unobserved,
                false => Dispatch::Merged,
            };
            assert_eq!(jobs.start(detach(was_up)), expected);
        }
        assert_eq!(jobs.attaching(), 1);
        assert_eq!(jobs.done(7), [Some(detach(false)), None]);
    }
}
