//! What a message about the rest of a storm of conflicts contains.

use detector_engine::ConflictKind;
use detector_event::{Change, SubjectKind, guidance::Severity};

use super::Notice;
use crate::sinks::digest::Digest;

pub(super) fn storm(digest: &Digest) -> Notice {
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
        cause: String::new(),
        next_step,
        changed: Vec::new(),
        list,
        context: format!("certain · {} · {}", digest.since, digest.digest_id),
        node: node.clone(),
    }
}
