//! Conflicts with the same kind and the same claimants.

use std::collections::BTreeMap;

use detector_engine::{Confidence, ConflictKind, diagnosis::Cause};
use detector_event::{
    ClaimantData, ConflictData, DiagnosisData, NewestBy, names,
    next_step::unknown_pod_of,
    summary::{pod_name, scoped_address},
};
use serde::{Deserialize, Serialize};

/// Addresses that a group lists; the others are counted.
const ADDRESSES: usize = 10;
/// Claimants that a group lists; the others are counted.
const CLAIMANTS: usize = 8;
/// Receivers of traffic that a group counts.
const RECEIVERS: usize = 16;

/// What a person has to know of the conflicts that have the same kind and the same claimants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictGroup {
    /// Their kind.
    #[serde(with = "names::name")]
    pub kind: ConflictKind,
    /// `certain` if one of them is.
    #[serde(with = "names::name")]
    pub confidence: Confidence,
    /// Who claims the addresses, bounded.
    pub claimants: Vec<GroupClaimant>,
    /// Further claimants.
    #[serde(default)]
    pub claimants_omitted: usize,
    /// The claimant that is the newest one of all addresses, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<NewestClaimant>,
    /// The first of the addresses, each with its network and VLAN.
    pub addresses: Vec<String>,
    /// For how many of the addresses the node's traffic goes to each device; under an empty name, for how many no route
    /// leads to a claimant.
    pub receivers: BTreeMap<String, usize>,
    /// Why, if all of them have the same known cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<GroupCause>,
}

/// The cause of a finding, or of several with the same one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCause {
    /// The cause, which is known.
    #[serde(with = "names::name")]
    pub cause: Cause,
    /// That of the first finding in a sentence or two.
    pub summary: String,
    /// Whether the summary is about many addresses.
    pub is_of_many: bool,
}

impl GroupCause {
    /// The cause; `None` if it is not known.
    #[must_use]
    pub fn of(diagnosis: Option<&DiagnosisData>) -> Option<Self> {
        let diagnosis = diagnosis.filter(|diagnosis| diagnosis.cause != Cause::Unknown)?;
        Some(Self {
            cause: diagnosis.cause,
            summary: diagnosis.summary.clone(),
            is_of_many: diagnosis.affected.addresses > 1,
        })
    }

    /// For a message about `count` findings: the summary of one is not that of all.
    #[must_use]
    pub fn text(&self, count: usize) -> String {
        match self.is_of_many || count == 1 {
            true => self.summary.clone(),
            false => format!("Of the first one: {}", self.summary),
        }
    }

    /// What to say if it differs from that of the message before.
    #[must_use]
    pub fn change(now: Option<&Self>, before: Option<&Self>) -> Option<String> {
        let now = now?;
        let is_new = before.is_none_or(|before| before.cause != now.cause);
        is_new.then(|| format!("the cause is known: {}", now.cause.name().replace('_', " ")))
    }
}

/// The newest claimant of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewestClaimant {
    /// Its device.
    pub device: String,
    /// How that is known.
    pub by: NewestBy,
    /// Whether the allocation or the route of one of the addresses goes with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_address: bool,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupClaimant {
    /// Its device.
    pub device: String,
    /// Its pod, `namespace/name`.
    pub pod: Option<String>,
    /// Whether it contests an address that another one has.
    pub contests: bool,
    /// Whether it is rightful; `None` if that is not known or differs between the addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rightful: Option<bool>,
}

impl GroupClaimant {
    fn new(claimant: &ClaimantData) -> Self {
        Self {
            device: claimant.device.clone(),
            pod: claimant.pod.as_deref().map(pod_name),
            contests: false,
            rightful: claimant.rightful,
        }
    }

    /// `default/a (veth1)`, or the device alone.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.pod {
            Some(pod) => format!("{pod} ({})", self.device),
            None => self.device.clone(),
        }
    }
}

