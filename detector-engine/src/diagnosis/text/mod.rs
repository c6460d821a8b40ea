//! What a diagnosis says to people. The texts contain names of pods and devices as they are: the code that shows them cleans them.

pub(super) mod evidence;
mod repair;
mod summary;

pub(super) use repair::repair;
pub(super) use summary::summary;

use crate::diagnosis::facts::{Facts, FindingKind};

/// Names in a sentence; the others are counted.
const NAMED: usize = 4;

/// The claimant's pod.
pub(super) fn pod(facts: &Facts, index: usize) -> String {
    let claimant = &facts.claimants[index];
    match claimant.pod.value() {
        Some(pod) => pod.name.clone(),
        None => format!("the pod of {}", claimant.device),
    }
}

/// The claimants' pods; `None` if there are none.
fn pods(facts: &Facts, of: impl Iterator<Item = usize>) -> Option<String> {
    enumeration(of.map(|index| pod(facts, index)).collect())
}

/// `a, b and c`; of many the first ones and a number.
fn enumeration(mut names: Vec<String>) -> Option<String> {
    let more = names.len().saturating_sub(NAMED);
    if more > 0 {
        names.truncate(NAMED);
        names.push(format!("{more} more"));
    }
    let last = names.pop()?;
    Some(if names.is_empty() {
        last
    } else {
        format!("{} and {last}", names.join(", "))
    })
}

/// `1 pod`, `2 pods`.
fn counted(count: usize, one: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {one}s"),
    }
}

/// Whether the finding is a conflict of pods.
fn is_conflict(facts: &Facts) -> bool {
    matches!(facts.finding, FindingKind::Conflict(_))
}
