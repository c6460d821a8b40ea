//! What was refused at bounds: named once, and read again once there is room.
//!
//! The kernel reports a change once, so what was refused is unknown until it is read again. Once a
//! second the engine looks whether a bound that refused something has room again, and requests a
//! snapshot.
//!
//! Invariants: at most one entry per device, and one for the node; a device, or the node, is read
//! again after a pause that doubles with every read from [`MIN_PAUSE`] to [`MAX_PAUSE`] (or
//! [`MAX_PAUSE_OF_CHANGES`]), and at most [`READS_PER_CHECK`] devices at once, so that pods that add
//! and remove addresses cannot keep the worker busy.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::model::{
    effect::BoundKind,
    observation::{IfIndex, Timestamp},
};

const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(64);
/// For changes of addresses: what a pod has now is unknown until then.
const MAX_PAUSE_OF_CHANGES: Duration = Duration::from_secs(8);
const READS_PER_CHECK: usize = 4;
/// How long after the last refusal a bound counts as not reached: then the pause starts again at
/// [`MIN_PAUSE`], and the next refusal is named again.
const RECOVERY: Duration = Duration::from_secs(600);
/// A snapshot that was requested so long ago has failed.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

impl BoundKind {
    /// The name used in the log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Addresses => "addresses of a pod device",
            Self::FurtherAddresses => "addresses on further interfaces of a pod",
            Self::Assignments => "assignments of one address",
            Self::AddressChanges => "changes of the addresses of a pod device in a second",
            Self::FrameClaims => "claims of a device in frames",
            Self::DeviceNeighbours => "neighbour entries of a pod device",
            Self::PortForwarding => "forwarding entries of a port",
            Self::Links => "links",
            Self::HostAddresses => "addresses of the node",
            Self::Neighbours => "neighbour entries",
            Self::Forwarding => "forwarding entries",
            Self::Routes => "routes",
        }
    }

    /// Whether a snapshot contains what was refused.
    fn is_readable(self) -> bool {
        !matches!(self, Self::FrameClaims | Self::FurtherAddresses)
    }

    /// Whether a snapshot of the device whose bound it is contains what was refused.
    fn is_of_device(self) -> bool {
        matches!(
            self,
            Self::Addresses | Self::Assignments | Self::AddressChanges | Self::DeviceNeighbours
        )
    }
}

/// Whose bound it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BoundOwner {
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

/// When the owner of bounds was read again, and may be next.
#[derive(Debug, Default)]
struct Pace {
    pause: Duration,
    next: Timestamp,
    /// When a snapshot was requested that is not merged yet.
    requested: Option<Timestamp>,
}

impl Pace {
    fn is_ready(&self, now: Timestamp) -> bool {
        let is_reading = self
            .requested
            .is_some_and(|at| now.since(at) < READ_TIMEOUT);
        now >= self.next && !is_reading
    }

    fn is_remembered(&self, now: Timestamp) -> bool {
        !self.pause.is_zero() && now < self.next + RECOVERY
    }

    fn requested(&mut self, now: Timestamp, longest: Duration) {
        self.pause = (self.pause * 2).clamp(MIN_PAUSE, longest);
        self.next = now + self.pause;
        self.requested = Some(now);
    }
}

#[derive(Debug, Default)]
struct OwnerRefusals {
    bounds: BTreeMap<BoundKind, Refusal>,
    pace: Pace,
}

impl OwnerRefusals {
    fn requested(&mut self, now: Timestamp) {
        let changes = self.bounds.get(&BoundKind::AddressChanges);
        let longest = match changes.is_some_and(|refusal| refusal.missing.is_some()) {
            true => MAX_PAUSE_OF_CHANGES,
            false => MAX_PAUSE,
        };
        self.pace.requested(now, longest);
    }
}

/// What to read again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DueReads {
    pub(crate) node: bool,
    pub(crate) devices: Vec<IfIndex>,
}

#[derive(Debug, Default)]
pub(crate) struct Refusals {
    by_owner: BTreeMap<BoundOwner, OwnerRefusals>,
    /// Bounds to name, which had refused nothing for [`RECOVERY`].
    new: Vec<(BoundOwner, BoundKind)>,
    next_check: Option<Timestamp>,
}

impl Refusals {
    /// Something was refused at a bound.
    pub(crate) fn note(&mut self, owner: BoundOwner, bound: BoundKind, position: u64) {
        let bounds = &mut self.by_owner.entry(owner).or_default().bounds;
        let refusal = Refusal {
            missing: bound.is_readable().then_some(position),
            checked: None,
        };
        if bounds.insert(bound, refusal).is_none() {
            self.new.push((owner, bound));
        }
    }

