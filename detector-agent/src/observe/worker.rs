//! The kernel worker's thread, which may wait for the kernel: attaches the programs to devices, takes snapshots and looks
//! up routes.
//!
//! Jobs are done in order. A device's namespace is read only after the attach, so what changed in between is in the snapshot.
//! Every few seconds the worker checks whether the programs still run before others: the kernel reports that a filter was
//! removed, but not that another one was put before it.

use std::{
    collections::{HashMap, HashSet},
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use tracing::{debug, warn};

use super::{
    ebpf::{AttachError, Programs},
    netlink::{BoundedSnapshot, DeviceSelector, NetlinkReader, Omitted, ReadError, RouteLookup},
};
use crate::{
    clock,
    engine::{
        IfIndex, Observation, PodDevice, RouteQuery, SnapshotScope, SnapshotToken, TimedObservation,
    },
};

/// Minimum time between two checks of the attached programs.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Every this many checks the filters of each device are listed even without a notification of the kernel, which gets lost
/// silently if the kernel has no memory for it.
const FULL_CHECK_EVERY: u32 = 60;
/// A check takes a few µs for each device. With very many devices the checks become rarer, so that they use at most this
/// fraction (one in …) of a core.
const CHECK_CPU_FRACTION: u32 = 2_000;

/// A job for the kernel worker.
#[derive(Debug)]
pub enum WorkerJob {
    /// Attach to a device, then, if there is a token, take a snapshot of the device.
    Attach(PodDevice, Option<SnapshotToken>),
    /// Detach from a device that is gone or not a pod device any more.
    Detach(IfIndex),
    /// Take a snapshot of a device.
    ReadDevice(PodDevice, SnapshotToken),
    /// Take a snapshot of the node.
    ReadNode(SnapshotToken),
    /// Ask the kernel for the routes of these addresses.
    LookUpRoutes(Vec<RouteQuery>),
}

/// A message of the kernel worker.
#[derive(Debug)]
pub enum WorkerEvent {
    /// An attach job is done; `false` if it failed because the device is gone or the kernel refused.
    AttachDone(IfIndex, bool),
    /// A filter was removed or preempted, and reattached: the device's frames were missed for a while.
    Displaced(IfIndex),
    /// A snapshot is complete, or failed.
    Snapshot(TimedObservation, Omitted),
    /// A batch of route lookups is done.
    RoutesLookedUp(RouteLookup),
}

/// Generation and name of each attached device.
type AttachedDevices = HashMap<IfIndex, (u64, String)>;

/// The state of the checks of the attached programs.
#[derive(Debug, Default)]
struct Checks {
    done: u32,
    /// Devices whose last reattach failed and was logged.
    failing: HashSet<IfIndex>,
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
}

impl KernelWorker {
    /// Works until the sender of `jobs` is dropped, then detaches from every device.
    pub fn run(mut self, jobs: &Receiver<WorkerJob>, emit: impl Fn(WorkerEvent)) {
        let mut attached = AttachedDevices::new();
        let mut next_check = Instant::now() + CHECK_INTERVAL;
        let mut checks = Checks::default();
        loop {
            let wait = next_check.saturating_duration_since(Instant::now());
            let job = jobs.recv_timeout(wait);
            if Instant::now() >= next_check {
                let started = Instant::now();
                self.check_attached(&attached, &mut checks, &emit);
                next_check = Instant::now() + pause_after(started.elapsed());
            }
            match job {
                Ok(job) => self.handle(job, &mut attached, &emit),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if let Some(programs) = &mut self.programs {
            programs.detach_all();
        }
    }

    fn handle(
        &mut self,
        job: WorkerJob,
        attached: &mut AttachedDevices,
        emit: &impl Fn(WorkerEvent),
    ) {
        match job {
            WorkerJob::Attach(device, token) => {
                let ok = self.attach(attached, &device);
                if let Some(token) = token {
                    emit(self.read_device(&device, token));
                }
                emit(WorkerEvent::AttachDone(device.ifindex, ok));
            }
            WorkerJob::Detach(ifindex) => {
                attached.remove(&ifindex);
                if let Some(programs) = &mut self.programs {
                    programs.detach(ifindex);
                }
            }
            WorkerJob::ReadDevice(device, token) => emit(self.read_device(&device, token)),
            WorkerJob::ReadNode(token) => {
                let snapshot = self.reader.read_node(&self.selector);
                emit(snapshot_event(token, SnapshotScope::Node, snapshot));
            }
            WorkerJob::LookUpRoutes(queries) => {
                let lookup = self.reader.look_up_routes(&queries);
                emit(WorkerEvent::RoutesLookedUp(lookup));
            }
        }
    }

    fn read_device(&mut self, device: &PodDevice, token: SnapshotToken) -> WorkerEvent {
        let snapshot = self
            .reader
            .read_device(&self.selector, device.ifindex, device.peer);
        snapshot_event(token, SnapshotScope::Device(device.ifindex), snapshot)
    }

    fn check_attached(
        &mut self,
        attached: &AttachedDevices,
        checks: &mut Checks,
        emit: &impl Fn(WorkerEvent),
    ) {
        let Some(programs) = &mut self.programs else {
            return;
        };
        checks.done = checks.done.wrapping_add(1);
        programs.begin_check(checks.done.is_multiple_of(FULL_CHECK_EVERY));
        checks
            .failing
            .retain(|ifindex| attached.contains_key(ifindex));
        for (ifindex, (_, name)) in attached {
            match programs.reattach_if_displaced(*ifindex, name) {
                Ok(false) | Err(AttachError::Vanished { .. }) => {}
                Ok(true) => {
                    checks.failing.remove(ifindex);
                    warn!(
                        device = name,
                        "another program removed or displaced the eBPF filter; reattached, resyncing"
                    );
                    emit(WorkerEvent::Displaced(*ifindex));
                }
                Err(error) if checks.failing.insert(*ifindex) => warn!(
                    device = name,
                    %error,
                    retry_seconds = CHECK_INTERVAL.as_secs(),
                    "reattach failed; frames of this device may be missed until a retry succeeds"
                ),
                Err(error) => debug!(device = name, %error, "reattach failed again"),
            }
        }
    }

    fn attach(&mut self, attached: &mut AttachedDevices, device: &PodDevice) -> bool {
        let Some(programs) = &mut self.programs else {
            return true;
        };
        let known = attached.get(&device.ifindex);
        if known.is_some_and(|(generation, _)| *generation == device.generation) {
            return true;
        }
        match programs.attach(device.ifindex, &device.name) {
            Ok(_) => {
                attached.insert(device.ifindex, (device.generation, device.name.clone()));
                true
            }
            Err(AttachError::Vanished { .. }) => {
                debug!(device = device.name, "device removed before the attach");
                false
            }
            Err(error) => {
                warn!(
                    device = device.name,
                    %error,
                    "attach failed; frames of this device are not observed, its addresses still are"
                );
                false
            }
        }
    }
}

/// How long to wait after a check that took this long.
fn pause_after(check: Duration) -> Duration {
    (check * CHECK_CPU_FRACTION).max(CHECK_INTERVAL)
}

fn snapshot_event(
    token: SnapshotToken,
    scope: SnapshotScope,
    snapshot: Result<BoundedSnapshot, ReadError>,
) -> WorkerEvent {
    let (observation, omitted) = match snapshot {
        Ok(BoundedSnapshot { snapshot, omitted }) => {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_use_little_cpu_however_many_devices() {
        assert_eq!(pause_after(Duration::from_micros(200)), CHECK_INTERVAL);
        let long = Duration::from_millis(30);
        assert_eq!(pause_after(long), Duration::from_secs(60));
    }
}
