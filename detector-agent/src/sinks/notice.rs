//! What a message or an alert for a person contains, whatever its receiver: the finding, what happens to traffic, what to do, and
//! where to read on.
//!
//! The texts contain names of pods and devices, which are untrusted: the format of the receiver escapes them.

use std::time::Duration;

use crate::{
    clock::WallTime,
    engine::{Confidence, ConflictKind},
    event::{
        AnomalyEvent, AnyEvent, Change, Event, SubjectKind,
        guidance::{Severity, anomaly_effect, anomaly_next_step},
        summary::{anomaly_line, anomaly_subject, anomaly_title, enumeration, resolve_reason},
    },
    sinks::{
        digest::{ConflictGroup, Digest, GroupClaimant},
        message::Message,
    },
};

/// Claimants named in a line; the others are counted.
const NAMED: usize = 4;

/// A message to a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sinks) struct Notice {
    pub(in crate::sinks) change: Change,
    pub(in crate::sinks) severity: Severity,
    pub(in crate::sinks) kind: SubjectKind,
    /// What it is: `IP conflict`.
    pub(in crate::sinks) title: &'static str,
    /// What was found, with the pods' names.
    pub(in crate::sinks) finding: String,
    /// What happens to traffic; empty once it is over.
    pub(in crate::sinks) effect: String,
    /// What to do; empty once it is over.
    pub(in crate::sinks) next_step: String,
    /// What changed since the message before.
    pub(in crate::sinks) changed: Vec<String>,
    /// Further addresses or conflicts, one line each.
    pub(in crate::sinks) list: Vec<String>,
    /// Kind, confidence, time and id.
    pub(in crate::sinks) context: String,
    pub(in crate::sinks) node: String,
}

impl Notice {
    pub(in crate::sinks) fn new(message: &Message) -> Self {
        match message {
            Message::Event(AnyEvent::Conflict(event)) => conflict(event),
            Message::Event(AnyEvent::Anomaly(event)) => anomaly(event),
            Message::Digest(digest) => match &digest.group {
                Some(group) => GroupFacts::of_digest(digest, group).notice(),
                None => storm(digest),
            },
        }
    }

    /// `IP conflict detected`.
    pub(in crate::sinks) fn heading(&self) -> String {
        let word = match self.change {
            Change::Raised => "detected",
            Change::Updated => "updated",
            Change::Resolved => "resolved",
        };
        format!("{} {word}", self.title)
    }
}

/// A group of conflicts in one message.
struct GroupFacts<'g> {
    group: &'g ConflictGroup,
    change: Change,
    node: &'g str,
    /// How many conflicts the message is about.
    count: usize,
    since: WallTime,
    lasted: Duration,
    changed: &'g [String],
    id: String,
}

impl<'g> GroupFacts<'g> {
    fn of_digest(digest: &'g Digest, group: &'g ConflictGroup) -> Self {
        let is_over = digest.change == Change::Resolved || digest.active == 0;
        Self {
            group,
            change: digest.change,
            node: &digest.node,
            count: if is_over { digest.total } else { digest.active },
            since: digest.since,
            lasted: digest.time.since(digest.since),
            changed: &digest.changed,
            id: digest.digest_id.to_string(),
        }
    }

    fn notice(&self) -> Notice {
        let Self { group, change, .. } = self;
        let kind = SubjectKind::Conflict(group.kind);
        let is_resolved = *change == Change::Resolved;
        let title = if self.count == 1 {
            "IP conflict"
        } else {
            "IP conflicts"
        };
        let list = enumeration(
            group.addresses.clone(),
            self.count.saturating_sub(group.addresses.len()),
        );
        Notice {
            change: *change,
            severity: Severity::of(kind, Some(group.confidence)),
            kind,
            title,
            finding: self.finding(),
            effect: if is_resolved {
                String::new()
            } else {
                self.effect()
            },
            next_step: if is_resolved {
                String::new()
            } else {
                self.next_step()
            },
            changed: self.changed.to_vec(),
            list: list.filter(|_| self.count > 1).into_iter().collect(),
            context: format!(
                "{} · {} · {} · {}",
                group.kind.name(),
                group.confidence.name(),
                self.since,
                self.id
            ),
            node: self.node.to_owned(),
        }
    }