    /// The bounds to name; also sees to the next check.
    pub(crate) fn take_new(&mut self, now: Timestamp) -> Vec<(BoundOwner, BoundKind)> {
        if !self.new.is_empty() {
            self.next_check.get_or_insert(now + CHECK_INTERVAL);
        }
        std::mem::take(&mut self.new)
    }

    /// A snapshot that started at this position is about to be merged: what it contains and was
    /// refused before is known again, or is refused again.
    pub(crate) fn read(&mut self, owner: BoundOwner, bounds: &[BoundKind], started: u64) {
        let Some(refusals) = self.by_owner.get_mut(&owner) else {
            return;
        };
        for bound in bounds {
            if let Some(refusal) = refusals.bounds.get_mut(bound) {
                refusal.missing = refusal.missing.filter(|position| *position >= started);
            }
        }
    }

    /// A snapshot of the node is about to be merged. The addresses of pods follow one by one.
    pub(crate) fn node_read(&mut self, started: u64) {
        const READ: [BoundKind; 7] = [
            BoundKind::DeviceNeighbours,
            BoundKind::PortForwarding,
            BoundKind::Links,
            BoundKind::HostAddresses,
            BoundKind::Neighbours,
            BoundKind::Forwarding,
            BoundKind::Routes,
        ];
        for owner in self.by_owner.keys().copied().collect::<Vec<_>>() {
            self.read(owner, &READ, started);
        }
        self.read(BoundOwner::Node, &[BoundKind::Assignments], started);
        self.read_done(BoundOwner::Node);
    }

    /// The requested snapshot was merged.
    pub(crate) fn read_done(&mut self, owner: BoundOwner) {
        if let Some(refusals) = self.by_owner.get_mut(&owner) {
            refusals.pace.requested = None;
        }
    }

    /// Whether something that was refused on a device, or of the node's neighbours, is unknown.
    pub(crate) fn lacks(&self, ifindex: IfIndex) -> bool {
        [BoundOwner::Device(ifindex), BoundOwner::Node]
            .into_iter()
            .any(|owner| {
                let refusals = self.by_owner.get(&owner);
                let mut bounds = refusals.into_iter().flat_map(|r| r.bounds.values());
                bounds.any(|refusal| refusal.missing.is_some())
            })
    }

    /// A device is gone.
    pub(crate) fn remove(&mut self, ifindex: IfIndex) {
        self.by_owner.remove(&BoundOwner::Device(ifindex));
    }

    /// When [`Refusals::check`] is due.
    pub(crate) fn next_check(&self) -> Option<Timestamp> {
        self.next_check
    }

    /// What to read again at `now`, because a bound that refused something `has_room`.
    pub(crate) fn check(
        &mut self,
        now: Timestamp,
        has_room: impl Fn(BoundOwner, BoundKind) -> bool,
    ) -> DueReads {
        let mut node = false;
        let mut devices = BTreeSet::new();
        for (owner, refusals) in &mut self.by_owner {
            refusals.bounds.retain(|_, refusal| {
                let quiet = now.since(*refusal.checked.get_or_insert(now));
                refusal.missing.is_some() || quiet < RECOVERY
            });
            let missing = refusals.bounds.iter().filter(|(_, r)| r.missing.is_some());
            for (bound, _) in missing.filter(|(bound, _)| has_room(*owner, **bound)) {
                match owner {
                    BoundOwner::Device(ifindex) if bound.is_of_device() => {
                        if refusals.pace.is_ready(now) {
                            devices.insert((refusals.pace.next, *ifindex));
                        }
                    }
                    BoundOwner::Device(_) | BoundOwner::Node => node = true,
                }
            }
        }
        let node_pace = || self.by_owner.get(&BoundOwner::Node).map(|r| &r.pace);
        node &= node_pace().is_none_or(|pace| pace.is_ready(now));
        if node {
            let owner = self.by_owner.entry(BoundOwner::Node).or_default();
            owner.requested(now);
        }
        // Those that have waited longest come first.
        let devices: Vec<_> = devices.into_iter().take(READS_PER_CHECK).collect();
        let devices: Vec<_> = devices.into_iter().map(|(_, ifindex)| ifindex).collect();
        for ifindex in &devices {
            if let Some(refusals) = self.by_owner.get_mut(&BoundOwner::Device(*ifindex)) {
                refusals.requested(now);
            }
        }
        self.by_owner
            .retain(|_, r| !r.bounds.is_empty() || r.pace.is_remembered(now));
        let is_idle = self.by_owner.is_empty();
        self.next_check = (!is_idle).then(|| now + CHECK_INTERVAL);
        DueReads { node, devices }
    }
}
