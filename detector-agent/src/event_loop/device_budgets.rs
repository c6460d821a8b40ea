//! Names the devices that exceed their budgets in the kernel.

use std::{collections::HashMap, time::Duration};

use detector_engine::{IfIndex, Timestamp};
use tracing::warn;

use super::Core;
use crate::{
    observe::{ebpf::DeviceLosses, worker::WorkerJob},
    process::{clock, log_budget::LogBudget},
};

/// A device is named again once it has kept within its budgets for this long.
const QUIET: Duration = Duration::from_secs(600);

/// What was last read of one device.
#[derive(Debug)]
struct ExceededBudget {
    losses: DeviceLosses,
    at: Timestamp,
}

/// The devices that exceeded their budgets; bounded by the kernel's table of budgets.
#[derive(Debug)]
pub(super) struct DeviceBudgets {
    exceeded: HashMap<IfIndex, ExceededBudget>,
    /// The worker has not completed the last read.
    is_in_flight: bool,
    log_budget: LogBudget,
}

impl DeviceBudgets {
    pub(super) fn new() -> Self {
        Self {
            exceeded: HashMap::new(),
            is_in_flight: false,
            log_budget: LogBudget::new(),
        }
    }

    /// The devices to name: those with a loss after they had none for [`QUIET`].
    fn newly_exceeded(&mut self, all: Vec<DeviceLosses>, now: Timestamp) -> Vec<DeviceLosses> {
        let mut before = std::mem::take(&mut self.exceeded);
        let mut new = Vec::new();
        for losses in all {
            let known = before.remove(&losses.ifindex);
            let unchanged = known.as_ref().filter(|known| known.losses == losses);
            let at = unchanged.map_or(now, |known| known.at);
            if known.is_none_or(|known| at > known.at && now.since(known.at) >= QUIET) {
                new.push(losses);
            }
            self.exceeded
                .insert(losses.ifindex, ExceededBudget { losses, at });
        }
        new.retain(|_| self.log_budget.take(now));
        new
    }
}

impl Core {
    /// Once a second, if a device lost something.
    pub(super) fn read_budgets(&mut self) {
        if !std::mem::replace(&mut self.device_budgets.is_in_flight, true) {
            self.send_job(WorkerJob::ReadBudgets);
        }
    }

    /// Names the devices that exceeded a budget since they were last read.
    pub(super) fn name_devices_over_budget(&mut self, all: Vec<DeviceLosses>) {
        self.device_budgets.is_in_flight = false;
        for losses in self.device_budgets.newly_exceeded(all, clock::now()) {
            let device = self.engine.view().device(losses.ifindex);
            warn!(
                device = device.map(|device| device.name),
                ifindex = losses.ifindex,
                frames = losses.frames,
                neighbours = losses.neighbours,
                "device exceeded its budget of claims; beyond it, only contested ones are observed (docs/limits.md)"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_is_named_once_until_it_was_quiet() {
        let mut budgets = DeviceBudgets::new();
        let lost = |ifindex, frames| DeviceLosses {
            ifindex,
            frames,
            neighbours: 0,
        };
        let start = Timestamp(1);
        let later = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(
            budgets.newly_exceeded(vec![lost(1, 5)], start),
            [lost(1, 5)]
        );
        let both = vec![lost(1, 9), lost(2, 1)];
        assert_eq!(budgets.newly_exceeded(both, later(1)), [lost(2, 1)]);
        let same = vec![lost(1, 9), lost(2, 1)];
        assert_eq!(budgets.newly_exceeded(same, later(700)), []);
        let more = vec![lost(1, 10), lost(2, 1)];
        assert_eq!(budgets.newly_exceeded(more, later(701)), [lost(1, 10)]);
    }
}
