//! Keeps the programs in front of those of others on every attached device.
//!
//! The kernel notifies of changed filters, and the devices concerned are checked within [`CHANGE_INTERVAL`]. It notifies of
//! nothing on TCX, and drops notifications silently if it has no memory for them: for those cases all devices are checked
//! every few seconds, most of the time without listing their filters.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use detector_engine::{IfIndex, PodDevice};
use tracing::{debug, info, warn};

use super::WorkerEvent;
use crate::{
    observe::ebpf::{AttachError, AttachOutcome, ChangedDevices, Programs},
    process::{clock, log_budget::LogBudget},
};

/// Minimum time between two reads of the notifications, if there were any: two programs that both want to be first
/// reattach no more often than this.
const CHANGE_INTERVAL: Duration = Duration::from_millis(250);
/// Minimum time between two checks of all devices.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The same after notifications were lost.
const CHECK_INTERVAL_AFTER_LOSS: Duration = Duration::from_secs(1);
/// Every this many checks the filters of all devices are listed.
const LIST_EVERY: u32 = 60;
/// A check takes a few µs for each device. With very many devices the checks become rarer, so that they use at most this
/// fraction (one in …) of a core.
const CHECK_CPU_FRACTION: u32 = 2_000;

#[derive(Debug)]
struct Device {
    generation: u64,
    name: String,
    /// It was reattached once already.
    was_reattached: bool,
}

/// The attached devices, and when they are checked.
#[derive(Debug)]
pub(super) struct FilterWatch {
    devices: HashMap<IfIndex, Device>,
    /// Devices with a filter of others before ours, or without ours because reattaching fails.
    preempted: HashSet<IfIndex>,
    /// The number of them that was reported last.
    reported: usize,
    /// When notifications are read again.
    next_read: Instant,
    /// When all devices are checked again, and the earliest time at which they may be.
    next_check: Instant,
    earliest_check: Instant,
    /// Checks until the filters of all devices are listed.
    until_list: u32,
    log_budget: LogBudget,
}

