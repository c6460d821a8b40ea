//! What is to be read again, why, and when.
//!
//! The kernel reports a change once, so what was refused at a bound is unknown until it is read again, once there is room. Of
//! internal interfaces and hardware addresses of a pod, notifications do not contain what matters, so the device is read after
//! each.
//!
//! Invariants: at most one entry per device, and one for the node; either is read [`BURST`] times, whatever the reasons, and then
//! once in an interval that depends on the reason; at most [`READS_PER_CHECK`] devices are read at once because of bounds. So pods
//! that change something all the time cannot keep the worker busy.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::model::{BoundKind, IfIndex, Timestamp};

const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const BURST: u64 = 8;
const INTERVAL: Duration = Duration::from_secs(64);
/// For changes of addresses beyond the budget: what a pod has now is unknown until then.
const INTERVAL_OF_ADDRESS_CHANGES: Duration = Duration::from_secs(8);
/// For changes in a pod's namespace that only a read shows.
const INTERVAL_OF_NAMESPACE_CHANGES: Duration = Duration::from_secs(10);
const READS_PER_CHECK: usize = 4;
/// How long after the last refusal a bound counts as not reached: then the next refusal is named
/// again. By then, all reads of the burst are available again.
const RECOVERY: Duration = Duration::from_secs(600);
/// A snapshot that was requested so long ago has failed.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

impl BoundKind {
    /// Whether a snapshot contains what was refused.
    fn is_readable(self) -> bool {
        !matches!(self, Self::FrameClaims | Self::InternalAddresses)
    }

    /// Whether what a device's bound refused is in the pod's namespace.
    pub(crate) fn is_in_namespace(self) -> bool {
        matches!(
            self,
            Self::Addresses | Self::Assignments | Self::AddressChanges
        )
    }

    /// What is to be read after the bound of `owner` refused something.
    fn target(self, owner: ReadTarget) -> ReadTarget {
        if self.is_in_namespace() || self == Self::DeviceNeighbours {
            owner
        } else {
            ReadTarget::Node
        }
    }

    fn interval(self) -> Duration {
        if self == Self::AddressChanges {
            INTERVAL_OF_ADDRESS_CHANGES
        } else {
            INTERVAL
        }
    }
}

/// What is read, and whose bounds refuse something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReadTarget {
    Node,
    Device(IfIndex),
}

/// What one bound refused.
#[derive(Debug)]
struct Refusal {
    /// The position of the last refusal in the order of
    /// [`InFlightSnapshots`](crate::limits::in_flight_snapshots::InFlightSnapshots); `None` once a snapshot
    /// that started after it was merged.
    missing: Option<u64>,
    /// The first check after the last refusal.
    checked: Option<Timestamp>,
}

/// Why a target is to be read again, and when it was.
#[derive(Debug, Default)]
struct TargetReads {
    refused: BTreeMap<BoundKind, Refusal>,
    /// Something changed that only a read shows, and no read was requested since.
    has_changed: bool,
    /// How many reads of the burst were used up at the last one.
    used: u64,
    last: Timestamp,
    /// A snapshot was requested that is not merged yet.
    is_requested: bool,
}

impl TargetReads {
    /// When a read is available.
    fn next(&self, interval: Duration) -> Timestamp {
        if self.used < BURST {
            Timestamp(0)
        } else {
            self.last + interval
        }
    }

    /// Whether what bounds refused is being read.
    fn is_reading(&self, now: Timestamp) -> bool {
        self.is_requested && now.since(self.last) < READ_TIMEOUT
    }

    fn spend(&mut self, now: Timestamp, interval: Duration) {
        let available_again = now.since(self.last).as_secs() / interval.as_secs();
        self.used = self.used.saturating_sub(available_again) + 1;
        self.last = now;
        self.has_changed = false;
    }

    fn is_waiting(&self) -> bool {
        self.has_changed || !self.refused.is_empty()
    }

    fn is_remembered(&self, now: Timestamp) -> bool {
        self.used > 0 && now.since(self.last) < RECOVERY
    }

