//! Conflicts with the same kind and the same claimants.

use std::collections::BTreeMap;

use detector_engine::{Confidence, ConflictKind, ConflictScope, diagnosis::Cause};
use detector_event::{
    ClaimantData, ConflictData, DiagnosisData, NewestBy,
    next_step::unknown_pod_of,
    summary::{self, scoped_address},
};

/// Addresses that a group lists; the others are counted.
const ADDRESSES: usize = 10;
/// Claimants that a group lists; the others are counted.
const CLAIMANTS: usize = 8;
/// Receivers of traffic that a group counts.
const RECEIVERS: usize = 16;

/// What a person has to know of the conflicts that have the same kind and the same claimants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConflictGroup {
    /// Their kind.
    pub(super) kind: ConflictKind,
    /// Whether the claimants are on one node.
    pub(super) scope: ConflictScope,
    /// `certain` if one of them is.
    pub(super) confidence: Confidence,
    /// Who claims the addresses, bounded.
    pub(super) claimants: Vec<GroupClaimant>,
    /// Further claimants.
    pub(super) claimants_omitted: usize,
    /// The claimant that is the newest one of all addresses, if that is known.
    pub(super) newest: Option<NewestClaimant>,
    /// The first of the addresses, each with its network and VLAN.
    pub(super) addresses: Vec<String>,
    /// For how many of the addresses the node's traffic goes to each device; under an empty name, for how many no route
    /// leads to a claimant.
    pub(super) receivers: BTreeMap<String, usize>,
    /// Why, if all of them have the same known cause.
    pub(super) cause: Option<GroupCause>,
}

/// The cause of a finding, or of several with the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupCause {
    /// The cause, which is known.
    pub(super) cause: Cause,
    /// That of the first finding in a sentence or two.
    pub(super) summary: String,
    /// What to do about it.
    pub(super) repair: String,
    /// Whether both are about many addresses.
    pub(super) is_of_many: bool,
}

impl GroupCause {
    /// The cause; `None` if it is not known.
    pub(super) fn of(diagnosis: Option<&DiagnosisData>) -> Option<Self> {
        let diagnosis = diagnosis.filter(|diagnosis| diagnosis.has_cause())?;
        Some(Self {
            cause: diagnosis.cause,
            summary: diagnosis.summary.clone(),
            repair: diagnosis.repair.clone(),
            is_of_many: diagnosis.affected.addresses > 1,
        })
    }

    /// What to do about `count` findings; `None` if the repair is that of the first one alone.
    pub(super) fn next_step(&self, count: usize) -> Option<String> {
        (self.is_of_many || count == 1).then(|| self.repair.clone())
    }

    /// For a message about `count` findings: the summary of one is not that of all.
    pub(super) fn text(&self, count: usize) -> String {
        match self.is_of_many || count == 1 {
            true => self.summary.clone(),
            false => format!("Of the first one: {}", self.summary),
        }
    }
}

/// The newest claimant of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewestClaimant {
    /// Its device.
    pub(super) device: String,
    /// How that is known.
    pub(super) by: NewestBy,
    /// Whether the allocation or the route of one of the addresses goes with it.
    pub(super) takes_address: bool,
}

impl NewestClaimant {
    fn of(data: &ConflictData) -> Option<Self> {
        let (newest, by) = data.newest()?;
        Some(Self {
            device: newest.device.clone(),
            by,
            takes_address: data.newest_takes_address(),
        })
    }
}

/// A claimant of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupClaimant {
    /// Its device.
    pub(super) device: String,
    /// How it is called in a sentence.
    pub(super) name: String,
    /// Whether it left one of the addresses.
    pub(super) has_left: bool,
    /// Whether its pod is known.
    pub(super) is_pod_known: bool,
    /// Whether it contests an address that another one holds.
    pub(super) is_contester: bool,
    /// Whether it is rightful; `None` if that is not known or differs between the addresses.
    pub(super) rightful: Option<bool>,
}

impl GroupClaimant {
    fn new(scope: ConflictScope, claimant: &ClaimantData) -> Self {
        Self {
            device: claimant.device.clone(),
            name: summary::claimant(scope, claimant),
            has_left: claimant.left.is_some(),
            is_pod_known: claimant.pod.is_some(),
            is_contester: false,
            rightful: claimant.rightful,
        }
    }
}

impl ConflictGroup {
    /// A group of one conflict.
    pub(super) fn new(first: &ConflictData) -> Self {
        let mut group = Self {
            kind: first.kind,
            scope: first.scope,
            confidence: first.confidence,
            claimants: Vec::new(),
            claimants_omitted: 0,
            newest: NewestClaimant::of(first),
            addresses: Vec::new(),
            receivers: BTreeMap::new(),
            cause: GroupCause::of(first.diagnosis.as_deref()),
        };
        group.add(first);
        group
    }