impl FilterWatch {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            devices: HashMap::new(),
            preempted: HashSet::new(),
            reported: 0,
            next_read: now,
            next_check: now + CHECK_INTERVAL,
            earliest_check: now,
            until_list: LIST_EVERY,
            log_budget: LogBudget::new(),
        }
    }

    /// Takes the present name of a device that is attached already; `false` if this generation of it
    /// is not.
    pub(super) fn update_name(&mut self, device: &PodDevice) -> bool {
        let known = self.devices.get_mut(&device.ifindex);
        let Some(known) = known.filter(|known| known.generation == device.generation) else {
            return false;
        };
        known.name.clone_from(&device.name);
        true
    }

    /// Adds a device that was just attached.
    pub(super) fn insert(&mut self, device: &PodDevice, outcome: AttachOutcome) {
        if outcome == AttachOutcome::Preempted {
            self.preempted.insert(device.ifindex);
            self.warn_preempted(&device.name);
        } else {
            self.preempted.remove(&device.ifindex);
        }
        let attached = Device {
            generation: device.generation,
            name: device.name.clone(),
            was_reattached: false,
        };
        self.devices.insert(device.ifindex, attached);
    }

    /// Forgets a device; `true` if it was attached.
    pub(super) fn remove(&mut self, ifindex: IfIndex) -> bool {
        self.preempted.remove(&ifindex);
        self.devices.remove(&ifindex).is_some()
    }

    /// When [`Self::run`] has something to do even if there is no notification.
    pub(super) fn next_deadline(&self) -> Instant {
        self.next_check
    }

    /// When notifications may be read.
    pub(super) fn next_read(&self) -> Instant {
        self.next_read
    }

    /// Does the checks that are due.
    pub(super) fn run(&mut self, programs: &mut Programs, emit: &impl Fn(WorkerEvent)) {
        let now = Instant::now();
        if now >= self.next_read {
            let changed = programs.changed_devices();
            self.check_changed(now, &changed, programs, emit);
        }
        if now >= self.next_check {
            self.check_all(programs, emit);
        }
        if self.reported != self.preempted.len() {
            self.reported = self.preempted.len();
            emit(WorkerEvent::Preempted(self.reported));
        }
    }

    fn check_changed(
        &mut self,
        now: Instant,
        changed: &ChangedDevices,
        programs: &mut Programs,
        emit: &impl Fn(WorkerEvent),
    ) {
        if changed.devices.is_empty() && !changed.lost {
            return;
        }
        self.next_read = now + CHANGE_INTERVAL;
        for ifindex in &changed.devices {
            if let Some(device) = self.devices.get(ifindex) {
                let outcome = programs.attach(*ifindex, &device.name);
                self.note(*ifindex, outcome, emit);
            }
        }
        if changed.lost {
            self.until_list = 0;
            self.next_check = self.next_check.min(self.earliest_check);
        }
    }

    fn check_all(&mut self, programs: &mut Programs, emit: &impl Fn(WorkerEvent)) {
        let started = Instant::now();
        let lists_filters = self.until_list == 0;
        let devices: Vec<_> = self.devices.keys().copied().collect();
        for ifindex in devices {
            let Some(device) = self.devices.get(&ifindex) else {
                continue;
            };
            let outcome = if lists_filters || self.preempted.contains(&ifindex) {
                programs.attach(ifindex, &device.name)
            } else {
                programs.check_tcx(ifindex, &device.name)
            };
            self.note(ifindex, outcome, emit);
        }
        self.until_list = self.until_list.checked_sub(1).unwrap_or(LIST_EVERY);
        let ended = Instant::now();
        let pause = pause_after(ended - started);
        self.next_check = ended + pause.max(CHECK_INTERVAL);
        self.earliest_check = ended + pause.max(CHECK_INTERVAL_AFTER_LOSS);
    }

    /// Acts on the outcome of a check.
    fn note(
        &mut self,
        ifindex: IfIndex,
        outcome: Result<AttachOutcome, AttachError>,
        emit: &impl Fn(WorkerEvent),
    ) {
        let Some(device) = self.devices.get_mut(&ifindex) else {
            return;
        };
        match outcome {
            Err(AttachError::Vanished { .. }) => {}
            Ok(AttachOutcome::Unchanged) => {
                self.preempted.remove(&ifindex);
            }
            Ok(AttachOutcome::Attached) => {
                self.preempted.remove(&ifindex);
                let device_name = &device.name;
                if !std::mem::replace(&mut device.was_reattached, true) {
                    info!(
                        device = device_name,
                        "another program removed or displaced the eBPF filter; reattached"
                    );
                    emit(WorkerEvent::Reattached(ifindex));
                    return;
                }
                if self.log_budget.take(clock::now()) {
                    warn!(
                        device = device_name,
                        "another program keeps removing or displacing the eBPF filter; reattached, resyncing"
                    );
                }
                emit(WorkerEvent::Displaced);
            }
            Ok(AttachOutcome::Preempted) => {
                if self.preempted.insert(ifindex) {
                    let name = device.name.clone();
                    self.warn_preempted(&name);
                    emit(WorkerEvent::Reattached(ifindex));
                }
            }
            Err(error) if self.preempted.insert(ifindex) => warn!(
                device = device.name,
                %error,
                retry_seconds = CHECK_INTERVAL.as_secs(),
                "reattach failed; frames of this device may be missed until a retry succeeds"
            ),
            Err(error) => debug!(device = device.name, %error, "reattach failed again"),
        }
    }

    fn warn_preempted(&mut self, device: &str) {
        if self.log_budget.take(clock::now()) {
            warn!(
                device,
                "another program's tc filter runs before the eBPF filter and cannot be preceded; frames that it keeps are missed"
            );
        }
    }
}

/// Minimum pause after a check that took this long.
fn pause_after(check: Duration) -> Duration {
    check * CHECK_CPU_FRACTION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_use_little_cpu_however_many_devices() {
        assert!(pause_after(Duration::from_micros(200)) < CHECK_INTERVAL);
        let long = Duration::from_millis(30);
        assert_eq!(pause_after(long), Duration::from_secs(60));
    }
}