impl ConflictGroup {
    /// A group of one conflict.
    #[must_use]
    pub fn new(first: &ConflictData) -> Self {
        let mut group = Self {
            kind: first.kind,
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
    pub fn add(&mut self, data: &ConflictData) {
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
        let mut listed: Vec<_> = data.present().collect();
        if listed.is_empty() {
            listed = data.claimants.iter().collect();
        }
        // Those that matter most are listed in any case.
        listed.sort_by_key(|c| data.traffic_goes_to.as_ref() != Some(&c.device));
        let mut omitted = data.claimants_omitted;
        for claimant in listed {
            let new = GroupClaimant::new(claimant);
            let mut known = self.claimants.iter_mut();
            if let Some(known) = known.find(|known| known.device == new.device) {
                known.pod = known.pod.take().or(new.pod);
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
                known.contests = true;
            }
        }
        self.claimants.sort_by(|a, b| a.device.cmp(&b.device));
    }

    /// A group of these conflicts; `None` without any.
    #[cfg(test)]
    pub(crate) fn of<'c>(conflicts: impl IntoIterator<Item = &'c ConflictData>) -> Option<Self> {
        let mut conflicts = conflicts.into_iter();
        let mut group = Self::new(conflicts.next()?);
        for conflict in conflicts {
            group.add(conflict);
        }
        Some(group)
    }

    /// Names pods that are unknown for the moment, as after a restart, as `before` did.
    pub fn keep_pods(&mut self, before: &Self) {
        for claimant in &mut self.claimants {
            let mut known = before.claimants.iter();
            let known = known.find(|known| known.device == claimant.device);
            if let (None, Some(known)) = (&claimant.pod, known) {
                claimant.pod.clone_from(&known.pod);
            }
        }
    }

    /// What a person should know of the difference to `before`, one sentence each. Fewer addresses and times make no
    /// difference.
    #[must_use]
    pub fn changes_since(&self, before: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        for claimant in &self.claimants {
            let mut known = before.claimants.iter();
            match known.find(|known| known.device == claimant.device) {
                None => changes.push(format!("{} is a further claimant", claimant.name())),
                Some(known) if known.pod != claimant.pod => {
                    if let Some(pod) = &claimant.pod {
                        changes.push(format!("{} is the device of {pod}", claimant.device));
                    }
                }
                Some(_) => {}
            }
        }
        for known in &before.claimants {
            if self.claimants_omitted == 0
                && !self.claimants.iter().any(|c| c.device == known.device)
            {
                changes.push(format!("{} is no longer a claimant", known.name()));
            }
        }
        if self.kind != before.kind {
            changes.push(format!("the kind is {} now", self.kind.name()));
        }
        if self.confidence > before.confidence {
            changes.push(format!("the evidence is {} now", self.confidence.name()));
        }
        if let (Some(newest), None) = (&self.newest, &before.newest) {
            let name = self.name_of(&newest.device);
            changes.push(format!("{name} is known to be the newest claimant"));
        }
        for receiver in self.receivers.keys() {
            if !before.receivers.contains_key(receiver) {
                changes.push(match self.receiver(receiver) {
                    Some(name) => format!("traffic goes to {name} now"),
                    None => "no route leads to a claimant now".to_owned(),
                });
            }
        }
        changes.extend(GroupCause::change(
            self.cause.as_ref(),
            before.cause.as_ref(),
        ));
        changes
    }

    /// The name of a key of `receivers`.
    #[must_use]
    pub fn receiver(&self, device: &str) -> Option<String> {
        (!device.is_empty()).then(|| self.name_of(device))
    }

    /// The pod of this device, for a sentence about what to do with it.
    #[must_use]
    pub fn pod_of(&self, device: &str) -> String {
        let claimant = self.claimants.iter().find(|c| c.device == device);
        match claimant.filter(|claimant| claimant.pod.is_some()) {
            Some(claimant) => claimant.name(),
            None => unknown_pod_of(device),
        }
    }

    /// The claimant with this device, with its pod if that is known.
    #[must_use]
    pub fn name_of(&self, device: &str) -> String {
        let claimant = self.claimants.iter().find(|c| c.device == device);
        claimant.map_or_else(|| device.to_owned(), GroupClaimant::name)
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

    use detector_event::{WallTime, samples};

    use super::*;

    fn group(conflicts: &[ConflictData]) -> ConflictGroup {
        ConflictGroup::of(conflicts).unwrap()
    }

    #[test]
    fn what_a_person_would_not_notice_is_no_change() {
        let before = samples::raised("10.0.0.1").data;
        let mut now = before.clone();
        now.updated_at = WallTime::now();
        now.latency_us = 7;
        for claimant in &mut now.claimants {
            claimant.evidence[0].last_seen = WallTime::now();
            // As right after a restart.
            claimant.pod = None;
        }
        let (before, mut now) = (group(&[before]), group(&[now]));
        now.keep_pods(&before);
        assert_eq!(now.changes_since(&before), [""; 0]);
        assert_eq!(now.claimants, before.claimants, "the names are kept");
    }

    #[test]
    fn each_change_is_named() {
        let mut before = samples::raised("10.0.0.1").data;
        before.confidence = Confidence::Observed;
        before.claimants[1].pod = None;
        let mut now = samples::raised("10.0.0.1").data;
        now.kind = ConflictKind::Host;
        now.traffic_goes_to = None;
        now.claimants.push(samples::claimant("veth-c", Some("c")));
        let changes = group(&[now.clone()]).changes_since(&group(&[before.clone()]));
        assert_eq!(
            changes,
            [
                "veth-b is the device of default/b",
                "default/c (veth-c) is a further claimant",
                "the kind is host now",
                "the evidence is certain now",
                "no route leads to a claimant now",
            ]
        );
        let back = group(&[before]).changes_since(&group(&[now]));
        assert_eq!(
            back,
            [
                "default/c (veth-c) is no longer a claimant",
                "the kind is duplicate now",
                "traffic goes to default/a (veth-a) now",
            ]
        );
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
        let (before, now) = (group(&[unexplained]), group(&[wiped.clone(), wiped]));
        let changes = now.changes_since(&before);
        assert_eq!(changes, ["the cause is known: ipam state wiped"]);
        assert_eq!(now.changes_since(&now), [""; 0]);
        let cause = now.cause.unwrap();
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
        assert_eq!(newest(&[second.clone(), unknown.clone()]), None);
        let changes = group(&[second]).changes_since(&group(&[unknown]));
        assert_eq!(
            changes,
            ["default/b (veth-b) is known to be the newest claimant"]
        );
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