    fn finding(&self) -> String {
        let (node, group) = (self.node, self.group);
        let (addresses, is, moves, them) = match (self.count, group.addresses.first()) {
            (1, Some(address)) => (address.clone(), "is", "moves", "it"),
            (count, _) => (format!("{count} addresses"), "are", "move", "them"),
        };
        let claimants = self.claimants(|_| true).unwrap_or_default();
        if self.change == Change::Resolved {
            let lasted = Duration::from_secs(self.lasted.as_secs().max(1));
            let lasted = humantime::format_duration(lasted);
            return format!(
                "{addresses} {is} no longer in conflict on {node}; {claimants} claimed {them} for {lasted}"
            );
        }
        match group.kind {
            ConflictKind::Flapping => {
                format!("{addresses} {moves} too often between {claimants} on {node}")
            }
            ConflictKind::Duplicate | ConflictKind::Host => {
                format!("{addresses} {is} claimed by {claimants} on {node}")
            }
        }
    }

    fn effect(&self) -> String {
        let group = self.group;
        let them = if self.count == 1 { "it" } else { "them" };
        let mut receivers: Vec<_> = group.receivers.iter().collect();
        receivers.sort_by_key(|(_, addresses)| std::cmp::Reverse(**addresses));
        if let [(device, _)] = receivers[..] {
            let Some(receiver) = group.receiver(device) else {
                return "No route of the node leads to any of them.".to_owned();
            };
            let others = self.claimants(|claimant| claimant.device != *device);
            return match others {
                Some(others) => {
                    format!("Traffic for {them} goes to {receiver}; none of it goes to {others}.")
                }
                None => format!("Traffic for {them} goes to {receiver}."),
            };
        }
        let parts =
            receivers
                .iter()
                .take(NAMED)
                .map(|(device, count)| match group.receiver(device) {
                    Some(receiver) => format!("for {count} of the addresses to {receiver}"),
                    None => format!("for {count} of them to no claimant"),
                });
        let more = receivers.len().saturating_sub(NAMED);
        let parts = enumeration(parts.collect(), more).unwrap_or_default();
        format!("Traffic goes {parts}.")
    }

    fn next_step(&self) -> String {
        let group = self.group;
        let them = if self.count == 1 { "it" } else { "them" };
        match (group.kind, group.confidence) {
            (ConflictKind::Host, _) => {
                match self.claimants(|claimant| claimant.pod.is_some()) {
                    Some(pods) => format!(
                        "Delete the pod first, whatever else is wrong: an address of the node serves every pod on it. Pods that claim {them}: {pods}."
                    ),
                    None => "Find the pod of the device (see the runbook) and delete it first: an address of the node serves every pod on it.".to_owned(),
                }
            }
            (ConflictKind::Flapping, _) => {
                "Check the election between the holders (keepalived, kube-vip, MetalLB); deleting a pod does not help.".to_owned()
            }
            (ConflictKind::Duplicate, Confidence::Observed) => {
                let contesters = self.claimants(|claimant| claimant.contests);
                let contesters = contesters.unwrap_or_else(|| "the pod".to_owned());
                format!(
                    "Only ARP or NDP shows the claim of {contesters}: check whether that pod is meant to answer for {them} (a VIP, a proxy); otherwise delete it."
                )
            }
            (ConflictKind::Duplicate, Confidence::Certain) => match &group.newest {
                Some(newest) => format!(
                    "Delete {}, the newest claimant, {}; the controller of the pod creates it again with another address.",
                    group.name_of(&newest.device),
                    newest.by.text()
                ),
                None => "Delete the pod that came last: the runbook shows how to find out which one that is.".to_owned(),
            },
        }
    }

    fn claimants(&self, wanted: impl Fn(&GroupClaimant) -> bool) -> Option<String> {
        let all = &self.group.claimants;
        let names: Vec<_> = all.iter().filter(|c| wanted(c)).collect();
        let omitted = if names.len() == all.len() {
            self.group.claimants_omitted
        } else {
            0
        };
        let more = names.len().saturating_sub(NAMED) + omitted;
        let names = names.iter().take(NAMED).map(|c| c.name());
        enumeration(names.collect(), more)
    }
}

/// An event of its own: one that an earlier version of the agent stored.
fn conflict(event: &Event) -> Notice {
    let data = &event.data;
    GroupFacts {
        group: &ConflictGroup::new(data),
        change: event.event_type.change,
        node: &data.node,
        count: 1,
        since: data.raised_at,
        lasted: data.updated_at.since(data.raised_at),
        changed: &[],
        id: data.conflict_id.to_string(),
    }
    .notice()
}