    /// Adds a conflict.
    pub(super) fn add(&mut self, data: &ConflictData) {
        if urgency(data.kind) > urgency(self.kind) {
            self.kind = data.kind;
        }
        self.confidence = self.confidence.max(data.confidence);
        if self.addresses.len() < ADDRESSES {
            self.addresses.push(scoped_address(data));
        }
        match (&mut self.newest, NewestClaimant::of(data)) {
            (Some(known), Some(newest)) if known.device == newest.device => {
                known.takes_address |= newest.takes_address;
            }
            (known, _) => *known = None,
        }
        let cause = data.diagnosis.as_deref().map(|diagnosis| diagnosis.cause);
        self.cause = self.cause.take().filter(|known| Some(known.cause) == cause);
        let receiver = data.traffic_goes_to.clone().unwrap_or_default();
        if self.receivers.len() < RECEIVERS || self.receivers.contains_key(&receiver) {
            *self.receivers.entry(receiver).or_default() += 1;
        }
        let mut listed = members(data);
        // The one that matters most is listed in any case.
        if listed.len() > CLAIMANTS {
            listed.sort_by_key(|c| data.traffic_goes_to.as_ref() != Some(&c.device));
        }
        let mut omitted = data.claimants_omitted;
        for claimant in listed {
            let new = GroupClaimant::new(data.scope, claimant);
            let mut known = self.claimants.iter_mut();
            if let Some(known) = known.find(|known| known.device == new.device) {
                if !known.is_pod_known {
                    (known.name, known.is_pod_known) = (new.name, new.is_pod_known);
                }
                known.has_left |= new.has_left;
                known.rightful = known.rightful.filter(|_| known.rightful == new.rightful);
            } else if self.claimants.len() < CLAIMANTS {
                self.claimants.push(new);
            } else {
                omitted += 1;
            }
        }
        self.claimants_omitted = self.claimants_omitted.max(omitted);
        for contester in data.suspects() {
            let mut known = self.claimants.iter_mut();
            if let Some(known) = known.find(|known| known.device == contester.device) {
                known.is_contester = true;
            }
        }
    }

    /// A group of these conflicts; `None` without any.
    pub(super) fn of<'c>(conflicts: impl IntoIterator<Item = &'c ConflictData>) -> Option<Self> {
        let mut conflicts = conflicts.into_iter();
        let mut group = Self::new(conflicts.next()?);
        for conflict in conflicts {
            group.add(conflict);
        }
        Some(group)
    }

    /// The name of a key of `receivers`.
    pub(super) fn receiver(&self, device: &str) -> Option<String> {
        (!device.is_empty()).then(|| self.name_of(device))
    }

    /// The pod of this device, for a sentence about what to do with it.
    pub(super) fn pod_of(&self, device: &str) -> String {
        let claimant = self.claimants.iter().find(|c| c.device == device);
        match claimant.filter(|claimant| claimant.is_pod_known) {
            Some(claimant) => claimant.name.clone(),
            None => unknown_pod_of(device),
        }
    }

    /// The claimant with this device, with its pod if that is known.
    pub(super) fn name_of(&self, device: &str) -> String {
        let claimant = self.claimants.iter().find(|c| c.device == device);
        claimant
            .map_or(device, |claimant| &claimant.name)
            .to_owned()
    }
}

/// The claimants that a message is about: the present ones, and at the end all.
pub(super) fn members(data: &ConflictData) -> Vec<&ClaimantData> {
    match data.is_resolved() {
        true => data.claimants.iter().collect(),
        false => data.present().collect(),
    }
}

fn urgency(kind: ConflictKind) -> u8 {
    match kind {
        ConflictKind::Flapping => 0,
        ConflictKind::Duplicate => 1,
        ConflictKind::Host => 2,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use detector_event::samples;

    use super::*;

    fn group(conflicts: &[ConflictData]) -> ConflictGroup {
        ConflictGroup::of(conflicts).unwrap()
    }

    #[test]
    fn cause_is_named_once_all_have_the_same_known_one() {
        let explained = |cause: Cause, addresses: usize| {
            let mut conflict = samples::raised("10.0.0.1").data;
            conflict.diagnosis = Some(samples::diagnosis(cause, addresses).into());
            conflict
        };
        let unknown = explained(Cause::Unknown, 1);
        let [wiped, other] = [Cause::IpamStateWiped, Cause::FramesOnly].map(|c| explained(c, 9));
        let unexplained = samples::raised("10.0.0.1").data;
        for without in [&unknown, &other, &unexplained] {
            assert_eq!(group(&[wiped.clone(), without.clone()]).cause, None);
        }
        assert_eq!(group(&[unknown]).cause, None);
        let cause = group(&[wiped.clone(), wiped]).cause.unwrap();
        assert_eq!(cause.text(2), cause.summary);
        let of_one = group(&[explained(Cause::FramesOnly, 1)]).cause.unwrap();
        assert_eq!(of_one.text(1), of_one.summary);
        assert!(of_one.text(2).starts_with("Of the first one: "));
    }

    #[test]
    fn newest_claimant_is_the_same_for_all_addresses_or_unknown() {
        let with_newest = |device: usize| {
            let mut conflict = samples::raised("10.0.0.1").data;
            conflict.claimants[device].newest = true;
            conflict.claimants[device].newest_by = Some(NewestBy::Sandbox);
            conflict
        };
        let newest = |conflicts: &[ConflictData]| group(conflicts).newest.map(|n| n.device);
        let [first, second] = [0, 1].map(with_newest);
        let same = [second.clone(), second.clone()];
        assert_eq!(newest(&same).as_deref(), Some("veth-b"));
        assert_eq!(newest(&[second.clone(), first, second.clone()]), None);
        let unknown = samples::raised("10.0.0.1").data;
        assert_eq!(newest(&[second, unknown]), None);
    }

    #[test]
    fn lists_are_bounded() {
        let mut conflicts = vec![samples::raised("10.0.0.1").data; 200];
        for (n, conflict) in conflicts.iter_mut().enumerate() {
            conflict.claimants = (0..64)
                .map(|device| samples::claimant(&format!("veth{n}-{device}"), None))
                .collect();
            conflict.traffic_goes_to = Some(format!("veth{n}-63"));
        }
        let group = group(&conflicts[..1]);
        assert_eq!((group.claimants.len(), group.claimants_omitted), (8, 56));
        assert_eq!(group.receiver("veth0-63").unwrap(), "veth0-63");
        let all = ConflictGroup::of(&conflicts).unwrap();
        assert_eq!((all.claimants.len(), all.addresses.len()), (8, 10));
        assert_eq!(all.receivers.len(), RECEIVERS);
    }
}