    /// A snapshot that started at this position contains what these bounds refused before.
    fn read(&mut self, started: u64, contains: impl Fn(BoundKind) -> bool) {
        for (bound, refusal) in &mut self.refused {
            if contains(*bound) {
                refusal.missing = refusal.missing.filter(|position| *position >= started);
            }
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct ReadSchedule {
    by_target: BTreeMap<ReadTarget, TargetReads>,
    /// Bounds to name, which had refused nothing for [`RECOVERY`].
    new: Vec<(ReadTarget, BoundKind)>,
    next_check: Option<Timestamp>,
}

impl ReadSchedule {
    /// Something was refused at a bound.
    pub(crate) fn refused(&mut self, owner: ReadTarget, bound: BoundKind, position: u64) {
        let refused = &mut self.by_target.entry(owner).or_default().refused;
        let refusal = Refusal {
            missing: bound.is_readable().then_some(position),
            checked: None,
        };
        if refused.insert(bound, refusal).is_none() {
            self.new.push((owner, bound));
        }
    }

    /// The bounds to name; also sees to the next check.
    pub(crate) fn take_new(&mut self, now: Timestamp) -> Vec<(ReadTarget, BoundKind)> {
        if !self.new.is_empty() {
            self.check_by(now + CHECK_INTERVAL);
        }
        std::mem::take(&mut self.new)
    }

    /// Something changed in the namespace of a device's pod that only a read shows.
    pub(crate) fn changed(&mut self, ifindex: IfIndex) {
        let reads = self
            .by_target
            .entry(ReadTarget::Device(ifindex))
            .or_default();
        reads.has_changed = true;
        let next = reads.next(INTERVAL_OF_NAMESPACE_CHANGES);
        self.check_by(next);
    }

    fn check_by(&mut self, time: Timestamp) {
        let next = self.next_check.unwrap_or(time);
        self.next_check = Some(next.min(time));
    }

    /// A snapshot of the node that started at this position is about to be merged. What it contains and was refused before is
    /// known again, or is refused again. The namespaces of pods follow one by one.
    pub(crate) fn node_read(&mut self, started: u64) {
        for (target, reads) in &mut self.by_target {
            let is_node = *target == ReadTarget::Node;
            reads.read(started, |bound| is_node || !bound.is_in_namespace());
            reads.is_requested = false;
        }
    }

    /// As [`ReadSchedule::node_read`], for a snapshot of a device. What is in the pod's namespace follows.
    pub(crate) fn device_read(&mut self, ifindex: IfIndex, started: u64) {
        if let Some(reads) = self.by_target.get_mut(&ReadTarget::Device(ifindex)) {
            reads.read(started, |bound| bound == BoundKind::DeviceNeighbours);
            reads.is_requested = false;
        }
    }

    /// As [`ReadSchedule::node_read`], for what is in the namespace of a device's pod.
    pub(crate) fn namespace_read(&mut self, ifindex: IfIndex, started: u64) {
        if let Some(reads) = self.by_target.get_mut(&ReadTarget::Device(ifindex)) {
            reads.read(started, BoundKind::is_in_namespace);
        }
    }

    /// Whether what is known about a device is incomplete, because a bound refused something on it or of the node.
    pub(crate) fn is_incomplete(&self, ifindex: IfIndex) -> bool {
        let targets = [ReadTarget::Device(ifindex), ReadTarget::Node];
        let reads = targets
            .iter()
            .filter_map(|target| self.by_target.get(target));
        let mut refused = reads.flat_map(|reads| reads.refused.values());
        refused.any(|refusal| refusal.missing.is_some())
    }

    /// A device is gone.
    pub(crate) fn remove(&mut self, ifindex: IfIndex) {
        self.by_target.remove(&ReadTarget::Device(ifindex));
    }

    /// When [`ReadSchedule::take_due`] is to be called.
    pub(crate) fn next_check(&self) -> Option<Timestamp> {
        self.next_check
    }

    /// What to read now: where something changed, or where a bound that refused something `has_room`.
    pub(crate) fn take_due(
        &mut self,
        now: Timestamp,
        has_room: impl Fn(ReadTarget, BoundKind) -> bool,
    ) -> Vec<ReadTarget> {
        if self.next_check.is_none_or(|at| at > now) {
            return Vec::new();
        }
        // With the shortest interval of the reasons of each.
        let mut wanted = BTreeMap::new();
        for (owner, reads) in &mut self.by_target {
            reads.refused.retain(|_, refusal| {
                let quiet = now.since(*refusal.checked.get_or_insert(now));
                refusal.missing.is_some() || quiet < RECOVERY
            });
            let refused = reads.refused.iter().filter(|(_, r)| r.missing.is_some());
            let refused = refused
                .map(|(bound, _)| *bound)
                .filter(|bound| has_room(*owner, *bound));
            let refused = refused.map(|bound| (bound.target(*owner), bound.interval()));
            let changed = reads
                .has_changed
                .then_some((*owner, INTERVAL_OF_NAMESPACE_CHANGES));
            for (target, interval) in refused.chain(changed) {
                let shortest = wanted.entry(target).or_insert(interval);
                *shortest = interval.min(*shortest);
            }
        }
        let mut next_check = now + CHECK_INTERVAL;
        let mut ready = BTreeSet::new();
        for (target, interval) in wanted {
            let reads = self.by_target.entry(target).or_default();
            let next = reads.next(interval);
            if next > now {
                next_check = next_check.min(next);
            } else if reads.has_changed || !reads.is_reading(now) {
                ready.insert((reads.last, target, interval));
            }
        }
        let mut left = READS_PER_CHECK;
        let mut due = Vec::new();
        // Those that have waited longest come first.
        for (_, target, interval) in ready {
            let reads = self.by_target.entry(target).or_default();
            let is_limited = target != ReadTarget::Node && !reads.has_changed;
            if is_limited && left == 0 {
                continue;
            }
            left -= usize::from(is_limited);
            reads.spend(now, interval);
            reads.is_requested = true;
            due.push(target);
        }
        self.by_target
            .retain(|_, reads| reads.is_waiting() || reads.is_remembered(now));
        let is_waiting = self.by_target.values().any(TargetReads::is_waiting);
        self.next_check = is_waiting.then_some(next_check);
        due
    }
}
