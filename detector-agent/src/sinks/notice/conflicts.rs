//! What a message about conflicts with the same claimants contains.

use detector_engine::ConflictKind;
use detector_event::{
    SubjectKind,
    next_step::{ConflictSituation, Rights},
    summary::{enumeration, on_node},
};

use super::{
    Facts, Notice,
    conflict_group::{ConflictGroup, GroupClaimant},
};

/// Claimants named in a line; the others are counted.
const NAMED: usize = 4;

/// A group of conflicts in one message.
pub(super) struct ConflictFacts<'m> {
    pub(super) group: &'m ConflictGroup,
    pub(super) of: &'m Facts<'m>,
}

impl ConflictFacts<'_> {
    pub(super) fn notice(&self) -> Notice {
        let Self { group, of } = self;
        let kind = SubjectKind::Conflict(group.kind);
        let is_resolved = of.is_resolved();
        let title = if self.of.count == 1 {
            "IP conflict"
        } else {
            "IP conflicts"
        };
        let list = enumeration(
            group.addresses.clone(),
            self.of.count.saturating_sub(group.addresses.len()),
        );
        let cause = group.cause.clone().filter(|_| !is_resolved);
        Notice {
            change: of.change,
            severity: kind.severity(),
            kind,
            title,
            finding: self.finding(),
            effect: if is_resolved {
                String::new()
            } else {
                self.effect()
            },
            cause: cause.map_or_else(String::new, |cause| cause.text(of.count)),
            next_step: if is_resolved {
                String::new()
            } else {
                self.next_step()
            },
            changed: of.changed.clone(),
            list: list.filter(|_| self.of.count > 1).into_iter().collect(),
            context: format!(
                "{} · {} · {}",
                group.kind.name(),
                group.confidence.name(),
                of.since()
            ),
            node: of.node.to_owned(),
            subject: of.subject,
        }
    }

    fn finding(&self) -> String {
        let group = self.group;
        let on = on_node(group.scope, self.of.node, self.of.cluster);
        let (addresses, is, moves, them) = match (self.of.count, group.addresses.first()) {
            (1, Some(address)) => (address.clone(), "is", "moves", "it"),
            (count, _) => (format!("{count} addresses"), "are", "move", "them"),
        };
        let claimants = self.claimants(|_| true).unwrap_or_default();
        if self.of.is_resolved() {
            let lasted = self.of.lasted();
            let kept: Vec<_> = group.claimants.iter().filter(|c| !c.has_left).collect();
            let kept = match (group.kind, &kept[..]) {
                (ConflictKind::Duplicate | ConflictKind::Host, [one]) => {
                    format!(", and {} kept {them}", one.name)
                }
                _ => String::new(),
            };
            return format!(
                "{addresses} {is} no longer in conflict{on}; {claimants} claimed {them} for {lasted}{kept}"
            );
        }
        match group.kind {
            ConflictKind::Flapping => {
                format!("{addresses} {moves} too often between {claimants}{on}")
            }
            ConflictKind::Duplicate | ConflictKind::Host => {
                format!("{addresses} {is} claimed by {claimants}{on}")
            }
        }
    }

    fn effect(&self) -> String {
        let group = self.group;
        let them = if self.of.count == 1 { "it" } else { "them" };
        let mut receivers: Vec<_> = group.receivers.iter().collect();
        receivers.sort_by_key(|(_, addresses)| std::cmp::Reverse(**addresses));
        if let [(device, _)] = receivers[..] {
            let Some(receiver) = group.receiver(device) else {
                return format!(
                    "The node sends its traffic for {them} to none of the claimants: no route or no neighbour entry leads to one."
                );
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
        let cause = group.cause.as_ref();
        if let Some(repair) = cause.and_then(|cause| cause.next_step(self.of.count)) {
            return repair;
        }
        let newest = group.newest.as_ref();
        let is_other =
            |c: &GroupClaimant| newest.is_some_and(|n| n.takes_address && n.device != c.device);
        let situation = ConflictSituation {
            node: self.of.node,
            kind: group.kind,
            confidence: group.confidence,
            has_many_addresses: self.of.count != 1,
            pods: &|| self.claimants(|claimant| claimant.is_pod_known),
            suspects: &|| self.claimants(|claimant| claimant.is_contester),
            rights: Rights::of(group.claimants.iter().map(|claimant| claimant.rightful)),
            rightful: &|| self.claimants(|claimant| claimant.rightful == Some(true)),
            not_rightful: &|| self.claimants(|claimant| claimant.rightful == Some(false)),
            to_recreate: &|| self.claimants(is_other),
            newest: newest.map(|newest| (group.pod_of(&newest.device), newest.by)),
        };
        situation.next_step()
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
        let names = names.iter().take(NAMED).map(|c| c.name.clone());
        enumeration(names.collect(), more)
    }
}