fn anomaly(event: &AnomalyEvent) -> Notice {
    let (data, change) = (&event.data, event.event_type.change);
    let kind = SubjectKind::Anomaly(data.kind);
    let (finding, effect, next_step) = if data.is_resolved() {
        let subject = anomaly_subject(data);
        let finding = format!("{subject} on {}: {}", data.node, resolve_reason(data));
        (finding, String::new(), String::new())
    } else {
        let effect = anomaly_effect(data).to_owned();
        (anomaly_line(data), effect, anomaly_next_step(data))
    };
    Notice {
        change,
        severity: Severity::of(kind, None),
        kind,
        title: anomaly_title(data.kind),
        finding,
        effect,
        next_step,
        changed: Vec::new(),
        list: Vec::new(),
        context: format!(
            "{} · {} · {}",
            data.kind.name(),
            data.raised_at,
            data.anomaly_id
        ),
        node: data.node.clone(),
    }
}

fn storm(digest: &Digest) -> Notice {
    let node = &digest.node;
    let kind = SubjectKind::Conflict(ConflictKind::Duplicate);
    let more = match digest.joined {
        1 => "1 more address is".to_owned(),
        joined => format!("{joined} more addresses are"),
    };
    let finding = match digest.change {
        Change::Raised => format!("{more} claimed by several pods on {node}"),
        Change::Updated => format!(
            "{more} claimed by several pods on {node}; {} of {} since {} are in conflict now",
            digest.active, digest.total, digest.since
        ),
        Change::Resolved => format!(
            "the last of {} conflicts since {} on {node} is over",
            digest.total, digest.since
        ),
    };
    let (effect, next_step) = if digest.change == Change::Resolved {
        (String::new(), String::new())
    } else {
        (
            "Of each pair of pods only one receives the traffic for its address.".to_owned(),
            format!(
                "IPAM on {node} probably assigns addresses that are in use: keep new pods off the node (kubectl cordon {node}), then find out why."
            ),
        )
    };
    let mut list: Vec<_> = digest
        .entries
        .iter()
        .map(|entry| format!("{}: {}", entry.address, entry.claimants))
        .collect();
    let omitted = digest.joined.saturating_sub(list.len());
    if omitted > 0 {
        list.push(format!("and {omitted} more, see the node's status page"));
    }
    Notice {
        change: digest.change,
        severity: Severity::Critical,
        kind,
        title: "IP conflicts",
        finding,
        effect,
        next_step,
        changed: Vec::new(),
        list,
        context: format!("certain · {} · {}", digest.since, digest.digest_id),
        node: node.clone(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use super::*;
    use crate::{
        engine::{EvidenceKind, LeaveReason, ResolveReason},
        event::{ConflictData, NewestBy, ResolvedBecause, SubjectState, samples},
    };

    fn headline(notice: &Notice) -> String {
        format!("{}: {}", notice.heading(), notice.finding)
    }

    fn lines(message: &Message) -> [String; 3] {
        let notice = Notice::new(message);
        [headline(&notice), notice.effect, notice.next_step]
    }

    fn group(change: Change, conflicts: &[ConflictData]) -> Message {
        let digest = Digest {
            id: "1".to_owned(),
            digest_id: samples::subject_id("group"),
            change,
            node: "node-1".to_owned(),
            time: samples::time().after(Duration::from_secs(200)),
            since: samples::time(),
            active: conflicts.len(),
            total: conflicts.len(),
            joined: 0,
            entries: Vec::new(),
            group: ConflictGroup::of(conflicts),
            changed: Vec::new(),
        };
        Message::Digest(digest.into())
    }

    fn shared(count: usize) -> Vec<ConflictData> {
        (1..=count)
            .map(|n| samples::raised(&format!("10.0.0.{n}")).data)
            .collect()
    }

    #[test]
    fn finding_traffic_and_next_step_of_one_address() {
        assert_eq!(
            lines(&group(Change::Raised, &shared(1))),
            [
                "IP conflict detected: 10.0.0.1 is claimed by default/a (veth-a) and default/b (veth-b) on node-1",
                "Traffic for it goes to default/a (veth-a); none of it goes to default/b (veth-b).",
                "Delete the pod that came last: the runbook shows how to find out which one that is.",
            ]
        );
        let mut conflicts = shared(1);
        conflicts[0].claimants[1].newest = true;
        conflicts[0].claimants[1].newest_by = Some(NewestBy::FirstSight);
        let [.., step] = lines(&group(Change::Raised, &conflicts));
        assert_eq!(
            step,
            "Delete default/b (veth-b), the newest claimant, by when the agent saw the claims begin; the controller of the pod creates it again with another address."
        );
    }

    #[test]
    fn many_addresses_of_the_same_pods_are_counted() {
        let mut conflicts = shared(200);
        let message = group(Change::Raised, &conflicts);
        let [finding, effect, _] = lines(&message);
        assert_eq!(
            finding,
            "IP conflicts detected: 200 addresses are claimed by default/a (veth-a) and default/b (veth-b) on node-1"
        );
        assert!(
            effect.starts_with("Traffic for them goes to default/a"),
            "{effect}"
        );
        let list = Notice::new(&message).list;
        assert_eq!(list.len(), 1);
        assert!(list[0].starts_with("10.0.0.1, 10.0.0.2, "), "{list:?}");
        assert!(list[0].ends_with(" and 190 more"), "{list:?}");
        for conflict in &mut conflicts[..50] {
            conflict.traffic_goes_to = Some("veth-b".to_owned());
        }
        conflicts[199].traffic_goes_to = None;
        let [_, effect, _] = lines(&group(Change::Updated, &conflicts));
        assert_eq!(
            effect,
            "Traffic goes for 149 of the addresses to default/a (veth-a), for 50 of the addresses to default/b (veth-b) and for 1 of them to no claimant."
        );
    }

    #[test]
    fn next_step_depends_on_kind_and_confidence() {
        let mut conflict = shared(1).remove(0);
        conflict.confidence = Confidence::Observed;
        conflict.claimants[1].evidence[0].kind = EvidenceKind::Arp;
        let step = |conflict: &ConflictData| {
            let message = group(Change::Raised, std::slice::from_ref(conflict));
            Notice::new(&message).next_step
        };
        let text = step(&conflict);
        assert!(
            text.starts_with("Only ARP or NDP shows the claim of default/b (veth-b):"),
            "{text}"
        );
        conflict.kind = ConflictKind::Host;
        conflict.claimants[0].pod = None;
        let text = step(&conflict);
        assert!(text.ends_with("claim it: default/b (veth-b)."), "{text}");
        conflict.kind = ConflictKind::Flapping;
        let text = step(&conflict);
        assert!(text.contains("election"), "{text}");
    }

    #[test]
    fn a_resolved_group_names_its_pods_and_asks_for_nothing() {
        let mut conflicts = shared(3);
        for claimant in &mut conflicts[0].claimants {
            claimant.left = Some(LeaveReason::DeviceRemoved);
        }
        assert_eq!(
            lines(&group(Change::Resolved, &conflicts)),
            [
                "IP conflicts resolved: 3 addresses are no longer in conflict on node-1; default/a (veth-a) and default/b (veth-b) claimed them for 3m 20s",
                "",
                "",
            ]
        );
    }

    #[test]
    fn a_resolved_drift_reads_as_resolved() {
        let mut event = samples::drift("10.0.0.1");
        let [finding, effect, step] = lines(&Message::Event(event.clone().into()));
        assert!(
            finding.starts_with("IPAM drift detected: 10.0.0.1 of default/a"),
            "{finding}"
        );
        assert!(effect.contains("not affected yet"), "{effect}");
        assert!(step.contains("kubectl cordon node-1"), "{step}");
        event.event_type.change = Change::Resolved;
        event.data.state = SubjectState::Resolved;
        event.data.resolved_because = Some(ResolvedBecause::Seen(ResolveReason::Allocated));
        assert_eq!(
            lines(&Message::Event(event.into())),
            [
                "IPAM drift resolved: 10.0.0.1 of default/a (veth-a) on node-1: the address is allocated again",
                "",
                "",
            ]
        );
    }

    #[test]
    fn a_storm_says_how_many_and_lists_the_first() {
        let Message::Digest(digest) = group(Change::Raised, &shared(1)) else {
            unreachable!()
        };
        let storm = |change, joined: usize| {
            let entry = crate::sinks::digest::DigestEntry {
                address: "10.0.0.9".to_owned(),
                claimants: "x and y".to_owned(),
            };
            let digest = Digest {
                change,
                joined,
                entries: vec![entry; joined.min(10)],
                group: None,
                ..Digest::clone(&digest)
            };
            Notice::new(&Message::Digest(digest.into()))
        };
        let raised = storm(Change::Raised, 197);
        assert_eq!(
            headline(&raised),
            "IP conflicts detected: 197 more addresses are claimed by several pods on node-1"
        );
        assert_eq!(raised.list[0], "10.0.0.9: x and y");
        assert_eq!(raised.list[10], "and 187 more, see the node's status page");
        let resolved = storm(Change::Resolved, 0);
        assert!(
            resolved.finding.ends_with("on node-1 is over"),
            "{resolved:?}"
        );
        assert_eq!(resolved.next_step, "");
    }
}
