//! The kernel worker's thread, which may wait for the kernel: attaches the programs to devices, takes snapshots and looks
//! up routes.
//!
//! Jobs are done in order. A device's namespace is read only after the attach, so what changed in between is in the snapshot.
//! How many of them wait is bounded where they are sent (`event_loop/device_jobs.rs`).
//! Between jobs the worker keeps the programs in front of those of others ([`filter_watch`]).

mod filter_watch;

use std::{
    os::fd::AsFd as _,
    sync::mpsc::TryRecvError,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use detector_engine::{
    ClaimedUpdate, IfIndex, Observation, PodDevice, RouteQuery, SnapshotScope, SnapshotToken,
    TimedObservation,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::{debug, warn};

use super::{
    ebpf::{AttachError, ClaimedError, DeviceLosses, Programs},
    netlink::{
        BoundedSnapshot, DeviceSelector, NetlinkReader, NodeWithoutNeighbours, Omitted, ReadError,
        RouteLookup,
    },
};
use crate::process::{clock, mailbox::Mailbox, memory, threads};
use filter_watch::FilterWatch;

/// The longest wait for a job.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A job for the kernel worker.
#[derive(Debug)]
pub enum WorkerJob {
    /// Attach to a device, then, if there is a token, take a snapshot of the device.
    Attach(PodDevice, Option<SnapshotToken>),
    /// Detach from a device that is gone or not a pod device any more.
    Detach {
        /// The device.
        ifindex: IfIndex,
        /// Frames may have come in on it.
        was_up: bool,
    },
    /// Take snapshots of devices, and report them together: the event loop wakes up once for all of them.
    ReadDevices(Vec<(PodDevice, SnapshotToken)>),
    /// Take a snapshot of the node.
    ReadNode(SnapshotToken),
    /// Ask the kernel for the routes of these addresses.
    LookUpRoutes(Vec<RouteQuery>),
    /// Write what changed in the kernel programs' table of claimed addresses.
    WriteClaimed(ClaimedUpdate),
    /// Read which devices exceeded their budgets in the kernel.
    ReadBudgets,
    /// Return freed memory to the kernel, here because it takes about a millisecond.
    ReleaseMemory,
}

/// A message of the kernel worker.
#[derive(Debug)]
pub enum WorkerEvent {
    /// An attach job is done; `false` if it failed because the device is gone or the kernel refused.
    AttachDone(IfIndex, bool),
    /// Frames may have come in on a device that the program was not attached to: some had when it was attached, or it was up
    /// and is gone without an attach.
    Unobserved,
    /// For the first time on this device, another program removed the filter or put its own before it, as network plugins
    /// do while they set up a pod. Frames of the device were missed.
    Reattached(IfIndex),
    /// The same again: something keeps doing that.
    Displaced,
    /// The number of devices on which the program may miss frames, because another program's filter runs before it or
    /// because it cannot be reattached.
    Preempted(usize),
    /// A snapshot is complete, or failed.
    Snapshot(TimedObservation, Omitted),
    /// A batch of route lookups is done.
    RoutesLookedUp(RouteLookup),
    /// A write of the table of claimed addresses is done.
    ClaimedWritten(Result<(), ClaimedError>),
    /// The devices that exceeded their budgets, since each was first seen; none if that could not be read.
    OverBudget(Vec<DeviceLosses>),
}

/// What the thread works with.
#[derive(Debug)]
pub struct KernelWorker {
    /// The kernel programs; `None` with `--no-ebpf`.
    pub programs: Option<Programs>,
    /// Takes the snapshots.
    pub reader: NetlinkReader,
    /// Which links are pod devices.
    pub selector: DeviceSelector,
    /// The first snapshot of the node, which is taken while the programs are loaded; `None` if it failed.
    pub first_read: Option<JoinHandle<Option<NodeWithoutNeighbours>>>,
}

impl KernelWorker {
    /// Works until the senders of `jobs` are dropped, then detaches from every device.
    pub fn run(mut self, jobs: &Mailbox<WorkerJob>, emit: impl Fn(WorkerEvent)) {
        let mut watch = FilterWatch::new();
        loop {
            if let Some(programs) = &mut self.programs {
                watch.run(programs, &emit);
            }
            jobs.clear_wakeup();
            match jobs.next() {
                Ok(job) => self.handle(job, &mut watch, &emit),
                Err(TryRecvError::Empty) => self.wait(jobs, &watch),
                Err(TryRecvError::Disconnected) => break,
            }
        }
        if let Some(programs) = &mut self.programs {
            programs.detach_all();
        }
    }

    /// Waits for a job, a changed filter or the next check.
    fn wait(&self, jobs: &Mailbox<WorkerJob>, watch: &FilterWatch) {
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut descriptors = vec![readable(jobs.as_fd())];
        let mut deadline = None;
        if let Some(programs) = &self.programs {
            let next_read = watch.next_read();
            if next_read <= Instant::now() {
                descriptors.push(readable(programs.filter_changes()));
                deadline = Some(watch.next_deadline());
            } else {
                deadline = Some(watch.next_deadline().min(next_read));
            }
        }
        let wait = deadline.map_or(MAX_WAIT, |at| at.saturating_duration_since(Instant::now()));
        // Rounded up, so that a wait does not repeatedly end just before the deadline.
        let millis = wait.min(MAX_WAIT).as_millis().saturating_add(1);
        let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
        // Interrupted by a signal, or out of memory: the caller looks for itself.
        let _ = poll(&mut descriptors, timeout);
    }

    fn handle(&mut self, job: WorkerJob, watch: &mut FilterWatch, emit: &impl Fn(WorkerEvent)) {
        match job {
            WorkerJob::Attach(device, token) => {
                let attached = self.attach(watch, &device);
                if let Some(token) = token {
                    let snapshot = self.read_device(&device);
                    let has_received = snapshot.as_ref().is_ok_and(|read| read.received > 0);
                    if attached == AttachState::Now && has_received {
                        emit(WorkerEvent::Unobserved);
                    }
                    let scope = SnapshotScope::Device(device.ifindex);
                    emit(snapshot_event(token, scope, snapshot));
                }
                let is_attached = attached != AttachState::Not;
                emit(WorkerEvent::AttachDone(device.ifindex, is_attached));
            }
            WorkerJob::Detach { ifindex, was_up } => {
                let was_attached = watch.remove(ifindex);
                if let Some(programs) = &mut self.programs {
                    programs.detach(ifindex);
                    if was_up && !was_attached {
                        emit(WorkerEvent::Unobserved);
                    }
                }
            }
            WorkerJob::ReadDevices(devices) => {
                let read = |(device, token): (PodDevice, _)| {
                    let scope = SnapshotScope::Device(device.ifindex);
                    snapshot_event(token, scope, self.read_device(&device))
                };
                let snapshots: Vec<_> = devices.into_iter().map(read).collect();
                snapshots.into_iter().for_each(emit);
            }
            WorkerJob::ReadNode(token) => {
                let snapshot = self.read_node();
                emit(snapshot_event(token, SnapshotScope::Node, snapshot));
            }
            WorkerJob::LookUpRoutes(queries) => {
                let lookup = self.reader.look_up_routes(&queries);
                emit(WorkerEvent::RoutesLookedUp(lookup));
            }
            WorkerJob::WriteClaimed(update) => self.write_claimed(&update, emit),
            WorkerJob::ReadBudgets => {
                let counters = self.programs.as_ref().map(Programs::counters);
                let read = counters.map(|counters| counters.devices_over_budget());
                let devices = read
                    .unwrap_or_else(|| Ok(Vec::new()))
                    .unwrap_or_else(|error| {
                        debug!(%error, "budgets of devices not read");
                        Vec::new()
                    });
                emit(WorkerEvent::OverBudget(devices));
            }
            WorkerJob::ReleaseMemory => memory::release_freed(),
        }
    }

    fn read_node(&mut self) -> Result<BoundedSnapshot, ReadError> {
        let first = self.first_read.take();
        match first.and_then(|thread| threads::join(thread).ok().flatten()) {
            Some(node) => self.reader.read_neighbours_of(node),
            None => self.reader.read_node(&self.selector),
        }
    }

    fn write_claimed(&mut self, update: &ClaimedUpdate, emit: &impl Fn(WorkerEvent)) {
        let programs = self.programs.as_mut();
        let outcome = programs.map_or(Ok(()), |programs| programs.write_claimed(update));
        emit(WorkerEvent::ClaimedWritten(outcome));
    }

    fn read_device(&mut self, device: &PodDevice) -> Result<BoundedSnapshot, ReadError> {
        self.reader
            .read_device(&self.selector, device.ifindex, device.peer)
    }

    fn attach(&mut self, watch: &mut FilterWatch, device: &PodDevice) -> AttachState {
        let Some(programs) = &mut self.programs else {
            return AttachState::Before;
        };
        if watch.update_name(device) {
            return AttachState::Before;
        }
        match programs.attach(device.ifindex, &device.name) {
            Ok(outcome) => {
                watch.insert(device, outcome);
                AttachState::Now
            }
            Err(AttachError::Vanished { .. }) => {
                debug!(device = device.name, "device removed before the attach");
                AttachState::Not
            }
            Err(error) => {
                warn!(
                    device = device.name,
                    %error,
                    "attach failed; frames of this device are not observed, its addresses still are"
                );
                AttachState::Not
            }
        }
    }
}

/// Whether the program is attached to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttachState {
    /// It was already, or there is none.
    Before,
    /// Since now.
    Now,
    /// It is not.
    Not,
}

fn snapshot_event(
    token: SnapshotToken,
    scope: SnapshotScope,
    snapshot: Result<BoundedSnapshot, ReadError>,
) -> WorkerEvent {
    let (observation, omitted) = match snapshot {
        Ok(BoundedSnapshot {
            snapshot, omitted, ..
        }) => {
            let snapshot = Box::new(snapshot);
            (Observation::Snapshot(token, scope, snapshot), omitted)
        }
        Err(error) => {
            warn!(%error, "snapshot of the kernel's state failed, retrying");
            (Observation::SnapshotFailed(token), Omitted::default())
        }
    };
    let at = clock::now();
    WorkerEvent::Snapshot(TimedObservation { at, observation }, omitted)
}
