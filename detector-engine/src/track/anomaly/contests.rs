//! Which devices contest the addresses of which open conflicts.

use std::{collections::BTreeSet, net::IpAddr};

use crate::{
    hash::{HashMap, with_room},
    index::Index,
    model::{
        Claimant, ClaimantId, Confidence, Conflict, ConflictId, ConflictKind, Contested, DeviceKey,
        Timestamp,
    },
};

/// The most contested addresses listed.
const LISTED: usize = 16;

/// An open conflict and the devices that contest its address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Contest {
    raised_at: Timestamp,
    conflict: ConflictId,
    by: Vec<DeviceKey>,
    /// The claimant to which the node sends the traffic.
    receiver: Option<ClaimantId>,
}

/// The contested conflicts, by address and by device.
#[derive(Debug)]
pub(crate) struct Contests {
    by_address: HashMap<IpAddr, Vec<Contest>>,
    /// The conflicts that each device contests, the oldest first.
    by_device: Index<DeviceKey, (Timestamp, ConflictId, IpAddr)>,
    /// Of the conflicts that each device contests: how many have their traffic sent to it, and how many to others.
    receivers: HashMap<DeviceKey, (usize, usize)>,
}

impl Default for Contests {
    fn default() -> Self {
        Self {
            by_address: with_room(),
            by_device: Index::default(),
            receivers: with_room(),
        }
    }
}

impl Contests {
    /// Replaces what is known about the conflicts of one address. `changed` gets each device for which that changed something, some
    /// of them twice.
    pub(super) fn replace<'c>(
        &mut self,
        address: IpAddr,
        open: impl Iterator<Item = &'c Conflict>,
        changed: impl FnMut(DeviceKey),
    ) {
        let contests: Vec<_> = open
            .map(|conflict| Contest {
                raised_at: conflict.raised_at,
                conflict: conflict.id,
                by: contesters(conflict),
                receiver: receiver(conflict),
            })
            .filter(|contest| !contest.by.is_empty())
            .collect();
        let before = match self.by_address.get(&address) {
            Some(before) if *before == contests => return,
            None if contests.is_empty() => return,
            _ => self.by_address.remove(&address).unwrap_or_default(),
        };
        for (contest, device) in by_device(&before) {
            let contested = (contest.raised_at, contest.conflict, address);
            self.by_device.remove(device, &contested);
            if let Some(count) = self.receiver_count(contest, device) {
                *count -= 1;
            }
            if self.by_device.len_of(&device) == 0 {
                self.receivers.remove(&device);
            }
        }
        for (contest, device) in by_device(&contests) {
            let contested = (contest.raised_at, contest.conflict, address);
            self.by_device.insert(device, contested);
            if let Some(count) = self.receiver_count(contest, device) {
                *count += 1;
            }
        }
        let devices = by_device(&before).chain(by_device(&contests));
        devices.map(|(_, device)| device).for_each(changed);
        if !contests.is_empty() {
            self.by_address.insert(address, contests);
        }
    }

    /// Where a contest counts among those of the device.
    fn receiver_count(&mut self, contest: &Contest, device: DeviceKey) -> Option<&mut usize> {
        let receiver = contest.receiver?;
        let (own, others) = self.receivers.entry(device).or_default();
        Some(if receiver.device() == Some(device) {
            own
        } else {
            others
        })
    }

    /// The devices that contest the address of a conflict; none if it is not known.
    pub(super) fn contesters(&self, address: IpAddr, conflict: ConflictId) -> &[DeviceKey] {
        let mut contests = self.by_address.get(&address).into_iter().flatten();
        let contest = contests.find(|contest| contest.conflict == conflict);
        contest.map_or(&[], |contest| &contest.by)
    }

    /// The devices that contest an address, and at least `count` in all.
    pub(crate) fn contesters_of(&self, address: IpAddr, count: usize) -> BTreeSet<DeviceKey> {
        let contests = self.by_address.get(&address).into_iter().flatten();
        let devices = contests.flat_map(|contest| &contest.by).copied();
        devices.filter(|d| self.count(*d) >= count).collect()
    }

    /// The addresses that a device contests.
    pub(crate) fn addresses(&self, device: DeviceKey) -> BTreeSet<IpAddr> {
        let contested = self.by_device.of(&device);
        contested.map(|(.., address)| *address).collect()
    }

    /// How many conflicts a device contests.
    pub(super) fn count(&self, device: DeviceKey) -> usize {
        self.by_device.len_of(&device)
    }

    /// What a device contests: the number, and the oldest addresses.
    pub(super) fn contested(&self, device: DeviceKey) -> Contested {
        let oldest = self.by_device.of(&device).take(LISTED);
        let (diverted, kept) = self.receivers.get(&device).copied().unwrap_or_default();
        Contested {
            count: self.count(device),
            diverted,
            kept,
            first: oldest.map(|(.., address)| *address).collect(),
        }
    }
}

fn by_device(contests: &[Contest]) -> impl Iterator<Item = (&Contest, DeviceKey)> {
    let contests = contests.iter();
    contests.flat_map(|contest| contest.by.iter().map(move |device| (contest, *device)))
}

/// The devices that contest the address of a conflict: those of all claimants but the owner. If a record gives the address
/// to one claimant, that is the owner; otherwise one with certain evidence is, else the oldest whose stack is not the kernel's
/// (frames are all that it can show), else the oldest. Without a single owner no device contests, since a sweep hides the conflict.
fn contesters(conflict: &Conflict) -> Vec<DeviceKey> {
    let is_eligible = conflict.kind != ConflictKind::Flapping
        && conflict.confidence == Confidence::Observed
        // One that is not listed may be any device.
        && conflict.claimants_omitted == 0;
    let Some(owner) = owner(conflict).filter(|_| is_eligible) else {
        return Vec::new();
    };
    // Others with certain evidence are internal interfaces of the owner's pod, or the conflict would be certain, or share the
    // address on their `lo`.
    let has_rightful = conflict.present().any(|c| c.rightful == Some(true));
    let is_owner = |c: &Claimant| c.id == owner || (!has_rightful && c.is_certain());
    conflict
        .present()
        .filter(|c| !is_owner(c))
        // Of one that is no device, there is none to name.
        .map(|c| c.id.device())
        .collect::<Option<_>>()
        .unwrap_or_default()
}

fn receiver(conflict: &Conflict) -> Option<ClaimantId> {
    let receiver = conflict.traffic_goes_to.as_ref()?;
    let mut present = conflict.present();
    Some(present.find(|c| c.device == *receiver)?.id)
}

fn owner(conflict: &Conflict) -> Option<ClaimantId> {
    let mut rightful = conflict.present().filter(|c| c.rightful == Some(true));
    if let Some(owner) = rightful.next() {
        return rightful.next().is_none().then_some(owner.id);
    }
    if let Some(certain) = conflict.present().find(|c| c.is_certain()) {
        // A program's frames were there before the address was assigned.
        let is_taken = certain.is_newest && conflict.present().any(|c| c.has_own_stack);
        return (!is_taken).then_some(certain.id);
    }
    let oldest = conflict
        .present()
        .min_by_key(|c| (!c.has_own_stack, c.since));
    oldest.map(|c| c.id)
}
